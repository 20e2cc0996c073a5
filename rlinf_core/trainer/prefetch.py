"""Prefetching: a thread draws the next batches and copies them to the device during an update."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from rlinf_core.algorithms.common.tensors import to_tensors
from rlinf_core.recipes import Recipe

PREFETCHED_BATCHES = 2  # prefetched batches: one that is ready, and one in progress


class Prefetch:
    """Draws the batches of a group of updates in a thread, in order.

    It never draws beyond the group. No data is inserted and no checkpoint is saved until all drawn
    batches were used. So batches and random states equal those without prefetching.

    Args:
        depth: maximum number of waiting batches; 0 draws each batch at its update, without a
            thread.
        device: device to copy to, from pinned memory and asynchronously on CUDA; None keeps arrays.
    """

    def __init__(self, depth: int, device: torch.device | None = None) -> None:
        self.depth, self.device = depth, device
        self.thread = ThreadPoolExecutor(1, "prefetch") if depth else None
        self.stream = (
            torch.cuda.Stream(device)
            if depth and device is not None and device.type == "cuda"
            else None
        )

    def batches(self, draw: Callable[[], Any], count: int) -> Iterator[Any]:
        """Yield ``count`` batches; ``draw`` is called exactly ``count`` times.

        Yields:
            The results of ``draw``, or their tensors on the device if they are prefetched for one.
        """
        if self.thread is None or count < 2:
            for _ in range(count):
                yield draw()
            return
        waiting: deque[Future[Any]] = deque()
        try:
            for number in range(count):
                while len(waiting) <= self.depth and number + len(waiting) < count:
                    waiting.append(self.thread.submit(self._prepare, draw))
                yield self._wait_for_copy(waiting.popleft().result())
        finally:  # an update or a draw may have failed
            for future in waiting:
                future.cancel()

    def _prepare(self, draw: Callable[[], Any]) -> tuple[Any, torch.cuda.Event | None]:
        """Draw a batch, in the thread. Returns it and the CUDA event of its copy, or None."""
        batch = draw()
        if self.device is None or self.stream is None:
            return batch if self.device is None else to_tensors(batch, self.device), None
        with torch.cuda.stream(self.stream):
            copied = {
                name: values.pin_memory().to(self.device, non_blocking=True)
                for name, values in to_tensors(batch).items()
            }
            return copied, self.stream.record_event()

    def _wait_for_copy(self, prepared: tuple[Any, torch.cuda.Event | None]) -> Any:
        """Return the batch for use on the current CUDA stream."""
        batch, event = prepared
        if event is not None:
            learning = torch.cuda.current_stream(self.device)
            learning.wait_event(event)
            for values in batch.values():
                values.record_stream(learning)  # keep its memory until the update ends
        return batch


def make_prefetch(recipe: Recipe, device: torch.device) -> Prefetch:
    """Return the prefetcher of a recipe.

    Args:
        recipe: recipe of the run.
        device: device of a learner in this process; the processes of a group copy for themselves.
    """
    placement, setting = recipe.placement, recipe.learner.prefetch
    elsewhere = placement.learner_gpus > 0 if placement.learners else device.type != "cpu"
    is_on = setting == "always" or (setting == "auto" and elsewhere)
    return Prefetch(PREFETCHED_BATCHES if is_on else 0, None if placement.learners else device)
