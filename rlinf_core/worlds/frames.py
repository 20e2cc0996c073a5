"""Frames of cameras as video models take and return them: uint8, of a known shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError

CHANNELS = 3  # RGB


def check_frames(frames: Any, shape: Sequence[int | None], name: str, remedy: str) -> np.ndarray:
    """Return frames unchanged if they are uint8 of this shape.

    Args:
        frames: the frames, (..., H, W, 3).
        shape: the expected shape; None for a side of any length from 1 on.
        name: the frames' origin, such as a recording or a video model.
        remedy: the last sentence of the message.

    Raises:
        RlinfError: they have another type or shape.
    """
    frames = np.asarray(frames)
    fits = len(frames.shape) == len(shape) and all(
        actual >= 1 if expected is None else actual == expected
        for actual, expected in zip(frames.shape, shape, strict=True)
    )
    if fits and frames.dtype == np.uint8:
        return frames
    sides = ", ".join("any" if side is None else str(side) for side in shape)
    actual = f"{frames.dtype} of shape {frames.shape}"
    if np.issubdtype(frames.dtype, np.floating) and not np.isfinite(frames).all():
        actual += f" with {int((~np.isfinite(frames)).sum())} values that are not finite"
    raise RlinfError(
        f"{name}: expected frames of shape ({sides}) and type uint8, got {actual}. {remedy}"
    )


def check_actions(actions: Any, shape: Sequence[int], name: str, remedy: str) -> np.ndarray:
    """Return actions unchanged if they are finite numbers of this shape.

    Raises:
        RlinfError: they have another shape, or a value is not finite.
    """
    actions = np.asarray(actions)
    if actions.shape != tuple(shape) or not np.issubdtype(actions.dtype, np.number):
        raise RlinfError(
            f"{name}: expected actions of shape {tuple(shape)}, got {actions.dtype} of shape "
            f"{actions.shape}. {remedy}"
        )
    if not np.isfinite(actions).all():
        row = int(np.flatnonzero(~np.isfinite(actions).all(axis=tuple(range(1, actions.ndim))))[0])
        raise RlinfError(
            f"{name}: expected finite actions, got {actions[row].tolist()} in row {row}. {remedy}"
        )
    return actions
