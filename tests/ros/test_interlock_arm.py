"""One interlock for one arm under the FR3's limits, started once; before each test it stands
disarmed where it began.
"""

import array
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rlinf_msgs.msg import ActionChunk, Applied, EpisodeEvent, SafetyEvent
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_ros.qos import kind, profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Arm, fastest, listen, longest_gap_s, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
HOME_X = 0.5


@pytest.fixture(scope="module")
def only_one(tmp_path_factory):
    with peer_in(tmp_path_factory.mktemp("arm"), 188) as peer:
        arm = Arm(peer, streams=False)
        arm.applied = listen(peer, Applied, "applied")
        arm.events = listen(peer, SafetyEvent, "safety/events")
        start(peer, "interlock", "station.robot=franka_fr3", estops=["pendant"], latch_file="")
        peer.spin(lambda: arm.targets and arm.states, what="the interlock")
        yield arm


def set_armed(arm, value):
    """Armed or disarmed; a fault that stands, as where a busy machine kept the test from speaking,
    is cleared first.
    """

    def done():
        if arm.states[-1].state == FAULT:
            arm.clear(arm.states[-1].cause)
        return arm.ask(arm.arming, SetBool.Request(data=value)).success

    arm.peer.spin(done, what="arming" if value else "disarming")


@pytest.fixture
def disarmed(only_one):
    """Everything is said again, what stands is cleared by name, and the arm is driven home."""
    arm, peer = only_one, only_one.peer
    arm.pressed, arm.estop_publishes, arm.enabled = False, True, True
    arm.publishes_state, arm.felt, arm.streams = True, True, False
    arm.pose.header.frame_id = "base_link"
    # limits may cut some of it short, and a busy machine may stop it
    while abs(distance := HOME_X - arm.x) > 1e-3:
        set_armed(arm, True)
        seconds = max(0.1, abs(distance) / 0.15)
        arm.send(distance, dt=seconds)
        peer.for_s(seconds + 0.2)
    set_armed(arm, False)
    arm.reach(DISARMED)
    peer.for_s(0.1)
    for messages in (arm.targets, arm.applied, arm.events):
        messages.clear()
    peer.spin(lambda: arm.targets, what="targets")
    return arm


@pytest.fixture
def arm(disarmed):
    """Return the same, armed; the test sends the chunks."""
    set_armed(disarmed, True)
    disarmed.reach(ARMED)
    return disarmed


def refused(arm):
    """Why it does not arm; nothing, if it does."""
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    return "" if answer.success else answer.message


def test_s02_s12_a_policy_that_falls_silent_is_answered_with_a_stop_and_a_held_target(arm):
    for _ in range(5):
        arm.send(0.01)
        arm.peer.for_s(0.1)
    assert arm.x > 0.52
    arm.reach(HOLD, "stale_command")
    arm.peer.for_s(0.5)
    count, held = len(arm.targets), arm.x
    arm.peer.for_s(0.5)
    assert len(arm.targets) - count > 30, "it holds by publishing, never by silence"
    assert {target.pose.position.x for target in arm.targets[count:]} == {held}


def test_s05_nan_is_held_at_once_and_three_latch_until_reset_by_name(arm):
    for _ in range(3):
        arm.send(math.nan)
    arm.reach(FAULT, "invalid_command")
    assert "FAULT 'invalid_command' is active" in refused(arm)
    assert (
        not (answer := arm.clear("e_stop")).success
        and "FAULT 'invalid_command' is active" in answer.message
    )
    arm.peer.spin(lambda: arm.clear("invalid_command").success, what="the reset")
    arm.reach(DISARMED)
    assert len({target.pose.position.x for target in arm.targets}) == 1, "the arm never moved"


def test_s03_a_robot_side_that_falls_silent_faults(arm):
    arm.streams = True
    arm.reach(ACTIVE)
    arm.publishes_state = False
    arm.reach(FAULT, "stale_state")


def test_s06_s16_the_operator_takes_over_and_the_record_says_so(arm):
    dropped = arm.states[-1].dropped
    arm.send(0.01, dt=0.5)
    arm.reach(ACTIVE)
    arm.send(-0.01, source="operator", dt=0.5)
    arm.peer.spin(lambda: arm.states[-1].source == "operator", what="the operator")
    arm.send(0.01)
    arm.peer.spin(
        lambda: arm.states[-1].dropped >= dropped + 1, what="the policy's chunk to be dropped"
    )
    arm.peer.spin(
        lambda: {record.source for record in arm.applied} == {"policy", "operator"},
        what="both in the record",
    )
    assert all(len(record.limits_hash) == 12 for record in arm.applied)


def test_trap09_the_end_of_an_episode_drops_the_rest_of_the_chunk(arm):
    episodes = arm.peer.node.create_publisher(EpisodeEvent, "episode", profile("episode"))
    arm.peer.spin(episodes.get_subscription_count, what="the interlock to listen to episodes")
    arm.send(0.2, dt=2.0)
    arm.reach(ACTIVE)
    arm.peer.for_s(0.1)
    episodes.publish(EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id="e"))
    arm.reach(ARMED)
    arm.peer.for_s(0.5)
    held = arm.x
    arm.peer.for_s(0.3)
    assert arm.x == held < 0.62, "of 20 cm in two seconds"


@pytest.mark.parametrize("topic", ["target_pose", "robot/reset"])
def test_s23_who_publishes_commands_beside_the_interlock_is_a_fault_by_name(arm, topic):
    arm.send(0.0)
    arm.reach(ACTIVE)
    rogue = arm.peer.node.create_publisher(kind(topic), topic, profile(topic))
    arm.reach(FAULT, f"foreign_publisher:{topic}")
    assert (
        not (answer := arm.clear(f"foreign_publisher:{topic}")).success
        and "/station_a/peer" in answer.message
    )
    arm.peer.node.destroy_publisher(rogue)
    arm.peer.spin(
        lambda: arm.clear(f"foreign_publisher:{topic}").success, what="the rogue to be gone"
    )


def test_s14_s23_a_pressed_estop_is_not_released_by_another_publisher(arm):
    arm.pressed = True
    arm.reach(FAULT, "estop:pendant")
    spoof = arm.peer.node.create_publisher(Bool, "estop/pendant", profile("estop/pendant"))
    arm.estop_publishes = False  # even if the pressed one falls silent
    for _ in range(30):
        spoof.publish(Bool(data=False))
        assert not arm.clear("estop:pendant").success
        arm.peer.for_s(0.02)
    assert arm.states[-1].state == FAULT
    arm.peer.node.destroy_publisher(spoof)


def test_s06_a_message_that_calls_itself_the_operator_has_no_authority_by_that(arm):
    arm.enabled = False
    arm.peer.for_s(0.1)
    start = arm.x
    for number in range(1, 12):
        arm.say["policy/action"].publish(
            ActionChunk(
                source="operator",
                session="x",
                seq=number,
                dt=0.1,
                control_mode="tcp_delta",
                horizon=1,
                dim=3,
                execute=1,
                data=[0.01, 0.0, 0.0],
                observation_stamp=arm.peer.node.get_clock().now().to_msg(),
            )
        )
        arm.peer.for_s(0.05)
    assert arm.x == start and arm.states[-1].source == ""
    other = arm.peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    arm.enabled = True
    arm.peer.for_s(0.2)
    arm.send(0.0)
    arm.peer.spin(
        lambda: "two_publishers:policy/action" in refused(arm), what="the second one to be refused"
    )
    arm.peer.node.destroy_publisher(other)


def test_s21_s22_arming_says_which_input_is_missing_or_foreign(disarmed):
    arm = disarmed
    arm.felt = False
    arm.peer.for_s(0.5)
    assert "silent:wrench" in (reason := refused(arm)) and "unlimited" in reason
    arm.felt = True
    arm.pose.header.frame_id = "camera"
    arm.peer.for_s(0.3)
    assert "one in the frame 'camera'" in refused(arm)
    arm.pose.header.frame_id = "base_link"
    set_armed(arm, True)
    arm.streams = True
    arm.reach(ACTIVE)
    arm.felt = False
    arm.reach(HOLD, "silent:wrench")


def test_s22_joints_of_others_are_not_the_arms(disarmed):
    arm, names, say = disarmed, list(disarmed.joints.name), disarmed.say["joint_states"]
    set_armed(arm, True)
    arm.streams = True
    arm.reach(ACTIVE)
    others = JointState(name=["robotiq_85_left_knuckle_joint"], position=[0.4])
    # as a gripper's driver on the same topic
    timer = arm.peer.node.create_timer(0.01, lambda: say.publish(others))
    try:
        arm.peer.for_s(1.0)
        assert arm.states[-1].state == ACTIVE, "they hide nothing either"
        arm.joints.name = [f"panda_joint{number}" for number in range(1, 8)]
        arm.reach(HOLD, "silent:joint_states")
        arm.streams = False
        set_armed(arm, False)
        arm.peer.spin(lambda: "silent:joint_states" in refused(arm), what="the refusal")
    finally:
        arm.joints.name = names
        arm.peer.node.destroy_timer(timer)


def test_s17_a_fault_that_could_not_be_heard_lets_nothing_be_armed_and_one_that_cannot_be_read_is_one(
    disarmed,
):
    arm = disarmed
    volatile = arm.peer.node.create_publisher(String, "robot/fault", 10)  # ROS's default
    arm.peer.spin(lambda: "silent:robot/fault" in refused(arm), what="the refusal")
    arm.peer.node.destroy_publisher(volatile)
    latched = arm.peer.node.create_publisher(String, "robot/fault", profile("robot/fault"))
    try:
        set_armed(arm, True)
        arm.reach(ARMED)  # granted, it is armed at the next tick
        latched.publish(String(data="x" * 10_000))
        arm.reach(FAULT, "robot:unreadable")
        latched.publish(String(data=""))
        arm.peer.spin(lambda: arm.clear("robot:unreadable").success, what="the reset")
    finally:  # whatever is last heard there stands
        latched.publish(String(data=""))
        arm.peer.for_s(0.3)
        arm.peer.node.destroy_publisher(latched)


def test_s25_messages_of_any_size_are_refused_unread(arm):
    arm.peer.for_s(0.2)
    arm.targets.clear()
    stamp = arm.peer.node.get_clock().now().to_msg()
    many = ActionChunk(
        source="policy",
        session="policy",
        seq=1,
        dt=0.1,
        control_mode="tcp_delta",
        observation_stamp=stamp,
    )
    many.joint_names = [f"joint_{index}" for index in range(100_000)]
    long = ActionChunk(
        source="policy",
        session="policy",
        seq=2,
        dt=0.1,
        control_mode="tcp_delta",
        observation_stamp=stamp,
        horizon=10**6,
        dim=1,
        data=[0.0] * 10**6,
    )
    noisy = ActionChunk(
        source="policy",
        session="policy",
        seq=3,
        dt=0.1,
        control_mode="tcp_delta",
        observation_stamp=stamp,
        horizon=1,
        dim=3,
        data=[0.0] * 3,
        drawn=[0.0] * 10**6,
        drawn_dim=10**6,
    )
    for chunk in (many, long, noisy):
        arm.say["policy/action"].publish(chunk)
        arm.peer.for_s(0.05)  # each takes a while to send: the e-stop must be heard in between
    arm.reach(FAULT, "invalid_command")
    arm.peer.for_s(0.5)
    assert [e.cause for e in arm.events if e.kind == "refused"][:3] == ["size"] * 3
    assert longest_gap_s(arm.targets) < 0.5


def test_s25_what_was_drawn_for_a_chunk_is_not_looked_at(arm):
    """Whatever is said of it, within the size that any chunk may have."""
    fields = dict(
        drawn=array.array("f", [math.nan, math.inf] * 8000),
        drawn_dim=2**32 - 1,
        log_probs=array.array("f", [-math.inf] * 8000),
    )
    arm.arm()
    before = arm.states[-1].refused
    for _ in range(5):
        arm.send(0.01, **fields)
        arm.peer.for_s(0.1)
    assert arm.states[-1].state == ACTIVE and arm.states[-1].refused == before and arm.x > 0.52


def test_s24_after_a_stall_it_is_within_its_limits_by_measured_time(arm):
    process = arm.peer.supervisor.children["interlock"].popen
    for pause in (0.05, 0.3, 1.5):
        for _ in range(8):
            arm.send(0.02)
            arm.peer.for_s(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        end = time.monotonic() + pause
        while time.monotonic() < end:
            arm.peer.for_s(0.02)
        os.kill(process.pid, signal.SIGCONT)
        if pause > 1.0:
            arm.peer.spin(
                lambda: arm.states[-1].state in (HOLD, FAULT) and arm.states[-1].cause,
                what="a reasoned stop",
            )
        arm.peer.for_s(0.6)
        if arm.states[-1].state == FAULT:
            arm.peer.spin(
                lambda: arm.clear(arm.states[-1].cause).success, what="the fault to be cleared"
            )
            arm.arm()
    assert fastest(arm.targets) <= 0.25 + 1e-6


def test_s23_one_interlock_a_station_however_it_is_started(arm):
    command = [
        sys.executable,
        "-m",
        "rlinf_interlock.interlock",
        "--ros-args",
        "-r",
        "__ns:=/station_a",
        "-p",
        "limits_file:=robots/franka_fr3/limits.yaml",
    ]
    result = subprocess.run(
        command,
        env=arm.peer.supervisor.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (
        result.returncode == 1
        and "another interlock commands station '/station_a'" in result.stderr
    )
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(
    not os.access("/dev/cpu_dma_latency", os.W_OK), reason="this machine does not grant it"
)
def test_in_real_time_it_keeps_the_cores_awake(arm):
    process = arm.peer.supervisor.children["interlock"].popen
    held = {
        os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir() if file.is_symlink()
    }
    assert "/dev/cpu_dma_latency" in held
