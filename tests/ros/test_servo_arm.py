"""An SO-101 by its servos' bus, beside its twin: what it follows, and whose calibration it
takes.
"""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rlinf_msgs.msg import ActionChunk, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.robots.config import load_robot
from rlinf_core.robots.drivers.servo_arm import Driver
from rlinf_core.robots.servos import Bus
from rlinf_drivers.servo_arm import ServoArm
from rlinf_ros.qos import publisher
from sim_bridges.twins.servos import Servos
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import Arm, listen, start

pytest.importorskip("scservo_sdk", reason="make setup installs feetech-servo-sdk")
pytestmark = [pytest.mark.ros, pytest.mark.timeout(180)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
ROBOT = yaml.safe_load(Path("robots/so101_twin/robot.yaml").read_text())


class Bench(Arm):
    """The people and the policy of a station whose robot side is the driver of servos, beside its
    twin.
    """

    def __init__(self, peer):
        self.peer, self.seq, self.enabled, self.step = peer, 0, True, 0.0
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, JointState, "target_joints")
        self.faults = listen(peer, String, "robot/fault")
        self.joints = listen(peer, JointState, "joint_states")
        self.poses = listen(peer, PoseStamped, "current_pose")
        self.widths = listen(peer, JointState, "gripper/state")
        self.health = []
        peer.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.say = {
            topic: publisher(peer.node, topic)
            for topic in ("estop/pendant", "enable", "policy/action")
        }
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        self.clearing = peer.node.create_client(ResetFault, "interlock/reset_fault")
        self.setting = peer.node.create_client(SetParameters, "twin/set_parameters")
        peer.node.create_timer(0.1, self.ten_hertz)
        peer.every(
            0.02,
            lambda: (
                self.say["enable"].publish(Bool(data=self.enabled)),
                self.say["estop/pendant"].publish(Bool(data=False)),
            ),
        )

    def _on_diagnostics(self, message):
        self.health += [
            {value.key: value.value for value in status.values}
            for status in message.status
            if status.name == "station_a/driver"
        ]

    def ten_hertz(self):
        self.seq += 1
        self.say["policy/action"].publish(
            ActionChunk(
                source="policy",
                session="policy",
                seq=self.seq,
                dt=0.1,
                control_mode="joint_delta",
                horizon=1,
                dim=5,
                execute=1,
                data=[self.step, 0.0, 0.0, 0.0, 0.0],
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def execute(self, words):
        """Words to the twin."""
        value = ParameterValue(type=4, string_value=words)
        request = SetParameters.Request(parameters=[Parameter(name="say", value=value)])
        assert self.ask(self.setting, request).results[0].successful

    def inject(self, what):
        self.execute("fault 0")
        self.execute("rest")

    def arm(self, value=True):
        """Ask until it is armed: an arming while the set-point comes to the arm does not count."""
        super().arm(value)

        def armed():
            if self.states[-1].state == DISARMED:
                self.ask(self.arming, SetBool.Request(data=value))
                self.peer.for_s(0.3)
            return self.states[-1].state != DISARMED

        self.peer.spin(armed, 60, lambda: f"arming: {self.answered}")

    def reach(self, state, cause=""):
        def recent():
            states = dict.fromkeys((safety.state, safety.cause) for safety in self.states[-300:])
            return f"{state} {cause}: {list(states)}, robot/fault '{self.faults[-1].data}'"

        self.peer.spin(
            lambda: (self.states[-1].state, self.states[-1].cause) == (state, cause), 30, recent
        )

    def standing(self):
        """Describe the arm's state, for a failure."""
        safety = self.states[-1]
        targets, joints = (list(message[-1].position) for message in (self.targets, self.joints))
        return (
            f"{safety.state} {safety.cause}, targets {targets}, joints {joints}, {self.health[-1]}"
        )

    @property
    def pan(self):
        return self.joints[-1].position[0]

    def torque(self):
        begun = len(self.health)
        self.peer.spin(lambda: len(self.health) > begun + 1, what="diagnostics")
        return self.health[-1]["torque"]


def robot_at(folder, **options):
    """Return the twin's robot on a port of its own."""
    robot = folder / "robot"
    robot.mkdir()
    urdf = str(Path("robots/so101/so101.urdf").resolve())
    document = ROBOT | {"limits": str(Path("robots/so101/limits.yaml").resolve()), "urdf": urdf}
    document["options"] = document["options"] | {
        "device": str(folder / "bus"),
        "urdf": urdf,
        **options,
    }
    (robot / "robot.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return robot


@contextlib.contextmanager
def standing(folder, *names):
    robot = robot_at(folder)
    with peer_in(folder, 228) as peer:
        bench = Bench(peer)
        for name in names:
            start(
                peer,
                name,
                f"station.robot='{robot}'",
                "station.task=so101_reach",
                "station.lockstep=false",
            )
        bench.settings = load_robot(str(robot)).driver_node
        peer.spin(
            lambda: (
                bench.joints
                and bench.poses
                and bench.widths
                and bench.faults
                and not bench.faults[-1].data
            ),
            what="the arm's state",
        )
        yield bench


def test_an_arm_of_servos_follows_the_interlock(tmp_path):
    with standing(tmp_path, "twin", "driver", "interlock") as bench:
        assert bench.torque() == "off until armed"
        bench.arm()
        bench.reach(ACTIVE)
        bench.step = 0.04
        bench.peer.spin(lambda: bench.pan > 0.3, 60, bench.standing)
        assert bench.torque() == "on"


def test_an_arm_that_a_hand_turned_does_not_jump_when_it_is_armed(tmp_path):
    """The interlock's set-point is where the arm was. The servos are limp until it has come."""
    with standing(tmp_path, "twin", "driver", "interlock") as bench:
        bench.peer.spin(lambda: bench.targets, what="a set-point")
        bench.execute("1 0.25")  # less than the limits' joint_divergence
        bench.peer.spin(lambda: abs(bench.pan - 0.25) < 0.01, what="the hand's turn")
        begun, bench.step = len(bench.joints), 0.0
        bench.arm()
        bench.peer.spin(lambda: bench.torque() == "on", 60, bench.standing)
        pans = [joints.position[0] for joints in bench.joints[begun:]]
        assert max(abs(pan - 0.25) for pan in pans) < 0.07, "a jump at arming"


def test_targets_are_followed_only_while_armed_and_only_from_near(tmp_path):
    """The driver alone: the test is the interlock."""
    with standing(tmp_path, "twin", "driver") as bench:
        peer, state, target = (
            bench.peer,
            SafetyState(),
            JointState(name=list(bench.settings.joints)),
        )
        say = {name: publisher(peer.node, name) for name in ("safety", "target_joints")}
        target.position = list(bench.joints[-1].position)

        def goes(pan, mode):
            if mode in (ARMED, HOLD):  # the interlock's target is there before its state
                target.position[0] = pan
                peer.for_s(0.1)
            state.state = mode
            say["safety"].publish(state)  # at each change, too
            peer.for_s(0.2)
            target.position[0] = pan

        peer.node.create_timer(0.02, lambda: say["target_joints"].publish(target))
        peer.node.create_timer(0.2, lambda: say["safety"].publish(state))  # as at a tick of 20 ms
        goes(0.3, DISARMED)
        peer.for_s(0.7)
        assert abs(bench.pan) < 0.01, "disarmed"
        goes(0.3, ARMED)
        peer.for_s(0.7)
        assert abs(bench.pan) < 0.01, "limp: the set-point is not at the arm yet"
        assert bench.torque() == "off until armed"
        before = len(bench.joints)
        goes(0.0, ARMED)
        peer.spin(lambda: bench.torque() == "on", what="torque")
        pans = [joints.position[0] for joints in bench.joints[before:]]
        assert max(map(abs, pans)) < 0.01, "no jump"
        goes(0.9, ARMED)
        peer.for_s(0.7)
        assert abs(bench.pan) < 0.01, "a target more than half a radian off"
        goes(0.3, HOLD)
        peer.spin(lambda: abs(bench.pan - 0.3) < 0.01, what="motion to a near target")
        goes(0.0, FAULT)
        peer.for_s(0.7)
        assert abs(bench.pan - 0.3) < 0.01, "it holds its last goal"


def test_a_calibration_of_another_arm_is_refused(tmp_path):
    """The driver compares the homing offsets in the servos with the file's, and names both."""
    row = {"drive_mode": 0, "homing_offset": 17, "range_min": 700, "range_max": 3300}
    path = tmp_path / "calibration.json"
    joints = ROBOT["options"]["joints"] | {"gripper": {"id": 6}}
    path.write_text(json.dumps({name: row | {"id": joint["id"]} for name, joint in joints.items()}))
    robot = robot_at(tmp_path, calibration="../calibration.json")
    settings = load_robot(str(robot)).driver_node
    calibrated, homing = settings.calibrated()
    assert (
        calibrated.joints["elbow_flex"].zero == 2000 and calibrated.joints["elbow_flex"].low == 700
    )
    assert homing == dict.fromkeys(range(1, 7), 17)
    assert calibrated.jaw.open_at == 3300 and calibrated.jaw.opening(2000) == pytest.approx(0.035)
    twin = Servos(tmp_path / "bus", "feetech", settings.ids, homing=23)
    bus = Bus("feetech", str(tmp_path / "bus"), settings.ids)
    driver = SimpleNamespace(homing=homing, settings=calibrated)
    with pytest.raises(
        RlinfError, match="expected the homing offset 17 of .*, got 23 in the servo"
    ):
        ServoArm._check_calibration(driver, bus)
    driver.homing = dict.fromkeys(homing, 23)
    ServoArm._check_calibration(driver, bus)
    bus.close()
    twin.unplug()
    joints.pop("wrist_flex")
    path.write_text(json.dumps({name: row | {"id": joint["id"]} for name, joint in joints.items()}))
    with pytest.raises(RecipeError, match="without 'wrist_flex'"):
        settings.calibrated()


def test_joints_of_no_urdf_are_refused():
    document = ROBOT["options"] | {"urdf": str(Path("robots/so101/so101.urdf").resolve())}
    document["joints"] = document["joints"] | {"wrist_rol": {"id": 9}}
    with pytest.raises(RecipeError, match="options.joints: expected joints of .*got 'wrist_rol'"):
        Driver(**document).description()
