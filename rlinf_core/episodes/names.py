"""Names of recordings that keep their order, even after a clock was set back or a folder copied."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from pathlib import Path

_NAME = re.compile(r"(.*-(\d{8}T\d{6})(?:-[0-9a-f]{8})?)-(\d+)(?:-.*)?")
_FORMAT = "%Y%m%dT%H%M%S"
_LATEST_S = 250_000_000_000  # in the year 9892; later times do not fit this format
_latest = datetime.min


def time_stamp() -> str:
    """Return the local time for a name, like 20261122T040052.

    The time is at least one second after the last one in this process.
    """
    global _latest
    _latest = max(datetime.now(), _latest + timedelta(seconds=1))
    return _latest.strftime(_FORMAT)


def order_of(path: Path) -> tuple[str, str, int, str]:
    """Return the key that sorts recordings oldest first.

    The name decides: the time of its request, then its number in it. A path with another name is
    sorted by its time of modification.

    >>> run = "station_a-20261122T040052-1f3a9c2b"
    >>> order_of(Path(f"{run}-1000")) > order_of(Path(f"{run}-999"))
    True
    """
    match = _NAME.fullmatch(path.name)
    if match:
        return match[2], match[1], int(match[3]), path.name
    try:
        changed_ns = path.lstat().st_mtime_ns
    except OSError:  # the path was moved in the meantime
        changed_ns = 0
    changed_s = min(max(changed_ns // 10**9, 0), _LATEST_S)
    return time.strftime(_FORMAT, time.localtime(changed_s)), "", changed_ns, path.name
