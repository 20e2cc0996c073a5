"""Ctrl-C and requests to end in places without a safe point for an exception.

Python's own reaction, an exception at any place, would be lost or do harm there.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator

END_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1
# a terminal and a supervisor send at the same time; a later signal is a second request
SECOND_SIGNAL_S = 2.0


@contextlib.contextmanager
def on_signal(by: Callable[[int], object]) -> Iterator[None]:
    """Call ``by`` with the number of SIGINT or SIGTERM within the block.

    A second signal, more than ``SECOND_SIGNAL_S`` later, uses the outer handler.
    """
    # no signal interrupts other threads
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def answer(number: int, _: object) -> None:
        if not first:
            first.append(time.monotonic())
            by(number)
        elif time.monotonic() - first[0] > SECOND_SIGNAL_S:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, answer) for number in END_SIGNALS}
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block.

    An import, a destructor or a weak reference's callback would swallow an exception from a signal.
    """
    pending: list[int] = []
    try:
        with on_signal(pending.append):
            yield
    finally:
        if pending:
            signal.raise_signal(pending[0])


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have Linux send this process a signal when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
