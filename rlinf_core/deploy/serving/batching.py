"""Batched inference for several clients, with a maximum batch size and a maximum wait."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.core.errors import EngineError

QUICK_S = 1e-3  # a faster inference runs in the event loop, since a thread switch costs as much
Infer = Callable[[Any, Sequence[Any]], list[Any]]


@dataclass(eq=False)
class Waiting:
    """A request in the queue or in a batch.

    Attributes:
        kind: only requests of the same kind share a batch.
        since: time of arrival [s, monotonic].
        started_at: start of its batch [s, monotonic].
        took_s: duration of its batch [s].
        size: size of its batch.
    """

    kind: Hashable
    request: Any
    answer: asyncio.Future
    since: float = field(default_factory=time.monotonic)
    started_at: float = 0.0
    took_s: float = 0.0
    size: int = 0


class Batcher:
    """Runs inference in a thread. Requests that arrive meanwhile form the next batch.

    Args:
        infer: maps (kind, requests) to as many answers.
        max_batch: maximum number of requests in a batch.
        max_wait_s: maximum wait of the first request for others, from its arrival [s].
        callers: returns the number of active clients; a batch with as many requests starts at once.
    """

    def __init__(
        self, infer: Infer, max_batch: int, max_wait_s: float, callers: Callable[[], int]
    ) -> None:
        self.infer = infer
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        self.callers = callers
        self.waiting: list[Waiting] = []
        self._expected = 1
        self._busy = False
        self._ended = False
        self._come = threading.Condition()
        # duration of the last batches [s]; the shortest counts, since a busy machine delays some
        self._durations = deque([math.inf], maxlen=4)

    async def submit(self, kind: Hashable, request: Any) -> Waiting:
        """Wait for the answer to a request.

        An exception of ``infer`` about this request is raised here.
        """
        waiting = Waiting(kind, request, asyncio.get_running_loop().create_future())
        with self._come:
            self._expected = min(self.max_batch, self.callers())
            is_quick = min(self._durations) < QUICK_S
            at_once = self._expected <= 1 and is_quick and not self.waiting and not self._busy
            if not at_once:
                self.waiting.append(waiting)
                self._come.notify()
        if at_once:
            self._timed([waiting])
            _deliver([waiting])
        await waiting.answer
        return waiting

    def start(self) -> None:
        """Start the thread that answers batches until ``close``.

        Call it from the event loop of the clients.
        """
        threading.Thread(
            target=self._run, args=(asyncio.get_running_loop(),), name="inference", daemon=True
        ).start()

    def close(self) -> None:
        """Start no further batch."""
        with self._come:
            self._ended = True
            self._come.notify()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._timed(batch)
                self._busy = False
                with contextlib.suppress(RuntimeError):  # the event loop has ended
                    loop.call_soon_threadsafe(_deliver, batch)

    def _next(self) -> list[Waiting] | None:
        """Return the next batch; None at the end."""
        with self._come:
            self._come.wait_for(lambda: self.waiting or self._ended)
            while (
                not self._ended
                and len(self.waiting) < self._expected
                and (left := self.waiting[0].since + self.max_wait_s - time.monotonic()) > 0.0
            ):
                self._come.wait(left)
            if self._ended:
                return None
            self._busy = True
            batch = [waiting for waiting in self.waiting if waiting.kind == self.waiting[0].kind][
                : self.max_batch
            ]
            self.waiting = [waiting for waiting in self.waiting if waiting not in batch]
        # clients that have disconnected are left out
        return [waiting for waiting in batch if not waiting.answer.done()]

    def _timed(self, batch: list[Waiting]) -> None:
        started_at = time.monotonic()
        results = self._answered(batch)
        took_s = time.monotonic() - started_at
        self._durations.append(took_s)
        for waiting, result in zip(batch, results, strict=True):
            waiting.request, waiting.started_at, waiting.took_s = result, started_at, took_s
            waiting.size = len(batch)

    def _answered(self, batch: list[Waiting]) -> list[Any]:
        """Return an answer or an exception for each request.

        If a batch fails, each request is tried alone.
        """
        try:
            return self.infer(batch[0].kind, [waiting.request for waiting in batch])
        except EngineError as error:  # not caused by a request
            return [error] * len(batch)
        except Exception as error:
            return (
                [error]
                if len(batch) == 1
                else [result for waiting in batch for result in self._answered([waiting])]
            )


def _deliver(batch: list[Waiting]) -> None:
    for waiting in batch:
        if waiting.answer.done():
            continue
        if isinstance(waiting.request, Exception):
            waiting.answer.set_exception(waiting.request)
        else:
            waiting.answer.set_result(waiting.request)
