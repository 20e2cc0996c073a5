"""The twin of a Robotiq 2F-85: Modbus RTU on a pseudo-terminal, and fingers that move.

The protocol follows the gripper's manual. It adds these commands to those of every twin: ``object
0.03`` puts an object of that width [m] between the fingers, ``fault 14`` sets its fault status,
``power 0`` cuts its power, and ``power 1`` restores it. The gripper is not activated after a
power-up.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path

from rlinf_core.robots.operators.twins import SerialTwin

ID, IN, OUT, REGISTERS = 9, 0x07D0, 0x03E8, 3
READ, WRITE = (0x03, 0x04), 0x10
OPEN, CLOSED, WIDEST_M = 3, 230, 0.085
SPEEDS_COUNTS_S = (50.0, 400.0)  # slowest and fastest speed [counts/s]
ACTIVATION_S = 0.3  # shortened; a real gripper takes some seconds


def checksum(data: bytes) -> bytes:
    """Return Modbus's CRC-16: polynomial 0xA001, reflected, from 0xFFFF, the low byte first."""
    value = 0xFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 if value & 1 else value >> 1
    return struct.pack("<H", value)


class Robotiq(SerialTwin):
    """One gripper at address 9.

    Args:
        path: a link to the pseudo-terminal.
    """

    def __init__(self, path: str | Path) -> None:
        self.outputs = [0, 0, 0]
        self.fault = 0
        self.object_position = float(CLOSED)
        self.powered = True
        self.position = float(OPEN)
        self.object_status = 0
        self.activated_at = 0.0
        self.moved_at = time.monotonic()
        super().__init__(path)

    def deflect(self, values: dict[str, float]) -> None:
        if unknown := values.keys() - {"object", "fault", "power"}:
            raise KeyError(f"no {unknown}")
        self.fault = int(values.get("fault", self.fault))
        self.powered = bool(values.get("power", self.powered))
        if not self.powered:
            self.outputs = [0, 0, 0]
        self.object_position = (
            CLOSED - values["object"] / WIDEST_M * (CLOSED - OPEN)
            if "object" in values
            else self.object_position
        )

    # The registers
    @property
    def active(self) -> bool:
        return (
            bool(self.outputs[0] & 0x0100) and time.monotonic() - self.activated_at > ACTIVATION_S
        )

    def _advance(self) -> None:
        """Move the fingers by the time since the last call."""
        now = time.monotonic()
        seconds = now - self.moved_at
        self.moved_at = now
        self.object_status = 0
        if not (self.active and self.outputs[0] & 0x0800) or self.fault:
            return
        slowest, fastest = SPEEDS_COUNTS_S
        step = (slowest + (self.outputs[2] >> 8) / 255 * (fastest - slowest)) * seconds
        delta = self.outputs[1] - self.position
        target = self.position + min(max(delta, -step), step)
        self.position = min(max(target, OPEN), self.object_position)
        self.object_status = (
            2 if target > self.object_position and self.object_position < CLOSED else 0
        )

    def _status(self) -> list[int]:
        self._advance()
        at_target = abs(self.position - min(max(self.outputs[1], OPEN), CLOSED)) < 1
        state = 3 if self.active else int(bool(self.outputs[0] & 0x0100))
        object_status = (
            (self.object_status or (3 if at_target else 0)) if self.outputs[0] & 0x0800 else 0
        )
        flags = self.outputs[0] >> 8 & 9 | state << 4 | object_status << 6
        return [flags << 8, self.fault << 8 | self.outputs[1] & 255, round(self.position) << 8]

    def _write(self, values: list[int]) -> None:
        self._advance()
        if values[0] & 0x0100 and not self.outputs[0] & 0x0100:
            self.activated_at = time.monotonic()
        if not values[0] & 0x0100:
            self.fault = 0
        self.outputs = values

    # Modbus RTU
    def _answer(self, request: bytes) -> bytes:
        if len(request) < 8:
            return request
        function, address, count = request[1], *struct.unpack(">HH", request[2:6])
        size = 9 + request[6] if function == WRITE else 8
        if len(request) < size:
            return request if size <= 9 + 2 * REGISTERS else b""
        packet, rest = request[:size], request[size:]
        if (
            checksum(packet[:-2]) == packet[-2:]
            and packet[0] == ID
            and self.powered
            and not self.mute
        ):
            self._execute(function, address, count, packet)
        return rest if checksum(packet[:-2]) == packet[-2:] else b""

    def _execute(self, function: int, address: int, count: int, packet: bytes) -> None:
        if function in READ and address == IN and count <= REGISTERS:
            body = struct.pack(f">BBB{count}H", ID, function, 2 * count, *self._status()[:count])
        elif function == WRITE and address == OUT and count == REGISTERS == packet[6] // 2:
            self._write(list(struct.unpack(">3H", packet[7:13])))
            body = packet[:6]
        else:
            body = struct.pack(">BBB", ID, function | 0x80, 2)  # no such address
        self.write(body + (bytes(2) if self.sends_garbage else checksum(body)))
