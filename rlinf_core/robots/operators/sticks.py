"""Motion from deflections and buttons, for every device with sticks.

Settings: axis map, signs, deadband, curve, scale, clutch.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import Field

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import RequestDevice

Axis = Literal["x", "y", "z", "rx", "ry", "rz", "grip"]
Role = Literal[
    "arm",
    "disarm",
    "enable",
    "next_arm",
    "open",
    "close",
    "intervene",
    "ready",
    "success",
    "failure",
    "rerecord",
    "discard",
]
Button = Annotated[str, Field(pattern="^[a-z0-9_]+$")]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Scale = Annotated[float, Field(gt=0, le=1)]
Curve = Annotated[float, Field(ge=1, le=5)]
Seconds = Annotated[float, Field(ge=0.05, le=60)]
GRIP_ROLES = {"open": 1.0, "close": -1.0}


class Sticks(RequestDevice):
    """A device with deflections and buttons.

    Each kind's ``read_reports`` fills ``values`` and ``pressed``.
    """

    # True if the device also reports at rest, so that silence at rest is trouble too
    streams = False

    def __init__(
        self,
        *,
        axes: dict[Axis, str],
        buttons: dict[Button, Role],
        clutch: str = "",
        deadband: Fraction = 0.08,
        curve: Curve = 1.5,
        scale: Scale = 0.5,
        rotation_scale: Scale = 0.5,
        silence_s: Seconds = 0.3,
    ) -> None:
        """Settings.

        Args:
            axes: which deflection moves which axis of the tool (x forward, y left, z up, rx, ry,
                rz, grip); a minus turns
                it round: {x: -ty}
            buttons: request of each button. open, close and intervene last while it is held
            clutch: button that is held to move the arm. Empty lets a deflection alone move it
            deadband: share of the deflection that counts as rest
            curve: exponent of the response. 1 is linear, more is finer near the middle
            scale: share of the task's largest step at full deflection
            rotation_scale: the same share for rotation
            silence_s: longest silence while deflected [s]. Then the arm stops
        """
        self.axis_sources: dict[str, tuple[str, float]] = {
            axis: (name.removeprefix("-"), -1.0 if name.startswith("-") else 1.0)
            for axis, name in axes.items()
        }
        self.buttons = buttons
        self.clutch = clutch
        self.deadband = deadband
        self.curve = curve
        self.scale = scale
        self.rotation_scale = rotation_scale
        self.silence_s = silence_s
        self._reset_input()

    def _reset_input(self) -> None:
        self.values: dict[str, float] = {}
        self.pressed: set[str] = set()
        self.requests: list[str] = []
        # polled_at: value of received_at at the last poll
        self.received_at = self.polled_at = time.monotonic()

    def read_reports(self) -> None:
        """Read new reports into ``values`` and ``pressed``.

        Raises:
            DeviceError: the device is gone or sends garbage.
        """

    def note_report(self) -> None:
        """Note that a valid report came."""
        self.received_at = time.monotonic()

    def press(self, name: str, down: bool) -> None:
        """Set a button's new state."""
        if down and name not in self.pressed:
            self.requests.append(self.buttons.get(name, "enable"))
        (self.pressed.add if down else self.pressed.discard)(name)

    def poll(self) -> tuple[str, ...]:
        self.read_reports()
        if (
            self.streams or self._is_deflected()
        ) and time.monotonic() - self.received_at > self.silence_s:
            raise DeviceError(
                f"silent: expected reports while it is deflected, got none for {self.silence_s:g} "
                "s. Let go of it. If that does not help, plug it in again"
            )
        requests = self.take_requests()
        has_new_report = self.received_at != self.polled_at
        self.polled_at = self.received_at
        return requests or (("enable",) if has_new_report and self.motion() is not None else ())

    def motion(self) -> dict[str, float] | None:
        motion = {axis: self._response(axis) for axis in self.axis_sources}
        roles = {self.buttons.get(name, "") for name in self.pressed}
        for role in roles & GRIP_ROLES.keys():
            motion["grip"] = GRIP_ROLES[role]
        takes_over = "intervene" in roles or self.clutch in self.pressed
        if not takes_over and (self.clutch or not any(motion.values())):
            return None
        return motion

    def at_rest(self) -> bool:
        return not self._is_deflected() and not self.pressed

    def _is_deflected(self) -> bool:
        return any(self._response(axis) for axis in self.axis_sources)

    def _response(self, axis: str) -> float:
        name, sign = self.axis_sources[axis]
        value = max(-1.0, min(1.0, self.values.get(name, 0.0)))
        deflection = max(0.0, abs(value) - self.deadband) / (1.0 - self.deadband)
        scale = self.rotation_scale if axis.startswith("r") else self.scale
        return sign * (1.0 if value > 0 else -1.0) * deflection**self.curve * scale

    def help(self, axes: dict[str, int]) -> str:
        moves = [f"{name} {axis}" for axis, (name, _) in self.axis_sources.items() if axis in axes]
        presses = [f"{name} {role}" for name, role in self.buttons.items()]
        return ", ".join(
            [*moves, *presses, *([f"{self.clutch} is the clutch"] if self.clutch else [])]
        )
