"""What a vector of environments is: several of one task, stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlinf_core.specs import StationSpec

Arrays = dict[str, np.ndarray]


@dataclass
class Steps:
    """One time step of N environments.

    Attributes:
        following: what was observed after the action, before any reset, name to (N, ...).
        reward: (N,).
        terminated: the task ended, by success or failure, (N,).
        truncated: it was cut off by time, (N,).
        success: the task was done, (N,).
        observation: what to act on next: ``following``, or the first observation of a new episode.
        held: where the interlock held the arm, so that what is left of a chunk is not played, (N,); None without one.
    """

    following: Arrays
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray
    observation: Arrays
    held: np.ndarray | None = None

    @property
    def ended(self) -> np.ndarray:
        """Terminated or truncated, (N,)."""
        return np.maximum(self.terminated, self.truncated)

    @property
    def failure(self) -> np.ndarray:
        """The task cannot be done any more, (N,)."""
        return self.terminated - self.success


class VectorEnv(Protocol):
    """N environments of one task; each begins its next episode by itself."""

    spec: StationSpec
    size: int

    def reset(self, seeds: Sequence[int]) -> Arrays:
        """Begin an episode of scene ``seeds[i]`` in each; name to (N, ...), vectors under ``vectors``."""
        ...

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        """Play normalised actions (N, A) for one time step; where ``active`` (N,) is false, time stands still."""
        ...

    def expert(self) -> np.ndarray:
        """What the task's script would do now in each, (N, A)."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...
