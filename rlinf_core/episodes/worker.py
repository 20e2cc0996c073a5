"""A thread that handles items in order, and may wait for the disk."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

WAITING_BYTES = 256 << 20
POLL_S = 0.05
REST_S = 0.01


class Worker:
    """One thread that handles items in order, however long the disk takes.

    It rests for REST_S between batches of items. A wake-up for each item would take the
    interpreter from the publishing thread each time.

    Args:
        handle: called with each item.
        poll: called after POLL_S without an item.
        trouble: called with an exception of ``handle`` or ``poll``.
        max_bytes: size of the queue; further items are refused.
    """

    def __init__(
        self,
        handle: Callable[[Any], None],
        poll: Callable[[], None],
        trouble: Callable[[Exception], None],
        max_bytes: int = WAITING_BYTES,
    ) -> None:
        self._handle = handle
        self._poll = poll
        self._trouble = trouble
        self.max_bytes = max_bytes
        self._queue: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[None] = queue.SimpleQueue()  # ends the rest
        self._lock = threading.Lock()
        self._waiting = self._bytes = 0
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether everything has been handled and ``poll`` is not running."""
        return self._waiting == 0

    @property
    def bytes(self) -> int:
        """Bytes in the queue."""
        return self._bytes

    def put(self, item: Any, size: int, anyway: bool = False, urgent: bool = False) -> bool:
        """Queue an item of ``size`` bytes; return False if the queue is full and not ``anyway``.

        An ``urgent`` item ends the thread's rest.
        """
        with self._lock:
            if self._bytes + size > self.max_bytes and not anyway:
                return False
            self._waiting += 1
            self._bytes += size
        self._queue.put((item, size))
        if urgent:
            self._urgent.put(None)
        return True

    def _run(self) -> None:
        while True:
            try:
                item, size = self._queue.get(timeout=POLL_S)
            except queue.Empty:
                self._count(1, 0)
                self._try(self._poll)
                self._count(-1, 0)
                continue
            self._try(self._handle, item)
            self._count(-1, -size)
            if self._queue.empty():
                self._rest()

    def _rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._urgent.get(timeout=REST_S)
            while True:
                self._urgent.get_nowait()

    def _count(self, items: int, size: int) -> None:
        with self._lock:
            self._waiting += items
            self._bytes += size

    def _try(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # a failure of one message must not stop the next
            self._trouble(error)
