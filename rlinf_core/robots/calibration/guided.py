"""The box and the home of an arm, from poses to which a person guides it by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.rotation import angle, inverse, product, unit
from rlinf_core.interlock import Limits

AXES = "xyz"
# smallest distance of two points of a path, and smallest edge of a box
MIN_SPACING_M, MIN_EDGE_M = 0.001, 0.02
# part of the cone beyond which a tool at its home contradicts the limits' orientation
MAX_CONE_SHARE = 0.5
PIXELS = 420  # side of one view


@dataclass
class GuidedPath:
    """The guided poses of a tool.

    Attributes:
        path: positions (3,) in the limits' frame [m].
        home: the home position.
    """

    path: list[np.ndarray] = field(default_factory=list)
    home: np.ndarray | None = None

    def add(self, position: np.ndarray) -> None:
        """Add a position (3,), unless it is not finite or at the last one."""
        if np.isfinite(position).all() and (
            not self.path or np.linalg.norm(position - self.path[-1]) > MIN_SPACING_M
        ):
            self.path.append(position)

    @property
    def extent(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest position (3,) [m]."""
        return np.min(self.path, axis=0), np.max(self.path, axis=0)

    def box(self, margin: float) -> tuple[list[float], list[float]]:
        """Return the lowest and highest corner of the box [m], in whole millimetres.

        The box lies ``margin`` within the guided range.

        Raises:
            RlinfError: the arm was hardly moved along an axis, or the home is outside.
        """
        if not self.path:
            raise RlinfError("no pose was received yet. Guide the arm first")
        low = np.ceil((self.extent[0] + margin) * 1e3 - 1e-6) / 1e3
        high = np.floor((self.extent[1] - margin) * 1e3 + 1e-6) / 1e3
        for axis, first, last in zip(AXES, low, high, strict=True):
            if last - first < MIN_EDGE_M:
                raise RlinfError(
                    f"{axis}: expected a box of at least {MIN_EDGE_M} m, got "
                    f"{max(last - first, 0.0):.3f} m, within a margin of {margin} m. Guide the "
                    f"tool to both ends of its reach along {axis}"
                )
        if self.home is not None and (np.any(self.home < low) or np.any(self.home > high)):
            raise RlinfError(
                f"home: expected it within the box {low.tolist()} to {high.tolist()}, got "
                f"{self.home.round(3).tolist()}. Guide the tool past it on each side, or show "
                f"another home"
            )
        return low.tolist(), high.tolist()


def tool_deviation(limits: Limits, at_home: np.ndarray) -> tuple[float, list[float]]:
    """Return the tool's rotation from the limits' orientation [rad], and its own orientation.

    The tool's orientation at its home is ``at_home``, (4,) x y z w. The result's second part is
    empty if the limits' orientation serves: within ``MAX_CONE_SHARE`` of the cone (S8), and if
    actions move joints.
    """
    orientation = unit(tuple(map(float, at_home)))
    off_nominal = angle(product(orientation, inverse(limits.nominal)))
    serves = limits.control_mode == "joint_delta" or off_nominal <= MAX_CONE_SHARE * limits.cone
    return off_nominal, [] if serves else [round(component, 5) for component in orientation]


def draw(guided: GuidedPath, low: list[float], high: list[float], out: Path) -> None:
    """Draw the path, the box and the home from above, from the side and from the front."""
    import cv2

    views = []
    for across, up, name in (
        (0, 1, "from above"),
        (0, 2, "from the side"),
        (1, 2, "from the front"),
    ):
        view = np.full((PIXELS, PIXELS, 3), 255, np.uint8)
        axes = [across, up]
        first, last = guided.extent[0][axes], guided.extent[1][axes]
        scale = 0.75 * PIXELS / float((last - first).max())

        def pixel(
            point: np.ndarray,
            axes: list[int] = axes,
            middle: np.ndarray = (first + last) / 2.0,
            scale: float = scale,
        ) -> tuple[int, int]:
            right, upwards = (np.asarray(point)[axes] - middle) * scale
            return round(PIXELS / 2 + right), round(PIXELS / 2 - upwards)

        cv2.polylines(
            view,
            [np.array([pixel(point) for point in guided.path])],
            False,
            (190, 190, 190),
            1,
            cv2.LINE_AA,
        )
        cv2.rectangle(view, pixel(np.array(low)), pixel(np.array(high)), (180, 100, 20), 2)
        if guided.home is not None:
            cv2.drawMarker(view, pixel(guided.home), (40, 40, 200), cv2.MARKER_CROSS, 16, 2)
        sides = (
            f"{AXES[across]} {low[across]:.3f} to {high[across]:.3f} m, {AXES[up]} "
            f"{low[up]:.3f} to {high[up]:.3f} m"
        )
        for row, words in enumerate((name, sides)):
            cv2.putText(
                view,
                words,
                (10, 20 + 18 * row),
                cv2.FONT_HERSHEY_SIMPLEX,
                0.45,
                (60, 60, 60),
                1,
                cv2.LINE_AA,
            )
        views.append(view)
    if not cv2.imwrite(str(out), np.hstack(views)):
        raise RlinfError(
            f"{out}: expected a writable picture path, e.g. calibration.png", code="RL-E207"
        )
