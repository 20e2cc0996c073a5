"""Chunk timing: the time of the next request, and the blending of a new chunk with the last one.

``ChunkSchedule`` says when a chunk is due, in simulators, evaluations and stations alike.
``Chunking`` merges a chunk that took time to compute into the last one, which the robot continues
meanwhile.
"""

from __future__ import annotations

import numpy as np


class ChunkSchedule:
    """The position of each of N environments within its chunk, and the need for a new one.

    A chunk of ``horizon`` actions is played for ``execute`` time steps; then the next one is due.
    The next one is due earlier after a cut: the episode ended, an operator took over, or the
    interlock held the arm.

    Args:
        size: number of environments; a station is one.
        execute: number of a chunk's actions that are played.
    """

    def __init__(self, size: int, execute: int) -> None:
        self.execute = execute
        self.index = np.full(size, execute)  # index of the next action within its chunk

    @property
    def due(self) -> np.ndarray:
        """Mask (N,) of environments that need a chunk before their next time step."""
        return self.index >= self.execute

    def replan(self, rows: np.ndarray | slice = slice(None)) -> None:
        """Note that these environments got a new chunk."""
        self.index[rows] = 0

    def advance(self, rows: np.ndarray | slice = slice(None), steps: int = 1) -> None:
        """Note that these environments played an action, or ``steps`` of them."""
        self.index[rows] += steps

    def cut(self, rows: np.ndarray | slice = slice(None)) -> None:
        """Drop the rest of these environments' chunks."""
        self.index[rows] = self.execute


SYNCHRONOUS, RECEDING_HORIZON, TEMPORAL_ENSEMBLING, REAL_TIME = MODES = (
    "synchronous",
    "receding_horizon",
    "temporal_ensembling",
    "real_time",
)
# decay of temporal ensembling's weights, from the oldest chunk on (Zhao et al. 2023, arXiv
# 2304.13705)
DECAY = 0.01


class Chunking:
    """The chunks in play, by the time of their first action.

    Times are in time steps and may be fractional: in real time an observation comes a little early
    or late. The distance of two times is therefore rounded, not each time.

    Args:
        mode: one of ``MODES``.
        execute: number of a chunk's actions that are played before the next request.
    """

    def __init__(self, mode: str, execute: int) -> None:
        self.mode = mode
        self.execute = 1 if mode == TEMPORAL_ENSEMBLING else execute
        self.chunks: list[tuple[float, np.ndarray]] = []  # start and actions (H, A) of each

    def cut(self) -> None:
        """Drop all chunks in play."""
        self.chunks.clear()

    def merge(
        self, actions: np.ndarray, start: float, frozen: int, continues: bool = False
    ) -> np.ndarray:
        """Return the actions to send for a new chunk ``actions`` (H, A).

        Args:
            actions: the new chunk.
            start: time step of its first action.
            frozen: number of its first actions that have begun by now. There the last chunk's
                values stay.
            continues: True if the policy computed the chunk as a continuation of the last one
                (``real_time_chunking``). The actions behind the frozen ones are then not blended.
        """
        sent = actions[: self.execute] if self.mode == SYNCHRONOUS else actions
        if self.mode == TEMPORAL_ENSEMBLING:
            self.chunks = [
                *[chunk for chunk in self.chunks if len(_remaining_actions(chunk, start))],
                (start, actions),
            ]
            return self._weighted_mean(start, len(actions))
        if self.mode == REAL_TIME and self.chunks:
            sent = self._blend(actions, start, frozen, 0.0 if continues else 1.0)
        self.chunks = [(start, sent)]
        return sent

    def _weighted_mean(self, start: float, horizon: int) -> np.ndarray:
        """Return the weighted mean (H, A) of all chunks' actions from time step ``start`` on."""
        total, weights = 0.0, np.zeros((horizon, 1))
        for index, chunk in enumerate(self.chunks):
            remaining = _remaining_actions(chunk, start)[:horizon]
            padded = np.zeros((horizon, remaining.shape[1]))
            padded[: len(remaining)] = remaining
            weight = np.exp(-DECAY * index) * (np.arange(horizon) < len(remaining))[:, None]
            total, weights = total + weight * padded, weights + weight
        return total / weights

    def _blend(self, actions: np.ndarray, start: float, frozen: int, soft: float) -> np.ndarray:
        """Blend the last chunk into the new one: fully in the frozen part, then less and less.

        ``soft`` is a factor of the last chunk's weight behind the frozen part.
        """
        remaining = self.remaining(start)[: len(actions)]
        count = len(remaining)
        weight = continuation_weights(count, frozen)[:, None]
        weight[min(frozen, count) :] *= soft
        blended = actions.copy()
        blended[:count] = weight * remaining + (1.0 - weight) * actions[:count]
        return blended

    def remaining(self, start: float) -> np.ndarray:
        """Return the last chunk's actions from time step ``start`` on, (L, A); possibly empty."""
        return _remaining_actions(self.chunks[-1], start) if self.chunks else np.zeros((0, 0))


def _remaining_actions(chunk: tuple[float, np.ndarray], start: float) -> np.ndarray:
    """Return a chunk's actions (L, A) from time step ``start`` on."""
    started_at, actions = chunk
    return actions[max(round(start - started_at), 0) :]


def continuation_weights(count: int, frozen: int) -> np.ndarray:
    """Return the weight (count,) of each of the last chunk's remaining actions.

    The weight is 1 for the first ``frozen`` actions, then falls (Black et al. 2025, arXiv
    2506.07339, equation 5).
    """
    frozen = min(frozen, count)
    distance = (count - np.arange(count)) / (count - frozen + 1)
    falling = distance * np.expm1(distance) / np.expm1(1.0)
    return np.where(np.arange(count) < frozen, 1.0, falling)
