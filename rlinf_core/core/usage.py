"""CPU time, waiting time and memory of this process within a block of code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass
class Usage:
    """Seconds of one piece of work.

    Attributes:
        began: wall-clock time at its begin [s since 1970].
        wall_s: by the wall clock.
        busy_s: on a core.
        idle_s: neither on a core nor in the queue for one: asleep, or waiting for a device or
            another process.
        resident_bytes: host memory of the process at its end.
    """

    began: float = 0.0
    wall_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    resident_bytes: float = 0.0


@contextmanager
def measure_usage() -> Iterator[Usage]:
    """Measure this thread's work within the block; the fields are filled in at the end.

    A busy machine lengthens ``wall_s`` alone: Linux counts the time in the queue for a core
    (``schedstat``).
    """
    usage = Usage(began=time.time())
    wall = time.perf_counter()
    busy = time.thread_time()
    queued = _queued_s()
    try:
        yield usage
    finally:
        usage.wall_s, usage.busy_s = time.perf_counter() - wall, time.thread_time() - busy
        usage.idle_s = max(0.0, usage.wall_s - usage.busy_s - (_queued_s() - queued))


def _queued_s() -> float:
    """Return the seconds that this thread has waited for a core; 0 if they are not counted."""
    with suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) * 1e-9
    return 0.0


def resident_bytes() -> float:
    """Return the host memory of this process without shared pages [bytes]; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        _, resident, shared, *_ = (int(pages) for pages in file.read().split())
        return float((resident - shared) * os.sysconf("SC_PAGE_SIZE"))
    return 0.0


def free_bytes() -> float:
    """Return the host memory that new processes may use [bytes]; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return 0.0
