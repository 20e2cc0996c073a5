"""The interlock's process under requests, messages and neighbours that nobody should send or be (S21 to S25)."""

import array
import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from geometry_msgs.msg import PoseStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import ActionChunk, SafetyEvent
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf.qos import profile
from rlinf.stamps import to_ns
from rlinf_core.recipes import load_recipe
from rlinf_core.station import ONCE, station_processes
from rlinf_core.supervisor import command_line
from tests.ros.stand import Arm, listen

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
F_SETPIPE_SZ = 1031


def launch(peer, module="rlinf.interlock", **parameters):
    """A real arm's interlock whose end is the test's business."""
    processes = station_processes(load_recipe("demo", ["station.robot=franka_fr3", "station.operator.kind=keyboard"]),
                                  peer.supervisor.run_dir)
    process = next(p for p in processes if p.name == "interlock")
    settings = process.parameters | {"estops": ["pendant"], "memory_file": ""} | parameters
    return peer.supervisor.start(replace(process, module=module, restart=ONCE, parameters=settings))


@pytest.fixture
def arm(peer):
    arm = Arm(peer, streams=False)
    arm.child = launch(peer)
    peer.spin(lambda: arm.targets, what="targets")
    return arm


def set_limit(arm, name, value):
    client = arm.peer.node.create_client(SetParameters, "interlock/set_parameters")
    wanted = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    request = SetParameters.Request(parameters=[Parameter(name=f"limits.{name}", value=wanted)])
    return arm.ask(client, request).results[0]


def fastest(targets):
    """By their stamps [m/s]."""
    def place(m):
        return m.pose.position.x, m.pose.position.y, m.pose.position.z

    pairs = list(zip(targets, targets[1:], strict=False))
    assert all(to_ns(a.header.stamp) < to_ns(b.header.stamp) for a, b in pairs)
    return max(math.dist(place(a), place(b)) / ((to_ns(b.header.stamp) - to_ns(a.header.stamp)) / 1e9) for a, b in pairs)


def longest_gap_s(targets):
    stamps = [to_ns(m.header.stamp) for m in targets]
    return max(b - a for a, b in zip(stamps, stamps[1:], strict=False)) / 1e9


@pytest.mark.domain(84)
def test_s25_no_request_ends_the_process_and_each_is_refused_in_words(peer):
    arm = Arm(peer, streams=False)
    arm.known = False
    child = launch(peer)
    assert set_limit(arm, "speed", 0.2).successful, "before the first pose"
    changing = peer.node.create_client(ChangeState, "interlock/change_state")
    arm.known = True
    arm.arm()
    arm.streams = True
    arm.reach(ACTIVE)
    for number in (77, Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP, Transition.TRANSITION_DEACTIVATE):
        assert not arm.ask(changing, ChangeState.Request(transition=Transition(id=number))).success
    for name, value in (("gripper_width", 0.05), ("speed", math.inf), ("joint_speed", 3.0), ("divergence", -1.0)):
        answer = set_limit(arm, name, value)
        assert not answer.successful and answer.reason
    peer.for_s(0.3)
    assert child.popen.poll() is None and arm.states[-1].state == ACTIVE
    arm.streams = False
    arm.arm(False)
    arm.reach(DISARMED)
    for name, value in (("speed", math.inf), ("joint_speed", 2.9), ("acceleration", 12.0)):
        answer = set_limit(arm, name, value)
        assert not answer.successful, "never looser than the robot's own"
        assert "looser than the robot's own" in answer.reason or "out of range" in answer.reason
    assert set_limit(arm, "speed", 0.3).successful, "but up to it, while disarmed"


@pytest.mark.domain(84)
def test_s25_a_memory_that_cannot_be_written_is_a_refusal(peer, tmp_path):
    (tmp_path / "a_file").write_text("")
    arm = Arm(peer, streams=False)
    child = launch(peer, memory_file=str(tmp_path / "a_file/memory"))
    peer.spin(lambda: arm.targets, what="targets")
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not answer.success and "a_file/memory cannot be written" in answer.message
    peer.for_s(0.2)
    assert child.popen.poll() is None and arm.states[-1].state == DISARMED


@pytest.mark.domain(84)
def test_s25_shutdown_in_motion_brakes_and_then_ends(arm):
    arm.arm()
    for _ in range(6):
        arm.send(0.02)
        arm.peer.for_s(0.1)
    changing = arm.peer.node.create_client(ChangeState, "interlock/change_state")
    shutdown = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_ACTIVE_SHUTDOWN))
    assert arm.ask(changing, shutdown).success
    arm.peer.spin(lambda: arm.child.popen.poll() is not None, what="its end")
    assert arm.child.popen.returncode == 0
    xs = [m.pose.position.x for m in arm.targets]
    assert xs[-1] == xs[-2] > 0.53, "it came to rest before it ended"
    assert fastest(arm.targets) <= 0.25 + 1e-6


@pytest.mark.domain(83)
def test_s25_a_log_that_nobody_reads_and_a_desk_that_dies_stop_nothing(peer):
    arm = Arm(peer, streams=True)
    processes = station_processes(load_recipe("demo", ["station.robot=franka_fr3", "station.operator.kind=keyboard"]),
                                  peer.supervisor.run_dir)
    process = next(p for p in processes if p.name == "interlock")
    settings = process.parameters | {"estops": ["pendant"], "memory_file": ""}
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    child = subprocess.Popen(command_line(replace(process, parameters=settings), peer.supervisor.run_dir / "params"),
                             env=peer.supervisor.environment, stdout=write, stderr=write, stdin=subprocess.DEVNULL)
    try:
        os.set_blocking(write, False)
        arm.arm()
        arm.reach(ACTIVE)
        while True:  # the pipe is full: whoever logs waits for ever
            try:
                os.write(write, b".")
            except BlockingIOError:
                break
        os.set_blocking(write, True)
        arm.targets.clear()
        for _ in range(4):
            arm.send(math.nan)  # each is logged, and the third is a fault
            arm.peer.for_s(0.2)
        arm.reach(FAULT, "invalid_command")
        arm.peer.for_s(1.0)
        assert longest_gap_s(arm.targets) < 0.5, "the control thread has not waited for its log"
        (desk,) = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == child.pid]
        os.kill(desk, signal.SIGKILL)
        arm.targets.clear()
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            arm.peer.for_s(0.2)
            _drain(read)
        answer = arm.clear("invalid_command")
        assert answer.success, answer.message
        assert longest_gap_s(arm.targets) < 0.5 and child.poll() is None
    finally:
        child.kill()
        child.wait()
        os.close(read)
        os.close(write)


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return -1


def _drain(read):
    os.set_blocking(read, False)
    try:
        while os.read(read, 65536):
            pass
    except BlockingIOError:
        pass


@pytest.mark.domain(83)
def test_s23_who_publishes_commands_beside_the_interlock_is_a_fault_by_name(arm):
    arm.arm()
    arm.send(0.0)
    arm.reach(ACTIVE)
    rogue = arm.peer.node.create_publisher(PoseStamped, "target_pose", profile("target_pose"))
    arm.reach(FAULT, "foreign_publisher:target_pose")
    answer = arm.clear("foreign_publisher:target_pose")
    assert not answer.success and "/station_a/peer" in answer.message
    arm.peer.node.destroy_publisher(rogue)
    arm.peer.spin(lambda: arm.clear("foreign_publisher:target_pose").success, what="the rogue to be gone")


@pytest.mark.domain(83)
def test_s14_s23_a_pressed_estop_is_not_released_by_another_publisher(arm):
    arm.arm()
    arm.pressed = True
    arm.reach(FAULT, "estop:pendant")
    spoof = arm.peer.node.create_publisher(Bool, "estop/pendant", profile("estop/pendant"))
    arm.heard = False  # even if the pressed one falls silent
    for _ in range(30):
        spoof.publish(Bool(data=False))
        assert not arm.clear("estop:pendant").success
        arm.peer.for_s(0.02)
    assert arm.states[-1].state == FAULT


@pytest.mark.domain(82)
def test_s06_a_message_that_calls_itself_the_operator_has_no_authority_by_that(arm):
    arm.arm()
    arm.enabled = False
    arm.peer.for_s(0.1)
    start = arm.x
    for number in range(1, 12):
        arm.say["policy/action"].publish(ActionChunk(
            source="operator", session="x", seq=number, dt=0.1, control_mode="tcp_delta", horizon=1, dim=3, execute=1,
            data=[0.01, 0.0, 0.0], observation_stamp=arm.peer.node.get_clock().now().to_msg()))
        arm.peer.for_s(0.05)
    assert arm.x == start and arm.states[-1].source == ""
    other = arm.peer.node.create_publisher(ActionChunk, "policy/action", profile("policy/action"))
    arm.enabled = True
    arm.peer.for_s(0.2)
    arm.send(0.0)
    arm.peer.for_s(0.2)
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not answer.success and "two_publishers:policy/action" in answer.message
    arm.peer.node.destroy_publisher(other)


@pytest.mark.domain(82)
def test_s21_s22_arming_says_which_input_is_missing_or_foreign(arm):
    arm.felt = False
    arm.peer.for_s(0.5)
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not answer.success and "silent:wrench" in answer.message and "unlimited" in answer.message
    arm.felt = True
    arm.pose.header.frame_id = "camera"
    arm.peer.for_s(0.3)
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not answer.success and "one in the frame 'camera'" in answer.message
    arm.pose.header.frame_id = "base_link"
    arm.arm()
    arm.streams = True
    arm.reach(ACTIVE)
    arm.felt = False
    arm.reach(HOLD, "silent:wrench")


@pytest.mark.domain(81)
def test_s25_messages_of_any_size_are_refused_unread(arm):
    events = listen(arm.peer, SafetyEvent, "safety/events")
    arm.arm()
    arm.peer.for_s(0.2)
    arm.targets.clear()
    stamp = arm.peer.node.get_clock().now().to_msg()
    many = ActionChunk(source="policy", session="policy", seq=1, dt=0.1, control_mode="tcp_delta", observation_stamp=stamp)
    many.joint_names = [f"joint_{index}" for index in range(100_000)]
    long = ActionChunk(source="policy", session="policy", seq=2, dt=0.1, control_mode="tcp_delta", observation_stamp=stamp,
                       horizon=10**6, dim=1, data=[0.0] * 10**6)
    noisy = ActionChunk(source="policy", session="policy", seq=3, dt=0.1, control_mode="tcp_delta", observation_stamp=stamp,
                        horizon=1, dim=3, data=[0.0] * 3, drawn=[0.0] * 10**6, drawn_dim=10**6)
    for chunk in (many, long, noisy):
        arm.say["policy/action"].publish(chunk)
    arm.reach(FAULT, "invalid_command")
    arm.peer.for_s(0.5)
    assert [e.cause for e in events if e.kind == "refused"][:3] == ["size"] * 3
    assert longest_gap_s(arm.targets) < 0.5


@pytest.mark.domain(81)
def test_s25_what_was_drawn_for_a_chunk_is_not_looked_at(arm):
    """Whatever is said of it, within the size that any chunk may have."""
    said = dict(drawn=array.array("f", [math.nan, math.inf] * 8000), drawn_dim=2**32 - 1,
                log_probs=array.array("f", [-math.inf] * 8000))
    arm.arm()
    for _ in range(5):
        arm.send(0.01, **said)
        arm.peer.for_s(0.1)
    assert arm.states[-1].state == ACTIVE and arm.states[-1].refused == 0 and arm.x > 0.52


@pytest.mark.domain(81)
def test_s24_after_a_stall_it_is_within_its_limits_by_measured_time(arm):
    arm.arm()
    for pause in (0.05, 0.3, 1.5):
        for _ in range(8):
            arm.send(0.02)
            arm.peer.for_s(0.05)
        os.kill(arm.child.popen.pid, signal.SIGSTOP)
        end = time.monotonic() + pause
        while time.monotonic() < end:
            arm.peer.for_s(0.02)
        os.kill(arm.child.popen.pid, signal.SIGCONT)
        arm.peer.for_s(0.1)
        if pause > 1.0:
            assert arm.states[-1].state in (HOLD, FAULT) and arm.states[-1].cause
        arm.peer.for_s(0.5)
        if arm.states[-1].state == FAULT:
            arm.peer.spin(lambda: arm.clear(arm.states[-1].cause).success, what="the fault to be cleared")
            arm.arm()
    assert fastest(arm.targets) <= 0.25 + 1e-6


@pytest.mark.domain(80)
def test_s04_a_clock_that_is_set_by_an_hour_moves_nothing(peer):
    arm = Arm(peer, streams=False)
    arm.child = launch(peer, module="tests.ros.clock_that_steps")
    arm.arm()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        for _ in range(6):
            arm.send(0.02)
            arm.peer.for_s(0.1)
        assert arm.states[-1].state == ACTIVE
        before = len(arm.targets)
        os.kill(arm.child.popen.pid, number)
        arm.reach(HOLD, "clock")
        answer = arm.ask(arm.arming, SetBool.Request(data=True))
        assert not answer.success and "clock" in answer.message
        arm.peer.for_s(0.6)
        after = [(m.pose.position.x, to_ns(m.header.stamp)) for m in arm.targets[before:]]
        steps = [abs(b[0] - a[0]) for a, b in zip(after, after[1:], strict=False)]
        assert max(steps) <= 0.25 * 0.01 + 1e-9 and after[-1][0] == after[-2][0], "it brakes, and no more"
        os.kill(arm.child.popen.pid, signal.SIGUSR2 if number == signal.SIGUSR1 else signal.SIGUSR1)  # the clock is right
        arm.peer.for_s(0.1)
        arm.arm(False)
        arm.reach(DISARMED)
        arm.arm()


@pytest.mark.domain(80)
def test_s23_one_interlock_a_station_however_it_is_started(arm):
    command = [sys.executable, "-m", "rlinf.interlock", "--ros-args", "-r", "__ns:=/station_a", "-p",
               "limits_file:=robots/franka_fr3/limits.yaml"]
    result = subprocess.run(command, env=arm.peer.supervisor.environment, capture_output=True, text=True, timeout=30,
                            check=False)
    assert result.returncode == 1 and "another one commands station '/station_a'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
