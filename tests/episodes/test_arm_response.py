"""Delay, lag and gain of an arm, found again in what it did; against an integration that shares no
code with the fit.
"""

from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes.arm_response import _error, _simulate_tool, _track, identify
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.types import Episode
from rlinf_core.recipes import load_recipe
from sim_bridges.core.station import simulated_station
from tests.messages import record


def episode(executed, velocity, step=0.1):
    count = len(executed)
    return Episode(
        "a-1",
        "a",
        "train",
        0,
        True,
        False,
        False,
        0,
        "",
        "",
        ("",) * (count + 1),
        {"tcp_velocity": velocity},
        executed,
        executed,
        ("policy",) * count,
        ((),) * count,
        np.zeros(count),
        np.ones(count),
        np.arange(count + 1) * round(step * 1e9),
    )


def driven(delay, lag, gain, seed, steps=60, noise=0.0, step=0.1):
    """Euler's method at a tenth of a millisecond."""
    random, fine = np.random.default_rng(seed), 1e-4
    executed = random.uniform(-0.03, 0.03, (steps, 3))
    speed, velocities = np.zeros(3), [np.zeros(3)]
    for k in range(round(steps * step / fine)):
        index = int((k * fine - delay) // step)
        u = executed[index] / step if index >= 0 else np.zeros(3)
        speed = speed + fine / lag * (gain * u - speed)
        if (k + 1) % round(step / fine) == 0:
            velocities.append(speed.copy())
    return episode(
        executed, np.array(velocities) + noise * random.normal(size=(steps + 1, 3)), step
    )


@pytest.mark.parametrize(
    "delay, lag, gain", [(0.0, 0.05, 1.0), (0.08, 0.12, 0.9), (0.23, 0.3, 1.0), (0.165, 0.08, 1.0)]
)
def test_what_was_put_in_is_found(delay, lag, gain):
    response = identify([driven(delay, lag, gain, seed) for seed in range(2)])
    assert response.delay_s == pytest.approx(delay, abs=0.006)
    assert response.lag_s == pytest.approx(lag, abs=0.01)
    assert response.gain == pytest.approx(gain, abs=0.02)
    assert response.explained > 0.99


def test_a_motion_of_a_millimetre_a_second_is_enough():
    fast = driven(0.1, 0.15, 0.9, 0, steps=15)
    slow = episode(0.005 * fast.executed, 0.005 * fast.observations["tcp_velocity"])
    response = identify([slow])
    assert response.gain == pytest.approx(0.9, abs=0.03)
    assert 0.97 < response.explained <= 1.0


def test_noise_is_averaged_out():
    response = identify([driven(0.1, 0.15, 1.0, seed, noise=0.03) for seed in range(6)])
    assert (response.delay_s, response.lag_s) == (
        pytest.approx(0.1, abs=0.02),
        pytest.approx(0.15, abs=0.03),
    )
    assert 0.8 < response.explained < 1.0


@pytest.mark.parametrize("delay_s, lag_s", [(0.3, 0.0), (0.0, 0.4)])
def test_a_randomised_simulators_delay_and_lag_are_found(delay_s, lag_s):
    """The commands go through physics and its own controller, which has some lag of its own."""
    baseline = identify([played("simulation.interlock=true")])
    changed = f"simulation.randomise={{delay_s: {delay_s}, lag_s: {lag_s}}}"
    response, simulator = identify([played("simulation.interlock=true", changed)]), played.simulator
    assert response.delay_s + response.lag_s - baseline.delay_s - baseline.lag_s == pytest.approx(
        simulator.delay_ticks * simulator.tick_s + simulator.lag_s, abs=0.06
    )


def played(*overrides, scene=3, steps=60):
    station = simulated_station(load_recipe("sim_pick_rlpd", ["station.robot=fetch", *overrides]))
    random, executed = np.random.default_rng(0), []
    velocities = [station.reset(scene)["tcp_velocity"]]
    for k in range(steps):
        action = (
            0.5 * np.sign(np.sin(0.7 * k + np.array([0, 2, 4, 0]))) * random.uniform(0.5, 1.0, 4)
        )
        velocities.append(station.step(action)[0]["tcp_velocity"])
        executed.append(station.task.spec.action.to_si(station.executed))
    played.simulator = station.simulator
    return episode(np.array(executed), np.array(velocities))


def test_without_motion_or_a_velocity_it_is_said_what_to_record():
    still = episode(np.zeros((5, 3)), np.zeros((6, 3)))
    with pytest.raises(EpisodeError, match=r"expected a moving tool, .*\. Record some episodes"):
        identify([still])
    with pytest.raises(EpisodeError, match=r"expected an observation 'speed' of shape \(3,\)"):
        identify([still], "speed")


def test_the_command_reads_recordings_and_says_when_there_are_none(tmp_path, task, capsys):
    spool = Spool(tmp_path / "spool")
    writer = record(spool, task.spec, steps=12)
    writer.close()
    assert main(["find-dynamics", str(tmp_path), "--json", str(tmp_path / "out.json")]) == 0
    output = capsys.readouterr().out
    assert "1 episodes; the model accounts for" in output and "for simulation.randomise" in output
    assert main(["find-dynamics", str(tmp_path / "nothing")]) == 1
    assert "nothing: expected a recording, or a folder with some" in capsys.readouterr().err


def test_takes_that_were_set_aside_are_left_out_and_each_episode_counts_once(
    tmp_path, task, capsys
):
    for name in ("spool", "inbox"):
        spool = Spool(tmp_path / name, min_free_mb=0)
        record(spool, task.spec, "a-1", steps=12).close()
    record(spool, task.spec, "a-2", steps=12).abort()  # whole, and yet announced as lost
    assert main(["find-dynamics", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "1 episodes" in output
    assert (
        f"left out: {spool.root}/broken/a-2: no SHA256SUMS: it was interrupted or aborted" in output
    )


@pytest.mark.parametrize(
    "stamps", [lambda count: np.zeros(count), lambda count: -np.arange(count) * 10**8]
)
def test_stamps_that_do_not_increase_are_refused(stamps):
    """A recording from outside: it was a division by zero."""
    recorded = driven(0.1, 0.1, 1.0, 0)
    recorded = replace(recorded, stamps_ns=stamps(len(recorded.stamps_ns)).astype(np.int64))
    with pytest.raises(
        EpisodeError, match="episode a-1: expected stamps of time steps that increase, got"
    ):
        identify([recorded])


def test_a_sum_of_squared_speeds_of_one_millionth_is_enough():
    """One millimetre a second in one time step: at half of it nothing could be fitted."""
    velocity = np.zeros((5, 3))
    velocity[2, 0] = 1e-3
    executed = np.zeros((4, 3))
    executed[1, 0] = 1e-4
    assert identify([episode(executed, velocity)]).gain > 0.0
    with pytest.raises(EpisodeError) as refused:
        identify([episode(executed, velocity / 2)] * 2)
    assert str(refused.value) == (
        "2 episodes: expected a moving tool, got a sum of squared speeds of 5.0e-07. Record some "
        "episodes in which the tool moves to and fro"
    )
    with pytest.raises(EpisodeError, match="0 episodes: expected a moving tool"):
        identify([])


@pytest.mark.parametrize("speeds, actions", [(2, 3), (3, 2), (4, 3)])
def test_a_velocity_has_three_axes_and_actions_at_least_three(speeds, actions):
    wrong = episode(np.zeros((5, actions)), np.ones((6, speeds)))
    wrong.observations["force"] = np.ones((6, 1))
    with pytest.raises(EpisodeError) as refused:
        identify([wrong])
    assert str(refused.value) == (
        "episode a-1: expected an observation 'tcp_velocity' of shape (3,) and actions of at "
        f"least 3 dimensions, got tcp_velocity ({speeds},), force (1,) and actions of {actions}"
    )


def test_further_dimensions_of_an_action_such_as_the_gripper_do_not_count():
    plain = driven(0.1, 0.1, 1.0, 0, steps=12)
    with_gripper = np.append(plain.executed, np.full((12, 1), 9.0), axis=1)
    assert identify([replace(plain, executed=with_gripper)]) == identify([plain])


def test_several_arms_are_refused_by_name():
    with pytest.raises(EpisodeError, match="a-1: expected one arm, got left, right. Several arms"):
        identify([replace(driven(0.1, 0.1, 1.0, 0, steps=5), arms=("left", "right"))])


@pytest.mark.parametrize("delay, lag", [(0.0, 0.1), (0.05, 0.1), (0.13, 0.02), (0.3, 0.5)])
def test_a_simulated_tool_follows_the_solution_of_the_lag(delay, lag):
    """A step of 1 m/s after the delay: 1 - exp(-t / lag), at the ends of the time steps."""
    speeds = _simulate_tool(np.ones((6, 1)), 0.1, delay, lag)[:, 0]
    since = np.maximum(np.arange(1, 7) * 0.1 - delay, 0.0)
    assert speeds == pytest.approx(1.0 - np.exp(-since / lag), abs=1e-9)


def test_the_gain_is_the_one_of_least_squares():
    commanded = np.random.default_rng(0).normal(size=(20, 3))
    predicted = _simulate_tool(commanded, 0.1, 0.05, 0.1)
    measured = np.append(np.full((1, 3), 99.0), 0.7 * predicted, axis=0)
    error, gain = _error([(commanded, measured, 0.1)] * 2, 0.05, 0.1)
    assert (error, gain) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.7))
    measured[1, 0] += 0.5
    predicted, target = predicted.ravel(), measured[1:].ravel()
    (expected,), (residual,), *_ = np.linalg.lstsq(predicted[:, None], target, rcond=None)
    error, gain = _error([(commanded, measured, 0.1)] * 2, 0.05, 0.1)
    assert (error, gain) == (pytest.approx(2 * residual), pytest.approx(expected))
    assert _error([(np.zeros((20, 3)), measured, 0.1)], 0.05, 0.1)[1] == 0.0


def test_speeds_and_durations_are_in_si_units():
    """Recorded velocities may be whole numbers; a step of 0.2 s moves twice as far."""
    commands, velocities, step = _track(
        episode(np.full((3, 4), 0.1), np.ones((4, 3), np.int32), step=0.2), "tcp_velocity"
    )
    assert step == pytest.approx(0.2, rel=1e-12) and velocities.dtype == float
    assert commands == pytest.approx(np.full((3, 3), 0.5), rel=1e-12)
