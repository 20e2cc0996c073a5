"""Success of an insertion: the tool's tip is below the rim, above the socket's centre."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def success(depth: float = 0.02, radius: float = 0.01) -> Callable[[dict[str, np.ndarray]], bool]:
    """True when the TCP is ``depth`` [m] below ``object_pose`` (the rim) and within ``radius`` [m] of its centre."""

    def test(channels: dict[str, np.ndarray]) -> bool:
        offset = channels["current_pose"][:3] - channels["object_pose"][:3]
        return bool(offset[2] < -depth and np.hypot(offset[0], offset[1]) < radius)

    return test
