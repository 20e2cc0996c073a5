"""A UR5e's station beside its twin, which speaks ur_robot_driver: what stops a robot, and how a
person brings it back.
"""

import json
import math
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import ActionChunk, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from rlinf_ros.conversions import to_ns
from rlinf_ros.qos import LAZY_PROFILE, profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Arm, Lives, listen, start

pytest.importorskip("ur_dashboard_msgs.msg", reason="rlinf messages builds ur_dashboard_msgs")
from ur_dashboard_msgs.msg import RobotMode, SafetyMode  # noqa: E402

from rlinf_drivers.arm_driver import ArmDriver  # noqa: E402
from rlinf_drivers.universal_robots import ROBOT, SAFETY, arm_readings, fault_of  # noqa: E402
from sim_bridges.twins.universal_robots import ARM, FOLLOWS  # noqa: E402
from sim_bridges.twins.universal_robots_state import HOME, tool_pose  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(180)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)


@pytest.mark.parametrize(
    "safety, robot, program, fault",
    [
        (SafetyMode.NORMAL, RobotMode.RUNNING, True, ""),
        (SafetyMode.REDUCED, RobotMode.RUNNING, True, ""),
        (SafetyMode.NORMAL, RobotMode.RUNNING, False, "program_stopped"),
        (SafetyMode.NORMAL, RobotMode.IDLE, True, "idle"),
        (SafetyMode.PROTECTIVE_STOP, RobotMode.RUNNING, False, "protective_stop"),
        (SafetyMode.ROBOT_EMERGENCY_STOP, RobotMode.POWER_OFF, False, "robot_emergency_stop"),
        (SafetyMode.NORMAL, RobotMode.POWER_OFF, False, "power_off"),
        (SafetyMode.NORMAL, -1, True, "no_controller"),
        (SafetyMode.VIOLATION, RobotMode.RUNNING, True, "violation"),
        (77, RobotMode.RUNNING, True, "safety_mode_77"),
        (0, RobotMode.RUNNING, True, "safety_mode_0"),
        (SafetyMode.NORMAL, 99, True, "robot_mode_99"),
    ],
)
def test_s17_modes_in_words(safety, robot, program, fault):
    assert fault_of(safety, robot, program) == fault
    assert len(SAFETY) == 13 and len(ROBOT) == 10


def readings(gripper=0.1, effort=0.0, elbow=1.0, first=False, prefix="", names=ARM, anonymous=True):
    """Return joint_states with a gripper's joint before or after the arm's six."""
    joints = [
        (f"{prefix}{name}", elbow if index == 2 else 0.1, 1.0) for index, name in enumerate(names)
    ]
    joints.insert(0 if first else len(joints), ("finger_joint", gripper, effort))
    named, positions, efforts = zip(*joints, strict=True)
    return arm_readings(
        JointState(name=named, position=positions, velocity=[math.nan] * 7, effort=efforts),
        anonymous,
    )


@pytest.mark.parametrize("first", [False, True])
def test_a_frozen_arm_is_seen_whatever_a_grippers_joint_reads(first):
    for prefix in ("", "left_"):
        before = readings(first=first, prefix=prefix)
        assert before == readings(first=first, prefix=prefix), "a NaN velocity equals itself"
        assert before == readings(gripper=0.100001, effort=math.nan, first=first, prefix=prefix)
        assert before != readings(elbow=math.nextafter(1.0, 2.0), first=first, prefix=prefix)
        assert before != readings(elbow=math.nan, first=first, prefix=prefix)


def test_the_log_of_a_driver_names_a_fault_and_its_end():
    """At each start the cause `silent` is present until the vendor's driver publishes."""
    log = MagicMock()
    node = SimpleNamespace(
        active=True, published_fault=None, faults=MagicMock(), get_logger=lambda: log
    )
    for node.fault in ("", "silent", "silent", ""):
        ArmDriver.publish_fault(node)
    log.error.assert_called_once_with("robot/fault: silent")
    log.info.assert_called_once_with("robot/fault: none. This has ended: silent")


def test_joints_of_other_names_are_the_arms_until_a_message_has_named_the_arms():
    other = [f"j{index}" for index in range(6)]
    assert readings(gripper=0.1, names=other) == readings(gripper=0.2, names=other) != b""
    assert readings(elbow=2.0, names=other) != readings(names=other)
    assert readings(names=other, anonymous=False) == readings(names=ARM[:5], anonymous=False) == b""
    assert (
        arm_readings(JointState(name=["finger_joint"], position=[0.1]))
        == b""
        == arm_readings(JointState())
    )
    short = JointState(name=list(ARM), position=[0.1] * 6)  # no velocity, no effort
    assert len(arm_readings(short)) == 8 * 18 and arm_readings(short) == arm_readings(short)


class Bench(Arm):
    """The people and the policy of a station whose robot side is the twin."""

    def __init__(self, peer):  # as Arm, without an arm
        self.peer, self.seq, self.turn, self.held = peer, 0, 0.0, True
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, JointState, "target_joints")
        self.faults = listen(peer, String, "robot/fault")
        self.health = {}
        self.poses = []
        self.joints = []
        peer.node.create_subscription(
            DiagnosticArray,
            "/diagnostics",
            lambda array: self.health.update({status.name: status for status in array.status}),
            10,
        )
        peer.node.create_subscription(
            PoseStamped, "/ur_twin/tcp_pose_broadcaster/pose", self.poses.append, LAZY_PROFILE
        )
        peer.node.create_subscription(
            JointState, "/ur_twin/joint_states", self.joints.append, LAZY_PROFILE
        )
        self.say = {
            name: peer.node.create_publisher(kind, name, profile(name))
            for name, kind in (("policy/action", ActionChunk), ("enable", Bool))
        }
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        self.clearing = peer.node.create_client(ResetFault, "interlock/reset_fault")
        self.setting = peer.node.create_client(SetParameters, "twin/set_parameters")
        peer.every(0.1, self.ten_hertz)

    def ten_hertz(self):
        self.say["enable"].publish(Bool(data=self.held))
        self.seq += 1
        self.say["policy/action"].publish(
            ActionChunk(
                source="policy",
                session="policy",
                seq=self.seq,
                dt=0.1,
                control_mode="joint_delta",
                horizon=1,
                dim=6,
                execute=1,
                data=[0.0, 0.0, self.turn, 0.0, 0.0, 0.0],
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def inject(self, what, name="inject"):
        value = (
            ParameterValue(type=3, double_value=what)
            if isinstance(what, float)
            else ParameterValue(type=4, string_value=what)
        )
        return self.ask(
            self.setting, SetParameters.Request(parameters=[Parameter(name=name, value=value)])
        ).results[0]

    @property
    def elbow(self):
        return self.joints[-1].position[self.joints[-1].name.index("elbow_joint")]

    def moves(self):
        """Armed, it follows what the policy asks for: whichever way there is room."""
        self.arm()
        begun = self.elbow
        self.turn = 0.02 if begun < 1.6 else -0.02
        self.peer.spin(
            lambda: abs(self.elbow - begun) > 0.03,
            what=lambda: f"motion: {self.states[-1].state} {self.states[-1].cause}, {self.fault()}",
        )
        self.turn = 0.0

    def fault(self):
        return self.faults[-1].data if self.faults else None

    def at_the_robot(self, name):
        """A person's act there."""
        client = self.peer.node.create_client(Trigger, f"/ur_twin/dashboard_client/{name}")
        assert self.ask(client, Trigger.Request()).success


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    with peer_in(tmp_path_factory.mktemp("ur"), 125) as peer:
        bench = Bench(peer)
        for name in ("twin", "driver", "controller", "interlock"):
            start(
                peer,
                name,
                "station.robot=ur5e_twin",
                "station.task=ur5e_reach",
                "station.lockstep=false",
            )
        peer.spin(
            lambda: bench.targets and bench.poses and bench.joints and bench.fault() == "",
            what=lambda: f"the station: fault {bench.fault()}",
        )
        yield bench


def test_it_moves_by_its_own_controller_and_the_tool_goes_with_the_joints(station):
    station.moves()
    poses = {to_ns(message.header.stamp): message for message in station.poses}
    # of one moment
    joints = next(
        message for message in reversed(station.joints) if to_ns(message.header.stamp) in poses
    )
    positions = dict(zip(joints.name, joints.position, strict=True))
    pose = poses[to_ns(joints.header.stamp)]
    expected = tool_pose(np.array([positions[name] for name in station.targets[-1].name]))
    p = pose.pose.position
    assert pose.header.frame_id == "base"
    assert math.dist((p.x, p.y, p.z), expected[:3]) < 1e-6
    assert math.dist(expected[:3], tool_pose(np.array(HOME))[:3]) > 0.005


def test_with_its_slider_down_it_follows_and_says_so(station):
    assert station.inject("slowed").successful
    health, driver = station.health, "station_a/driver"
    station.peer.spin(
        lambda: driver in health and "plays 20 % of the commanded speed" in health[driver].message,
        30,
        lambda: f"its word: {health.get(driver)}",
    )
    station.moves()
    assert station.inject("").successful
    station.moves()


def test_s23_whoever_else_tells_the_arms_own_controller_is_a_fault_by_name(station):
    cause = f"foreign_publisher:{FOLLOWS}"
    other = station.peer.node.create_publisher(JointTrajectory, FOLLOWS, 10)
    station.peer.spin(
        lambda: (station.states[-1].state, station.states[-1].cause) == (SafetyState.FAULT, cause),
        30,
        lambda: f"the fault: {station.states[-1]}",
    )
    station.peer.node.destroy_publisher(other)
    station.peer.spin(lambda: station.clear(cause).success, 30, "the reset")


def test_s17_a_safeguard_that_a_person_closes_again_moves_nothing(station):
    station.moves()
    station.turn = 0.02 if station.elbow < 1.6 else -0.02
    station.reach(ACTIVE)
    station.peer.for_s(0.5)
    station.inject("safeguard_stop")
    station.reach(FAULT, "robot:safeguard_stop")
    station.turn = 0.0
    station.peer.for_s(1.0)
    at = station.elbow
    station.inject("")
    station.peer.spin(lambda: station.fault() == "", what=lambda: f"the robot: {station.fault()}")
    station.peer.for_s(1.0)
    assert abs(station.elbow - at) < 0.005 and station.states[-1].state == FAULT
    assert station.clear("robot:safeguard_stop").success
    station.moves()


def test_s18_a_drivers_node_that_hangs_is_noticed(station):
    """No node receives its reports on the robot."""
    station.moves()
    station.reach(ACTIVE)
    driver = station.peer.supervisor.children["driver"].popen
    driver.send_signal(signal.SIGSTOP)
    try:
        station.reach(HOLD, "silent:robot/fault")
        station.arm(False)
        station.reach(DISARMED)
        refused = station.ask(station.arming, SetBool.Request(data=True))
        assert (
            not refused.success
            and "silent:robot/fault (without it, faults of the robot are not received"
            in refused.message
        )
    finally:
        driver.send_signal(signal.SIGCONT)
    station.moves()


def test_an_inactive_driver_holds_the_arm_and_an_inactive_controller_passes_nothing_on_until_it_was_disarmed(
    station,
):
    lives = Lives(station.peer)
    station.moves()
    assert lives.change("driver", "deactivate")
    station.reach(HOLD, "silent:robot/fault")
    assert lives.change("driver", "activate")
    station.moves()

    station.turn = 0.02 if station.elbow < 1.6 else -0.02
    station.reach(ACTIVE)
    station.peer.for_s(0.3)
    assert lives.change("controller", "deactivate")
    station.peer.for_s(0.5)
    at, place = station.elbow, station.targets[-1].name.index("elbow_joint")
    station.peer.spin(
        lambda: abs(station.targets[-1].position[place] - at) > 0.01,
        what="a set-point that is ahead",
    )
    assert lives.change("controller", "activate")
    station.peer.for_s(1.0)
    station.turn = 0.0
    assert abs(station.elbow - at) < 0.002, "it is commanded, and passes nothing on"
    station.ends_faults()
    station.arm(False)
    station.reach(DISARMED)
    assert abs(station.elbow - at) < 0.002
    station.moves()


def test_s17_a_protective_stop_is_unlocked_with_a_reset_by_name_and_never_by_itself(station):
    station.moves()
    assert station.inject(1.0, "locked_s").successful
    assert "did you mean 'protective_stop'" in station.inject("protective_stopp").reason
    assert station.inject("protective_stop").successful
    station.reach(FAULT, "robot:protective_stop")
    station.held = False
    station.peer.for_s(1.0)
    assert "the enable is not held" in station.clear("robot:protective_stop").message
    assert "named 'another'" in station.clear("another").message
    assert station.fault() == "protective_stop", "nothing was asked of the robot yet"
    station.held = True
    station.peer.for_s(0.3)
    before = station.elbow
    station.peer.spin(
        lambda: station.clear("robot:protective_stop").success,
        what=lambda: f"the reset: {station.fault()}",
    )
    station.reach(DISARMED)
    assert station.fault() == "" and abs(station.elbow - before) < 1e-3, "a reset moves nothing"
    assert "recovering" in [message.data for message in station.faults]
    station.moves()


def test_a_stop_that_is_locked_still_is_waited_for_and_says_what_stands(station):
    """The node's own wait is the settings', 5 s; the twin's lock is longer here, and so refuses."""
    station.moves()
    station.inject(30.0, "locked_s")
    station.inject("protective_stop")
    station.reach(FAULT, "robot:protective_stop")
    refused, begun = station.clear("robot:protective_stop"), time.monotonic()
    assert not refused.success
    station.peer.spin(
        lambda: station.fault() == "protective_stop" and time.monotonic() - begun > 1.0,
        what=lambda: f"the recovery to have given up: {station.fault()}",
    )
    station.inject(0.0, "locked_s")
    station.peer.spin(
        lambda: station.clear("robot:protective_stop").success,
        what=lambda: f"the reset: {station.fault()}",
    )
    station.moves()


def test_s14_s17_an_estop_at_the_robot_is_ended_there_and_nothing_of_ours_gives_it_power(station):
    station.moves()
    station.inject("robot_emergency_stop")
    station.reach(FAULT, "robot:robot_emergency_stop")
    assert "refused: its cause persists" in station.clear("robot:robot_emergency_stop").message
    station.inject("")
    station.peer.spin(
        lambda: station.fault() == "power_off", what=lambda: f"power_off: {station.fault()}"
    )
    assert (
        not station.clear("robot:robot_emergency_stop").success and station.fault() == "power_off"
    )
    station.at_the_robot("power_on")
    station.at_the_robot("brake_release")
    station.peer.spin(
        lambda: station.fault() == "program_stopped", what=lambda: f"the program: {station.fault()}"
    )
    assert station.clear("robot:robot_emergency_stop").success, (
        "the program alone is started again by a reset"
    )
    station.moves()


def test_s17_a_driver_that_falls_silent_is_a_fault_and_a_safeguard_ends_where_it_began(station):
    station.moves()
    station.inject("silent")
    station.peer.spin(
        lambda: (
            station.fault() == "silent (no speed_scaling from ur_robot_driver)"
            and station.states[-1].state == FAULT
        ),
        what=lambda: f"the fault: {station.fault()}",
    )
    cause = station.states[-1].cause
    station.inject("")
    station.peer.spin(
        lambda: station.fault() == "" and station.clear(cause).success,
        what=lambda: f"the reset: {station.fault()} {station.states[-1].cause}",
    )
    station.moves()
    station.inject("safeguard_stop")
    station.reach(FAULT, "robot:safeguard_stop")
    assert not station.clear("robot:safeguard_stop").success
    driver = "station_a/driver"
    station.peer.spin(
        lambda: driver in station.health and station.health[driver].message == "safeguard_stop",
        what=lambda: f"diagnostics: {station.health.get(driver)}",
    )
    station.inject("")
    station.peer.spin(
        lambda: station.fault() == "" and station.clear("robot:safeguard_stop").success,
        what=lambda: f"the reset: {station.fault()}",
    )
    station.moves()


def test_a_robot_that_its_driver_cannot_hear_is_a_fault_though_the_driver_goes_on_to_say_the_last_of_it(
    station,
):
    station.moves()
    station.inject("frozen")
    station.peer.spin(
        lambda: station.states[-1].state == FAULT, what=lambda: f"the fault: {station.fault()}"
    )
    cause = station.states[-1].cause
    assert cause.startswith("robot:frozen (joint_states never change")
    assert not station.clear(cause).success and station.fault().startswith("frozen"), (
        "a person mends the cable"
    )
    station.inject("")
    station.peer.spin(
        lambda: station.fault() == "program_stopped", what=lambda: f"its program: {station.fault()}"
    )
    station.peer.spin(
        lambda: station.clear(cause).success, what=lambda: f"the reset: {station.fault()}"
    )
    station.moves()


@pytest.mark.slow
def test_episodes_of_the_whole_station_by_the_scripted_operator_with_nobody_there(tmp_path):
    """In a ROS domain of its own: the command's processes are those of a real station, and the
    twin.
    """
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "up",
        "ur5e_twin",
        "--episodes",
        "2",
        "--json",
        str(tmp_path / "station.json"),
        "--out",
        str(tmp_path / "run"),
    ]
    ran = subprocess.run(
        [*command, "--set", "station.domain_id=146"], text=True, capture_output=True, timeout=170
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    report = json.loads((tmp_path / "station.json").read_text())
    assert (report["episodes"], report["interlock_faults"]) == (2, 0) and report[
        "successes"
    ] >= 1, report
