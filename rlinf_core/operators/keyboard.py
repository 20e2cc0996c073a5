"""The keyboard of a terminal: keys that move while they are held, and keys that ask."""

from __future__ import annotations

import os
import select
import sys
import time

from rlinf_core.errors import DeviceError
from rlinf_core.operators.device import Device

PAIRS = {"x": ("ws", "forward/back"), "y": ("ad", "left/right"), "z": ("rf", "up/down"), "rx": ("lj", "tilt right/left"),
         "ry": ("ik", "tip forward/back"), "rz": ("uo", "turn left/right"), "grip": ("vc", "open/close the gripper")}
ASKS = {"e": "arm", "q": "disarm", "g": "ready", "y": "success", "n": "failure", "b": "rerecord", "x": "discard"}
MOVES, PAUSE = "".join(keys for keys, _ in PAIRS.values()), "p"
STEP = 0.5         # of the task's largest
KEY_HELD_S = 0.4   # a terminal repeats a key that is held


class Keyboard(Device):
    """A person in a terminal of their own (rlinf teleop): every key renews the enable, ``e`` arms, ``q`` disarms."""

    rest_s = 0.0  # a key that was pressed before is over

    def __init__(self) -> None:
        self.key, self.key_at = " ", 0.0

    def open(self) -> None:
        if not sys.stdin.isatty():
            raise DeviceError("operator: the keyboard needs a terminal: expected one, got none. In one of your own, run "
                              "rlinf teleop <recipe>, or ros2 run rlinf operator")

    def poll(self) -> tuple[str, ...]:
        asked: list[str] = []
        while select.select([sys.stdin], [], [], 0)[0]:
            try:
                keys = os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
            except OSError as error:
                raise DeviceError(f"unplugged: the terminal has gone ({error.strerror})", gone=True) from error
            if not keys:
                raise DeviceError("unplugged: the terminal has ended", gone=True)
            for key in keys:
                asked.append(ASKS.get(key, key if key.isdigit() else "enable"))
                self.key, self.key_at = key, time.monotonic()
        return tuple(asked)

    def motion(self) -> dict[str, float] | None:
        if time.monotonic() - self.key_at >= KEY_HELD_S or self.key not in MOVES + PAUSE:
            return None  # what only asks takes nothing over
        return {axis: STEP * ((self.key == keys[0]) - (self.key == keys[1])) for axis, (keys, _) in PAIRS.items()}

    def help(self, axes: dict[str, int]) -> str:
        keys = ", ".join(f"{pair[0]}/{pair[1]} {way}" for pair, way in map(PAIRS.__getitem__, axes))
        return (f"{keys}; p rests; e arms, q disarms; g the scene is ready; y success, n failure, b once more, x discard. "
                "You beat the policy while a key that moves or rests is held.")
