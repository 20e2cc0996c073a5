"""Common part of adapters: commands that are kept, poses, pictures, and a package's own folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Command = tuple[np.ndarray, float]  # target pose (7,) and gripper width [m]


def next_command(
    command: Command, target_pose: np.ndarray | None, gripper_width: float | None
) -> Command:
    """Return the command of a tick: a part that is None keeps its last value."""
    return (
        command[0] if target_pose is None else np.array(target_pose),
        command[1] if gripper_width is None else gripper_width,
    )


def unrotated_pose(position: np.ndarray) -> np.ndarray:
    """Return the pose (7,) of a position (3,) [m] in the axes of the base frame."""
    return np.concatenate([position, [0.0, 0.0, 0.0, 1.0]])


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a picture (H, W, 3) in another size."""
    import cv2

    return cv2.resize(np.ascontiguousarray(picture), (width, height), interpolation=cv2.INTER_AREA)


@contextlib.contextmanager
def working_directory(folder: Path) -> Iterator[None]:
    """Change to a folder, from which a package finds its assets, and back."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
