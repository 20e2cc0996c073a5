"""Servo buses by the vendors' own clients.

Kinds: Feetech STS3215 (SO-101), Dynamixel XL330 and XL430 (Koch). Units: a servo counts 4096 ticks
a turn. An angle is ``sign * (ticks - zero) * 2 pi / 4096`` [rad].
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import socket
import termios
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlinf_core.config.base import Settings
from rlinf_core.core import extras
from rlinf_core.core.errors import DeviceError, RecipeError
from rlinf_core.core.machine import HeldError, access_denied_text, acquire_device

TICKS_PER_TURN = 4096
RAD_PER_TICK = 2 * math.pi / TICKS_PER_TURN
MAX_ATTEMPTS = 5  # a bus loses a packet now and then
PAUSE_S = 0.02  # a late answer comes within the pause
Kind = Literal["feetech", "dynamixel"]
Id = Annotated[int, Field(ge=0, le=252)]
Tick = Annotated[float, Field(ge=-TICKS_PER_TURN, le=2 * TICKS_PER_TURN)]


@dataclass(frozen=True)
class Table:
    """The control table of a kind of servo (the vendors' e-manuals).

    Attributes:
        module: the vendor's client.
        protocol: protocol of its packet handler.
        baud: default baud rate of these servos in arms.
        torque, goal, position, homing: addresses.
        size: bytes of a goal and of a position.
        homing_size: bytes of the homing offset.
        sign_bit: sign bit of a goal and a position; None for two's complement.
        homing_sign_bit: likewise of the homing offset.
        faults: words for the bits of a status packet's error, or of its hardware status.
    """

    module: str
    protocol: float
    baud: int
    torque: int
    goal: int
    position: int
    homing: int
    size: int
    homing_size: int
    sign_bit: int | None
    homing_sign_bit: int | None
    faults: Mapping[int, str]


TABLES: dict[str, Table] = {
    "feetech": Table(
        module="scservo_sdk",
        protocol=0,
        baud=1_000_000,
        torque=40,
        goal=42,
        position=56,
        homing=31,
        size=2,
        homing_size=2,
        sign_bit=15,
        homing_sign_bit=11,
        faults={
            1: "voltage",
            2: "angle sensor",
            4: "overheating",
            8: "overcurrent",
            32: "overload",
        },
    ),
    "dynamixel": Table(
        module="dynamixel_sdk",
        protocol=2.0,
        baud=1_000_000,
        torque=64,
        goal=116,
        position=132,
        homing=20,
        size=4,
        homing_size=4,
        sign_bit=None,
        homing_sign_bit=None,
        faults={0x80: "hardware alert: voltage, overheating, overload or an electrical shock"},
    ),
}


def to_signed(value: int, size: int, sign_bit: int | None) -> int:
    """Convert a register to a number: sign and magnitude (Feetech), or two's complement."""
    if sign_bit is not None:
        return -(value & ~(1 << sign_bit)) if value & 1 << sign_bit else value
    return value - (1 << 8 * size) if value >= 1 << 8 * size - 1 else value


def to_register(value: int, size: int, sign_bit: int | None) -> int:
    """Convert a number to a register."""
    if sign_bit is not None:
        return -value | 1 << sign_bit if value < 0 else value
    return value & ((1 << 8 * size) - 1)


class Servo(Settings):
    """One servo and its units."""

    id: Id = Field(description="on the bus")
    sign: Literal[1, -1] = Field(
        1, description="-1 if the ticks increase while the joint angle decreases"
    )
    zero: Tick = Field(TICKS_PER_TURN / 2, description="ticks at joint angle 0")
    low: Tick = Field(0.0, description="lowest commanded ticks")
    high: Tick = Field(TICKS_PER_TURN - 1.0, description="and highest")

    @model_validator(mode="after")
    def _check_range(self) -> Servo:
        if self.low >= self.high:
            raise ValueError(f"low: expected less than high, got {self.low:g} and {self.high:g}")
        return self

    def angle(self, ticks: float) -> float:
        """Convert ticks to an angle [rad]."""
        return self.sign * (ticks - self.zero) * RAD_PER_TICK

    def ticks(self, angle: float) -> int:
        """Convert an angle [rad] to ticks, within its range."""
        return round(min(max(self.zero + self.sign * angle / RAD_PER_TICK, self.low), self.high))


def lerobot_calibration(path: Path) -> dict[str, tuple[Servo, int]]:
    """Return servos by name, each with its homing offset [ticks], from LeRobot's calibration file.

    LeRobot also writes the homing offset and the range into the servos. Its angle 0 is the middle
    of the range; with ``drive_mode`` 1 the servo counts the other way round.

    Raises:
        RecipeError: no such file, or no such calibration.
    """
    try:
        document = json.loads(path.read_text())
        return {
            name: (
                Servo(
                    id=row["id"],
                    sign=-1 if row["drive_mode"] else 1,
                    zero=(row["range_min"] + row["range_max"]) / 2,
                    low=float(row["range_min"]),
                    high=float(row["range_max"]),
                ),
                row["homing_offset"],
            )
            for name, row in document.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(
            "calibration: expected LeRobot's JSON with id, drive_mode, homing_offset, range_min "
            f"and range_max of each servo, got {path}: {type(error).__name__}: {error}. Run "
            "lerobot-calibrate and name its output file "
            "(~/.cache/huggingface/lerobot/calibration/robots/...)"
        ) from error


class Bus:
    """An open bus.

    Args:
        kind: kind of its servos.
        device: its serial port.
        ids: ids of its servos.
        baud: baud rate of all servos; 0 for the kind's.

    Raises:
        DeviceError: the bus cannot be opened, or another process has it.
    """

    def __init__(self, kind: Kind, device: str, ids: Iterable[int], baud: int = 0) -> None:
        extras.require("servo", f"{kind} servos")
        self.table = TABLES[kind]
        self.device = device
        self.ids = list(ids)
        self.lock: socket.socket | None = None
        self._claim()
        sdk: Any = importlib.import_module(self.table.module)
        self.port = sdk.PortHandler(device)
        self.port.baudrate = baud or self.table.baud
        try:
            opened = self.port.openPort()
        except (OSError, termios.error) as error:
            self.close()
            if isinstance(error, PermissionError) or "ermission" in str(error):
                raise DeviceError(access_denied_text("servos", device)) from error
            raise DeviceError(
                f"expected servos at {device}, got: {error}. Plug them in, or name another port: "
                "options.device in robot.yaml"
            ) from error
        if not opened:
            raise DeviceError(
                f"expected a baud rate that the servos support, got {baud}. Correct options.baud"
            )
        self.packets = sdk.PacketHandler(self.table.protocol)
        self._position_reads = sdk.GroupSyncRead(
            self.port, self.packets, self.table.position, self.table.size
        )
        self._goal_writes = sdk.GroupSyncWrite(
            self.port, self.packets, self.table.goal, self.table.size
        )
        for servo in self.ids:
            self._position_reads.addParam(servo)

    def _claim(self) -> None:
        with contextlib.suppress(OSError):  # a missing port is reported below
            try:
                self.lock = acquire_device(self.device)
            except HeldError as error:
                raise DeviceError(
                    f"expected servos at {self.device} that no other program commands, got a bus "
                    f"that {error} uses. End that program, or name another port: options.device in "
                    "robot.yaml"
                ) from error

    def close(self) -> None:
        """Close the port; the servos stay unchanged."""
        if self.lock is not None:
            self.lock.close()
        if getattr(self, "port", None) is not None and self.port.is_open:
            self.port.closePort()

    def _call(self, call: Any, *arguments: Any) -> Any:
        """Call the client; raise DeviceError if the port is gone."""
        try:
            self.port.is_using = False  # an earlier error may have left it set
            self.port.ser.reset_input_buffer()  # a late answer would count as the next one
            return call(*arguments)
        except (OSError, termios.error, TypeError) as error:
            # TypeError is pyserial's, for a closed port
            raise DeviceError(
                f"unplugged: expected servos at {self.device}, got: {error}. Plug them in again",
                disconnected=True,
            ) from error

    def positions(self) -> dict[int, int] | None:
        """Return ticks by id; None if a servo has not answered, or its answer was broken."""
        try:
            if self._call(self._position_reads.txRxPacket) != 0:
                return None
        except IndexError:  # Feetech's client, on a packet that ends early
            return None
        return {
            servo: to_signed(
                self._position_reads.getData(servo, self.table.position, self.table.size),
                self.table.size,
                self.table.sign_bit,
            )
            for servo in self.ids
        }

    def command(self, goals: Mapping[int, int]) -> None:
        """Send goals [ticks] by id, all in one packet without an answer."""
        self._goal_writes.clearParam()
        for servo, ticks in goals.items():
            value = to_register(ticks, self.table.size, self.table.sign_bit)
            self._goal_writes.addParam(servo, list(value.to_bytes(self.table.size, "little")))
        self._call(self._goal_writes.txPacket)

    def hold(self) -> None:
        """Make each servo hold where it is: its position becomes its goal, then its torque goes on.

        A servo with torque goes to its goal at full speed, and a goal from an earlier time may be
        anywhere. An STS3215 switches its torque on by itself when it gets a goal
        (https://github.com/huggingface/lerobot/issues/3585). So the goal is the first write, and
        the servo confirms it before its torque goes on.

        Raises:
            DeviceError: a servo does not confirm.
        """
        read, write = (
            (self.packets.read2ByteTxRx, self.packets.write2ByteTxRx)
            if self.table.size == 2
            else (self.packets.read4ByteTxRx, self.packets.write4ByteTxRx)
        )
        for servo in self.ids:
            register, *_ = self._request(servo, "its position", read, self.table.position)
            self._request(servo, "its position as its goal", write, self.table.goal, register)
            self._set_torque(servo, True)

    def torque(self, on: bool) -> None:
        """Switch the torque of the servos on or off. ``hold`` switches it on without a jump.

        Raises:
            DeviceError: a servo does not confirm.
        """
        for servo in self.ids:
            self._set_torque(servo, on)

    def _set_torque(self, servo: int, on: bool) -> None:
        request = f"torque {'on' if on else 'off'}"
        write = self.packets.write1ByteTxRx
        self._request(servo, request, write, self.table.torque, int(on))

    def _request(self, servo: int, subject: str, call: Any, *arguments: Any) -> tuple[int, ...]:
        """Return the client's answer; its last two numbers are the result and the error bits.

        Raises:
            DeviceError: the servo does not answer a request for ``subject``.
        """
        for _ in range(MAX_ATTEMPTS):
            answer: tuple[int, ...] = self._call(call, self.port, servo, *arguments)
            if answer[-2] == 0:
                return answer
            time.sleep(PAUSE_S)
        raise DeviceError(
            f"servo {servo} at {self.device}: expected an answer to {subject}, got none. Check its "
            "power, id and baud rate"
        )

    def fault(self) -> str | None:
        """Return the first servo's fault in words.

        It is empty for none, None if a servo does not answer.
        """
        for servo in self.ids:
            _, result, error = self._call(self.packets.ping, self.port, servo)
            if result != 0:
                return None
            if words := [text for bit, text in self.table.faults.items() if error & bit]:
                return f"servo {servo}: {', '.join(words)}"
        return ""

    def homing_offset(self, servo: int) -> int:
        """Return the homing offset in the servo's memory [ticks].

        Raises:
            DeviceError: the servo does not answer.
        """
        read = (
            self.packets.read2ByteTxRx
            if self.table.homing_size == 2
            else self.packets.read4ByteTxRx
        )
        value, *_ = self._request(servo, "its homing offset", read, self.table.homing)
        return to_signed(value, self.table.homing_size, self.table.homing_sign_bit)
