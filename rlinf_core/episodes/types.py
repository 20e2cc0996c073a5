"""One episode as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Episode:
    """T transitions between T + 1 time steps.

    Attributes:
        observations: name to (T + 1, ...) arrays, as the station's specs declare them.
        requested: (T, A) what was asked for, SI units.
        executed: (T, A) how far the interlock let the set-point move, SI units.
        success, failure, truncated: how it ended: the task was done, could not be done any more, or ran out of time.
        sources: who commanded each transition: policy, operator, or "" when nobody did.
        limits: names of the limits that bit in each transition.
        rewards: (T,).
        discounts: (T,); 0 where the task ended, 1 otherwise, a time limit included.
        stamps_ns: (T + 1,) times of the time steps.
    """

    id: str
    station: str
    mode: str
    seed: int
    success: bool
    failure: bool
    truncated: bool
    policy_version: int
    spec_hash: str
    limits_hash: str
    instruction: str
    observations: dict[str, np.ndarray]
    requested: np.ndarray
    executed: np.ndarray
    sources: tuple[str, ...]
    limits: tuple[tuple[str, ...], ...]
    rewards: np.ndarray
    discounts: np.ndarray
    stamps_ns: np.ndarray

    def __len__(self) -> int:
        return len(self.rewards)
