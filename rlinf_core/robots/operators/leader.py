"""A leader arm of Dynamixel servos, like GELLO's; the follower copies its joints or its tool.

The tool's pose is a product of exponentials of the joints' angles.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import socket
import termios
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from rlinf_core.config.base import Settings
from rlinf_core.core import extras
from rlinf_core.core.errors import DeviceError
from rlinf_core.core.machine import HeldError, access_denied_text, acquire_device
from rlinf_core.core.rotation import (
    Quaternion,
    Vector,
    inverse,
    product,
    rotate,
    to_quaternion,
    to_vector,
)
from rlinf_core.robots.operators.device import Device
from rlinf_core.robots.operators.sticks import Scale, Seconds
from rlinf_core.robots.servos import RAD_PER_TICK, TABLES, Kind, to_signed
from rlinf_core.specs.arrays import ActionSpec

Pose = tuple[Vector, Quaternion]


def tool_pose(
    joints: Iterable[tuple[Sequence[float], Sequence[float], float]], tool: Sequence[float]
) -> Pose:
    """Return the tool's position [m] and orientation in the base frame.

    Args:
        joints: from the base on, each axis and a point on it [m], in the base frame at all angles
            0, and its angle [rad].
        tool: the tool's position there; its orientation there is the base's.
    """
    position: Vector = (float(tool[0]), float(tool[1]), float(tool[2]))
    turn: Quaternion = (0.0, 0.0, 0.0, 1.0)
    for axis, at, angle in reversed(list(joints)):
        size = sum(part * part for part in axis) ** 0.5
        rotation = to_quaternion([part / size * angle for part in axis])
        x, y, z = rotate(
            rotation, [value - origin for value, origin in zip(position, at, strict=True)]
        )
        position, turn = (x + at[0], y + at[1], z + at[2]), product(rotation, turn)
    return position, turn


JUMP = 1.0  # rad between two polls; no hand does this
MAX_LAG_STEPS = 3.0  # full steps that the follower may lag behind; the rest is dropped
MOVING_S = 0.5  # the leader commands for this long after its last movement
Id = Annotated[int, Field(ge=0, le=252)]


class Joint(Settings):
    """One servo, in the order from base to tool."""

    id: Id = Field(description="id of the servo")
    sign: Literal[1, -1] = Field(1, description="-1 if the servo counts in the other direction")
    zero: float = Field(
        math.pi,
        description="angle at which the follower is at 0 [rad]. pi is the middle of the range",
    )
    axis: Vector = Field(
        (0.0, 0.0, 1.0), description="axis of rotation in the base frame, at zero angles"
    )
    at: Vector = Field((0.0, 0.0, 0.0), description="point on that axis, at zero angles [m]")

    @model_validator(mode="after")
    def _check_axis(self) -> Joint:
        if not any(self.axis):
            raise ValueError(f"axis: expected a direction, got {list(self.axis)}")
        return self


class Trigger(Settings):
    """The servo of the gripper's trigger."""

    id: Id = Field(description="id of the servo")
    open: float = Field(description="angle for an open gripper [rad]")
    closed: float = Field(description="angle for a closed gripper [rad]")

    @model_validator(mode="after")
    def _check_ends(self) -> Trigger:
        if self.open == self.closed:
            raise ValueError(
                f"open: expected an angle that differs from closed, got {self.open} for both"
            )
        return self


class Leader(Device):
    """A relative leader: the follower copies its motion, from any place of both."""

    def __init__(
        self,
        *,
        device: str,
        joints: dict[str, Joint],
        tool: Vector = (0.0, 0.0, 0.0),
        trigger: Trigger | None = None,
        bus: Kind = "dynamixel",
        baud: Annotated[int, Field(gt=0)] = 57600,
        scale: Scale = 1.0,
        deadband: Annotated[float, Field(gt=0, le=0.5)] = 0.005,
        silence_s: Seconds = 0.2,
    ) -> None:
        """Settings.

        Args:
            device: its serial port, /dev/serial/by-id/usb-...
            joints: its servos by name, from base to tool
            tool: position of the leader's tool in its base frame at zero angles [m]
            trigger: the servo for the gripper, if there is one
            bus: kind of the servos
            baud: baud rate of all servos
            scale: factor of the leader's movements
            deadband: smallest movement of a joint that counts [rad]
            silence_s: longest time without an answer of the servos [s]. Then the arm stops
        """
        self.device = device
        self.joints = list(joints.values())
        self.tool = tool
        self.trigger = trigger
        self.bus = bus
        self.table = TABLES[bus]
        self.baud = baud
        self.scale = scale
        self.deadband = deadband
        self.silence_s = silence_s
        self.ids = [joint.id for joint in self.joints] + ([trigger.id] if trigger else [])
        if len(set(self.ids)) < len(self.ids):
            raise DeviceError(
                f"expected different servo ids, got {self.ids}. Set station.operator.joints"
            )
        self.port: Any = None
        self.lock: socket.socket | None = None
        self.raw: list[float] = []
        self.anchor: list[float] = []  # the angles at the last movement
        # place of the leader that the follower has reached: joint angles and tool
        self.follower: tuple[list[float], Pose] | None = None

    def attach(self, action: ActionSpec, control_hz: float) -> None:
        self.action = action

    def open(self) -> None:
        extras.require("servo" if self.bus == "feetech" else "teleop", "a leader arm")
        dxl: Any = importlib.import_module(self.table.module)
        self._claim()
        self.port = dxl.PortHandler(self.device)
        self.port.baudrate = self.baud
        try:
            opened = self.port.openPort()
        except (OSError, termios.error) as error:  # serial.SerialException is one
            if isinstance(error, PermissionError) or "ermission" in str(error):
                raise DeviceError(access_denied_text("a leader arm", self.device)) from error
            raise DeviceError(
                f"expected a leader arm at {self.device}, got: {error}. Plug it in, or name "
                "another port: station.operator.device"
            ) from error
        if not opened:
            raise DeviceError(f"expected a baud rate that the servos support, got {self.baud}")
        packets = dxl.PacketHandler(self.table.protocol)
        table = self.table
        self.position_reads = dxl.GroupSyncRead(self.port, packets, table.position, table.size)
        for servo in self.ids:
            self.position_reads.addParam(servo)
        self.raw = []
        self.anchor = []
        self.follower = None
        self.received_at = time.monotonic()
        self.moved_at = -math.inf
        self.requested_at = -math.inf

    def _claim(self) -> None:
        """Claim the leader; raise DeviceError if another process moves its arm with it."""
        if self.lock is not None:  # from an earlier attempt
            self.lock.close()
        with contextlib.suppress(OSError):  # a missing port is reported below
            try:
                self.lock = acquire_device(self.device)
            except HeldError as error:
                raise DeviceError(
                    f"expected a leader arm at {self.device} that no other program reads, got one "
                    f"that {error} reads. End that program, or name another port: "
                    "station.operator.device"
                ) from error

    def close(self) -> None:
        if self.lock is not None:
            self.lock.close()
        if self.port is not None and self.port.is_open:
            self.port.closePort()

    def poll(self) -> tuple[str, ...]:
        try:
            self.port.is_using = False  # an earlier error may have left it set
            answered = self.position_reads.txRxPacket() == 0
        # termios.error if it goes while its input is emptied
        except (OSError, termios.error) as error:
            raise DeviceError(
                f"unplugged: expected a leader arm at {self.device}, got: {error}. Plug it in "
                "again. The operator searches for it every second",
                disconnected=True,
            ) from error
        if not answered:
            if time.monotonic() - self.received_at > self.silence_s:
                raise DeviceError(
                    f"silent: expected answers of servos {self.ids} at {self.baud} baud, got none "
                    f"or damaged ones for {self.silence_s:g} s. Check its power, ids and baud rate"
                )
            return ()
        self.received_at = time.monotonic()
        return ("enable",) if self._take() else ()

    def _take(self) -> bool:
        """Read the new angles; return True if somebody moves the leader."""
        table = self.table
        counts = [
            self.position_reads.getData(servo, table.position, table.size) for servo in self.ids
        ]
        raw = [to_signed(count, table.size, table.sign_bit) * RAD_PER_TICK for count in counts]
        steps = (
            [_wrap_angle(new - old) for new, old in zip(raw, self.raw, strict=True)]
            if self.raw
            else [0.0] * len(raw)
        )
        if any(abs(step) > JUMP for step in steps):
            self.raw = raw
            self.follower = None
            raise DeviceError(
                f"garbage: expected servos to turn less than {JUMP:g} rad at a time, got "
                f"{max(map(abs, steps)):.2f}. Hold it still"
            )
        self.raw = (
            [old + step for old, step in zip(self.raw, steps, strict=True)] if self.raw else raw
        )
        distances = [
            abs(new - old)
            for new, old in zip(self.raw, self.anchor or [math.inf] * len(raw), strict=True)
        ]
        has_moved = max(distances) > self.deadband
        if has_moved:
            self.moved_at = time.monotonic() if self.anchor else self.moved_at
            self.anchor = list(self.raw)
        return has_moved

    def at_rest(self) -> bool:
        return bool(self.raw) and not self._is_moving()

    def _is_moving(self) -> bool:
        return time.monotonic() - self.moved_at < MOVING_S

    @property
    def angles(self) -> list[float]:
        """The follower's joint angles that the leader shows [rad]."""
        return [
            joint.sign * (raw - joint.zero)
            for joint, raw in zip(self.joints, self.raw, strict=False)
        ]

    def pose(self, angles: list[float]) -> Pose:
        """Return the pose of the leader's tool in its base frame."""
        turns = [
            (joint.axis, joint.at, angle) for joint, angle in zip(self.joints, angles, strict=True)
        ]
        return tool_pose(turns, self.tool)

    def motion(self) -> dict[str, float] | None:
        now = (self.angles, self.pose(self.angles)) if self.raw else None
        paused = time.monotonic() - self.requested_at > MOVING_S
        self.requested_at = time.monotonic()
        if now is None or self.follower is None or paused or not self._is_moving():
            self.follower = now
            return None
        joints = self.action.control_mode != "tcp_delta"
        action = (
            self._joints(now[0], self.follower[0])
            if joints
            else self._tool(now[1], self.follower[1])
        )
        return action | self._grip()

    def _joints(self, now: list[float], follower: list[float]) -> dict[str, float]:
        size = min(len(now), self.action.dim)
        step = self._steps(
            np.subtract(now, follower)[:size] * self.scale, np.array(self.action.scale[:size])
        )
        follower[:size] = _limited_target(
            np.array(now[:size]), step, np.array(self.action.scale[:size]), self.scale
        )
        return {f"j{place + 1}": float(value) for place, value in enumerate(np.clip(step, -1, 1))}

    def _tool(self, now: Pose, follower: Pose) -> dict[str, float]:
        has_rotation = self.action.dim >= 6
        shift = np.subtract(now[0], follower[0]) * self.scale
        turn = np.array(to_vector(product(now[1], inverse(follower[1])))) * self.scale
        size = np.array(self.action.scale[: 6 if has_rotation else 3])
        step = self._steps(np.concatenate([shift, turn]) if has_rotation else shift, size)
        remaining = (step - np.clip(step, -1, 1)) * size / self.scale
        back = to_quaternion(-remaining[3:]) if has_rotation else inverse((0.0, 0.0, 0.0, 1.0))
        x, y, z = np.subtract(now[0], remaining[:3]).tolist()
        assert self.follower is not None
        self.follower = (self.follower[0], ((x, y, z), product(back, now[1])))
        return dict(
            zip(("x", "y", "z", "rx", "ry", "rz"), np.clip(step, -1, 1).tolist(), strict=False)
        )

    def _steps(self, moved: np.ndarray, largest: np.ndarray) -> np.ndarray:
        """Return the motion in full steps; motion beyond MAX_LAG_STEPS is dropped."""
        step = moved / largest
        largest_step = float(np.abs(step).max(initial=0.0))
        return step * min(1.0, MAX_LAG_STEPS / largest_step) if largest_step else step

    def _grip(self) -> dict[str, float]:
        """Return a full step towards open or closed, by the trigger's nearer end."""
        trigger = self.trigger
        if trigger is None:
            return {}
        share = (self.raw[-1] - trigger.closed) / (trigger.open - trigger.closed)
        return {"grip": 1.0 if share > 0.5 else -1.0}


def _limited_target(
    now: np.ndarray, step: np.ndarray, largest: np.ndarray, scale: float
) -> list[float]:
    """Return the target after the steps that fit; the rest of the way to ``now`` remains."""
    return (now - (step - np.clip(step, -1, 1)) * largest / scale).tolist()


def _wrap_angle(angle: float) -> float:
    """Wrap an angle to half a turn to either side."""
    return (angle + math.pi) % (2 * math.pi) - math.pi
