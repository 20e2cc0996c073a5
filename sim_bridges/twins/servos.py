"""Twins of servo arms: Feetech's and Dynamixel's protocols on a pseudo-terminal.

The servos move to their goals. They add these commands to those of every twin: ``1 0.5`` turns
servo 1 to 0.5 rad from the middle of its turn, ``fault 3`` overloads servo 3, and ``fault 0`` ends
that.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from rlinf_core.robots.operators.twins import SerialTwin, crc
from rlinf_core.robots.servos import (
    RAD_PER_TICK,
    TABLES,
    TICKS_PER_TURN,
    Kind,
    to_register,
    to_signed,
)

SPEED_TICKS_S = 2500.0  # speed of a servo on its way to a goal
NEAR_TICKS = 40  # from a servo's new place to its goal, 0.06 rad
OVERLOAD = {"feetech": 32, "dynamixel": 0x80}
PING, READ, WRITE, SYNC_READ, SYNC_WRITE = 0x01, 0x02, 0x03, 0x82, 0x83
BROADCAST, STATUS = 0xFE, 0x55


class Servos(SerialTwin):
    """Servos of one bus. They start limp, in the middle of their turn.

    As an STS3215 does, a Feetech twin switches its torque on when it gets a goal.

    Args:
        path: a link to the pseudo-terminal.
        kind: the servos' protocol.
        ids: the servos' ids.
        homing: the homing offset in each servo's memory [ticks].
    """

    def __init__(self, path: str | Path, kind: Kind, ids: Iterable[int], homing: int = 0) -> None:
        self.kind = kind
        self.table = TABLES[kind]
        self.ticks = dict.fromkeys(ids, TICKS_PER_TURN / 2)
        self.goals = dict(self.ticks)
        self.torque = dict.fromkeys(self.ticks, False)
        self.homing = homing
        self.overloaded = 0
        self.moved_at = time.monotonic()
        self.placed_servos: set[int] = set()  # servos that wait for a goal at their new place
        self._moving = threading.Lock()
        super().__init__(path)

    def deflect(self, values: dict[str, float]) -> None:
        self.mute = self.sends_garbage = False
        for name, value in values.items():
            if name == "fault":
                self.overloaded = int(value)
            elif int(name) in self.ticks:
                with self._moving:  # a hand moves it; a servo with torque returns to its goal
                    self.ticks[int(name)] = TICKS_PER_TURN / 2 + value / RAD_PER_TICK
            else:
                raise KeyError(f"no servo {name}")

    def place(self, ticks: dict[int, float]) -> None:
        """Put servos by id at these ticks at once, and their goals, too.

        They ignore goals elsewhere until the commander has noticed: no real servo jumps.
        """
        with self._moving:
            self.ticks |= ticks
            self.goals |= ticks
            self.placed_servos |= {*ticks}

    def advance(self) -> None:
        """Move the servos that have torque by the time since the last call."""
        now = time.monotonic()
        with self._moving:
            step = SPEED_TICKS_S * (now - self.moved_at)
            self.moved_at = now
            for servo, on in self.torque.items():
                if on and servo != self.overloaded:
                    error = self.goals[servo] - self.ticks[servo]
                    self.ticks[servo] += min(max(error, -step), step)

    # The control table
    def _read(self, servo: int, address: int, size: int) -> bytes:
        table = self.table
        content = {
            table.position: to_register(round(self.ticks[servo]), table.size, table.sign_bit),
            table.goal: to_register(round(self.goals[servo]), table.size, table.sign_bit),
            table.homing: to_register(self.homing, table.homing_size, table.homing_sign_bit),
            table.torque: int(self.torque[servo]),
        }
        return content.get(address, 0).to_bytes(size, "little")

    def _write(self, servo: int, address: int, data: bytes) -> None:
        if servo not in self.ticks:
            return
        self.advance()
        if address == self.table.torque:
            self.torque[servo] = bool(data[0])
        elif address == self.table.goal:
            goal = float(
                to_signed(int.from_bytes(data, "little"), self.table.size, self.table.sign_bit)
            )
            if servo in self.placed_servos and abs(goal - self.ticks[servo]) > NEAR_TICKS:
                return
            self.placed_servos.discard(servo)
            self.goals[servo] = goal
            self.torque[servo] |= self.kind == "feetech"  # huggingface/lerobot issue 3585

    def _error(self, servo: int) -> int:
        return OVERLOAD[self.kind] if servo == self.overloaded else 0

    # The packets
    def _answer(self, request: bytes) -> bytes:
        answer_packet = self._feetech if self.kind == "feetech" else self._dynamixel
        while (rest := answer_packet(request)) != request:  # several packets may come at once
            request = rest
        return request

    def _feetech(self, request: bytes) -> bytes:
        """Header FF FF, id, length, instruction, parameters, inverted sum."""
        begin = request.find(b"\xff\xff")
        if begin < 0 or len(request) < begin + 4:
            return request[-3:]
        end = begin + 4 + request[begin + 3]
        if len(request) < end:
            return request[begin:]
        packet = request[begin:end]
        if ~sum(packet[2:-1]) & 0xFF == packet[-1]:
            servo, instruction, data = packet[2], packet[4], packet[5:-1]
            if instruction == SYNC_READ:
                for servo_id in data[2:]:
                    self._status(
                        servo_id,
                        self._read(servo_id, data[0], data[1]) if servo_id in self.ticks else b"",
                    )
            elif instruction == SYNC_WRITE:
                address, size = data[0], data[1]
                for at in range(2, len(data), size + 1):
                    self._write(data[at], address, data[at + 1 : at + 1 + size])
            else:
                self._execute(servo, instruction, data, 1)
        return request[end:]

    def _dynamixel(self, request: bytes) -> bytes:
        """Protocol 2.0: header FF FF FD 00, id, length, instruction, parameters, CRC-16."""
        begin = request.find(b"\xff\xff\xfd\x00")
        if begin < 0 or len(request) < begin + 7:
            return request[-10:]
        end = begin + 7 + int.from_bytes(request[begin + 5 : begin + 7], "little")
        if len(request) < end:
            return request[begin:]
        packet = request[begin:end]
        if crc(packet[:-2]) == int.from_bytes(packet[-2:], "little"):
            servo, instruction, data = packet[4], packet[7], packet[8:-2]
            if instruction in (SYNC_READ, SYNC_WRITE):
                address, size = struct.unpack("<HH", data[:4])
                if instruction == SYNC_READ:
                    for servo_id in data[4:]:
                        self._status(
                            servo_id,
                            self._read(servo_id, address, size) if servo_id in self.ticks else b"",
                        )
                else:
                    for at in range(4, len(data), size + 1):
                        self._write(data[at], address, data[at + 1 : at + 1 + size])
            else:
                self._execute(servo, instruction, data, 2)
        return request[end:]

    def _execute(self, servo: int, instruction: int, data: bytes, width: int) -> None:
        """Execute an instruction to one servo; addresses and byte counts have ``width`` bytes."""
        if servo not in self.ticks:
            return
        address = int.from_bytes(data[:width], "little")
        if instruction == PING:
            # model number of an XL330
            self._status(servo, b"" if width == 1 else struct.pack("<HB", 1200, 50))
        elif instruction == READ:
            self._status(
                servo, self._read(servo, address, int.from_bytes(data[width : 2 * width], "little"))
            )
        elif instruction == WRITE:
            self._write(servo, address, data[width:])
            self._status(servo, b"")

    def _status(self, servo: int, data: bytes) -> None:
        if servo not in self.ticks or self.mute:
            return
        self.advance()
        if self.kind == "feetech":
            body = bytes([servo, len(data) + 2, self._error(servo)]) + data
            self.write(b"\xff\xff" + body + bytes([~sum(body) & 0xFF ^ self.sends_garbage]))
            return
        head = struct.pack("<BHBB", servo, len(data) + 4, STATUS, self._error(servo))
        body = b"\xff\xff\xfd\x00" + head + data
        self.write(body + struct.pack("<H", crc(body) ^ self.sends_garbage))
