"""The keyboard of a terminal: keys that move while held, and keys that request."""

from __future__ import annotations

import os
import re
import select
import sys
import time

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import RequestDevice

PAIRS = {
    "x": ("ws", "forward/back"),
    "y": ("ad", "left/right"),
    "z": ("rf", "up/down"),
    "rx": ("lj", "tilt right/left"),
    "ry": ("ik", "tip forward/back"),
    "rz": ("uo", "turn left/right"),
    "grip": ("vc", "open/close the gripper"),
}
STOP_KEYS = "q "  # also in the middle of a sequence; the space bar is STOP on the page, too
REQUEST_BUTTONS = {
    "e": "arm",
    **dict.fromkeys(STOP_KEYS, "disarm"),
    "g": "ready",
    "y": "success",
    "n": "failure",
    "b": "rerecord",
    "x": "discard",
}
MOTION_KEYS, PAUSE_KEY = "".join(keys for keys, _ in PAIRS.values()), "p"
STEP = 0.5  # fraction of the task's largest step
KEY_HELD_S = 0.4  # a terminal repeats a held key
SEQUENCE_S = 0.3  # time limit of an escape sequence; a later character is a separate key
PARAMETERS = "[0-9;:<=>?]{0,16}[ -/]{0,4}"
# an arrow, F1, or a key with Alt
SEQUENCE = re.compile(rf"\x1b(?:\[\[?{PARAMETERS}[@-~]?|O.?|[^\[O\x1b])?", re.S)
UNFINISHED = re.compile(rf"\x1b(?:\[\[?{PARAMETERS}|O)?\Z")


class Keyboard(RequestDevice):
    """A person at a terminal (rlinf teleop).

    Every key but those that stop renews the enable.

    ``e`` arms, the space bar and ``q`` disarm.
    """

    rest_s = 0.0  # an earlier key press is over

    def __init__(self) -> None:
        self.key = "\x00"
        self.key_at = 0.0
        self.requests = []
        self.unfinished, self.unfinished_at = "", 0.0  # the beginning of a sequence

    def open(self) -> None:
        if not sys.stdin.isatty():
            raise DeviceError(
                "operator: the keyboard needs a terminal, got none. In a separate terminal run "
                "rlinf teleop <recipe>, or ros2 run rlinf operator"
            )

    def poll(self) -> tuple[str, ...]:
        while select.select([sys.stdin], [], [], 0)[0]:
            try:
                data = os.read(sys.stdin.fileno(), 64)
            except OSError as error:
                raise DeviceError(
                    f"unplugged: the terminal was closed ({error.strerror})", disconnected=True
                ) from error
            if not data:
                raise DeviceError("unplugged: the terminal was closed", disconnected=True)
            for key in self._keys(data.decode(errors="replace")):
                self.requests.append(REQUEST_BUTTONS.get(key, key if key.isdigit() else "enable"))
                self.key = key
                self.key_at = time.monotonic()
        return self.take_requests()

    def _keys(self, text: str) -> str:
        """Return the pressed keys, with escape for each key that sends a sequence.

        The sequence's letters and digits are dropped. A key that stops is not: ``q`` at its end, a
        space anywhere.
        """
        now = time.monotonic()
        text = (self.unfinished if now - self.unfinished_at < SEQUENCE_S else "") + text
        unfinished = UNFINISHED.search(text)
        self.unfinished = unfinished[0] if unfinished else ""
        self.unfinished_at = now
        keys = SEQUENCE.sub(
            lambda match: _stop_key_of(match[0]), text.removesuffix(self.unfinished)
        )
        return keys + _stop_key_of(self.unfinished)

    def motion(self) -> dict[str, float] | None:
        if time.monotonic() - self.key_at >= KEY_HELD_S or self.key not in MOTION_KEYS + PAUSE_KEY:
            return None  # a key that only requests takes nothing over
        return {
            axis: STEP * ((self.key == keys[0]) - (self.key == keys[1]))
            for axis, (keys, _) in PAIRS.items()
        }

    def help(self, axes: dict[str, int]) -> str:
        keys = ", ".join(
            f"{pair[0]}/{pair[1]} {direction}" for pair, direction in map(PAIRS.__getitem__, axes)
        )
        return (
            f"{keys}; p hold still; e arm; space bar or q stop (disarm); g scene ready; y success, "
            "n failure, b another take, x discard. You override the policy while you hold a "
            "motion key or p."
        )


def _stop_key_of(sequence: str) -> str:
    """Return what is left of a sequence: escape, and the key that stops, if it holds one."""
    stops = "q" if sequence.endswith("q") else " " if " " in sequence else ""
    return "\x1b" * bool(sequence) + stops
