"""Gamepads and foot pedals, by Linux input events (evdev) or by the topic ``joy``.

evdev is read without a library. Sticks, triggers and buttons of a gamepad have their usual names. A
pedal is a keyboard to Linux: its keys label the episode, or take over while they are held.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import DeviceFile
from rlinf_core.robots.operators.sticks import Axis, Button, Role, Seconds, Sticks

EVENT = struct.Struct("llHHi")  # time, type, code, value
SYN = 0
KEY = 1
ABS = 3
DROPPED = 3  # a SYN code: the kernel's buffer overflowed, and the held buttons are unknown
MAX_TYPE = 0x1F
EVIOCGRAB = 0x40044590
ROWS = {"1234567890": 2, "qwertyuiop": 16, "asdfghjkl": 30, "zxcvbnm": 44}
KEYBOARD_KEYS = (
    {code + index: key for row, code in ROWS.items() for index, key in enumerate(row)}
    | {57: "space", 28: "enter"}
    | {58 + number: f"f{number}" for number in range(1, 11)}
)


class Events:
    """The events of one device."""

    def __init__(self, path: str, device_name: str, grab: bool = False) -> None:
        self.file = DeviceFile(path, device_name)
        with contextlib.suppress(OSError):  # a pipe cannot be grabbed, and need not be
            if grab:
                fcntl.ioctl(self.file.fd, EVIOCGRAB, 1)

    def range_of(self, code: int) -> tuple[int, int, int] | None:
        """Return value, minimum and maximum of an absolute axis (EVIOCGABS), or None."""
        try:
            actual = fcntl.ioctl(self.file.fd, 0x80184540 + code, bytes(24))
        except OSError:
            return None
        value, low, high = struct.unpack_from("3i", actual)
        return (value, low, high) if high > low else None

    def read(self) -> Iterator[tuple[int, int, int]]:
        """Yield type, code and value of new events of keys and axes.

        Raises:
            DeviceError: the data are no events, or some were lost.
        """
        for data in self.file.reports():
            if len(data) % EVENT.size:
                raise DeviceError(
                    f"garbage: expected input events of {EVENT.size} bytes, got {len(data)} bytes "
                    f"from {self.file.path}. Is it /dev/input/event<number>?"
                )
            for *_, kind, code, value in EVENT.iter_unpack(data):
                if kind > MAX_TYPE or (kind == SYN and code == DROPPED):
                    raise DeviceError("garbage: its events are lost or invalid. Let go of it")
                if kind in (KEY, ABS):
                    yield kind, code, value

    def close(self) -> None:
        """Close the device; repeated calls are allowed."""
        self.file.close()


Deflection = Literal[
    "left_x",
    "left_y",
    "right_x",
    "right_y",
    "dpad_x",
    "dpad_y",
    "lt",
    "rt",
    "-left_x",
    "-left_y",
    # left, up and pressed are positive
    "-right_x",
    "-right_y",
    "-dpad_x",
    "-dpad_y",
    "-lt",
    "-rt",
]
DEFAULT_AXES: dict[Axis, Deflection] = {
    "x": "left_y",
    "y": "left_x",
    "z": "right_y",
    "rx": "-dpad_x",
    "ry": "dpad_y",
    "rz": "right_x",
}
REQUEST_BUTTONS: dict[Button, Role] = {
    "start": "arm",
    "back": "disarm",
    "a": "close",
    "b": "open",
    "y": "success",
    "x": "failure",
    "guide": "rerecord",
    "lb": "next_arm",
    "r3": "ready",
}
AXES = {
    0: "left_x",
    1: "left_y",
    2: "lt",
    3: "right_x",
    4: "right_y",
    5: "rt",
    16: "dpad_x",
    17: "dpad_y",
}
KEYS = {
    0x130: "a",
    0x131: "b",
    0x133: "x",
    0x134: "y",
    0x136: "lb",
    0x137: "rb",
    0x13A: "back",
    0x13B: "start",
    0x13C: "guide",
    0x13D: "l3",
    0x13E: "r3",
}
# ranges that the kernel does not report
RANGES = {"lt": (0, 255), "rt": (0, 255), "dpad_x": (-1, 1), "dpad_y": (-1, 1)}
STICK = (-32768, 32767)


def find(folder: Path = Path("/dev/input/by-id")) -> Path:
    """Return the plugged-in gamepad.

    Raises:
        DeviceError: there is none, or more than one.
    """
    paths = sorted(folder.glob("*-event-joystick"))
    if len(paths) != 1:
        names = ", ".join(map(str, paths)) or "none"
        raise DeviceError(
            f"expected one gamepad in {folder}, found {names}. Plug it in, or name its file: "
            "station.operator.device=/dev/input/event<number>; without one: rlinf fake-device "
            "gamepad"
        )
    return paths[0]


class Pad(Sticks):
    """The mapping shared by evdev and Joy."""

    def __init__(
        self,
        *,
        axes: dict[Axis, Deflection] = DEFAULT_AXES,
        buttons: dict[Button, Role] = REQUEST_BUTTONS,
        clutch: str = "rb",
        silence_s: Seconds = 2.0,
        **shaping: Any,
    ) -> None:
        """Settings.

        Args:
            axes: deflection for each axis of the tool. Left, up and a pressed trigger are positive.
                A minus inverts it
            buttons: request of each button a, b, x, y, lb, rb, back, start, guide, l3 and r3. open,
                close and intervene last while it is held
            clutch: button that is held to move the arm. Empty lets a deflection alone move it
            silence_s: longest silence while deflected [s]. Then the arm stops. A stick that rests
                at its end sends nothing
        """
        super().__init__(
            axes={**axes}, buttons=buttons, clutch=clutch, silence_s=silence_s, **shaping
        )


class Gamepad(Pad):
    """A gamepad that is a Linux input device."""

    def __init__(self, *, device: str = "auto", **shared: Any) -> None:
        """Settings.

        Args:
            device: device file, such as /dev/input/event3. `auto` finds the only one
        """
        super().__init__(**shared)
        self.device = device
        self.events: Events | None = None

    def open(self) -> None:
        self._reset_input()
        self.events = Events(str(find()) if self.device == "auto" else self.device, "a gamepad")
        self.ranges = {}
        for code, name in AXES.items():
            axis_range = self.events.range_of(code)
            self.ranges[name] = axis_range[1:] if axis_range else RANGES.get(name, STICK)
            if axis_range:  # the present deflection
                self._deflect(name, axis_range[0])

    def close(self) -> None:
        if self.events:
            self.events.close()

    def read_reports(self) -> None:
        for kind, code, value in self.events.read() if self.events else ():
            if kind == ABS and code in AXES:
                self._deflect(AXES[code], value)
            elif kind != ABS and code in KEYS:
                self.press(KEYS[code], value != 0)
            self.note_report()

    def _deflect(self, name: str, value: int) -> None:
        low, high = self.ranges[name]
        if not low <= value <= high:
            raise DeviceError(
                f"garbage: expected {name} from {low} to {high}, got {value}. Let go of it"
            )
        fraction = (value - low) / (high - low)
        # evdev counts to the right and down
        self.values[name] = fraction if name in ("lt", "rt") else 1.0 - 2.0 * fraction


# joy_node's order for an Xbox pad
JOY_AXES = ("left_x", "left_y", "lt", "right_x", "right_y", "rt", "dpad_x", "dpad_y")
BUTTONS = ("a", "b", "x", "y", "lb", "rb", "back", "start", "guide", "l3", "r3")
MARGIN = 1.001


class Joy(Pad):
    """A gamepad on the topic of joy_node, joy_linux or another node.

    The node must publish at 10 Hz or more (autorepeat_rate).
    """

    topics = ("joy",)
    streams = True

    def __init__(
        self,
        *,
        axis_names: tuple[str, ...] = JOY_AXES,
        button_names: tuple[str, ...] = BUTTONS,
        silence_s: Seconds = 0.5,
        **shared: Any,
    ) -> None:
        """Settings.

        Args:
            axis_names: names of the message's axes, in order
            button_names: names of the message's buttons, in order
            silence_s: longest silence [s]. Then the arm stops
        """
        super().__init__(silence_s=silence_s, **shared)
        self.axis_names, self.button_names = axis_names, button_names
        self.garbage = ""
        self.has_valid_message = False

    def open(self) -> None:
        self._reset_input()
        self.garbage = ""
        self.has_valid_message = False

    def receive(self, message: Any) -> None:
        axes = list(message.axes)
        for name, down in zip(self.button_names, message.buttons, strict=False):
            self.press(name, bool(down))  # a request to disarm counts, whatever the axes are
        used = {name for name, _ in self.axis_sources.values()} & {*self.axis_names}
        if len(axes) < 1 + max(map(self.axis_names.index, used), default=-1):
            self.garbage = (
                f"expected axes {', '.join(self.axis_names)}, got {len(axes)}. Set "
                f"station.operator.axis_names"
            )
        elif not all(abs(value) <= MARGIN for value in axes):
            self.garbage = f"expected axes from -1 to 1, got {axes}"
        else:
            self._take_axes(dict(zip(self.axis_names, axes, strict=False)))

    def _take_axes(self, axes: dict[str, float]) -> None:
        self.values = {
            name: (1.0 - value) / 2 if name in ("lt", "rt") else value
            for name, value in axes.items()
        }
        self.has_valid_message = True
        self.note_report()

    def read_reports(self) -> None:
        garbage = self.garbage
        self.garbage = ""
        if garbage:
            raise DeviceError(f"garbage on the topic joy: {garbage}")

    def has_reported(self) -> bool:
        return self.has_valid_message

    def at_rest(self) -> bool:
        """Return True at rest, once a message has come."""
        return self.has_valid_message and super().at_rest()


PEDAL_BUTTONS: dict[Button, Role] = {"a": "failure", "b": "intervene", "c": "success"}


class Pedal(Sticks):
    """A foot pedal, usually beside another device: station.second_operator."""

    def __init__(self, *, device: str, buttons: dict[Button, Role] = PEDAL_BUTTONS) -> None:
        """Settings.

        Args:
            device: device file, /dev/input/by-id/usb-...-event-kbd. Other programs then receive no
                keys from it
            buttons: request of each key. A key is a letter, digit, f1 to f10, space, enter or a key
                code. intervene holds the arm, or lets another device move it, while it is pressed
        """
        super().__init__(axes={}, buttons=buttons)
        self.device = device
        self.events: Events | None = None

    def open(self) -> None:
        self._reset_input()
        self.events = Events(self.device, "a foot pedal", grab=True)

    def close(self) -> None:
        if self.events:
            self.events.close()

    def read_reports(self) -> None:
        for kind, code, value in self.events.read() if self.events else ():
            if kind == KEY:  # 2 is the kernel's repetition
                self.press(KEYBOARD_KEYS.get(code, str(code)), bool(value))
                self.note_report()
