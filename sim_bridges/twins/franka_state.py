"""The state of a Franka's twin, without ROS.

It holds modes, errors, ros2_control's hardware and controllers, and a hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.core.rotation import inverse, rotate

if TYPE_CHECKING:
    from sim_bridges.core.interface import HasFaults

IMPEDANCE, JOINTS = "cartesian_impedance_controller", "joint_state_broadcaster"
BROADCASTER, TWIST = "franka_robot_state_broadcaster", "twist_broadcaster"
CONTROLLERS = (JOINTS, BROADCASTER, TWIST, IMPEDANCE)
HARDWARE = "FrankaHardwareInterface"
OTHER, IDLE, MOVE, GUIDING, REFLEX, USER_STOPPED = range(6)  # values of FrankaRobotState.robot_mode
USER_STOP, CONTROL_LOST = "user_stop", "control_lost"
HAND_SILENT, HAND_NOT_HOMED = "gripper_timeout", "gripper_not_homed"
WIDEST_M = 0.08


class Control:
    """The arm and its driver. ``inject`` sets a fault; franka_ros2's own recovery steps clear it.

    Args:
        flags: the names of franka_msgs/Errors.

    Attributes:
        arm: a ``HasFaults`` simulator, whose own errors add to the injected ones; None for others.
    """

    def __init__(self, flags: Iterable[str]) -> None:
        self.flags = tuple(flags)
        self.hardware = True
        self.active = set(CONTROLLERS)
        self.arm: HasFaults | None = None
        self.reported_errors: set[str] = set()
        self.last_errors: set[str] = set()
        self.injected = ""

    @property
    def errors(self) -> set[str]:
        """The current errors."""
        return self.reported_errors | set(self.arm.faults) if self.arm else self.reported_errors

    @property
    def options(self) -> list[str]:
        """Return the allowed values of ``inject``."""
        return ["", USER_STOP, CONTROL_LOST, HAND_SILENT, HAND_NOT_HOMED, *self.flags]

    @property
    def mode(self) -> int:
        if self.injected == USER_STOP:
            return USER_STOPPED
        if self.errors:
            return REFLEX
        return MOVE if self.follows else IDLE

    @property
    def follows(self) -> bool:
        """Whether a controller moves the arm."""
        return (
            self.hardware
            and IMPEDANCE in self.active
            and not self.errors
            and self.injected != USER_STOP
        )

    def is_active(self, controller: str) -> bool:
        return self.hardware and controller in self.active

    def inject(self, fault: str) -> None:
        """Set a fault, one of ``options``.

        An empty one releases a button or restores a cable, but clears no error.
        """
        self.injected = fault
        if fault == USER_STOP:
            self.active.discard(IMPEDANCE)  # the user stop ends the control loop
        # as in franka_ros2 from 2.4 and 3.3 on, where a reflex ends the control loop
        if fault == CONTROL_LOST:
            self.reported_errors = {"cartesian_reflex"}
            self.hardware = False
            self.active.clear()
        if fault in self.flags and not (self.arm and self.arm.provoke(fault)):
            self.reported_errors = {fault}
        self.last_errors |= self.errors

    def recover(self) -> bool:
        """Run libfranka's automaticErrorRecovery; return whether it succeeded."""
        if self.injected == USER_STOP:
            return False
        self.reported_errors.clear()
        return self.arm is None or self.arm.recover()

    def set_hardware(self, name: str, active: bool) -> bool:
        """Set the state of a hardware component; return whether it has that state now."""
        if name != HARDWARE or (active and self.errors):
            return False
        self.hardware = active
        return True

    def switch(self, activate: Iterable[str], deactivate: Iterable[str]) -> bool:
        """Switch controllers; return whether it worked, ignoring unknown ones (BEST_EFFORT)."""
        controllers = set(activate) & set(CONTROLLERS)
        if (
            not self.hardware
            or not controllers
            or (IMPEDANCE in controllers and self.mode == USER_STOPPED)
        ):
            return False
        self.active = (self.active | controllers) - set(deactivate)
        if IMPEDANCE in controllers:
            self.last_errors.clear()  # activation starts a new motion
        return True


class Controlled:
    """A ``Simulator`` that moves only while its controller is active. The twin reports its arm.

    The controller behaves as CRISP's: it holds the last target for ever. It receives targets while
    it is inactive, too, and goes to the latest of them at its activation. Without one, it holds the
    arm's pose.
    """

    STATE_TOPICS = ("current_pose", "wrench", "joint_states", "gripper/state")

    def __init__(self, simulator: Any, control: Control) -> None:
        self.arm, self.control = simulator, control
        self.target: np.ndarray | None = None
        self.has_followed = False
        control.arm = simulator if hasattr(simulator, "faults") else None

    def __getattr__(self, name: str) -> Any:
        if name == "arm":
            raise AttributeError(name)
        return getattr(self.arm, name)

    def reset(self, seed: int) -> None:
        """Reset the simulator, and forget the target of the previous scene."""
        self.target = None
        self.arm.reset(seed)

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Advance one tick; without an active controller the arm stays where it is."""
        follows = self.control.follows
        if self.has_followed and not follows:
            self.target = None
        if target_pose is not None:
            self.target = target_pose
        self.has_followed = follows
        self.arm.advance(
            self.target if follows and self.target is not None else self.arm.tcp_pose()
        )
        self.control.last_errors |= self.control.errors

    def channels(self) -> dict[str, np.ndarray]:
        """Return the channels that the arm's driver does not report.

        They come from trackers, judges and a controller. The controller reports the tool's twist
        along the tool's axes.
        """
        channels = self.arm.channels()
        back = inverse(tuple(channels["current_pose"][3:]))
        twist = channels["current_twist"]
        channels["current_twist"] = np.array([*rotate(back, twist[:3]), *rotate(back, twist[3:])])
        silent = (
            self.STATE_TOPICS
            if self.control.is_active(TWIST)
            else (*self.STATE_TOPICS, "current_twist")
        )
        return {name: value for name, value in channels.items() if name not in silent}
