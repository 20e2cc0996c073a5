"""The parts of the interlock's node that prepare messages and times for the core, without ROS."""

import time
from collections import Counter, deque
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from geometry_msgs.msg import Wrench
from rlinf_msgs.msg import ActionChunk
from std_msgs.msg import Bool, Header

from rlinf_core.interlock import Inputs, Mode, step
from rlinf_interlock import interlock, interlock_clock, interlock_inputs, safety_messages
from rlinf_interlock.interlock_clock import RealTime
from tests.interlock.conftest import Rig, limits

NS = 10**9


@pytest.mark.parametrize("axis", "xyz")
def test_s10_force_and_torque_count_along_every_axis(axis):
    for part, expected in (("force", (3.0, 0.0)), ("torque", (0.0, 3.0))):
        wrench = Wrench()
        setattr(getattr(wrench, part), axis, -3.0)
        assert safety_messages.norms(wrench) == expected


def test_s05_a_chunk_says_its_frame_and_its_joints_to_the_core():
    message = ActionChunk(
        source="somebody",
        session="s",
        seq=4,
        policy_version=9,
        horizon=2,
        dim=2,
        execute=1,
        dt=0.1,
        data=[1.0, 2.0, 3.0, 4.0],
        joint_names=["b", "a"],
        header=Header(frame_id="camera"),
        control_mode="joint_delta",
    )
    chunk = safety_messages.to_chunk(message, "policy")
    assert (chunk.source, chunk.frame, chunk.joint_names) == ("policy", "camera", ("b", "a"))
    assert chunk.actions == ((1.0, 2.0), (3.0, 4.0)) and (
        chunk.seq,
        chunk.policy_version,
        chunk.execute,
    ) == (4, 9, 1)


def inputs_of_nothing(**more):
    """Return the interlock's inputs, of which nothing has been heard."""
    inputs = interlock_inputs.Inputs.__new__(interlock_inputs.Inputs)
    vars(inputs).update(
        {
            "estops": {"a": False},
            "pressed": {"a": False},
            "others": {},
            "limits": limits(),
            "lockstep": False,
            "unmatched": False,
            "driver": False,
            "distance": None,
            "enable": False,
            "robot_fault": "",
            "gripper_width": None,
            "foreign": (),
            "doubled": (),
            "frame": "",
            "chunks": [],
            "events": [],
            "wrench": None,
            "pose": None,
            "joints": None,
            "enable_renewed": False,
            "pose_stamp_ns": 0,
            "pulled_ns": time.monotonic_ns(),
            "looks": 0,
            "fault_publishers": -1,
            "commands": (),
            "listeners": {
                topic: SimpleNamespace(
                    received_ns=1,
                    arrived=[],
                    kind=Bool,
                    subscription=SimpleNamespace(get_publisher_count=lambda: 1),
                )
                for topic in ("estop/a", "enable", "policy/action")
            },
        }
        | more
    )
    return inputs


def test_s14_an_estop_that_was_pressed_between_two_ticks_counts_though_it_was_released_before_the_second():
    inputs = inputs_of_nothing()
    for pressed in (True, False):
        inputs.receive("estop/a", Bool(data=pressed))
    assert [inputs.take_inputs()[0]["estops"][0].pressed for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    "samples, held", [((True, False, True), False), ((False, True), False), ((True, True), True)]
)
def test_s15_an_enable_that_was_let_go_between_two_ticks_counts_though_it_was_held_again_before_the_second(
    samples, held
):
    inputs = inputs_of_nothing()
    enable = inputs.listeners["enable"]
    inputs._take = lambda listener, since_ns: (
        [(value, 0) for value in samples] if listener is enable else []
    )
    inputs.decode = lambda topic, kind, raw: Bool(data=raw)
    inputs.pull()
    assert inputs.take_inputs()[0]["enable"] is held


def test_s23_a_second_voice_counts_on_every_topic_that_says_how_the_arm_or_a_person_stands():
    topics = (
        "current_pose",
        "wrench",
        "gripper/state",
        "distance",
        "robot/fault",
        "enable",
        "policy/action",
        "teleop/action",
    )
    listeners = {
        topic: SimpleNamespace(
            subscription=SimpleNamespace(topic_name=topic, get_publisher_count=lambda: matched)
        )
        for topic in topics
    }
    voices, matched = 2, 1
    inputs = inputs_of_nothing(
        estops={},
        listeners=listeners,
        owner=SimpleNamespace(
            count_publishers=lambda name: voices,
            resolve_topic_name=lambda topic: topic,
            get_publishers_info_by_topic=lambda name: [],
        ),
    )
    inputs.check_publishers()
    assert set(inputs.doubled) == set(topics)
    voices, matched = 1, 2  # not in the graph yet
    inputs.check_publishers()
    assert set(inputs.doubled) == set(topics)
    matched = 1
    inputs.check_publishers()
    assert inputs.doubled == ()


@pytest.mark.parametrize(
    "topic, kind", [("policy/action", "doubled"), ("enable", "doubled"), ("estop/a", "foreign")]
)
def test_s23_a_second_publisher_counts_in_the_tick_of_its_first_message(topic, kind):
    """The graph shows it only later. An unreadable message counts, too."""
    inputs = inputs_of_nothing(counts=Counter())
    sender = inputs.listeners[topic]
    sender.subscription = SimpleNamespace(get_publisher_count=lambda: 2)
    inputs._take = lambda listener, since_ns: [(b"", 0)] if listener is sender else []
    inputs.pull()
    inputs.pull()
    assert getattr(inputs, kind) == (topic,)
    assert inputs.take_inputs()[0][kind] == (topic,)


def test_s25_a_defect_of_the_core_stops_the_arm_for_good_and_is_said(monkeypatch):
    rig, logged, breaks = Rig().arm(), [], [True]
    node = interlock.Interlock.__new__(interlock.Interlock)
    node.limits, node.state = rig.limits, rig.state
    node.service_process = SimpleNamespace(log=lambda *event: logged.append(event))

    def once(*given):
        if breaks.pop() if breaks else False:
            raise ZeroDivisionError
        return step(*given)

    monkeypatch.setattr(interlock, "step", once)
    state, _, _ = node._step(Inputs(pose=rig.pose), rig.now)
    assert (state.mode, state.cause) == (Mode.FAULT, "robot:interlock")
    [(level, text)] = logged
    assert level == "fatal" and "ZeroDivisionError" in text


@pytest.fixture
def clock(monkeypatch):
    """In real time, at 10 ms, by a watch and a calendar that stand still until they are set; what
    its ticks were told.
    """
    now, ticks = SimpleNamespace(monotonic=5 * NS, calendar=900 * NS), []
    monkeypatch.setattr(
        interlock_clock,
        "time",
        SimpleNamespace(monotonic_ns=lambda: now.monotonic, time_ns=lambda: now.calendar),
    )
    clock = RealTime.__new__(RealTime)
    looks = []
    clock.inputs = SimpleNamespace(
        pull=lambda: None,
        check_publishers=lambda: looks.append(1),
        looks=looks,
        state_topic="x",
        listeners={topic: SimpleNamespace(arrived=[]) for topic in interlock_inputs.ROLES},
        age_ns=lambda topic: 0,
    )
    clock.period_ns = NS // 100
    clock.offset_ns = now.calendar - now.monotonic
    clock.clock_stepped = False
    clock.last_ns = clock.stamp_ns = clock.looked_ns = now.monotonic
    clock.late_ms = deque()
    clock.phase = SimpleNamespace()
    clock.tick = lambda *arguments: ticks.append(arguments)

    def after(seconds, set_by=0.0):
        now.monotonic += round(seconds * NS)
        now.calendar += round((seconds + set_by) * NS)
        clock._on_timer()
        return ticks[-1]

    return clock, after


@pytest.mark.parametrize(
    "period_s, looks", [(0.1, 20), (0.01, 20), (0.0097, 20), (0.007, 10), (0.005, 10), (0.002, 5)]
)
def test_s23_it_looks_who_else_speaks_at_every_tick_or_once_in_15_ms(clock, period_s, looks):
    real, after = clock
    for _ in range(20):
        after(period_s)
    assert len(real.inputs.looks) == looks


def test_s24_how_late_a_tick_is_is_told_to_the_core_and_stamps_are_a_tick_apart_at_least(clock):
    _, after = clock
    first, _, on_time = after(0.01)
    second, _, early = after(0.004)
    third, _, late = after(0.31)
    assert (on_time, early) == (0.0, 0.0) and late == pytest.approx(0.3)
    assert second - first == NS // 100 and third - second >= NS // 100


def test_s04_a_clock_that_is_set_is_noticed_and_one_that_drifts_is_followed(clock):
    real, after = clock
    for _ in range(10):
        after(0.01, set_by=0.019)
    assert not real.clock_stepped
    after(0.01, set_by=-0.021)
    assert real.clock_stepped


def test_s04_an_interruption_between_the_two_readings_is_no_step_of_the_clock(clock, monkeypatch):
    real, after = clock
    watch, calendar = interlock_clock.time.monotonic_ns, interlock_clock.time.time_ns
    delay_ns = [0]

    def interrupted():
        delay_ns[0] += 30_000_000
        return calendar() + delay_ns[0]

    monkeypatch.setattr(interlock_clock.time, "monotonic_ns", lambda: watch() + delay_ns[0])
    monkeypatch.setattr(interlock_clock.time, "time_ns", interrupted)
    for _ in range(3):
        after(0.01)
    assert not real.clock_stepped


@pytest.mark.parametrize(
    "written, mode",
    [
        (b"DISARMED", Mode.DISARMED),
        (b"ARMED", Mode.FAULT),
        (b"\xff\xfe", Mode.FAULT),
        (b"", Mode.FAULT),
    ],
)
def test_s14_a_latch_file_that_says_anything_else_latches(tmp_path, written, mode):
    (tmp_path / "latch").write_bytes(written)
    node = SimpleNamespace(settings={"latch_file": str(tmp_path / "latch")})
    assert interlock.Interlock._initial_state(node).mode is mode
