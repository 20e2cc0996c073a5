"""Ctrl-C and a request to end, held back where they would be lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """SIGINT and SIGTERM wait for the end of the block: one that comes within an import may be swallowed by it."""
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got))
              for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
