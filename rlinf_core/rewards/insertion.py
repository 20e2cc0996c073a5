"""Success of an insertion: the tool's tip is below the rim, near the socket's centre."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """True when the TCP is ``depth`` [m] below ``object_pose`` (the rim) and within ``radius`` [m] of its centre."""

    depth: float = 0.02
    radius: float = 0.01

    channels = ("current_pose", "object_pose")

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        offset = channels["current_pose"][:3] - channels["object_pose"][:3]
        return bool(offset[2] < -self.depth and np.hypot(offset[0], offset[1]) < self.radius)
