"""A Franka's station beside its twin, which speaks franka_ros2: what goes wrong, and how a person
brings the arm back.
"""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import ActionChunk, SafetyEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_core.interlock import load_limits
from rlinf_interlock.interlock_inputs import needs
from rlinf_ros.qos import LAZY_PROFILE, profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Arm, Lives, listen, start

franka_msgs = pytest.importorskip("franka_msgs.msg", reason="rlinf messages builds franka_msgs")
from franka_msgs.msg import FrankaRobotState  # noqa: E402

from rlinf_drivers.franka import Franka, fault_of, wrench_on_tool  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
BROADCASTER = "franka_robot_state_broadcaster"
OTHER, IDLE, MOVE, GUIDING, REFLEX, USER_STOPPED, RECOVERING = range(7)


def state(mode, current=(), last=()):
    message = FrankaRobotState(robot_mode=mode)
    for errors, names in ((message.current_errors, current), (message.last_motion_errors, last)):
        for name in names:
            setattr(errors, name, True)
    return message


@pytest.mark.parametrize(
    "mode, current, last, fault",
    [
        (MOVE, (), (), ""),
        (MOVE, (), ("cartesian_reflex",), ""),
        (IDLE, (), (), "idle"),
        (OTHER, (), (), "other"),
        (MOVE, ("power_limit_violation",), (), "error (power_limit_violation)"),
        (GUIDING, (), (), "guiding"),
        (
            REFLEX,
            ("cartesian_reflex", "joint_reflex"),
            (),
            "reflex (joint_reflex, cartesian_reflex)",
        ),
        (REFLEX, (), ("cartesian_reflex",), "reflex (cartesian_reflex)"),
        (USER_STOPPED, (), (), "user_stop"),
        (
            IDLE,
            (),
            ("communication_constraints_violation",),
            "idle (communication_constraints_violation)",
        ),
        (RECOVERING, (), (), "recovering"),
        (9, (), (), "mode_9"),
    ],
)
def test_s17_mode_and_flags_in_words(mode, current, last, fault):
    assert fault_of(state(mode, current, last)) == fault


def test_the_wrench_is_that_on_the_tool_in_the_base_frame():
    """The tool points down and a quarter turn about that; the table pushes it up with 10 N, 1 Nm
    about the base's x.
    """
    message = FrankaRobotState()
    # half a turn about x
    message.o_t_ee.pose.orientation.x = 1.0
    message.o_t_ee.pose.orientation.w = 0.0
    message.ee_t_k.pose.orientation.z = message.ee_t_k.pose.orientation.w = math.sqrt(0.5)
    message.k_f_ext_hat_k.wrench.force.z = 10.0  # the tool presses along its own z, which is down
    message.k_f_ext_hat_k.wrench.torque.y = 1.0  # K's y is the tool's -x, which is the base's -x
    force, torque = wrench_on_tool(message)
    assert force == pytest.approx((0.0, 0.0, 10.0)) and torque == pytest.approx((1.0, 0.0, 0.0))


class Bench(Arm):
    """The people and the policy of a station whose robot side is the twin."""

    def __init__(self, peer):  # as Arm, without an arm
        self.peer, self.seq, self.up, self.open, self.held = peer, 0, 0.0, 0.0, True
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, PoseStamped, "target_pose")
        self.faults = listen(peer, String, "robot/fault")
        self.widths = listen(peer, JointState, "gripper/state")
        self.poses, self.health = [], {}
        peer.node.create_subscription(PoseStamped, "current_pose", self.poses.append, LAZY_PROFILE)
        peer.node.create_subscription(DiagnosticArray, "/diagnostics", self.on_health, 10)
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
                control_mode="tcp_delta",
                horizon=1,
                dim=4,
                execute=1,
                data=[0.0, 0.0, self.up, self.open],
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def on_health(self, array):
        self.health.update({status.name: status for status in array.status})

    def inject(self, what, name="inject"):
        value = (
            ParameterValue(type=3, double_value=what)
            if isinstance(what, float)
            else ParameterValue(type=4, string_value=what)
        )
        return self.ask(
            self.setting, SetParameters.Request(parameters=[Parameter(name=name, value=value)])
        ).results[0]

    def moves(self, on=False):
        """Armed, it follows what the policy asks for, up or down, whichever has room; and goes
        ``on`` doing so.
        """
        self.arm()
        begun = self.poses[-1].pose.position.z
        self.up = 0.004 if begun < 0.2 else -0.004
        self.peer.spin(
            lambda: abs(self.poses[-1].pose.position.z - begun) > 0.01,
            what=lambda: f"motion: {self.states[-1].state} {self.states[-1].cause}",
        )
        self.up *= on

    def fault(self):
        return self.faults[-1].data if self.faults else None


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    folder = tmp_path_factory.mktemp("franka")
    (folder / "limits.yaml").write_text(
        f"extends: {Path('robots/franka_fr3/limits.yaml').resolve()}\ngripper_width: "
        f"0.08\ngripper_speed: 0.2\n"
    )
    (folder / "robot.yaml").write_text(
        "driver: franka\nlimits: limits.yaml\noptions: {hand_timeout_s: 1.0}\n"
        "twin: {node: sim_bridges.twins.franka, simulator: franka_mujoco}\ntool_axes: "
        "[current_twist]\n"
    )
    with peer_in(folder, 175) as peer:
        bench = Bench(peer)
        for name in ("twin", "driver", "interlock"):
            start(peer, name, f"station.robot={folder}", "station.lockstep=false")
        peer.spin(
            lambda: bench.targets and bench.poses and bench.widths and bench.fault() == "",
            what=lambda: f"the station: fault {bench.fault()}",
        )
        yield bench


def test_it_says_all_that_limits_need_and_moves(station):
    assert needs(load_limits("robots/franka_fr3/limits.yaml")) <= {"wrench", "joint_states"}
    got = {
        name: listen_newest(station.peer, kind, name)
        for name, kind in (
            ("wrench", WrenchStamped),
            (f"{BROADCASTER}/external_wrench_in_base_frame", WrenchStamped),
            (f"{BROADCASTER}/current_pose", PoseStamped),
        )
    }
    station.moves()
    station.peer.spin(lambda: all(got.values()), what="the broadcaster's own topics")
    ours, theirs = (
        {to_key(message): message.wrench.force for message in got[name]} for name in list(got)[:2]
    )
    both = ours.keys() & theirs.keys()
    assert both and all(ours[key].z == pytest.approx(-theirs[key].z) for key in both), (
        "it is on the tool, not by it"
    )
    assert (
        station.poses[-1].header.frame_id
        == "base_link"
        != got[f"{BROADCASTER}/current_pose"][-1].header.frame_id
    )


def listen_newest(peer, kind, topic):
    got = []
    peer.node.create_subscription(kind, topic, got.append, LAZY_PROFILE)
    return got


def to_key(message):
    return message.header.stamp.sec, message.header.stamp.nanosec


def test_a_driver_that_is_deactivated_in_motion_stops_the_arm_and_its_hand_until_it_is_active(
    station,
):
    """Without the pose, which it publishes here, the hold becomes a fault that a person resets."""
    lives = Lives(station.peer)
    station.moves(on=True)
    assert lives.change("driver", "deactivate")
    station.peer.spin(lambda: station.states[-1].state in (HOLD, FAULT), what="the stop")
    station.peer.for_s(1.0)
    poses, widths, place = (
        len(station.poses),
        len(station.widths),
        station.targets[-1].pose.position.z,
    )
    station.peer.for_s(0.5)
    assert (len(station.poses), len(station.widths)) == (poses, widths)
    assert station.targets[-1].pose.position.z == pytest.approx(place, abs=1e-6)
    station.up = 0.0
    assert lives.change("driver", "activate")
    station.peer.spin(
        lambda: len(station.poses) > poses and len(station.widths) > widths, what="its word"
    )
    station.ends_faults()
    station.moves()


def test_s17_a_reflex_is_cleared_with_a_reset_by_name_and_never_by_itself(station):
    events = listen(station.peer, SafetyEvent, "safety/events")
    station.moves()
    assert station.inject("cartesian_reflex").successful
    station.reach(FAULT, "robot:reflex (cartesian_reflex)")
    assert "expected nothing or one of" in station.inject("cartesian_reflexx").reason
    station.peer.for_s(1.0)
    assert "named 'another'" in station.clear("another").message
    station.held = False
    station.peer.for_s(1.0)
    assert "the enable is not held" in station.clear("robot:reflex (cartesian_reflex)").message
    station.peer.for_s(0.5)
    assert station.fault() == "reflex (cartesian_reflex)", "nothing was asked of the robot yet"
    station.held = True
    station.peer.for_s(0.3)
    before = station.poses[-1].pose.position.z
    answer = station.clear("robot:reflex (cartesian_reflex)")
    assert answer.success, answer.message
    station.reach(DISARMED)
    pulled = abs(station.poses[-1].pose.position.z - before)
    assert station.fault() == "" and pulled < 0.001, "a reset moves nothing"
    assert {"recover", "robot"} & {event.cause for event in events}, (
        "its set-point has gone to where it is"
    )
    station.moves()


def test_s17_where_a_reflex_has_ended_franka_ros2s_control_loop_its_silence_is_the_fault_and_a_reset_starts_it(
    station,
):
    """Its controller was told on, meanwhile, where the set-point came to rest: it must not go there
    when it comes back.
    """
    station.moves(on=True)
    station.inject("control_lost")
    station.peer.spin(
        lambda: (
            station.fault() == "silent (no robot_state from franka_ros2)"
            and station.states[-1].state == FAULT
        ),
        what=lambda: f"the fault: {station.fault()}",
    )
    station.up, station.poses[:] = 0.0, []
    twists = listen_newest(station.peer, TwistStamped, "current_twist")
    station.peer.spin(
        lambda: (
            station.clear(station.states[-1].cause).success
        ),  # it may not have heard of the other yet
        what=lambda: (
            f"the reset of whichever was first, S3 or the driver's node: {station.answered}"
        ),
    )
    station.peer.for_s(1.0)
    heights = [pose.pose.position.z for pose in station.poses]
    assert max(heights) - min(heights) < 0.001, "a reset moves nothing"
    assert twists, "its controllers that speak are back, too"
    station.moves()


def test_s17_a_user_stop_ends_by_the_person_who_pressed_it_and_then_by_a_reset(station):
    station.moves()
    station.inject("user_stop")
    station.reach(FAULT, "robot:user_stop")
    refused = station.clear("robot:user_stop")
    assert not refused.success and "refused: its cause persists: robot:user_stop" in refused.message
    faults = [fault for fault, _ in itertools.groupby(message.data for message in station.faults)]
    assert faults[-2:] == ["", "user_stop"], "nothing was asked of the robot"
    station.inject("")
    station.peer.spin(lambda: station.fault() == "idle", what=lambda: f"idle: {station.fault()}")
    assert station.clear("robot:user_stop").success
    station.moves()


def test_disarmed_too_a_person_brings_the_robot_back_by_the_faults_name(station):
    station.arm(False)
    station.reach(DISARMED)
    station.inject("joint_reflex")
    station.peer.spin(lambda: station.fault() == "reflex (joint_reflex)", what=station.fault)
    station.peer.for_s(0.5)  # the interlock has heard it too
    refused = station.ask(station.arming, SetBool.Request(data=True))
    assert (
        "this stands: robot:reflex (joint_reflex)" in refused.message
        and station.states[-1].state == DISARMED
    )
    assert station.clear("robot:reflex (joint_reflex)").success
    station.moves()


def width(station):
    return station.widths[-1].position[0]


def test_the_hand_follows_and_is_a_fault_where_it_does_not_answer(station):
    events = listen(station.peer, SafetyEvent, "safety/events")
    station.arm()
    assert width(station) > 0.07
    station.open = -0.01
    station.peer.spin(lambda: width(station) < 0.06, what=lambda: f"the hand at {width(station)}")
    station.inject("gripper_timeout")
    station.open = 0.01
    station.peer.spin(
        lambda: station.states[-1].state == FAULT, what=lambda: f"the fault: {station.fault()}"
    )
    cause = station.states[-1].cause
    assert cause.startswith("robot:gripper (no answer to ") and cause.endswith(" for 1 s)")
    assert not station.clear(cause).success, "it is cut off still"
    station.inject("")
    station.open = 0.0
    station.peer.spin(
        lambda: station.clear(cause).success, what=lambda: f"the reset: {station.fault()}"
    )
    left = width(station)
    station.peer.for_s(1.5)
    assert abs(width(station) - left) < 0.0015 and station.states[-1].state == DISARMED, (
        "a reset moves no finger"
    )
    station.moves()
    assert events and "recover" not in {event.cause for event in events}, (
        "the arm has followed all along"
    )


def test_a_hand_that_refuses_to_open_is_told_again_and_is_a_fault_until_it_does(station):
    """As one that was not homed, or with a width beyond its own."""
    station.moves()
    station.open = -0.02
    station.peer.spin(lambda: width(station) < 0.04, what=lambda: f"the hand at {width(station)}")
    station.inject("gripper_not_homed")
    station.open = 0.02
    station.peer.spin(
        lambda: station.states[-1].state == FAULT, what=lambda: f"the fault: {station.fault()}"
    )
    cause = station.states[-1].cause
    assert (
        cause.startswith("robot:gripper (move ")
        and "failed: libfranka gripper: Command failed!" in cause
    )
    station.inject("")
    station.peer.for_s(2.5)
    assert width(station) < 0.04 and station.states[-1].state == FAULT, (
        "a person may be at the fingers"
    )
    station.open = 0.0
    station.peer.spin(
        lambda: station.clear(cause).success, what=lambda: f"the reset: {station.fault()}"
    )
    station.peer.for_s(1.5)
    assert width(station) < 0.04 and station.states[-1].state == DISARMED, (
        "nor does a reset move them"
    )
    station.open = 0.02
    station.arm()
    station.peer.spin(
        lambda: width(station) > 0.05, what=lambda: f"the hand, after it, at {width(station)}"
    )
    station.open = 0.0
    station.moves()


def test_a_clock_that_is_ahead_is_told_with_how_much(station):
    station.moves()
    station.inject(2.0, "clock_offset_s")
    name = "station_a/driver"
    station.peer.spin(
        lambda: (
            name in station.health
            and "clock of franka_ros2's machine" in station.health[name].message
        ),
        what=lambda: f"diagnostics: {station.health.get(name)}",
    )
    assert "got +2.0" in station.health[name].message or "got +1.9" in station.health[name].message
    station.inject(0.0, "clock_offset_s")
    station.peer.spin(
        lambda: station.health[name].level == b"\0",
        what=lambda: f"diagnostics: {station.health[name]}",
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reach", "peg_insertion"])
def test_three_episodes_of_the_whole_station_by_the_scripted_operator(tmp_path, task):
    """In a ROS domain of its own: the command's processes are those of a real station, and the
    twin.
    """
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "up",
        "franka_twin",
        "--episodes",
        "3",
        "--json",
        str(tmp_path / "station.json"),
        "--out",
        str(tmp_path / "run"),
    ]
    ran = subprocess.run(
        [*command, "--set", "station.domain_id=176", f"station.task={task}"],
        text=True,
        capture_output=True,
        timeout=170,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    report = json.loads((tmp_path / "station.json").read_text())
    assert (report["episodes"], report["interlock_faults"]) == (3, 0) and report["successes"] >= 1


@pytest.mark.parametrize(
    "mode, silent, by_hand",
    [
        (GUIDING, False, True),
        (USER_STOPPED, False, True),
        (REFLEX, False, False),
        (GUIDING, True, False),
    ],
)
def test_what_a_person_does_at_the_arm_ends_there_and_not_by_a_reset(mode, silent, by_hand):
    assert (
        bool(Franka.ends_at_the_robot(SimpleNamespace(silent=silent, state=state(mode)), ""))
        is by_hand
    )
