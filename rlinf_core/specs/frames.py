"""Frames of cameras: uint8 RGB of a known shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

CHANNELS = 3  # RGB


def frames_fault(frames: Any, shape: Sequence[int | None]) -> str:
    """Return the difference of frames from uint8 of a shape, in words; empty if they fit.

    Args:
        frames: the frames, (..., H, W, 3).
        shape: the expected shape; None for a side of any length from 1 on.
    """
    frames = np.asarray(frames)
    fits = len(frames.shape) == len(shape) and all(
        actual >= 1 if expected is None else actual == expected
        for actual, expected in zip(frames.shape, shape, strict=True)
    )
    if fits and frames.dtype == np.uint8:
        return ""
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    actual = f"{frames.dtype} of shape {frames.shape}"
    if np.issubdtype(frames.dtype, np.floating) and not np.isfinite(frames).all():
        actual += f" with {int((~np.isfinite(frames)).sum())} values that are not finite"
    return f"expected frames of shape ({sides}) and type uint8, got {actual}"
