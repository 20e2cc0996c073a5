"""Checks of the frames and actions that world models take and return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.frames import frames_fault


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
    if fault := frames_fault(frames, shape):
        raise RlinfError(f"{name}: {fault}. {remedy}")
    return np.asarray(frames)


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
