"""Success of a reach: the tool is at a height above an object."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_core.settings.base import Positive


@dataclass(frozen=True, kw_only=True)
class Reach:
    """True when the TCP is near a point above ``object_pose``.

    Args:
        height: of that point [m].
        radius: around it [m].
    """

    height: float = 0.03
    radius: Positive = 0.02

    channels = ("current_pose", "object_pose")

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        return self.away(channels) < self.radius

    def away(self, channels: dict[str, np.ndarray]) -> float:
        """The way that is left [m]."""
        offset = channels["current_pose"][:3] - channels["object_pose"][:3]
        return float(np.linalg.norm(offset - [0.0, 0.0, self.height]))

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Between 0 and 1."""
        return 1.0 - float(np.tanh(5.0 * self.away(channels)))
