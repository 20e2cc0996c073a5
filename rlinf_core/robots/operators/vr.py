"""A VR controller by two topics of a headset's bridge, ``vr/pose`` and ``vr/joy`` (buttons)."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.rotation import inverse, product, to_quaternion, to_vector
from rlinf_core.robots.operators.device import RequestDevice
from rlinf_core.robots.operators.sticks import GRIP_ROLES, Button, Role, Scale, Seconds
from rlinf_core.specs.arrays import ActionSpec

JUMP_M, JUMP_RAD = 0.3, 1.0  # between two messages; no hand does this
MAX_LAG_STEPS = 3.0  # full steps that the follower may lag behind; the rest is dropped
PAUSE_S = 0.5  # after this pause the follower starts from the hand's new place
PRESSED = 0.5  # threshold of a button that is an axis
SignedAxis = Literal["x", "y", "z", "-x", "-y", "-z"]
Pose = tuple[np.ndarray, tuple[float, float, float, float]]  # [m], quaternion x y z w
REQUEST_BUTTONS: dict[Button, Role] = {
    "a": "success",
    "b": "failure",
    "trigger": "close",
    "menu": "arm",
    "stick": "disarm",
}
NAMES = ("trigger", "grip", "a", "b", "menu", "stick")


class Vr(RequestDevice):
    """A relative controller: while the clutch is held, the tool copies the hand's motion.

    Both may begin at any place.
    """

    topics = ("vr/pose", "vr/joy")

    def __init__(
        self,
        *,
        x: SignedAxis = "x",
        y: SignedAxis = "y",
        z: SignedAxis = "z",
        clutch: str = "grip",
        buttons: dict[Button, Role] = REQUEST_BUTTONS,
        button_names: tuple[str, ...] = NAMES,
        scale: Scale = 1.0,
        silence_s: Annotated[Seconds, Field(le=1.0)] = 0.2,
    ) -> None:
        """Settings.

        Args:
            x: axis of the headset's frame that is forward in the base frame
            y: axis that is left
            z: axis that is up. OpenXR's own frame has x: -z, y: -x, z: y
            clutch: button that is held to move the arm
            buttons: request of each button. open, close and intervene last while it is held
            button_names: names of the buttons and then of the axes in vr/joy, in order
            scale: factor of the hand's movements
            silence_s: longest silence of pose or buttons while the clutch is held [s]. Then the arm
                stops
        """
        self.rotation = _rotation(x, y, z)
        self.clutch = clutch
        self.buttons = buttons
        self.button_names = button_names
        self.scale, self.silence_s = scale, silence_s
        if clutch not in button_names:
            raise DeviceError(
                f"expected a clutch from {', '.join(button_names)}, got '{clutch}'. Set "
                "station.operator.clutch or button_names"
            )
        self.open()

    def attach(self, action: ActionSpec, control_hz: float) -> None:
        if action.control_mode != "tcp_delta":
            raise DeviceError(
                f"expected a task that moves the tool (tcp_delta), got {action.control_mode}, "
                "which a VR controller cannot command. Use a leader arm"
            )
        self.action = action

    def open(self) -> None:
        self.hand: Pose | None = None
        self.follower: Pose | None = None
        self.pressed: set[str] = set()
        self.requests: list[str] = []
        self.garbage = ""
        self.pose_at = -math.inf
        self.joy_at = -math.inf
        self.queried_at = -math.inf

    # Subscriptions
    def receive(self, message: Any) -> None:
        if hasattr(message, "pose"):
            self._on_pose(message.pose)
        else:
            self._on_joy([*message.buttons, *(value > PRESSED for value in message.axes)])

    def _on_pose(self, pose: Any) -> None:
        p, q = pose.position, pose.orientation
        values = (p.x, p.y, p.z, q.x, q.y, q.z, q.w)
        norm = math.sqrt(sum(value * value for value in values[3:]))
        if not all(map(math.isfinite, values)) or abs(norm - 1.0) > 0.01:
            self.garbage = (
                f"vr/pose: expected a finite pose with a quaternion of length 1, got {values}"
            )
            return
        # a rotation's axis is turned like any vector
        x, y, z = (self.rotation @ np.array(values[3:6]) / norm).tolist()
        now: Pose = self.rotation @ np.array(values[:3]), (x, y, z, values[6] / norm)
        if self.hand is not None and self._clutch_is_held() and self._jumped(now, self.hand):
            self.garbage = (
                "vr/pose: expected a hand's movement, got a jump. Has the headset lost "
                "the controller?"
            )
        self.hand = now
        self.pose_at = time.monotonic()

    @staticmethod
    def _jumped(now: Pose, before: Pose) -> bool:
        turned = np.linalg.norm(to_vector(product(now[1], inverse(before[1]))))
        return bool(np.linalg.norm(now[0] - before[0]) > JUMP_M or turned > JUMP_RAD)

    def _on_joy(self, down: list[Any]) -> None:
        if len(down) < len(self.button_names):
            self.garbage = (
                f"vr/joy: expected {', '.join(self.button_names)}, got {len(down)} buttons and "
                "axes. Set station.operator.button_names"
            )
            return
        now = {name for name, held in zip(self.button_names, down, strict=False) if held}
        self.requests += [
            self.buttons.get(name, "enable")
            for name in self.button_names
            if name in now - self.pressed
        ]
        self.pressed = now
        self.joy_at = time.monotonic()
        self.follower = self.follower if self._clutch_is_held() else None

    # Requests
    def poll(self) -> tuple[str, ...]:
        garbage = self.garbage
        self.garbage = ""
        if garbage:
            self.follower = None
            raise DeviceError(f"garbage on {garbage}")
        silent = time.monotonic() - min(self.pose_at, self.joy_at)
        if self.pressed and silent > self.silence_s:
            self.follower = None
            raise DeviceError(
                "silent: a button is held, but no message of vr/pose or vr/joy came for "
                f"{self.silence_s:g} s. Let go of it. If that does not help, check the headset's "
                "bridge"
            )
        return self.take_requests() or (("enable",) if self._clutch_is_held() else ())

    def _clutch_is_held(self) -> bool:
        return self.clutch in self.pressed

    def motion(self) -> dict[str, float] | None:
        paused = time.monotonic() - self.queried_at > PAUSE_S
        self.queried_at = time.monotonic()
        if paused:  # motion of the hand in a pause does not count
            self.follower = None
        roles = {self.buttons.get(name) for name in self.pressed}
        grip = {"grip": -1.0 if "close" in roles else 1.0} if roles & GRIP_ROLES.keys() else {}
        if not self._clutch_is_held() or self.hand is None:
            self.follower = None
            return grip if grip or "intervene" in roles else None
        steps = self._steps(self.hand, self.follower or self.hand)
        return dict(zip(("x", "y", "z", "rx", "ry", "rz"), steps, strict=False)) | grip

    def _steps(self, now: Pose, follower: Pose) -> list[float]:
        """Return the motion in units of the task's largest step.

        The rest remains for later steps, up to MAX_LAG_STEPS.
        """
        has_rotation = self.action.dim >= 6
        size = np.array(self.action.scale[: 6 if has_rotation else 3])
        moved = (
            np.concatenate(
                [now[0] - follower[0], to_vector(product(now[1], inverse(follower[1])))]
            )[: len(size)]
            * self.scale
        )
        steps = moved / size
        steps *= min(1.0, MAX_LAG_STEPS / max(float(np.abs(steps).max()), MAX_LAG_STEPS))
        remaining = (steps - np.clip(steps, -1, 1)) * size / self.scale
        back = (
            to_quaternion((-remaining[3], -remaining[4], -remaining[5]))
            if has_rotation
            else (0.0, 0.0, 0.0, 1.0)
        )
        self.follower = now[0] - remaining[:3], product(back, now[1])
        return [float(value) for value in np.clip(steps, -1, 1)]

    def at_rest(self) -> bool:
        """Return True once both topics have been heard, and no button is held."""
        return not self.pressed and self.has_reported()

    def has_reported(self) -> bool:
        return min(self.pose_at, self.joy_at) > -math.inf

    def help(self, axes: dict[str, int]) -> str:
        presses = ", ".join(f"{name} {role}" for name, role in self.buttons.items())
        return f"hold {self.clutch}: the tool follows the hand; {presses}"


def _rotation(*axes: str) -> np.ndarray:
    """Return the base's axes in the headset's frame, as rows.

    Raises:
        DeviceError: the axes are not right-handed.
    """
    rows = np.zeros((3, 3))
    for row, axis in enumerate(axes):
        rows[row, "xyz".index(axis[-1])] = -1.0 if axis.startswith("-") else 1.0
    if round(float(np.linalg.det(rows))) != 1:
        raise DeviceError(
            f"expected axes of a right-handed frame, each once, got x: {axes[0]}, y: {axes[1]}, "
            f"z: {axes[2]}. OpenXR's are x: -z, y: -x, z: y"
        )
    return rows
