"""Scripted operators: they stand in for a person at the SpaceMouse."""

from __future__ import annotations

import numpy as np


class InsertionOperator:
    """Goes above the socket, lowers, and pushes in, with a person's unsteadiness.

    Args:
        noise: standard deviation of the hand's tremor, in normalised units, correlated in time.
        gain: how much of the remaining way one action covers.
        aligned_m: lateral error at which it begins to push down.
        pause: probability of a moment's hesitation, per step.
        seed: of the tremor.
    """

    def __init__(self, scale_m: float, noise: float = 0.12, gain: float = 0.4, pause: float = 0.08,
                 aligned_m: float = 0.002, seed: int = 0) -> None:
        self.scale_m, self.noise, self.gain, self.pause = scale_m, noise, gain, pause
        self.aligned_m = aligned_m
        self._random = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """A new episode: a new preferred height above the rim, and steady hands."""
        self._tremor = np.zeros(3)
        self._approach_m = self._random.uniform(0.015, 0.04)

    def act(self, offset: np.ndarray) -> np.ndarray:
        """Normalised action (3,) for the way (3,) from the tip to the rim's centre [m]."""
        self._tremor = 0.6 * self._tremor + self.noise * self._random.normal(size=3)
        if self._random.random() < self.pause:
            return np.clip(0.3 * self._tremor, -1, 1)
        lateral = float(np.hypot(offset[0], offset[1]))
        low = offset[2] > -self._approach_m - 0.005
        wanted = np.array([offset[0], offset[1], offset[2] + self._approach_m])
        if low and lateral < self.aligned_m:
            wanted[2] = -0.5 * self.scale_m / self.gain
        action = self.gain * wanted / self.scale_m
        steadiness = 0.1 if lateral < 0.01 else 1.0
        return np.clip(action + steadiness * self._tremor, -1, 1)
