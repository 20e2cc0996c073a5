"""ServoArm: an arm of Feetech or Dynamixel servos on its bus (docs/robots/so101.md).

The servos are limp until a person arms the interlock for the first time. A hand may move them until
then. They hold once the interlock's set-point has come to the arm. While the interlock is armed
they follow ``target_joints``. Otherwise they hold their last goal.
"""

from __future__ import annotations

import math
import time
from typing import Any

from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import GripperWidth, SafetyState
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from rlinf_core.core.errors import DeviceError, RlinfError
from rlinf_core.robots.drivers.servo_arm import Driver
from rlinf_core.robots.servos import RAD_PER_TICK, Bus
from rlinf_drivers.device import DeviceNode
from rlinf_ros.action_clients import GRIPPER_JOINTS
from rlinf_ros.conversions import set_pose
from rlinf_ros.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.spinning import run

PERIOD_S = 0.015
REPEAT_S = 0.1
FAULT_CHECK_S = 0.5
# The servos follow no older target.
MAX_TARGET_AGE_S = 0.2
# The servos follow no target if the interlock's state, sent every ten ticks, is older.
MAX_SAFETY_AGE_S = 0.5
ARMED = (SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD)
# Largest distance of a target from its joint; the limits' joint_divergence is smaller.
MAX_DISTANCE_RAD = 0.5
# The same for the first target of limp servos. The interlock realigns above 0.05 rad.
MAX_FIRST_DISTANCE_RAD = 0.06
STARTING, SILENT = "starting", "silent"


class ServoArm(DeviceNode):
    """Publishes ``joint_states``, ``current_pose`` and ``gripper/state``; commands the servos.

    While inactive it only reads the bus: nothing is published, so the interlock holds, and the
    servos hold their last goal.
    """

    def __init__(self) -> None:
        super().__init__("driver")
        settings = self.declare_settings("settings", Driver)
        self.settings, self.homing = settings.calibrated()
        self.description = self.settings.description()
        self.device_name = f"servos at {self.settings.device}"
        self.joints, self.poses = publisher(self, "joint_states"), publisher(self, "current_pose")
        self.widths, self.faults = publisher(self, "gripper/state"), publisher(self, "robot/fault")
        self.target: tuple[float, list[float]] = (-math.inf, [])  # time of arrival, angles [rad]
        self.width: float | None = None
        self.safety: tuple[float, int] = (-math.inf, SafetyState.DISARMED)
        self.fault = STARTING
        self.reset = False
        self.torque = False
        self.ignored = ""
        self.answered_at = self.checked_at = -math.inf
        subscription(self, "target_joints", self._on_target)
        subscription(self, "gripper/command", self._on_width)
        subscription(self, "safety", self._on_safety)
        subscription(self, "robot/reset", self._on_reset)
        self.create_timer(REPEAT_S, self._repeat_fault)
        self.diagnostics = Diagnostics(self, self._health)
        self.begin()

    def _on_target(self, target: JointState) -> None:
        names = list(self.settings.joints)
        if sorted(target.name) == sorted(names) and all(map(math.isfinite, target.position)):
            by_name = dict(zip(target.name, target.position, strict=True))
            self.target = time.monotonic(), [by_name[name] for name in names]

    def _on_width(self, command: GripperWidth) -> None:
        if math.isfinite(command.width):
            self.width = command.width

    def _on_safety(self, safety: SafetyState) -> None:
        self.safety = time.monotonic(), safety.state

    def _on_reset(self, _: String) -> None:
        """Note a person's reset: servos that an overload switched off may hold again."""
        self.reset = True

    def activate(self) -> str:
        """Forget earlier targets."""
        self.target = (-math.inf, [])
        self.width = None
        return ""

    def _repeat_fault(self) -> None:
        if self.active:
            self.faults.publish(String(data=self.fault))

    # In the reading thread
    def open(self) -> Bus:
        settings = self.settings
        self.fault = SILENT
        self.torque = False
        bus = Bus(settings.bus, settings.device, settings.ids, settings.baud)
        self.answered_at = time.monotonic()
        try:
            self._check_calibration(bus)
        except RlinfError:
            bus.close()
            raise
        return bus

    def _check_calibration(self, bus: Bus) -> None:
        """Check the homing offsets in the servos against the calibration file.

        Raises:
            RlinfError: they differ.
        """
        for servo, expected in self.homing.items():
            if (measured := bus.homing_offset(servo)) != expected:
                raise RlinfError(
                    f"servo {servo} at {self.settings.device}: expected the homing offset "
                    f"{expected} of {self.settings.calibration}, got {measured} in the servo. The "
                    "file belongs to another arm, or the arm was calibrated again. Run "
                    "lerobot-calibrate and name its output file"
                )

    def poll(self, device: Bus) -> None:
        now, ticks = time.monotonic(), device.positions()
        if ticks is None:
            if now - self.answered_at > self.settings.silence_s:
                self._set_fault(SILENT)
                raise DeviceError(
                    f"silent: expected answers of servos {device.ids}, got none or damaged ones "
                    f"for {self.settings.silence_s:g} s. Check power, ids and baud rate"
                )
            return
        self.answered_at = now
        if now - self.checked_at > FAULT_CHECK_S or self.reset:
            self.checked_at = now
            self._check_servos(device)
        angles = [joint.angle(ticks[joint.id]) for joint in self.settings.joints.values()]
        if self.active:
            self._publish(angles, ticks)
            self._follow(device, now, angles, ticks)
        self.log_trouble(self.fault)
        self.stopping.wait(PERIOD_S)

    def _check_servos(self, device: Bus) -> None:
        """Check for faults; a fault stays until a person resets it and the servo reports none."""
        # a lost packet is no fault; ``positions`` notices a silent bus
        if (fault := device.fault()) is None:
            return
        if fault:
            self._set_fault(fault)
        elif self.reset or self.fault in (STARTING, SILENT):
            if self.fault and self.torque:  # a servo may have switched itself off, the arm sunk
                device.hold()
            self._set_fault("")
        self.reset = False

    def _set_fault(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            self._repeat_fault()

    def _follow(self, device: Bus, now: float, angles: list[float], ticks: dict[int, int]) -> None:
        (state_at, state), (sent_at, target) = self.safety, self.target
        if (
            self.fault
            or state not in ARMED
            or now - state_at > MAX_SAFETY_AGE_S
            or now - sent_at > MAX_TARGET_AGE_S
        ):
            return
        self.ignored = self._ignore_reason(target, angles, ticks)
        if self.ignored:
            return
        if not self.torque:
            device.hold()
            self.torque = True
        joints = self.settings.joints.values()
        goals = {joint.id: joint.ticks(angle) for joint, angle in zip(joints, target, strict=True)}
        if self.settings.jaw and self.width is not None:
            goals[self.settings.jaw.id] = self.settings.jaw.goal(self.width)
        device.command(goals)

    def _ignore_reason(
        self, target: list[float], angles: list[float], ticks: dict[int, int]
    ) -> str:
        """Return why the servos do not follow this target; empty if they follow."""
        joints, largest = (
            self.settings.joints,
            MAX_DISTANCE_RAD if self.torque else MAX_FIRST_DISTANCE_RAD,
        )
        distances = {
            name: abs(goal - angle)
            for name, goal, angle in zip(joints, target, angles, strict=True)
        }
        name = max(distances, key=distances.__getitem__)
        if distances[name] > largest:
            reason = "" if self.torque else ", as the torque is off until then"
            return (
                f"expected a target within {largest:g} rad of each joint{reason}, got "
                f"{distances[name]:.3f} rad at '{name}'. Disarm, and arm again"
            )
        if self.torque:
            return ""
        for name, joint in joints.items():
            # torque would drive a joint outside its range to the range's end
            outside = max(joint.low - ticks[joint.id], ticks[joint.id] - joint.high) * RAD_PER_TICK
            if outside > MAX_FIRST_DISTANCE_RAD:
                return (
                    f"expected '{name}' within its range of {joint.low:g} to {joint.high:g} ticks "
                    f"before the torque goes on, got {ticks[joint.id]}. Move it by hand, or "
                    f"calibrate again"
                )
        return ""

    def _publish(self, angles: list[float], ticks: dict[int, int]) -> None:
        names = list(self.settings.joints)
        position, orientation = self.description.pose(
            self.settings.tool, dict(zip(names, angles, strict=True))
        )
        pose = PoseStamped()
        set_pose(pose.pose, (*position, *orientation))
        pose.header.frame_id = "base_link"
        messages: list[tuple[Any, Any]] = [
            (self.joints, JointState(name=names, position=angles)),
            (self.poses, pose),
        ]
        if jaw := self.settings.jaw:
            messages.append(
                (
                    self.widths,
                    JointState(name=GRIPPER_JOINTS, position=[jaw.opening(ticks[jaw.id])]),
                )
            )
        stamp = self.get_clock().now().to_msg()
        for output, message in messages:
            message.header.stamp = stamp
            output.publish(message)

    def _health(self) -> Health:
        values = {
            "device": self.settings.device,
            "torque": "on" if self.torque else "off until armed",
        }
        if self.fault:
            return Health(ERROR, self.fault, values)
        if self.ignored:
            return Health(WARN, self.ignored, values)
        return Health(OK, "follows its targets", values)


def main() -> None:
    """Entry point."""
    run(ServoArm, priority=20, listens=False)


if __name__ == "__main__":
    main()
