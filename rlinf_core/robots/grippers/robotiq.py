"""A Robotiq 2F by Modbus RTU, after its instruction manual: three registers out, three in."""

from __future__ import annotations

import errno
import logging
import os
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from rlinf_core.config.base import with_default
from rlinf_core.core import extras
from rlinf_core.core.errors import DeviceError
from rlinf_core.core.machine import (
    DEVICE_RULES,
    HeldError,
    access_denied_text,
    acquire_device,
    missing_rule_hint,
)
from rlinf_core.robots.grippers import GripperSettings

OUTPUT_REGISTER = 0x03E8
INPUT_REGISTER = 0x07D0
REGISTERS = 3
ACTIVATE, GO_TO = 0x0100, 0x0800  # rACT and rGTO, in the high byte of the first register
RESET = 0
ACTIVATING = 1
ACTIVE = 3  # gSTA
AT_POSITION = 3  # gOBJ: at the requested position
RETRIES = 2
FAULTS = {
    0x05: "a command before the end of its activation",
    0x07: "not activated",
    0x08: "too hot",
    0x09: "no communication for a second",
    0x0A: "less than 19.2 V",
    0x0B: "automatic release in progress",
    0x0C: "internal",
    0x0D: "activation failed",
    0x0E: "overcurrent",
    0x0F: "automatic release finished",
}


class Gripper(GripperSettings):
    """A gripper on a serial port, for example of its USB converter."""

    node: ClassVar[str] = "rlinf_drivers.robotiq"

    device: str = Field(min_length=1, description="serial port, /dev/serial/by-id/...")
    id: int = Field(9, ge=1, le=247, description="Modbus address")
    baud: int = Field(115200, ge=9600, le=115200, description="baud rate of the gripper")
    open_at: float = Field(
        3.0, ge=0, le=255, description="position count (gPO) when open, as /diagnostics shows it"
    )
    closed_at: float = Field(230.0, ge=0, le=255, description="position count (gPO) when closed")
    speed: float = Field(
        0.5,
        ge=0,
        le=1,
        description="finger speed as a count. A 2F-85 moves at 20 mm/s with 0 and 150 mm/s with 1",
    )
    force: float = Field(
        0.2,
        ge=0,
        le=1,
        description="closing force as a count. A 2F-85 closes with 20 N at 0 and 235 N at 1",
    )
    timeout_s: float = with_default(GripperSettings, "timeout_s", 0.5)

    @property
    def where(self) -> str:
        return self.device


class Status(NamedTuple):
    """The gripper's status: gSTA, gFLT, gOBJ, gPR and gPO."""

    state: int
    fault: int
    object: int
    requested_position: int
    position: int

    @property
    def trouble(self) -> str:
        """Reason why it would not move, in words; empty if it would."""
        if self.fault:
            return f"fault 0x{self.fault:02X} ({FAULTS.get(self.fault, 'unknown')})"
        return {ACTIVE: "", ACTIVATING: "it is being activated"}.get(
            self.state, "not activated since power-on"
        )


class CommandTracker:
    """Chooses the next command of a gripper, and notes when it last accepted one.

    The gripper echoes the command that it plays. That may be the last one sent, or an older one.

    Attributes:
        command: the last command sent, a position count.
        echo: the echo of the last status, a position count.
        accepted_at: last time at which a command was accepted, or none was pending [s].
    """

    def __init__(self, now: float) -> None:
        self.command: int | None = None
        self.echo: int | None = None
        self.accepted_at = now

    def next(self, status: Status, target: int | None, now: float) -> int | None:
        """Return the command to send now; None if there is none, or the gripper would not move."""
        echo = status.requested_position
        has_command = not status.trouble and target is not None
        is_accepted = echo in (self.command, target) or echo != self.echo
        if is_accepted or not has_command:
            self.accepted_at = now
            self.echo = echo
        if not has_command or target == echo:
            return None
        self.command = target
        return target


class Robotiq:
    """An open gripper; a DeviceError means no answer within ``timeout_s``."""

    def __init__(self, settings: Gripper) -> None:
        extras.require("gripper", "a Robotiq gripper")
        from pymodbus.client import ModbusSerialClient

        # errors are reported here, once
        logging.getLogger("pymodbus.logging").setLevel(logging.CRITICAL)
        self.settings = settings
        self.port = ModbusSerialClient(
            settings.device,
            baudrate=settings.baud,
            retries=RETRIES,
            timeout=settings.timeout_s / (RETRIES + 1),
        )
        _check_port(settings.device)
        try:
            self.lock = acquire_device(settings.device)
        except HeldError as error:
            raise DeviceError(
                f"expected a gripper at {settings.device} that no other program commands, got one "
                f"that {error} commands. End that program, or name another port: gripper.device"
            ) from error
        if not self.port.connect():
            self.lock.close()
            raise DeviceError(
                f"expected a serial port at {settings.device}, got one that does not open. Another "
                f"program may use it: fuser -v {settings.device}"
            )

    def status(self) -> Status:
        """Return the present status."""
        first, second, third = self._call(
            self.port.read_holding_registers, INPUT_REGISTER, count=REGISTERS
        ).registers
        # the gripper's bits mean nothing without a command
        object_status = first >> 14 if first & GO_TO else AT_POSITION
        return Status(first >> 12 & 3, second >> 8 & 15, object_status, second & 255, third >> 8)

    def go(self, position: int) -> None:
        """Move towards a position count."""
        speed, force = round(self.settings.speed * 255), round(self.settings.force * 255)
        self._write(ACTIVATE | GO_TO, position, speed << 8 | force)

    def activate(self) -> None:
        """Clear its faults and activate it; its fingers then open and close once."""
        self._write(0, 0, 0)
        self._write(ACTIVATE, 0, 0)

    def _write(self, *values: int) -> None:
        self._call(self.port.write_registers, OUTPUT_REGISTER, list(values))

    def _call(self, function: Any, *arguments: Any, **more: Any) -> Any:
        from pymodbus.exceptions import ModbusException

        where = f"Robotiq gripper {self.settings.id} at {self.settings.device}"
        try:
            answer = function(*arguments, device_id=self.settings.id, **more)
        except (ModbusException, OSError) as error:
            raise DeviceError(
                f"unplugged or silent: expected an answer of {where} within "
                f"{self.settings.timeout_s:g} s, got: {error}. Check its power and its plug. The "
                "node searches for it every second",
                disconnected=True,
            ) from error
        if answer.isError():
            raise DeviceError(
                f"expected {where} to execute the command, got: {answer}. Is it a Robotiq 2F?"
            )
        return answer

    def close(self) -> None:
        self.port.close()
        self.lock.close()


def _check_port(device: str) -> None:
    """Raise DeviceError if nothing is there, or this user may not open it."""
    if not os.path.exists(device):
        raise DeviceError(
            f"expected a gripper at {device}, got: {os.strerror(errno.ENOENT)}. Plug it in, or "
            f"name another port: gripper.device. {missing_rule_hint()}"
        )
    if not os.access(device, os.R_OK | os.W_OK):
        raise DeviceError(access_denied_text("a gripper", device, DEVICE_RULES))
