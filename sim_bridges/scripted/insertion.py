"""A peg into a socket."""

from __future__ import annotations

import numpy as np

from rlinf_core.task import Channels
from sim_bridges.scripted.arm import ScriptedArm


class InsertionOperator(ScriptedArm):
    """Goes above the socket, lowers, and pushes in."""

    GAIN, ALIGNED_M = 0.4, 0.002  # how much of the remaining way one action covers; lateral error at which it pushes

    def reset(self, seed: int | None = None) -> None:
        """A new preferred height above the rim."""
        super().reset(seed)
        self._approach_m = self._random.uniform(0.015, 0.04)

    def act(self, channels: Channels) -> np.ndarray:
        """Normalised action (3,)."""
        offset = channels["object_pose"][:3] - channels["current_pose"][:3]
        if self.hesitates():
            return np.clip(0.3 * self._noise, -1, 1)
        lateral = float(np.hypot(offset[0], offset[1]))
        low = offset[2] > -self._approach_m - 0.005
        wanted = np.array([offset[0], offset[1], offset[2] + self._approach_m])
        if low and lateral < self.ALIGNED_M:
            wanted[2] = -0.5 * self.scale_m[2] / self.GAIN
        action = self.GAIN * wanted / self.scale_m
        steadiness = 0.1 if lateral < 0.01 else 1.0
        return np.clip(action + steadiness * self._noise, -1, 1)
