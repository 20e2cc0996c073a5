"""When a policy is asked for its next chunk: one rule for simulators, evaluations and stations."""

from __future__ import annotations

import numpy as np


class ChunkSchedule:
    """Where each of N environments is within its chunk, and which need a new one.

    A chunk of ``horizon`` actions is played for ``execute`` time steps; then the next one is due. It is due earlier where a
    chunk was cut short: the episode ended, somebody took over, or the interlock held the arm.

    Args:
        size: environments; a station is one.
        execute: actions of a chunk that are played.
    """

    def __init__(self, size: int, execute: int) -> None:
        self.execute = execute
        self.index = np.full(size, execute)  # of the next action within its chunk

    @property
    def due(self) -> np.ndarray:
        """Which need a chunk before their next time step, (N,)."""
        return self.index >= self.execute

    def decided(self, which: np.ndarray | slice = slice(None)) -> None:
        """These got a new chunk."""
        self.index[which] = 0

    def advance(self, which: np.ndarray | slice = slice(None), steps: int = 1) -> None:
        """These played an action, or as many as time steps have passed."""
        self.index[which] += steps

    def cut(self, which: np.ndarray | slice = slice(None)) -> None:
        """What is left of their chunks is not played."""
        self.index[which] = self.execute
