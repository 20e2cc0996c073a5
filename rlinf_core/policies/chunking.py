"""What is sent of a chunk that took time to decide: the robot goes on with the last one meanwhile."""

from __future__ import annotations

import numpy as np

SYNCHRONOUS, RECEDING_HORIZON, TEMPORAL_ENSEMBLING, REAL_TIME = MODES = (
    "synchronous", "receding_horizon", "temporal_ensembling", "real_time")
DECAY = 0.01  # of temporal ensembling's weights, from the oldest chunk on (Zhao et al. 2023, arXiv 2304.13705)


class Chunking:
    """The chunks that are in play, by the time step of their first action.

    Args:
        mode: one of ``MODES``.
        execute: actions of a chunk that are played before the next one is asked for.
    """

    def __init__(self, mode: str, execute: int) -> None:
        self.mode, self.execute = mode, 1 if mode == TEMPORAL_ENSEMBLING else execute
        self.chunks: list[tuple[int, np.ndarray]] = []

    def cut(self) -> None:
        """Nothing is in play any more."""
        self.chunks.clear()

    def merge(self, actions: np.ndarray, start: int, frozen: int) -> np.ndarray:
        """What is sent of ``actions`` (H, A); the first ``frozen`` have begun by now, as the last chunk has them."""
        sent = actions[:self.execute] if self.mode == SYNCHRONOUS else actions
        if self.mode == TEMPORAL_ENSEMBLING:
            self.chunks = [*[each for each in self.chunks if each[0] + len(each[1]) > start], (start, actions)]
            return self._mean(start, len(actions))
        if self.mode == REAL_TIME and self.chunks:
            sent = self._blended(actions, start, frozen)
        self.chunks = [(start, sent)]
        return sent

    def _mean(self, start: int, horizon: int) -> np.ndarray:
        total, weights = 0.0, np.zeros((horizon, 1))
        for age, (begun, actions) in enumerate(self.chunks):
            own, left = np.zeros((horizon, actions.shape[1])), actions[start - begun:][:horizon]
            own[:len(left)] = left
            weight = np.exp(-DECAY * age) * (np.arange(horizon) < len(left))[:, None]
            total, weights = total + weight * own, weights + weight
        return total / weights

    def _blended(self, actions: np.ndarray, start: int, frozen: int) -> np.ndarray:
        """The last chunk where it has begun, then less and less of it (Black et al. 2025, arXiv 2506.07339, equation 5)."""
        begun, last = self.chunks[-1]
        left = last[max(start - begun, 0):][:len(actions)]
        frozen = min(frozen, len(left))
        distance = (len(left) - np.arange(len(left))) / (len(left) - frozen + 1)
        weight = np.where(np.arange(len(left)) < frozen, 1.0, distance * np.expm1(distance) / np.expm1(1.0))[:, None]
        blended = actions.copy()
        blended[:len(left)] = weight * left + (1.0 - weight) * actions[:len(left)]
        return blended
