"""Chunk timing: the time of the next request, and the use of a chunk that took time to compute.

One rule serves simulators, evaluations and stations. The robot continues the last chunk while the
next one is computed.
"""

from __future__ import annotations

import numpy as np


class ChunkSchedule:
    """The position of each of N environments within its chunk, and the need for a new one.

    A chunk of ``horizon`` actions is played for ``execute`` time steps; then the next one is due.
    The next one is due earlier after a cut: the episode ended, somebody took over, or the interlock
    held the arm.

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
        self.chunks: list[tuple[float, np.ndarray]] = []

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
            frozen: number of its first actions that have begun by now; the last chunk's values are
                kept there.
            continues: True if the chunk was made to follow the last one; then the rest is not
                blended.
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
        total, weights = 0.0, np.zeros((horizon, 1))
        for age, chunk in enumerate(self.chunks):
            left = _remaining_actions(chunk, start)[:horizon]
            overlap = np.zeros((horizon, left.shape[1]))
            overlap[: len(left)] = left
            weight = np.exp(-DECAY * age) * (np.arange(horizon) < len(left))[:, None]
            total, weights = total + weight * overlap, weights + weight
        return total / weights

    def _blend(self, actions: np.ndarray, start: float, frozen: int, soft: float) -> np.ndarray:
        """Blend the last chunk into the new one: fully in the frozen part, then less and less.

        ``soft`` is a factor of the second part.
        """
        left = self.left(start)[: len(actions)]
        weight = continuation_weights(len(left), frozen)[:, None]
        weight[min(frozen, len(left)) :] *= soft
        blended = actions.copy()
        blended[: len(left)] = weight * left + (1.0 - weight) * actions[: len(left)]
        return blended

    def left(self, start: float) -> np.ndarray:
        """Return the last chunk's actions from time step ``start`` on, (L, A); possibly empty."""
        return _remaining_actions(self.chunks[-1], start) if self.chunks else np.zeros((0, 0))


def _remaining_actions(chunk: tuple[float, np.ndarray], start: float) -> np.ndarray:
    """Return a chunk's actions (L, A) from time step ``start`` on."""
    started_at, actions = chunk
    return actions[max(round(start - started_at), 0) :]


def continuation_weights(left: int, frozen: int) -> np.ndarray:
    """Return the weight of each of the last chunk's actions, (left,).

    The weight is 1 in the frozen part, then falls (Black et al. 2025, arXiv 2506.07339, equation
    5).
    """
    frozen = min(frozen, left)
    distance = (left - np.arange(left)) / (left - frozen + 1)
    soft = distance * np.expm1(distance) / np.expm1(1.0)
    return np.where(np.arange(left) < frozen, 1.0, soft)
