"""Compare a camera's view with an earlier one: the shift and turn of its picture."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlinf_core.core.errors import RlinfError

MIN_SIMILARITY = 0.6  # lower correlation: the two pictures do not show the same
STILL_PIXELS, STILL_RAD = 1.0, 0.005


@dataclass(frozen=True)
class PictureMotion:
    """The motion from the reference to the present picture.

    Attributes:
        right, down: shift of the content [pixels].
        rotation: clockwise turn [rad].
        similarity: correlation of both after undoing the motion, 1 for the same picture.
    """

    right: float
    down: float
    rotation: float
    similarity: float

    @property
    def aligned(self) -> bool:
        """Whether the camera is where it was."""
        return (
            self.similarity >= MIN_SIMILARITY
            and max(abs(self.right), abs(self.down)) < STILL_PIXELS
            and abs(self.rotation) < STILL_RAD
        )

    @property
    def advice(self) -> str:
        """Advice to a person, in one line."""
        if self.similarity < MIN_SIMILARITY:
            return (
                f"the two pictures are too different (similarity {self.similarity:.2f} of 1). "
                "First turn the camera roughly back"
            )
        if self.aligned:
            return (
                f"aligned: within {STILL_PIXELS:g} pixel ({self.right:+.1f} right, "
                f"{self.down:+.1f} down)"
            )
        return (
            f"the picture has moved {self.right:+.1f} pixels to the right, {self.down:+.1f} down, "
            f"{np.degrees(self.rotation):+.2f} degrees clockwise from the reference"
        )


def reference_path(robot: Path, camera: str) -> Path:
    """Return the file of a camera's reference picture in its robot's folder."""
    return robot / f"views/{camera}.png"


def read_reference(path: Path, take: str) -> np.ndarray:
    """Return a reference (H, W, 3) uint8.

    Raises:
        RlinfError: there is none; the message contains the command ``take``.
    """
    import cv2

    if not path.exists():
        raise RlinfError(
            f"no reference: expected {path}. Take the reference while the camera is in place: "
            f"{take}"
        )
    if (picture := cv2.imread(str(path))) is None:
        raise RlinfError(f"{path}: expected a picture, got another file. Take it again: {take}")
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))


def save_picture(path: Path, picture: np.ndarray) -> None:
    """Write a picture (H, W, 3) uint8 atomically, in the format of its name's ending.

    Raises:
        RlinfError: the format is unknown, or the file cannot be written.
    """
    import cv2

    temporary = path.with_name(f".{path.name}.new")
    try:
        is_encoded, encoded = cv2.imencode(path.suffix, np.ascontiguousarray(picture[..., ::-1]))
    except cv2.error:  # an unknown ending
        is_encoded = False
    if not is_encoded:
        raise RlinfError(
            f"{path}: expected the name of a picture, such as view.png, got one that ends in "
            f"'{path.suffix}'. Nothing was written",
            code="RL-E207",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(encoded.tobytes())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RlinfError(
            f"{path}: cannot be written: {error.strerror}. Choose another path", code="RL-E207"
        ) from error


def picture_motion(reference: np.ndarray, now: np.ndarray) -> PictureMotion:
    """Return the motion of a picture from its reference, both (H, W, 3) uint8.

    Raises:
        RlinfError: the sizes differ.
    """
    import cv2

    if reference.shape != now.shape:
        raise RlinfError(
            f"expected a picture of {reference.shape[:2]}, the size of the reference, got "
            f"{now.shape[:2]}. Take the reference again"
        )
    grey = [
        cv2.GaussianBlur(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), (5, 5), 0).astype(np.float32)
        for picture in (reference, now)
    ]
    window = cv2.createHanningWindow(grey[0].shape[::-1], cv2.CV_32F)
    # the function overwrites its inputs
    (right, down), _ = cv2.phaseCorrelate(grey[0].copy(), grey[1].copy(), window)
    start = np.array([[1.0, 0.0, right], [0.0, 1.0, down]], np.float32)
    criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_COUNT, 60, 1e-5)
    try:
        similarity, transform = cv2.findTransformECC(
            grey[0], grey[1], start, cv2.MOTION_EUCLIDEAN, criteria
        )
    except cv2.error:  # no transform between the two pictures
        return PictureMotion(float(right), float(down), 0.0, 0.0)
    centre = np.array([reference.shape[1] / 2, reference.shape[0] / 2])
    shift = transform[:, :2] @ centre + transform[:, 2] - centre
    return PictureMotion(
        float(shift[0]),
        float(shift[1]),
        float(np.arctan2(transform[1, 0], transform[0, 0])),
        float(similarity),
    )


def comparison(reference: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Return (H, 3 W, 3): the reference, the present picture, and an overlay in red and cyan.

    Red shows the reference, cyan the present picture.
    """
    overlay = now.copy()
    overlay[..., 0] = reference.mean(-1)
    overlay[..., 1:] = now.mean(-1, keepdims=True)
    return np.concatenate([reference, now, overlay], axis=1)
