"""Between ROS stamps and nanoseconds."""

from __future__ import annotations

import bisect

from builtin_interfaces.msg import Time

NS = 1_000_000_000


def to_ns(stamp: Time) -> int:
    """Nanoseconds of a stamp."""
    return stamp.sec * NS + stamp.nanosec


def to_stamp(ns: int) -> Time:
    """Stamp of a time in nanoseconds."""
    return Time(sec=ns // NS, nanosec=ns % NS)


def set_stamp(stamp: Time, ns: int) -> None:
    """Write a time in nanoseconds into an existing stamp."""
    stamp.sec, stamp.nanosec = divmod(ns, NS)


def any_between(sorted_ns: list[int], low: int, high: int) -> bool:
    """Whether one of these times lies there."""
    index = bisect.bisect_left(sorted_ns, low)
    return index < len(sorted_ns) and sorted_ns[index] <= high
