"""The pose of a camera: a hand-eye file beside ``robot.yaml``.

The pose is computed from views of a board and poses of the arm.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from pydantic import Field, model_validator

from rlinf_core.config.base import Name, Settings
from rlinf_core.config.checking import validate
from rlinf_core.config.yaml_source import read_document
from rlinf_core.core.errors import RecipeError, RlinfError, nearest
from rlinf_core.core.rotation import to_quaternion
from rlinf_core.robots.calibration.yaml_edits import publish

TOOL, BASE = "tool", "base"
HEAD = "# Where the cameras are: rlinf camera locate (docs/robots/calibration.md)\n"
MIN_VIEWS = 8
MIN_TURN_RAD = 0.35  # between some two views; with less, the answer is undetermined


class Mount(Settings):
    """The pose of one camera's optical frame (x right, y down, z ahead).

    The pose is in the tool's frame, or in the arm's base frame.
    """

    on: Literal["tool", "base"] = Field(
        description="mount of the camera. `tool` moves with the arm, `base` is fixed"
    )
    position: tuple[float, float, float] = Field(description="position x y z [m]")
    orientation: tuple[float, float, float, float] = Field(
        description="orientation, quaternion x y z w"
    )
    arm: str = Field("", description="name of the arm, if there are several")
    error_mm: float | None = Field(
        None, ge=0, description="typical deviation between views of the board [mm]"
    )

    @model_validator(mode="after")
    def _check_quaternion(self) -> Mount:
        if abs(sum(value * value for value in self.orientation) - 1.0) > 0.02:
            raise ValueError(
                f"orientation: expected a quaternion of length 1, got {list(self.orientation)}"
            )
        return self


class HandEye(Settings):
    """The file."""

    cameras: dict[Name, Mount] = Field({}, description="mounts by camera name in robot.yaml")


def load(path: Path) -> HandEye:
    """Read a hand-eye file; a RecipeError names file and line of a mistake."""
    return validate(HandEye, read_document(path, "hand-eye file"))


def check(
    path: Path, where: str, cameras: Collection[str], arms: Collection[str], tool_frame: str
) -> None:
    """Check the hand-eye file that ``where`` names.

    Raises:
        RecipeError: the file is missing or invalid, or names a part that ``robot.yaml`` lacks.
    """
    if not path.is_file():
        raise RecipeError(
            f"{where}: 'hand_eye': expected a file, got '{path}', which does not exist. Leave it "
            "out: `rlinf camera locate --write` writes both"
        )
    document = read_document(path, "hand-eye file")
    for name, mount in validate(HandEye, document).cameras.items():
        for key, expected, actual, names in (
            (f"cameras.{name}", "a camera", name, cameras),
            (f"cameras.{name}.arm", "an arm", mount.arm, arms),
        ):
            if actual not in names:
                listing = (
                    ", ".join(filter(None, names))
                    or f"none: it has no {expected.split()[1]} with a name"
                )
                raise RecipeError(
                    f"{document.place(tuple(key.split('.')))}: '{key}': expected {expected} of "
                    f"robot.yaml ({listing}), got '{actual}'{nearest(actual, names)}"
                )
        if mount.on == TOOL and not tool_frame:
            raise RecipeError(
                f"{document.place(('cameras', name, 'on'))}: 'cameras.{name}.on': expected base, "
                "since robot.yaml has no tool frame (tool_frame: ''), got tool. Name that frame, "
                "e.g. tool_frame: tcp"
            )


def save(path: Path, name: str, mount: Mount) -> None:
    """Add or replace this camera's pose; the others stay."""
    cameras = dict(load(path).cameras) if path.exists() else {}
    document = HandEye(cameras=cameras | {name: mount}).model_dump(
        mode="json", exclude_defaults=True
    )
    publish(path, HEAD + yaml.safe_dump(document, sort_keys=False, default_flow_style=None))


@dataclass(frozen=True)
class View:
    """One view of the board, and the arm's pose at that time.

    Attributes:
        tool: (7,) xyz [m] and quaternion xyzw in the base frame.
        board: (4, 4) pose of the board in the camera's optical frame.
    """

    tool: np.ndarray
    board: np.ndarray


def solve(views: Sequence[View], on: str, arm: str = "") -> Mount:
    """Compute the camera's pose from views in which the arm was turned about at least two axes.

    A camera on the tool needs a fixed board; a camera on the base needs a board held by the tool.

    Raises:
        RlinfError: too few views, or all of them turned alike.
    """
    import cv2

    if len(views) < MIN_VIEWS:
        raise RlinfError(
            f"expected {MIN_VIEWS} or more views of the board, got {len(views)}. Move the arm and "
            "take another"
        )
    tools = [matrix(view.tool) for view in views]
    turns = np.array(
        [cv2.Rodrigues(tools[0][:3, :3].T @ pose[:3, :3])[0].ravel() for pose in tools]
    )
    if np.linalg.svd(turns - turns.mean(0), compute_uv=False)[1] < MIN_TURN_RAD:
        raise RlinfError(
            "expected views with the tool turned by 20 degrees or more about at least two axes. "
            "These views have nearly the same orientation, or turn about one axis. Tilt the tool "
            "sideways too and take more"
        )
    gripper_poses = tools if on == TOOL else [np.linalg.inv(pose) for pose in tools]
    rotation, position = cv2.calibrateHandEye(
        [pose[:3, :3] for pose in gripper_poses],
        [pose[:3, 3] for pose in gripper_poses],
        [view.board[:3, :3] for view in views],
        [view.board[:3, 3] for view in views],
        method=cv2.CALIB_HAND_EYE_PARK,
    )
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = rotation, position.ravel()
    boards = np.array(
        [
            (pose @ transform @ view.board)[:3, 3]
            for pose, view in zip(gripper_poses, views, strict=True)
        ]
    )
    # the board is in one place
    error = float(np.median(np.linalg.norm(boards - boards.mean(0), axis=1)))
    return Mount(
        on="tool" if on == TOOL else "base",
        arm=arm,
        position=_three(transform[:3, 3].round(5)),
        orientation=_four(quaternion(transform[:3, :3]).round(6)),
        error_mm=round(1e3 * error, 2),
    )


def matrix(pose: np.ndarray) -> np.ndarray:
    """Return the matrix (4, 4) of a pose (7,)."""
    x, y, z, w = pose[3:] / np.linalg.norm(pose[3:])
    transform = np.eye(4)
    transform[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    transform[:3, 3] = pose[:3]
    return transform


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """Return the quaternion (4,) xyzw of a rotation (3, 3)."""
    import cv2

    vector = cv2.Rodrigues(np.asarray(rotation, float))[0].ravel()
    return np.array(to_quaternion((float(vector[0]), float(vector[1]), float(vector[2]))))


def find_board(
    pixels: np.ndarray, lens: Sequence[float], columns: int, rows: int, square_m: float
) -> np.ndarray | None:
    """Return the pose (4, 4) of a chessboard in the optical frame; None unless fully visible.

    Args:
        pixels: (H, W, 3) uint8.
        lens: fx, fy, cx, cy, and the distortion.
        columns, rows: number of its inner corners.
        square_m: an edge of a square [m].
    """
    import cv2

    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    is_visible, corners = cv2.findChessboardCorners(
        grey, (columns, rows), flags=cv2.CALIB_CB_ADAPTIVE_THRESH
    )
    if not is_visible:
        return None
    deadline = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 40, 1e-4)
    corners = cv2.cornerSubPix(grey, corners, (5, 5), (-1, -1), deadline)
    grid = np.array(
        [
            [square_m * column, square_m * row, 0.0]
            for row in range(rows)
            for column in range(columns)
        ]
    )
    fx, fy, cx, cy, *distortion = lens
    solved, turn, place = cv2.solvePnP(
        grid, corners, np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]), np.array(distortion)
    )
    if not solved:
        return None
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = cv2.Rodrigues(turn)[0], place.ravel()
    return transform


def _three(values: np.ndarray) -> tuple[float, float, float]:
    x, y, z = values.tolist()
    return x, y, z


def _four(values: np.ndarray) -> tuple[float, float, float, float]:
    x, y, z, w = values.tolist()
    return x, y, z, w
