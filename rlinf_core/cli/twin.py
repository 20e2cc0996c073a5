"""``rlinf twin``: a simulated operator's device, moved by the words of this terminal or of a pipe."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rlinf_core.errors import DeviceError


def twin(kind: str, path: Path | None = None) -> int:
    """Speak as the device until end of input or Ctrl-C; what it is told wrongly is said, and does not end it."""
    from rlinf_core.operators.twins import TWINS

    path = path or Path(tempfile.mkdtemp(prefix="rlinf-twin-")) / kind
    device = TWINS[kind](path)
    print(f"a {kind} without hardware is at {path}: --set station.operator={{kind: {kind}, device: {path}}}\n"
          "move it: NAME VALUE ..., press NAME, release NAME, rest, silent, garbage, unplug; Ctrl-D ends it", flush=True)
    try:
        for line in filter(str.strip, sys.stdin):
            try:
                device.say(line)
            except DeviceError as error:
                print(error, file=sys.stderr, flush=True)
    finally:
        device.unplug()
    return 0
