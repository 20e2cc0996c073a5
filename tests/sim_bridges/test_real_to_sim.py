"""A simulator fitted to recordings of an arm with hidden delay, gain, friction and camera pose."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml

from rlinf_core.cli.main import main
from rlinf_core.core.errors import EpisodeError, RecipeError, RlinfError
from rlinf_core.episodes.types import Episode
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.recipes.schema import Dynamics
from rlinf_core.specs.arrays import ArraySpec
from sim_bridges.core import real_to_sim
from sim_bridges.core.station import simulated_station

SIM = load_recipe("sim_rlpd", ["simulation.interlock=false"])
TASK = station_task(SIM)
CAMERA = ["station.observe_cameras=[front]", "station.image_size=[64,64]"]


def recorded(*overrides, seed=100, steps=24, press=False):
    """An episode of a moving tool, or of one that presses on the socket's rim and slides."""
    station = simulated_station(load_recipe("sim_rlpd", ["simulation.interlock=false", *overrides]))
    spec, random = station.task.spec, np.random.default_rng(seed)
    observation = station.reset(seed)
    observed, executed = {name: [value] for name, value in observation.items()}, []
    for step in range(steps):
        if press:
            aim = observation["socket_offset"] + [0.0205, 0.01 * np.sin(0.6 * step), 0.012]
            action = np.clip(aim / 0.06, -0.8, 0.8)
            if step > 24:
                action[2] = -0.25
        else:
            action = random.uniform(-0.7, 0.7, 3) if step % 4 == 0 else action
        observation = station.step(action)[0]
        executed.append(spec.action.to_si(station.executed))
        for name, value in observation.items():
            observed[name].append(value)
    count = len(executed)
    return Episode(
        f"a-{seed}",
        "a",
        "train",
        seed,
        False,
        False,
        True,
        0,
        spec.hash,
        "",
        ("",) * (count + 1),
        {name: np.array(values) for name, values in observed.items()},
        np.array(executed),
        np.array(executed),
        ("policy",) * count,
        ((),) * count,
        np.zeros(count),
        np.ones(count),
        np.arange(count + 1) * 10**8,
    )


def test_a_replay_in_the_same_simulator_has_no_error():
    result = real_to_sim.replay(simulated_station(SIM), recorded())
    assert result.arranged and result.tool_mm.max() < 0.2 and len(result.tool_mm) == 25


def test_a_late_and_weak_arm_is_found():
    hidden = "simulation.dynamics={delay_s: 0.2, gain: 0.8}"
    episodes = [recorded(hidden, seed=seed) for seed in (100, 101)]
    lines = []
    fit = real_to_sim.fit(SIM, episodes, lines.append)
    assert fit.dynamics.delay_s == pytest.approx(0.2, rel=0.1)
    assert fit.dynamics.gain == pytest.approx(0.8, rel=0.1)
    assert fit.after_mm < 0.3 * fit.before_mm
    assert "no recorded contact" in lines[-1]


def test_friction_is_found_where_the_tool_slides():
    episodes = [recorded("station.options.friction=0.8", seed=101, steps=40, press=True)]
    player = real_to_sim.Player(SIM)
    friction = real_to_sim.fit_friction(player, TASK.spec, Dynamics(), episodes)
    assert friction == pytest.approx(0.8, rel=0.1)


def test_a_camera_that_was_moved_is_found():
    hidden = np.array([0.02, -0.015, 0.02, 0.03, -0.03, 0.02])
    moved = f"station.options.front_camera={hidden.tolist()}"
    episodes = [recorded(moved, *CAMERA, seed=seed, steps=20) for seed in (100, 101, 102)]
    offset, (before, after) = real_to_sim.fit_camera(
        load_recipe("sim_rlpd", CAMERA), "front", "front", episodes
    )
    assert np.linalg.norm(offset - hidden) < 0.1 * np.linalg.norm(hidden)
    assert after < 0.3 * before


def test_another_robots_recording_is_refused():
    episode = recorded(steps=3)
    del episode.observations["force"]
    with pytest.raises(EpisodeError, match="got none called force"):
        real_to_sim.replay(simulated_station(SIM), episode)


def test_a_damaged_recording_is_refused_by_its_time_step():
    station = simulated_station(SIM)
    for name, value, message in (
        ("force", np.nan, "'force': expected finite numbers, got .*nan.* at time step 2"),
        ("tcp_position", np.inf, "'tcp_position': expected finite numbers, .* at time step 2"),
    ):
        episode = recorded(steps=3)
        episode.observations[name][2, 0] = value
        with pytest.raises(EpisodeError, match=message):
            real_to_sim.replay(station, episode)
    episode = recorded(steps=3)
    episode.observations["force"] = episode.observations["force"][:-1]
    with pytest.raises(EpisodeError, match="'force': expected shape"):
        real_to_sim.replay(station, episode)
    episode = recorded(steps=3)
    episode.executed[1, 0] = np.nan
    with pytest.raises(EpisodeError, match="expected finite actions, got .* at time step 1"):
        real_to_sim.replay(station, episode)


@pytest.mark.parametrize("length", [0.0, 0.5])
def test_a_pose_without_a_rotation_is_refused_by_its_time_step(length):
    pose = ArraySpec("tool", (7,), source="current_pose", take="all")
    spec = replace(TASK.spec, observation=(pose,))
    poses = np.tile([0.5, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0], (4, 1))
    episode = replace(recorded(steps=3), observations={"tool": poses})
    assert real_to_sim.recorded_channels(spec, episode)[2]["current_pose"][6] == 1.0
    poses[2, 3:] *= length
    with pytest.raises(EpisodeError, match="'tool': .*quaternion xyzw of length 1.* time step 2"):
        real_to_sim.recorded_channels(spec, episode)


def test_damaged_pictures_are_refused_in_the_fit_of_a_camera():
    recipe = load_recipe("sim_rlpd", CAMERA)
    episode = recorded(*CAMERA, steps=3)
    for pictures in (
        np.full((4, 64, 64, 3), np.nan),
        np.zeros((4, 64, 64, 4), np.uint8),
        np.zeros((4, 64, 64), np.uint8),
    ):
        episode.observations["front"] = pictures
        with pytest.raises(RlinfError, match=f"episode {episode.id}: camera front: expected frame"):
            real_to_sim.fit_camera(recipe, "front", "front", [episode])
    small = replace(episode, id="b-1", observations=dict(episode.observations))
    episode.observations["front"] = np.zeros((4, 64, 64, 3), np.uint8)
    small.observations["front"] = np.zeros((4, 32, 32, 3), np.uint8)
    with pytest.raises(RlinfError, match="episode b-1: camera front: expected frames of shape"):
        real_to_sim.fit_camera(recipe, "front", "front", [episode, small])


def test_existing_files_are_refused_before_the_work(tmp_path, monkeypatch, capsys):
    def never(*_):
        raise AssertionError("the command read a recording")

    monkeypatch.setattr("rlinf_core.episodes.read.read_episode", never)
    monkeypatch.setattr("rlinf_core.cli.real_to_sim.intact_episodes", never)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("defaults: sim_rlpd\n")
    find = ["find-dynamics", str(tmp_path), "--recipe", "sim_rlpd", "--out"]
    assert main([*find, str(recipe)]) == 1
    assert f"--out {recipe}: expected a new file" in capsys.readouterr().err
    replay = ["replay", str(tmp_path), "--in-sim", "--recipe", "sim_rlpd"]
    assert main([*replay, "--out", str(tmp_path / "run")]) == 1
    assert "expected no --out with --in-sim" in capsys.readouterr().err
    assert main(["replay", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "expected a new or an empty folder, got an existing folder" in capsys.readouterr().err
    for command in (
        [*replay, "--out", str(recipe)],
        [*replay, "--json", str(recipe)],
        [*find, str(tmp_path / "a.yaml"), "--json", str(recipe)],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2 and str(recipe) in capsys.readouterr().err
    assert recipe.read_text() == "defaults: sim_rlpd\n" and len(list(tmp_path.iterdir())) == 1


def test_a_simulator_that_cannot_be_arranged_compares_displacements(monkeypatch):
    episode = recorded()
    station = simulated_station(SIM)
    monkeypatch.delattr(type(station.simulator), "arrange")
    episode.observations["tcp_position"][:] += [0.01, 0.0, 0.02]
    result = real_to_sim.replay(station, episode)
    assert not result.arranged and result.tool_mm.max() < 0.2


def test_the_commands_print_the_error_and_write_a_recipe(tmp_path, monkeypatch, capsys):
    episode = recorded("simulation.dynamics={delay_s: 0.1}", steps=12)
    monkeypatch.setattr("rlinf_core.episodes.read.read_episode", lambda path: episode)
    monkeypatch.setattr(
        "rlinf_core.cli.real_to_sim.intact_episodes", lambda paths: [(paths[0], episode)]
    )
    figures, out = tmp_path / "error.json", tmp_path / "fitted.yaml"
    replay = ["replay", str(tmp_path), "--in-sim", "--recipe", "sim_rlpd", "--json", str(figures)]
    assert main(replay) == 0
    assert "by time step" in capsys.readouterr().out
    assert json.loads(figures.read_text())["error_12_mm"] > 5.0
    find = ["find-dynamics", str(tmp_path), "--recipe", "sim_rlpd", "--out", str(out)]
    assert main(find) == 0
    assert "before" in capsys.readouterr().out
    assert yaml.safe_load(out.read_text())["defaults"] == "sim_rlpd"
    fitted = load_recipe(out)
    dynamics = fitted.simulation.dynamics
    assert dynamics.delay_s + dynamics.lag_s == pytest.approx(0.1, abs=0.02)
    assert main(["find-dynamics", str(tmp_path), "--recipe", "sim_rlpd"]) == 2
    assert "--out" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="recipe.yaml"):
        from rlinf_core.reports.recordings import run_recipe

        run_recipe(tmp_path)
