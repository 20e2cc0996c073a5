"""Simulated twins of operators' devices, with the devices' protocols: HID reports, input events.

The device's reader also reads its twin. A pipe replaces a device file. A pseudo-terminal replaces a
serial port, for example of a leader arm's Dynamixel servos.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import struct
import threading
import time
import tty
from pathlib import Path

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.machine import acquire, is_held
from rlinf_core.robots.operators import gamepad, spacemouse

TERMINALS = "/dev/pts/"
RATE_S = 0.016  # report period of a deflected SpaceMouse


def prepare_path(path: str | Path, pipe: bool = False) -> Path:
    """Return the path for a twin.

    A dangling link is removed, and that of a twin that was killed: the number of its
    pseudo-terminal may be another terminal's by now. This user's own ``pipe`` may be there.

    Raises:
        DeviceError: something is there.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DeviceError(
            f"expected a path in an existing folder, got {path}. Create that folder, or choose "
            "another"
        )
    is_of_killed_twin = path.is_symlink() and str(path.readlink()).startswith(TERMINALS)
    if is_of_killed_twin and not is_held(_lock_name(path)):
        path.unlink()
    is_user_pipe = pipe and path.is_fifo() and path.lstat().st_uid == os.geteuid()
    if path.exists() and not is_user_pipe:
        raise DeviceError(
            f"expected an unused path for a twin, got {path}, which exists already. End "
            f"the twin that has it, or name another path"
        )
    if path.is_symlink() and not path.exists():
        path.unlink()
    return path


def _lock_name(path: Path) -> str:
    """Return the name of the lock that the twin at a path holds while it lives."""
    return f"twin/{path.absolute()}"


class DevicePipe:
    """A device file: each write is one report, like at hidraw.

    Unplugging it ends its reader's file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = prepare_path(path, pipe=True)
        if not self.path.exists():
            os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
        # without it, a report could go to another file that got a closed file's number
        self._lock = threading.Lock()

    def write(self, report: bytes) -> None:
        """Write one report; it is lost without a reader, like at a device, or after unplugging."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if self.fd >= 0:
                os.write(self.fd, report)

    def unplug(self) -> None:
        """Remove the device; repeated calls are allowed."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.path.unlink(missing_ok=True)
            self.fd = -1


class DeviceTwin:
    """A twin with text commands: ``NAME VALUE`` deflects, ``press`` and ``release`` NAME.

    Further commands are rest, silent, garbage and unplug.
    """

    path: Path

    def deflect(self, values: dict[str, float]) -> None:
        """Deflect axes by name.

        Raises:
            KeyError: the twin has no such axis.
        """
        raise KeyError(f"no {', '.join(values)}")

    def press(self, name: str, down: bool) -> None:
        """Press or release a button.

        Raises:
            KeyError: the twin has no such button.
        """
        raise KeyError(f"no button {name}")

    def execute(self, line: str) -> None:
        """Execute one line of text.

        Raises:
            DeviceError: the command is unknown; the message lists the commands.
        """
        words = line.split()
        try:
            if words[:1] in (["press"], ["release"]):
                self.press(words[1], words[0] == "press")
            elif line.strip() in ("rest", "silent", "garbage", "unplug"):
                getattr(self, line.strip())()
            else:
                self.deflect(
                    {
                        name: float(value)
                        for name, value in zip(words[::2], words[1::2], strict=True)
                    }
                )
        except (ValueError, IndexError, KeyError, AttributeError) as error:
            raise DeviceError(
                "expected NAME VALUE ..., press NAME, release NAME, rest, silent, garbage or "
                f"unplug; got '{line.strip()}' ({error})"
            ) from error


class SpaceMouse(DeviceTwin):
    """Reports every 16 ms while it is deflected, and once when it comes to rest.

    Args:
        path: path of its file.
        one_report: True for all axes in report 1, like newer devices.
    """

    def __init__(self, path: str | Path, one_report: bool = False) -> None:
        self.pipe = DevicePipe(path)
        self.uses_one_report = one_report
        self.buttons = 0
        self.mute = False
        self.path = self.pipe.path
        self.deflections = dict.fromkeys(spacemouse.NAMES, 0.0)
        # without it, an earlier report could come after that of rest
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while self.pipe.fd >= 0:
            with self._lock:
                if any(self.deflections.values()) and not self.mute:
                    self._report()
            time.sleep(RATE_S)

    def _report(self) -> None:
        counts = [round(value * spacemouse.FULL_DEFLECTION) for value in self.deflections.values()]
        parts = [(1, counts)] if self.uses_one_report else [(1, counts[:3]), (2, counts[3:])]
        for kind, part in parts:
            self.write(struct.pack(f"<B{len(part)}h", kind, *part))

    def write(self, report: bytes) -> None:
        """Write any report."""
        self.pipe.write(report)

    def deflect(self, values: dict[str, float]) -> None:
        """Deflect tx, ty, tz, rx, ry, rz; 1 is a full deflection."""
        if unknown := values.keys() - self.deflections.keys():
            raise KeyError(f"no {unknown}")
        with self._lock:
            self.mute = False
            self.deflections |= values
            self._report()

    def press(self, name: str, down: bool) -> None:
        """Press or release button 1, 2, ..."""
        bit = 1 << int(name) - 1
        self.buttons = self.buttons | bit if down else self.buttons & ~bit
        self.write(struct.pack("<BH", 3, self.buttons))

    def rest(self) -> None:
        """Let go of the device."""
        self.deflect(dict.fromkeys(self.deflections, 0.0))

    def silent(self) -> None:
        """Stop reporting, at the present deflection."""
        with self._lock:
            self.mute = True

    def garbage(self) -> None:
        """Send half a report."""
        self.write(b"\x01\xff\x7f")

    def unplug(self) -> None:
        """Remove the device."""
        self.pipe.unplug()


class Events(DeviceTwin):
    """A gamepad's or a pedal's input events, sent when something changes.

    Args:
        path: path of its file.
    """

    def __init__(self, path: str | Path) -> None:
        self.pipe = DevicePipe(path)
        self.path = self.pipe.path

    def send(self, kind: int, code: int, value: int) -> None:
        """Send one event, and the event that ends it."""
        now = time.time()
        stamp = int(now), int(now % 1 * 1e6)
        self.pipe.write(
            gamepad.EVENT.pack(*stamp, kind, code, value)
            + gamepad.EVENT.pack(*stamp, gamepad.SYN, 0, 0)
        )

    def deflect(self, values: dict[str, float]) -> None:
        """Deflect by the gamepad's names; left, up and pressed are positive."""
        codes = {name: code for code, name in gamepad.AXES.items()}
        for name, value in values.items():
            low, high = gamepad.RANGES.get(name, gamepad.STICK)
            fraction = value if name in ("lt", "rt") else (1.0 - value) / 2
            self.send(gamepad.ABS, codes[name], round(low + fraction * (high - low)))

    def press(self, name: str, down: bool) -> None:
        """Press or release a gamepad's button, or a pedal's key."""
        codes = {key: code for code, key in self.keys.items()}
        self.send(gamepad.KEY, codes[name], int(down))

    keys = gamepad.KEYS

    def rest(self) -> None:
        """Put all sticks in the middle."""
        self.deflect({name: 0.0 for name in gamepad.AXES.values()})

    def silent(self) -> None:
        """Do nothing: the device is silent without changes."""

    def garbage(self) -> None:
        """Send half an event."""
        self.pipe.write(bytes(range(11)))

    def unplug(self) -> None:
        """Remove the device."""
        self.pipe.unplug()


class Pedal(Events):
    """A pedal with the keys of a keyboard."""

    keys = gamepad.KEYBOARD_KEYS

    def rest(self) -> None:
        """Do nothing: no key is pressed."""


class SerialTwin(DeviceTwin):
    """A twin that answers on a pseudo-terminal.

    Args:
        path: a link to it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = prepare_path(path)
        self._path_lock = acquire(_lock_name(self.path))
        self.mute = False
        self.sends_garbage = False
        self.twin_fd, self.device_fd = os.openpty()
        tty.setraw(self.device_fd)
        self.path.symlink_to(os.ttyname(self.device_fd))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        request = b""
        while not self._ended.is_set():
            if not select.select([self.twin_fd], [], [], 0.05)[0]:
                continue
            with contextlib.suppress(OSError):
                request += os.read(self.twin_fd, 1024)
            request = self._answer(request)

    def _answer(self, request: bytes) -> bytes:
        """Answer complete requests; return the incomplete rest."""
        raise NotImplementedError

    def write(self, answer: bytes) -> None:
        """Write one answer."""
        with contextlib.suppress(OSError):
            os.write(self.twin_fd, answer)

    def rest(self) -> None:
        """Answer again, unchanged."""
        self.mute = self.sends_garbage = False

    def silent(self) -> None:
        """Stop answering."""
        self.mute = True

    def garbage(self) -> None:
        """Send wrong checksums from now on."""
        self.sends_garbage = True

    def unplug(self) -> None:
        """Remove the device; repeated calls are allowed."""
        if self._ended.is_set():
            return
        self._ended.set()
        # the thread could otherwise use a closed file's number, which another file may have by then
        self._thread.join()
        self.path.unlink(missing_ok=True)
        self._path_lock.close()
        os.close(self.device_fd)
        os.close(self.twin_fd)


def crc(data: bytes) -> int:
    """Return the CRC-16 of Protocol 2.0: polynomial 0x8005, from 0, not reflected."""
    value = 0
    for byte in data:
        value ^= byte << 8
        for _ in range(8):
            value = (value << 1 ^ 0x8005 if value & 0x8000 else value << 1) & 0xFFFF
    return value


class Leader(SerialTwin):
    """Servos that answer sync reads of their present position; ``1 0.5`` turns servo 1 to 0.5 rad.

    Args:
        path: a link to the pseudo-terminal.
        ids: ids of the servos.
    """

    def __init__(self, path: str | Path, ids: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)) -> None:
        self.angles = dict.fromkeys(ids, math.pi)
        super().__init__(path)

    def _answer(self, request: bytes) -> bytes:
        begin = request.find(b"\xff\xff\xfd\x00")
        if begin < 0 or len(request) < begin + 7:
            return request[-10:]
        end = begin + 7 + int.from_bytes(request[begin + 5 : begin + 7], "little")
        packet = request[begin:end]
        if len(request) < end:
            return request[begin:]
        if (
            crc(packet[:-2]) == int.from_bytes(packet[-2:], "little")
            and packet[7] == 0x82
            and not self.mute
        ):
            for servo in packet[12:-2]:
                self._status(servo)
        return request[end:]

    def _status(self, servo: int) -> None:
        if servo not in self.angles:
            return
        count = round(self.angles[servo] / (2 * math.pi) * 4096) & 0xFFFFFFFF
        body = b"\xff\xff\xfd\x00" + struct.pack("<BHBBI", servo, 8, 0x55, 0, count)
        self.write(body + struct.pack("<H", crc(body) ^ self.sends_garbage))

    def deflect(self, values: dict[str, float]) -> None:
        """Turn servos to angles [rad]."""
        self.mute = self.sends_garbage = False
        for name, value in values.items():
            if int(name) not in self.angles:
                raise KeyError(f"no servo {name}")
            self.angles[int(name)] = value
