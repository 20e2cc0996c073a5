"""Each fault of an episode is named with its values, and values at a bound are none."""

from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from rlinf_core.episodes.validate import LARGEST, check_episode
from rlinf_core.specs.embodiment import joined
from tests.messages import record

NAN = float("nan")


@pytest.fixture(scope="module")
def spec(task):
    return task.with_images({"front": (4, 4)}).spec


@pytest.fixture(scope="module")
def episode(spec, tmp_path_factory):
    """Five transitions of the policy, with its chunks, which ended well."""
    folder = tmp_path_factory.mktemp("validate")
    return read_episode(record(Spool(folder / "spool"), spec, steps=5, chunk=(2, 1)).close())


def faults(episode, spec, longest=5):
    """The faults, one after another; none if the episode is accepted."""
    try:
        check_episode(episode, spec, longest)
    except EpisodeError as error:
        text = str(error)
        assert text.startswith(f"episode {episode.id}: ")
        assert text.endswith(". It is not used for training")
        return text.removeprefix("episode a-1: ").removesuffix(". It is not used for training")
    return ""


def observed(episode, name, values):
    return replace(episode, observations=episode.observations | {name: values})


def changed(values, index, value):
    values = np.array(values)
    values[index] = value
    return values


def test_an_episode_without_faults_is_accepted_up_to_the_replays_capacity(episode, spec):
    assert faults(episode, spec) == "" and episode.chunks is not None
    assert faults(episode, spec, 4) == "expected 1 to 4 transitions (replay.capacity), got 5"
    nothing = replace(episode, rewards=episode.rewards[:0])
    assert faults(nothing, spec) == "expected 1 to 5 transitions (replay.capacity), got 0"


def test_an_episode_of_one_of_several_robots_is_checked_by_its_own_specs(episode, spec):
    other = replace(spec, action=replace(spec.action, scale=(0.5,) * spec.action.dim))
    assert faults(episode, joined({"other": other, "this": spec})) == ""
    third = replace(spec, control_hz=3.0)
    both = joined({"other": other, "third": third})
    text = faults(episode, both)
    assert text.startswith(
        f"was recorded with specs {spec.hash}, this trainer serves {both.description}. Start"
    )
    wrong = replace(episode, executed=episode.executed[:, :1])
    assert faults(wrong, joined({"this": spec, "other": other})) == (
        f"executed actions: expected shape (5, {spec.action.dim}), got (5, 1)"
    )


def test_the_episode_itself_is_checked_first_and_all_its_faults_are_named(episode, spec):
    wrong = replace(episode, mode="play", station="1a", spec_hash="x", executed=np.zeros(1))
    text = faults(wrong, spec, 3)
    assert text == (
        f"was recorded with specs x, this trainer serves {spec.description}. Start station and "
        "trainer with the same recipe; "
        "mode: expected one of demonstration, train, evaluate, got 'play'; "
        "station: expected a name of at most 64 letters, digits and _, got '1a'; "
        "expected 1 to 3 transitions (replay.capacity), got 5"
    )


@pytest.mark.parametrize("mode", ["demonstration", "train", "evaluate"])
def test_each_mode_may_be_learned_from(episode, spec, mode):
    assert faults(replace(episode, mode=mode), spec) == ""


@pytest.mark.parametrize(
    "station, accepted",
    [
        ("a" * 64, True),
        ("Lab_2", True),
        ("a" * 65, False),
        ("_a", False),
        ("", False),
        ("a\n", False),
    ],
)
def test_a_station_has_a_short_name(episode, spec, station, accepted):
    assert (faults(replace(episode, station=station), spec) == "") is accepted


def test_of_a_long_name_the_beginning_is_shown(episode, spec):
    text = faults(replace(episode, station="/" * 99), spec)
    assert text.endswith(f"got '{'/' * 80}'")


def test_observations_are_those_of_the_specs(episode, spec):
    names = ["force", "front", "socket_offset", "tcp_position", "tcp_velocity"]
    less = {name: episode.observations[name] for name in names[1:]}
    text = faults(replace(episode, observations=less), spec)
    assert text == f"observations: expected {names}, got {names[1:]}"
    more = dict(reversed((less | {"force": less["front"], "a": less["front"]}).items()))
    text = faults(replace(episode, observations=more), spec)
    assert text == f"observations: expected {names}, got {['a', *names]}"


@pytest.mark.parametrize(
    "name, change, expected",
    [
        ("force", lambda v: v[:, :2], "'force': expected float32[6, 3], got float32[6, 2]"),
        ("force", lambda v: v[:5], "'force': expected float32[6, 3], got float32[5, 3]"),
        ("force", np.float64, "'force': expected float32[6, 3], got float64[6, 3]"),
        ("front", lambda v: v[:, :2], "'front': expected uint8[6, 4, 4, 3], got uint8[6, 2, 4, 3]"),
        ("front", np.int8, "'front': expected uint8[6, 4, 4, 3], got int8[6, 4, 4, 3]"),
        ("front", lambda v: v + 200, ""),
        (
            "force",
            lambda v: changed(v, (4, 1), NAN),
            "'force': expected finite values within 1e+06, got nan (1 of 18)",
        ),
        (
            "force",
            lambda v: changed(v, (slice(1, 3), 2), -2e6),
            "'force': expected finite values within 1e+06, got -2000000.0 (2 of 18)",
        ),
        ("force", lambda v: changed(v, (4, 1), -LARGEST), ""),
    ],
)
def test_an_observation_has_its_shape_type_and_range(episode, spec, name, change, expected):
    assert faults(observed(episode, name, change(episode.observations[name])), spec) == expected


def test_stamps_increase(episode, spec):
    for stamp in (episode.stamps_ns[2], episode.stamps_ns[1]):
        text = faults(replace(episode, stamps_ns=changed(episode.stamps_ns, 3, stamp)), spec)
        assert text == "time steps: expected increasing stamps, got stamps out of order"
    assert not faults(
        replace(episode, stamps_ns=changed(episode.stamps_ns, 3, episode.stamps_ns[2] + 1)), spec
    )


def test_each_observation_has_an_instruction(episode, spec):
    short = replace(episode, instructions=("do it",) * 5)
    assert faults(short, spec) == "instructions: expected 6, one of each observation, got 5"
    text = faults(replace(episode, instructions=(*["do it"] * 5, "é" * 65)), spec)
    assert text.startswith("instruction: expected at most 128 bytes of UTF-8 without NUL, got 130")
    assert faults(replace(episode, instructions=(*["do it"] * 5, "é" * 64)), spec) == ""


def test_somebody_commanded(episode, spec):
    text = faults(replace(episode, sources=("",) * 5, executed=np.zeros((5, 2))), spec)
    assert text == (
        "expected actions that the interlock applied, got none: the arm had no commander or was "
        "held all the time"
    )
    assert faults(replace(episode, sources=("", "", "", "", "operator")), spec) == ""


def test_actions_have_the_shape_and_range_of_the_specs(episode, spec):
    wrong = replace(
        episode,
        requested=episode.requested[:, :2],
        executed=changed(episode.executed, (1, 2), np.inf),
    )
    assert faults(wrong, spec) == (
        "requested actions: expected shape (5, 3), got (5, 2); "
        "executed actions: expected finite values within 1e+06, got inf (1 of 15)"
    )
    assert faults(replace(episode, executed=episode.executed[:4]), spec) == (
        "executed actions: expected shape (5, 3), got (4, 3)"
    )


@pytest.mark.parametrize("success, failure, truncated", [(1, 1, 0), (0, 1, 1), (0, 0, 0)])
def test_an_episode_has_one_end(episode, spec, success, failure, truncated):
    ends = dict(success=bool(success), failure=bool(failure), truncated=bool(truncated))
    text = faults(replace(episode, **ends), spec)
    assert text == (
        f"expected one end of success, failure and time limit, got success={bool(success)}, "
        f"failure={bool(failure)}, truncated={bool(truncated)}"
    )


def test_rewards_and_discounts_are_those_of_the_end(episode, spec):
    limit = replace(episode, success=False, truncated=True)
    assert faults(limit, spec) == "discounts: expected 1.0 at its end, got 0.0"
    ones = np.ones(5, np.float32)
    assert faults(replace(episode, discounts=ones), spec) == (
        "discounts: expected 0.0 at its end, got 1.0"
    )
    assert faults(replace(limit, discounts=ones), spec) == ""
    assert faults(replace(limit, discounts=changed(ones, 2, 0.5)), spec) == ""
    for value in (1.1, -0.1, NAN):
        text = faults(replace(limit, discounts=changed(ones, 2, value)), spec)
        assert text == "discounts: expected values from 0 to 1, got others"
    assert faults(replace(episode, rewards=changed(episode.rewards, 1, 2e6)), spec) == (
        "rewards: expected finite values within 1e+06, got 2000000.0 (1 of 5)"
    )


def test_chunks_are_of_the_episodes_policy(episode, spec):
    chunks = episode.chunks

    def of(**change):
        return faults(replace(episode, chunks=replace(chunks, **change)), spec)

    assert of(drawn=changed(chunks.drawn, (0, 1), NAN)) == (
        "samples of the policy: expected finite values within 1e+06, got nan (1 of 30)"
    )
    assert of(log_probs=changed(chunks.log_probs, 0, -np.inf)).startswith(
        "log-probabilities: expected finite values within 1e+06, got -inf"
    )
    assert of(log_probs=None) == "" == faults(replace(episode, chunks=None), spec)
    assert of(versions=np.array([4, 7, 4, 6, 4])) == (
        "chunks: expected chunks of the episode's policy, version 4, got 6"
    )
