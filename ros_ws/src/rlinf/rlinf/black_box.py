"""The last half minute of what went in and out, kept in memory and written when a fault latches (S20)."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from rlinf_core.episodes.spool import Spool
from rlinf_core.errors import SpoolError

SECONDS = 30.0


class BlackBox:
    """A ring of serialized messages; ``write`` makes a rosbag2 folder of it, one per fault, in ``root/closed``."""

    def __init__(self, root: Path, seconds: float = SECONDS) -> None:
        self.spool, self._ring, self._ns = Spool(root), deque(), int(seconds * 1e9)

    def add(self, topic: str, kind: str, raw: bytes) -> None:
        """Keep one message, and forget those that are too old."""
        now = time.time_ns()
        self._ring.append((now, topic, kind, raw))
        while self._ring[0][0] < now - self._ns:
            self._ring.popleft()

    def write(self, cause: str) -> Path:
        """Write what is kept; SpoolError if the disk does not take it."""
        name = f"fault-{time.strftime('%Y%m%dT%H%M%S')}-{''.join(c if c.isalnum() else '_' for c in cause)}"
        writer = self.spool.open_episode(name)
        try:
            for at, topic, kind, raw in self._ring:
                writer.write(topic, kind, at, raw)
            writer.close()
        except SpoolError:
            writer.abort()
            raise
        return self.spool.root / "closed" / name
