"""Robot time: every figure equals the count by hand."""

import math

import numpy as np
import pytest

from rlinf_core.episodes.types import Episode
from rlinf_core.reports.evaluations import Outcome, evaluation
from rlinf_core.reports.throughput import EpisodeTime, longest_run, throughput, times_of

NS = 10**9


def episode(start_s, seconds, *, success=True, sources="policy", mode="train"):
    """Return an episode of one step a second."""
    steps = int(seconds)
    names = tuple(sources) if isinstance(sources, list) else (sources,) * steps
    stamps = np.arange(steps + 1) * NS + int(start_s * NS)
    return Episode(
        id=f"e{start_s}",
        station="station_a",
        mode=mode,
        seed=0,
        success=success,
        failure=not success,
        truncated=False,
        policy_version=1,
        spec_hash="",
        limits_hash="",
        instructions=("",) * (steps + 1),
        observations={},
        requested=np.zeros((steps, 1)),
        executed=np.zeros((steps, 1)),
        sources=names,
        limits=((),) * steps,
        rewards=np.zeros(steps),
        discounts=np.ones(steps),
        stamps_ns=stamps,
    )


def test_an_inbox_with_known_times_equals_the_count_by_hand():
    """Six episodes: 10 s of play each, 20 s of reset between them, one break of an hour, two
    takeovers, one failure.
    """
    corrected = ["policy"] * 3 + ["operator"] * 2 + ["policy"] * 2 + ["operator"] + ["policy"] * 2
    finished = ["policy"] * 6 + ["operator"] * 4
    starts = [0, 30, 60, 3700, 3730, 3760]
    episodes = [
        episode(starts[0], 10),
        episode(starts[1], 10),
        episode(starts[2], 10, success=False),
        episode(starts[3], 10, sources=corrected),
        episode(starts[4], 10, sources=finished),
        episode(starts[5], 10),
    ]
    figures = throughput(times_of(reversed(episodes)))  # in whatever order they were read

    assert figures.episodes == 6
    assert figures.resets == 4, "the pause of an hour is none"
    assert figures.robot_minutes == pytest.approx((6 * 10 + 4 * 20) / 60)
    assert figures.success.value == pytest.approx(4 / 6), "a person finished one of them"
    assert figures.successes_per_hour.value == pytest.approx(4 * 3600 / 140)
    assert figures.time_to_success_s.value == 10
    assert figures.takeovers_per_hour.value == pytest.approx(3 * 3600 / 60)
    assert figures.longest_run == 2
    flat = figures.flat()
    assert (
        flat["successes_per_hour_low"]
        <= flat["successes_per_hour"]
        <= flat["successes_per_hour_high"]
    )


def test_demonstrations_have_no_takeovers_and_an_episode_taken_over_from_its_first_step_has_one():
    shown = throughput(times_of([episode(0, 5, sources="operator", mode="demonstration")]))
    assert shown.takeovers_per_hour.value == 0
    assert shown.success.value == 1
    driven = throughput(times_of([episode(0, 5, sources="operator")]))
    assert driven.takeovers_per_hour.value == pytest.approx(3600 / 5)
    assert driven.success.value == 0


def test_the_interval_of_a_takeover_rate_covers_it_in_95_of_100_cases_and_has_an_upper_end_without_any():
    rng = np.random.default_rng(0)
    hit = 0
    for count in rng.poisson(8.0, 1000):  # 8 an hour, for an hour
        rate = throughput([EpisodeTime(True, 3600.0, int(count))]).takeovers_per_hour
        hit += rate.low <= 8.0 <= rate.high
    assert 0.93 <= hit / 1000 <= 0.985
    none = throughput([EpisodeTime(True, 3600.0)]).takeovers_per_hour
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(3.69, abs=0.05), "the exact interval of no event ends at 3.69"


def test_the_interval_of_successes_an_hour_covers_the_rate_in_most_of_200_samples():
    rng = np.random.default_rng(1)
    truth = 0.7 * 3600 / 12.5
    hit = 0
    for _ in range(200):
        times = [
            EpisodeTime(bool(rng.random() < 0.7), float(rng.uniform(5, 15)), 0, 2.5)
            for _ in range(60)
        ]
        rate = throughput(times).successes_per_hour
        hit += rate.low <= truth <= rate.high
    assert hit >= 180


def test_what_cannot_be_said_is_left_out():
    figures = throughput([EpisodeTime(False, 10.0)])
    assert math.isnan(figures.time_to_success_s.value)
    assert "time_to_success_s" not in figures.flat()
    assert figures.successes_per_hour.value == 0
    with pytest.raises(ValueError, match="at least one episode"):
        throughput([])


@pytest.mark.parametrize(
    ("successes", "longest"), [("", 0), ("0", 0), ("1", 1), ("1101110", 3), ("111", 3), ("0101", 1)]
)
def test_the_longest_run_is_the_most_successes_in_a_row(successes, longest):
    assert longest_run(character == "1" for character in successes) == longest


def test_an_evaluation_says_robot_time():
    record = evaluation(
        [
            Outcome(True, False, 1.0, 4.0),
            Outcome(False, True, 0.0, 6.0),
            Outcome(True, False, 1.0, 2.0),
        ],
        env_steps=6000,
        updates=10,
        seconds=1.0,
        policy_version=3,
        control_hz=10.0,
    )
    assert record["robot_minutes"] == 10.0
    assert record["successes_per_hour"] == pytest.approx(2 * 3600 / 12)
    assert record["time_to_success_s"] == 3.0
    assert record["longest_run"] == 1
