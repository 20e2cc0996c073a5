"""A coroutine that wakes when what it waits for is done.

rclpy's own tasks are asked again and again whether they can go on, which costs a whole core on the events executor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from rclpy.task import Future


class Until:
    """``await Until(future)`` inside a routine: its result, once it has one."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def __await__(self) -> Generator[Future, None, Any]:
        yield self._future
        return self._future.result()


def run_routine(routine: Coroutine[Future, None, Any], finished: Callable[[Any], None]) -> None:
    """Run up to its end, one ``Until`` after the other; ``finished`` gets what it returns."""
    try:
        future = routine.send(None)
    except StopIteration as end:
        finished(end.value)
    else:
        future.add_done_callback(lambda _: run_routine(routine, finished))
