"""The actions of a recording that a replay sends again, and where the arm was as they began."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.actions import SentChunk, _nearest, motion_difference, read_actions
from rlinf_core.episodes.messages import POSE, typestore
from rlinf_core.episodes.spool import Spool
from tests.messages import raw_messages, write_raw

NS = 1_000_000_000
JOINTS = "sensor_msgs/msg/JointState"
CHUNK = "rlinf_msgs/msg/ActionChunk"


def header(ns):
    types = typestore().types
    return types["std_msgs/msg/Header"](
        types["builtin_interfaces/msg/Time"](ns // NS, ns % NS), "base"
    )


def row(topic, kind, ns, **fields):
    message = typestore().types[kind](header=header(ns), **fields)
    return f"/station/{topic}", kind, ns, bytes(typestore().serialize_cdr(message, kind))


def pose(ns, x):
    types = typestore().types
    place = types["geometry_msgs/msg/Point"](x, 0.2, 0.3)
    turn = types["geometry_msgs/msg/Quaternion"](0.0, 0.6, 0.0, 0.8)
    return row("current_pose", POSE, ns, pose=types["geometry_msgs/msg/Pose"](place, turn))


def joints(ns, angle):
    nothing = np.zeros(0)
    return row(
        "joint_states",
        JOINTS,
        ns,
        name=["j1", "j2"],
        position=np.array([angle, 0.5]),
        velocity=nothing,
        effort=nothing,
    )


def person(step, seq, data, horizon=1):
    """A chunk of a person in answer to a time step."""
    return row(
        "teleop/action",
        CHUNK,
        step * NS // 10,
        source="operator",
        session="s",
        seq=seq,
        policy_version=-1,
        observation_stamp=header(step * NS // 10).stamp,
        dt=0.1,
        control_mode="tcp_delta",
        joint_names=[],
        horizon=horizon,
        dim=3,
        execute=horizon,
        data=np.array(data, float),
        drawn_dim=0,
        drawn=np.zeros(0, np.float32),
        log_probs=np.zeros(0, np.float32),
    )


def numbered(topic, number, message):
    """The numbers of the policy's chunks tell them apart."""
    if topic == "policy/action":
        message.data = np.arange(6.0) + 10 * number


@pytest.fixture
def written(tmp_path, task):
    """Write an episode of four transitions, in two chunks of the policy, with other messages."""

    def write(*more, arms=(), **how):
        rows = raw_messages(task.spec, steps=4, chunk=(2, 2), **({"change": numbered} | how))
        for arm in arms:
            rows += [
                (f"/station/{arm}/applied", *rest)
                for topic, *rest in rows
                if topic == "/station/applied"
            ]
        if arms:
            rows = [one for one in rows if one[0] != "/station/applied"]
        return write_raw(Spool(tmp_path / "spool"), "a-1", [*rows, *more]).close()

    return write


FIRST = SentChunk((0.0, 1.0, 2.0, 3.0, 4.0, 5.0), 2, 2)
SECOND = SentChunk((10.0, 11.0, 12.0, 13.0, 14.0, 15.0), 2, 2)


def test_chunks_are_those_that_moved_the_arm_by_the_time_step_that_they_answer(written):
    actions = read_actions(written())
    assert actions.chunks == {0: FIRST, 2: SECOND}
    assert (len(actions.episode), actions.episode.id) == (4, "a-1")
    assert actions.pose == () and actions.joints == {}


def test_a_chunk_that_was_never_applied_is_left_out(written):
    def change(topic, number, message):
        numbered(topic, number, message)
        if topic == "applied" and number > 1:
            message.session = "another"

    assert read_actions(written(change=change)).chunks == {0: FIRST}


def test_a_person_commands_before_the_policy_and_may_let_go(written):
    actions = read_actions(
        written(
            person(2, 2, [7, 8, 9]),
            person(1, 99, [1, 1, 1]),  # nothing of it was applied
            person(3, 98, [], horizon=0),
            person(44, 2, [1, 1, 1]),  # answers no time step
            sources={3: "operator"},
        )
    )
    assert actions.chunks == {
        0: FIRST,
        2: SentChunk((7.0, 8.0, 9.0), 1, 1),
        3: SentChunk((), 0, 0),
    }


def test_a_recording_in_which_nobody_moved_the_arm_is_refused(written):
    def change(topic, number, message):
        if topic == "applied":
            message.session = "another"

    folder = written(person(1, 9, [], horizon=0), change=change)
    with pytest.raises(EpisodeError) as refused:
        read_actions(folder)
    assert str(refused.value) == (
        f"episode {folder}: expected actions that moved the arm, got none. Name another recording"
    )


def test_several_arms_are_refused_by_name(written):
    with pytest.raises(EpisodeError, match="expected a recording of one arm, got left, right$"):
        read_actions(written(arms=("left", "right")))


def test_the_arm_is_where_it_was_nearest_to_the_first_time_step(written):
    states = [pose(5, 0.9), pose(2, 0.1), pose(7, 0.8), pose(9, 0.7)]
    late = [pose(0, 0.5)]  # the arm's states of the first steps are enough
    angles = [joints(30, 3.0), joints(20, -1.0)]
    actions = read_actions(written(*states, *late, *angles))
    assert actions.pose == (0.1, 0.2, 0.3, 0.0, 0.6, 0.0, 0.8)
    assert actions.joints == {"j1": -1.0, "j2": 0.5}


def test_the_state_nearest_to_a_time_counts_whether_it_is_before_or_after():
    states = [SimpleNamespace(header=header(ns)) for ns in (5 * NS, 2 * NS, 8 * NS)]
    assert [_nearest(states, round(s * NS)) for s in (0.0, 4.0, 6.4, 6.6)] == [
        states[1],
        states[0],
        states[0],
        states[2],
    ]
    assert _nearest([], 0) is None


def test_motion_differs_by_the_largest_number(written):
    episode = read_episode(written())
    assert motion_difference(episode, episode) == 0.0
    assert motion_difference(episode, replace(episode, executed=episode.executed - 0.5)) == 0.5
    force = episode.observations["force"].copy()
    force[3, 1] += 2.0
    other = replace(
        episode,
        executed=episode.executed + 0.5,
        observations=episode.observations | {"force": force},
    )
    assert motion_difference(episode, other) == motion_difference(other, episode) == 2.0
    shorter = replace(episode, executed=episode.executed[:3])
    assert motion_difference(episode, shorter) == float("inf")
    less = {name: values for name, values in episode.observations.items() if name != "force"}
    assert motion_difference(episode, replace(episode, observations=less)) == float("inf")
    assert motion_difference(replace(episode, observations=less), episode) == 0.0
    empty = replace(episode, observations={"marks": np.zeros((5, 0))})
    assert motion_difference(empty, empty) == 0.0, "a vector without numbers cannot differ"
    picture = {"front": np.zeros((5, 2, 2, 3), np.uint8)}
    one, two = (
        replace(episode, observations=episode.observations | {"front": picture["front"] + k})
        for k in range(2)
    )
    assert motion_difference(one, two) == 0.0, "pictures do not count"


def test_a_transition_has_the_takeover_of_its_commander(written):
    episode = read_episode(written())
    assert episode.takeovers.tolist() == [1, 1, 1, 1]
    sources = ("policy", "", "operator", "policy")
    assert replace(episode, sources=sources).takeovers.tolist() == [1, 0, 2, 1]
