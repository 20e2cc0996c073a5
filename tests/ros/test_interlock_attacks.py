"""The interlock's process under requests, messages and neighbours that nobody should send or be
(S21 to S25).
"""

import contextlib
import fcntl
import math
import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.srv import ResetFault
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import ONCE, station_processes
from rlinf_core.launch.supervisor import command_line
from rlinf_core.recipes import load_recipe
from rlinf_ros.conversions import to_ns
from tests.ros.stand_ins import Arm, fastest, longest_gap_s

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
F_SETPIPE_SZ = 1031


def launch(peer, module="rlinf_interlock.interlock", **parameters):
    """Return a real arm's interlock whose end is the test's business."""
    processes = station_processes(
        load_recipe("demo", ["station.robot=franka_fr3", "station.operator.kind=keyboard"]),
        peer.supervisor.run_dir,
    )
    process = next(p for p in processes if p.name == "interlock")
    settings = (
        process.parameters | {"estops": ["pendant"], "latch_file": "", "driver": False} | parameters
    )
    return peer.supervisor.start(replace(process, module=module, restart=ONCE, parameters=settings))


def set_limit(arm, name, value):
    client = arm.peer.node.create_client(SetParameters, "interlock/set_parameters")
    wanted = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    request = SetParameters.Request(parameters=[Parameter(name=f"limits.{name}", value=wanted)])
    return arm.ask(client, request).results[0]


@pytest.mark.domain(49)
def test_s19_s22_a_contact_limit_that_is_set_while_it_runs_is_kept_from_then_on(peer, tmp_path):
    arm, limits = Arm(peer), tmp_path / "limits.yaml"
    limits.write_text(
        f"extends: {os.getcwd()}/robots/franka_fr3/limits.yaml\ncontact_force: unlimited\n"
        "contact_torque: unlimited\ncontact_fault: unlimited\n"
    )
    arm.felt = False
    launch(peer, limits_file=str(limits))
    arm.arm()
    arm.reach(ACTIVE)
    assert set_limit(arm, "contact_force", 20.0).successful
    arm.reach(HOLD, "silent:wrench")
    arm.felt = True
    arm.reach(ACTIVE)
    arm.wrench.wrench.force.z = 30.0
    arm.reach(HOLD, "contact")


@pytest.mark.domain(84)
def test_s25_no_request_ends_the_process_and_each_is_refused_in_words(peer):
    arm = Arm(peer, streams=False)
    arm.publishes_state = False
    child = launch(peer)
    assert set_limit(arm, "speed", 0.2).successful, "before the first pose"
    changing = peer.node.create_client(ChangeState, "interlock/change_state")
    arm.publishes_state = True
    arm.arm()
    arm.streams = True
    arm.reach(ACTIVE)
    for number in (
        77,
        Transition.TRANSITION_CONFIGURE,
        Transition.TRANSITION_CLEANUP,
        Transition.TRANSITION_DEACTIVATE,
    ):
        assert not arm.ask(changing, ChangeState.Request(transition=Transition(id=number))).success
    for name, value in (
        ("gripper_width", 0.05),
        ("speed", math.inf),
        ("joint_speed", 3.0),
        ("divergence", -1.0),
    ):
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
    child = launch(peer, latch_file=str(tmp_path / "a_file/memory"))
    peer.spin(lambda: arm.targets, what="targets")
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    assert not answer.success and "a_file/memory cannot be written" in answer.message
    peer.for_s(0.2)
    assert child.popen.poll() is None and arm.states[-1].state == DISARMED


@pytest.mark.domain(84)
@pytest.mark.parametrize(
    "settings, armed",
    [
        ({}, False),
        ({"no_estop_reason": "the pendant cuts its power"}, True),
        ({"teleports": True}, True),
    ],
)
def test_s14_an_arm_without_an_e_stop_is_not_armed_until_a_person_confirms_why(
    peer, settings, armed
):
    arm = Arm(peer, streams=False)
    launch(peer, estops=[""], **settings)
    peer.spin(lambda: arm.targets, what="targets")
    if armed:
        arm.arm()
        return
    answer = arm.ask(arm.arming, SetBool.Request(data=True))
    assert (
        not answer.success
        and "expected at least one e-stop source for a real arm" in answer.message
    )
    assert "estops: [pendant]" in answer.message and "no_estop_reason: '<why>'" in answer.message
    peer.for_s(0.3)
    assert arm.states[-1].state == DISARMED


@pytest.mark.domain(84)
def test_s25_shutdown_in_motion_brakes_and_then_ends(peer):
    arm, child = Arm(peer, streams=False), launch(peer)
    changing = peer.node.create_client(ChangeState, "interlock/change_state")
    peer.spin(changing.service_is_ready, what="the interlock's services")
    arm.arm()
    for _ in range(6):
        arm.send(0.02)
        arm.peer.for_s(0.1)
    shutdown = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_ACTIVE_SHUTDOWN))
    assert arm.ask(changing, shutdown).success
    peer.spin(lambda: child.popen.poll() is not None, what="its end")
    assert child.popen.returncode == 0
    xs = [m.pose.position.x for m in arm.targets]
    assert xs[-1] == xs[-2] > 0.53, "it came to rest before it ended"
    assert fastest(arm.targets) <= 0.25 + 1e-6


@pytest.mark.domain(83)
def test_s25_a_log_that_nobody_reads_and_a_service_process_that_dies_stop_nothing(peer):
    arm = Arm(peer, streams=True)
    processes = station_processes(
        load_recipe("demo", ["station.robot=franka_fr3", "station.operator.kind=keyboard"]),
        peer.supervisor.run_dir,
    )
    process = next(p for p in processes if p.name == "interlock")
    settings = process.parameters | {"estops": ["pendant"], "latch_file": "", "driver": False}
    read, write = os.pipe()
    fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
    child = subprocess.Popen(
        command_line(replace(process, parameters=settings), peer.supervisor.run_dir / "params"),
        env=peer.supervisor.environment,
        stdout=write,
        stderr=write,
        stdin=subprocess.DEVNULL,
    )
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
        service_processes = [
            int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == child.pid
        ]
        assert service_processes
        # one that waits for its log counts as hung, and another may be on its way
        for service_process in service_processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(service_process, signal.SIGKILL)
        end = time.monotonic() + 90.0
        arm.targets.clear()
        answers = []
        # a request without a service process is repeated
        while not any(answer.done() for answer in answers):
            answers.append(arm.clearing.call_async(ResetFault.Request(cause="invalid_command")))
            with contextlib.suppress(AssertionError):
                arm.peer.spin(lambda: _drain(read) or any(answer.done() for answer in answers), 4.0)
            assert time.monotonic() < end, "the next service process"
        answer = next(answer.result() for answer in answers if answer.done())
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
        assert max(steps) <= 0.25 * 0.01 + 1e-9 and after[-1][0] == after[-2][0], (
            "it brakes, and no more"
        )
        # the clock is right
        os.kill(arm.child.popen.pid, signal.SIGUSR2 if number == signal.SIGUSR1 else signal.SIGUSR1)
        arm.peer.for_s(0.1)
        arm.arm(False)
        arm.reach(DISARMED)
        arm.arm()
