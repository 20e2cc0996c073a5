"""Odd messages on the interlock's topics: joints in any order, releases, enables, an arming without
an answer.
"""

import math
import time
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rlinf_msgs.msg import ActionChunk, EpisodeEvent
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool

from rlinf_core.interlock import Inputs, Mode, State
from rlinf_core.interlock.coordinates import refusal_reason
from rlinf_interlock import interlock_requests, safety_messages
from rlinf_interlock.interlock_requests import UNANSWERED_S, Requests
from rlinf_ros.conversions import angles_of
from tests.interlock.conftest import JOINTS, Rig, chunk, joint_limits, limits
from tests.interlock.test_node_parts import inputs_of_nothing

NAMES = joint_limits().joint_names


# Joints
def test_s22_joints_are_taken_by_name_in_whatever_order_they_come():
    inputs = inputs_of_nothing(limits=joint_limits(), counts=Counter())
    order = [4, 0, 6, 2, 5, 1, 3]
    message = JointState(
        name=[NAMES[place] for place in order], position=[JOINTS[place] for place in order]
    )
    assert inputs.receive("joint_states", message) and inputs.joints == JOINTS
    message.name, message.position = ["gripper", *message.name], [0.04, *message.position]
    assert inputs.receive("joint_states", message) and inputs.joints == JOINTS


@pytest.mark.parametrize(
    "names, positions",
    [
        (NAMES[:-1], JOINTS[:-1]),
        (NAMES, JOINTS[:-1]),
        ((), JOINTS),
        (NAMES, ()),
        ((), ()),
        ((*NAMES, NAMES[0]), (*JOINTS, 1.0)),
        ((NAMES[0], *NAMES), (JOINTS[0], *JOINTS)),
        (NAMES[1:] + ("fr3_joint1 ",), JOINTS),
    ],
)
def test_s22_a_message_without_a_joint_or_with_one_twice_says_nothing_of_the_arm(names, positions):
    inputs = inputs_of_nothing(limits=joint_limits(), counts=Counter())
    inputs.joints = JOINTS
    assert not inputs.receive(
        "joint_states", JointState(name=list(names), position=list(positions))
    )
    assert inputs.joints == JOINTS and inputs.counts == {"of_other_joints": 1}


@pytest.mark.parametrize(
    "names, positions, got",
    [
        ("ab", (1.0, 2.0), (2.0, 1.0)),
        ("abcc", (1.0, 2.0, 3.0, 4.0), (2.0, 1.0)),
        ("aba", (1.0, 2.0, 1.0), None),
        ("aba", (1.0, 2.0), (2.0, 1.0)),
        ("b", (1.0,), None),
        ("ab", (1.0,), None),
        ("ab", (1.0, math.inf), (math.inf, 1.0)),
    ],
)
def test_angles_come_by_name(names, positions, got):
    assert angles_of(JointState(name=list(names), position=list(positions)), ["b", "a"]) == got


def test_s05_actions_for_joints_in_another_order_are_refused():
    order = NAMES[1:] + NAMES[:1]
    command = chunk(1, 0, ((0.001,) * 7,), mode="joint_delta")
    from dataclasses import replace

    for names, reason in (
        ((), ""),
        (NAMES, ""),
        (order, "joint_names"),
        (NAMES[:6], "joint_names"),
    ):
        assert refusal_reason(joint_limits(), replace(command, joint_names=names), 0) == reason


# Other units
@pytest.mark.parametrize(
    "factor, action",
    [
        (1000.0, (0.002, 0.0, 0.0)),
        (1000.0, (0.0005, 0.001, 0.0)),
        (100.0, (0.006, 0.0, 0.0)),
        (39.37, (0.02, 0.0, 0.0)),
    ],
)
def test_s07_an_operators_millimetres_centimetres_and_inches_end_in_a_fault(factor, action):
    rig = Rig(limits()).arm()
    start = rig.output.target
    for seq in range(1, 4):
        rig.tick(
            chunk(seq, rig.now, (tuple(factor * value for value in action),), source="operator")
        )
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "invalid_command")
    assert math.dist(rig.output.target[:3], start[:3]) < 1e-9


def test_s07_an_operators_degrees_end_in_a_fault():
    rig = Rig(joint_limits(), joints=JOINTS).arm()
    for seq in range(1, 4):
        rig.tick(
            chunk(
                seq,
                rig.now,
                ((math.degrees(0.02),) + (0.0,) * 6,),
                source="operator",
                mode="joint_delta",
            )
        )
    assert (rig.state.mode, rig.state.cause) == (
        Mode.FAULT,
        "invalid_command",
    ) and rig.output.joints == JOINTS


# Gripper commands at 1 kHz
def test_s08_ten_chunks_a_tick_that_open_and_close_move_the_fingers_within_their_speed():
    rig = Rig(limits(gripper_width=0.08), gripper=0.04).arm()
    seq, widths = 0, []
    for _ in range(200):
        chunks = []
        for _ in range(10):
            seq += 1
            chunks.append(
                chunk(seq, rig.now, ((0.0, 0.0, 0.0, 0.02 if seq % 2 else -0.02),), dt_s=0.1)
            )
        widths.append(rig.tick(*chunks).gripper)
        assert rig.state.mode is Mode.ACTIVE
    speed = rig.limits.groups[-1].speed
    assert (
        max(abs(b - a) for a, b in zip(widths, widths[1:], strict=False))
        <= speed * rig.limits.tick + 1e-12
    )
    assert min(widths) >= 0.0 and max(widths) <= 0.08


# Releases and enables
def release_message(**more):
    return ActionChunk(
        **(
            {
                "source": "operator",
                "session": "a",
                "seq": 3,
                "dt": 0.1,
                "control_mode": "tcp_delta",
                "policy_version": -1,
            }
            | more
        )
    )


def test_s16_a_release_is_an_operators_chunk_that_announces_nothing():
    got = safety_messages.to_chunk(release_message(), "operator")
    assert got.is_release and not got.actions and refusal_reason(limits(), got, 0) == ""
    assert not safety_messages.to_chunk(release_message(), "policy").is_release


@pytest.mark.parametrize(
    "more",
    [
        {"horizon": 1},
        {"dim": 3},
        {"execute": 1},
        {"data": [0.0]},
        {"horizon": 1, "dim": 3, "data": [0.0, 0.0, 0.0], "execute": 1},
    ],
)
def test_s16_whatever_announces_something_is_no_release(more):
    got = safety_messages.to_chunk(release_message(**more), "operator")
    assert not got.is_release
    assert got.actions or refusal_reason(limits(), got, 0) == "size"


def test_s16_a_message_with_nothing_in_it_is_refused():
    assert (
        refusal_reason(limits(), safety_messages.to_chunk(ActionChunk(), "operator"), 0)
        == "control_mode"
    )


def test_s16_a_release_outlives_the_end_of_the_episode_and_a_command_does_not():
    inputs = inputs_of_nothing()
    inputs.chunks = [
        chunk(1),
        safety_messages.to_chunk(release_message(), "operator"),
        chunk(2, source="operator"),
    ]
    inputs.receive("episode", EpisodeEvent(kind=EpisodeEvent.ENDED))
    assert [remaining.is_release for remaining in inputs.chunks] == [True]


def test_s16_an_enable_that_arrives_is_handed_over_once():
    inputs = inputs_of_nothing()
    inputs.receive("enable", Bool(data=True))
    assert [inputs.take_inputs()[0]["enable_renewed"] for _ in range(2)] == [True, False]
    inputs.receive("enable", Bool(data=False))
    assert inputs.take_inputs()[0]["enable_renewed"] is False


def test_s16_an_enable_that_is_let_go_in_the_same_breath_is_none():
    inputs = inputs_of_nothing(chunks=[])
    taken = iter([[(b"1", 0), (b"0", 0)], []])
    inputs._take = lambda listener, since_ns: next(taken)
    inputs.decode = lambda topic, kind, raw: Bool(data=raw == b"1")
    subscription = SimpleNamespace(get_publisher_count=lambda: 1)
    inputs.listeners = {
        "enable": SimpleNamespace(received_ns=0, arrived=[], kind=Bool, subscription=subscription)
    }
    inputs.pull()
    assert not inputs.enable and not inputs.enable_renewed


# An e-stop of another type
def test_s14_an_estop_of_another_type_is_named():
    inputs = inputs_of_nothing(
        owner=SimpleNamespace(
            get_publishers_info_by_topic=lambda name: [
                SimpleNamespace(topic_type=kind)
                for kind in ("std_msgs/msg/Bool", "std_msgs/msg/Int8", "std_msgs/msg/Int8")
            ]
        )
    )
    inputs._name = lambda topic: f"/a/{topic}"
    assert (
        inputs.unexpected_types("estop/a")
        == "published as std_msgs/msg/Int8; expected std_msgs/msg/Bool"
    )
    inputs.owner.get_publishers_info_by_topic = lambda name: [
        SimpleNamespace(topic_type="std_msgs/msg/Bool")
    ]
    assert inputs.unexpected_types("estop/a") == ""
    requests = Requests.__new__(Requests)
    requests.node = SimpleNamespace(
        inputs=SimpleNamespace(others={}, unexpected_types={"estop/a": "published as x"}.get)
    )
    assert requests._describe("estop_silent:a") == "estop_silent:a (published as x)"
    assert requests._describe("estop_silent:b") == "estop_silent:b"


# An arming without an answer
@pytest.mark.parametrize(
    "since_s, mode, taken_back",
    [
        (0.0, Mode.ARMED, True),
        (UNANSWERED_S - 0.1, Mode.ACTIVE, True),
        (UNANSWERED_S + 0.1, Mode.ACTIVE, False),
        (0.0, Mode.FAULT, False),
    ],
)
def test_s26_an_arming_whose_answer_is_lost_with_the_service_process_is_taken_back(
    monkeypatch, since_s, mode, taken_back
):
    now = [time.monotonic()]
    monkeypatch.setattr(interlock_requests, "time", SimpleNamespace(monotonic=lambda: now[0]))
    logged = []
    node = SimpleNamespace(
        state=SimpleNamespace(mode=mode),
        active=True,
        queued_requests={},
        clock=None,
        service_process=SimpleNamespace(log=lambda *words: logged.append(words)),
    )
    requests = Requests(node)
    requests.on_new_service_process()
    assert not node.queued_requests, "nobody has armed yet"
    requests._why_not_armed = lambda: ""
    if mode is not Mode.FAULT:
        assert requests._arm(True) == "" and node.queued_requests.pop("arm") is True
    requests.pending_resets, now[0] = [1], now[0] + since_s
    requests.on_new_service_process()
    assert (
        node.queued_requests == ({"arm": False} if taken_back else {})
        and not requests.pending_resets
    )
    assert bool(logged) is taken_back


def test_s26_an_arming_that_was_refused_is_not_taken_back():
    node = SimpleNamespace(
        state=SimpleNamespace(mode=Mode.ACTIVE), active=True, queued_requests={}, clock=None
    )
    requests = Requests(node)
    requests._why_not_armed = lambda: "this stands"
    assert requests._arm(True) == "this stands"
    requests.on_new_service_process()
    assert node.queued_requests == {}


def test_inputs_of_the_core_have_no_enable_of_their_own():
    assert not Inputs().enable_renewed


def test_diagnostics_count_the_samples_of_each_time_series():
    message = safety_messages.diagnostics("a/interlock", State(), {}, {"late": [3.0, 1.0]}, "")
    values = {value.key: float(value.value) for value in message.status[0].values}
    assert values["late_samples"] == 2 and values["late_worst_ms"] == 3.0
