"""Universal Robots: translates ur_robot_driver's modes into the robot interface.

See docs/robots/ur.md. It commands no motion. It unlocks a protective stop and restarts the robot's
program only as part of a reset that a person requested from the interlock (S17). A person ends all
other stops at the robot.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from math import nan
from typing import Any

from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64
from std_srvs.srv import Trigger
from ur_dashboard_msgs.msg import RobotMode, SafetyMode

from rlinf_core.robots.drivers.universal_robots import Driver
from rlinf_drivers.arm_driver import BACK_S, ArmDriver, Steps, newest
from rlinf_ros.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf_ros.qos import LAZY_PROFILE
from rlinf_ros.scene import sleep
from rlinf_ros.spinning import run

POLL_S = 0.02
# value of S3; speed_scaling arrives at 100 Hz
SILENT_S = 0.5
JOINTS = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)
PROTECTIVE, STOPPED = "protective_stop", "program_stopped"
FROZEN = "frozen (joint_states never change: is the robot's cable there?)"
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
RESTARTS = {
    "resend": "io_and_status_controller/resend_robot_program",
    "play": "dashboard_client/play",
}
MOVES = (SafetyMode.NORMAL, SafetyMode.REDUCED)


def constant_names(kind: Any) -> dict[int, str]:
    """Return the constants of a message as a map from value to lower-case name."""
    return {
        getattr(kind, name): name.lower()
        for name in dir(kind)
        if name.isupper() and not name.startswith("_") and isinstance(getattr(kind, name), int)
    }


SAFETY, ROBOT = constant_names(SafetyMode), constant_names(RobotMode)


def fault_of(safety: int, robot: int, program: bool) -> str:
    """Return why the arm would not follow a controller, in a word; empty if it would follow."""
    if safety not in MOVES:
        return SAFETY.get(safety, f"safety_mode_{safety}")
    if robot != RobotMode.RUNNING:
        return ROBOT.get(robot, f"robot_mode_{robot}")
    return "" if program else STOPPED


def arm_readings(message: JointState, anonymous: bool = True) -> bytes:
    """Return the measurements of the arm's six joints as bytes, without a gripper's joint.

    Bytes compare bit by bit, so that a NaN equals a NaN.

    Args:
        message: of joint_states; positions, velocities and efforts may be missing.
        anonymous: whether joints of other names than a UR's may be the arm's: then the first six
            are taken.

    Returns:
        Positions [rad], velocities [rad/s] and efforts [A]; empty if the message does not hold the
        arm's joints.
    """
    indices = [index for index, name in enumerate(message.name) if name.endswith(JOINTS)]
    if len(indices) < len(JOINTS):
        if not anonymous or len(message.name) < len(JOINTS):
            return b""
        indices = list(range(len(JOINTS)))
    parts = (message.position, message.velocity, message.effort)
    return array(
        "d", [part[index] if index < len(part) else nan for part in parts for index in indices]
    ).tobytes()


class UniversalRobots(ArmDriver):
    """Publishes the modes as ``robot/fault``; a reset unlocks and restarts the program."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = self.declare_settings("settings", Driver)
        self.safety = SafetyMode.NORMAL
        self.robot = RobotMode.DISCONNECTED
        self.program = False
        self.scaling = 0.0
        # times of the last speed_scaling, changed measurement and measurement
        self.received_at = self.changed_at = self.measured_at = 0.0
        self.safety_since = time.monotonic()
        self.last_readings = b""
        self.anonymous = True
        self.joints = self.subscribe_lazily(JointState, "joint_states")
        prefix = f"{self.settings.namespace.rstrip('/')}/"
        for kind, topic, take, quality in (
            (SafetyMode, "io_and_status_controller/safety_mode", self._on_safety, LATCHED),
            (RobotMode, "io_and_status_controller/robot_mode", self._on_robot, LATCHED),
            (Bool, "io_and_status_controller/robot_program_running", self._on_program, LATCHED),
            (
                Float64,
                "speed_scaling_state_broadcaster/speed_scaling",
                self._on_scaling,
                LAZY_PROFILE,
            ),
        ):
            self.create_subscription(kind, prefix + topic, take, quality)
        self.recovery = Recovery(self, prefix, self.settings)
        self.create_timer(POLL_S, self._poll)
        self.diagnostics = Diagnostics(self, self._health)
        self.begin()

    def _on_safety(self, mode: SafetyMode) -> None:
        if mode.mode != self.safety:
            self.safety = mode.mode
            self.safety_since = time.monotonic()
        self.publish_fault()

    def _on_robot(self, mode: RobotMode) -> None:
        self.robot = mode.mode
        self.publish_fault()

    def _on_program(self, running: Bool) -> None:
        self.program = running.data
        self.publish_fault()

    def _on_scaling(self, scaling: Float64) -> None:
        self.scaling = scaling.data
        self.received_at = time.monotonic()

    def _poll(self) -> None:
        """Check whether measurements change: the driver repeats the last ones of a silent robot."""
        message = newest(self.joints)
        if message is not None and self.anonymous and arm_readings(message, anonymous=False):
            # from now on, messages of a hand with many joints are not the arm's
            self.anonymous = False
        if message is not None and (readings := arm_readings(message, self.anonymous)):
            now = time.monotonic()
            had_gap = now - self.measured_at > SILENT_S
            if readings != self.last_readings or had_gap:
                self.last_readings, self.changed_at = readings, now
            self.measured_at = now
        self.publish_fault()

    @property
    def frozen(self) -> bool:
        """Whether the same measurements are repeated again and again."""
        return 0.0 < self.settings.frozen_s < self.measured_at - self.changed_at

    @property
    def arm_fault(self) -> str:
        if time.monotonic() - self.received_at > SILENT_S:
            return "silent (no speed_scaling from ur_robot_driver)"
        state_text = fault_of(self.safety, self.robot, self.program)
        return state_text or (FROZEN if self.frozen else "")

    def ends_at_the_robot(self, fault: str) -> bool:
        """Return True for all faults but a protective stop and a stopped program."""
        return fault not in (PROTECTIVE, STOPPED)

    def _health(self) -> Health:
        values = {
            "safety_mode": SAFETY.get(self.safety, self.safety),
            "robot_mode": ROBOT.get(self.robot, self.robot),
            "program": "running" if self.program else "stopped",
            "speed_scaling": round(self.scaling, 1),
        }
        if fault := self.fault:
            return Health(ERROR, fault, values)
        if self.scaling < 99.0:
            return Health(
                WARN,
                f"the robot plays {self.scaling:.0f} % of the commanded speed: its speed slider "
                "is below 100 %, or reduced mode is on. The set-point waits for the arm "
                "(divergence)",
                values,
            )
        return Health(OK, "follows its targets", values)


class Recovery(Steps):
    """Unlocks the robot through its dashboard, then restarts its program."""

    def __init__(self, node: UniversalRobots, prefix: str, settings: Driver) -> None:
        super().__init__(node)
        self.arm, self.settings = node, settings
        restart = RESTARTS[settings.restart]
        self.restarting = restart, node.create_client(Trigger, prefix + restart)
        self.unlocking = [
            (name, node.create_client(Trigger, f"{prefix}dashboard_client/{name}"))
            for name in ("close_safety_popup", "unlock_protective_stop")
        ]

    async def run(self) -> str:
        """Unlock, restart the program, and wait for the robot (see ``Steps``)."""
        self.running = True
        try:
            return await self._unlock() or await self._restart() or await self._await_health()
        finally:
            self.running = False

    async def _unlock(self) -> str:
        if self.arm.safety != SafetyMode.PROTECTIVE_STOP:
            return ""
        left = self.settings.unlock_after_s - (time.monotonic() - self.arm.safety_since)
        if left > 0.0:
            await sleep(self.node, left)
        for name, client in self.unlocking:
            if trouble := await self._trigger(f"dashboard_client/{name}", client):
                return trouble
        await self._until(lambda: self.arm.safety in MOVES)
        if self.arm.safety in MOVES:
            return ""
        return f"the robot is still in {SAFETY.get(self.arm.safety)}"

    async def _restart(self) -> str:
        return "" if self.arm.program else await self._trigger(*self.restarting)

    async def _await_health(self) -> str:
        """Wait until the robot itself reports that it is well."""
        await self._until(lambda: not self.arm.arm_fault)
        return self.arm.arm_fault

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, at most BACK_S."""
        deadline = time.monotonic() + BACK_S
        while not condition() and time.monotonic() < deadline:
            await sleep(self.node, 0.02)

    async def _trigger(self, name: str, client: Any) -> str:
        answer = await self.service(client, Trigger.Request())
        if answer is not None and answer.success:
            return ""
        return f"{name}: {answer.message if answer else 'no answer'}"


def main() -> None:
    """Entry point."""
    run(UniversalRobots, priority=20, listens=False)


if __name__ == "__main__":
    main()
