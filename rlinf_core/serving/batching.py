"""Requests of several clients, answered together: a batch is as large as it may be, and nobody waits longer than told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

Infer = Callable[[Any, Sequence[Any]], list[Any]]


@dataclass(eq=False)
class Waiting:
    """A request on its way through a batch.

    Attributes:
        kind: only requests of one kind share a batch.
        since, began, took_s: when it came, when its batch was begun, and how long that took [s].
        size: of its batch.
    """

    kind: Hashable
    request: Any
    answer: asyncio.Future
    since: float = field(default_factory=time.monotonic)
    began: float = 0.0
    took_s: float = 0.0
    size: int = 0


class Batcher:
    """Answers in one thread of its own, so that sockets are served meanwhile; what comes meanwhile is the next batch.

    Args:
        infer: (kind, requests) to as many answers.
        max_batch: requests of a batch.
        max_wait_s: for how long the first of a batch may wait for others, counted from when it came.
        callers: how many may be asking now; once as many wait, none is waited for.
    """

    def __init__(self, infer: Infer, max_batch: int, max_wait_s: float, callers: Callable[[], int]) -> None:
        self.infer, self.max_batch, self.max_wait_s, self.callers = infer, max_batch, max_wait_s, callers
        self.waiting: list[Waiting] = []
        self.thread = ThreadPoolExecutor(1, "inference")
        self._more = asyncio.Event()

    async def ask(self, kind: Hashable, request: Any) -> Waiting:
        """The request, once it is answered; what ``infer`` raises about it alone is raised here."""
        waiting = Waiting(kind, request, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        self._more.set()
        await waiting.answer
        return waiting

    async def run(self) -> None:
        """Batch after batch, until cancelled."""
        while True:
            batch = await self._next()
            if batch:
                await asyncio.get_running_loop().run_in_executor(self.thread, self._timed, batch)
                _deliver(batch)

    async def _next(self) -> list[Waiting]:
        while not self.waiting:
            await self._come()
        until = self.waiting[0].since + self.max_wait_s
        while len(self.waiting) < min(self.max_batch, self.callers()) and (left := until - time.monotonic()) > 0.0:
            await self._come(left)
        alike = [each for each in self.waiting if each.kind == self.waiting[0].kind][:self.max_batch]
        self.waiting = [each for each in self.waiting if each not in alike]
        return [each for each in alike if not each.answer.done()]  # whose client has gone

    async def _come(self, timeout_s: float | None = None) -> None:
        self._more.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._more.wait(), timeout_s)

    def _timed(self, batch: list[Waiting]) -> None:
        began = time.monotonic()
        results = self._answered(batch)
        for each, result in zip(batch, results, strict=True):
            each.request = result
            each.began, each.took_s, each.size = began, time.monotonic() - began, len(batch)

    def _answered(self, batch: list[Waiting]) -> list[Any]:
        """An answer or an exception each: where a batch cannot be answered, each of it is asked alone."""
        try:
            return self.infer(batch[0].kind, [each.request for each in batch])
        except Exception as error:
            return [error] if len(batch) == 1 else [result for each in batch for result in self._answered([each])]


def _deliver(batch: list[Waiting]) -> None:
    for each in batch:
        if each.answer.done():
            continue
        if isinstance(each.request, Exception):
            each.answer.set_exception(each.request)
        else:
            each.answer.set_result(each.request)
