"""Geometric rewards (reach, place, push, stack, insertion), ``outside``, and an external signal.

``outside`` is a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlinf_core.config.base import Positive
from rlinf_core.core.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Reach:
    """True when the TCP is near a point above ``object_pose``, or ``goal_pose``.

    Args:
        height: height of the point above the goal [m]
        radius: largest distance from the point [m]
        to: channel of the goal's pose
    """

    height: float = 0.03
    radius: Positive = 0.02
    to: Literal["object", "goal"] = "object"

    @property
    def channels(self) -> tuple[str, ...]:
        """The observed channels."""
        return "current_pose", f"{self.to}_pose"

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        return self.away(channels) < self.radius

    def away(self, channels: dict[str, np.ndarray]) -> float:
        """Return the remaining distance [m]."""
        offset = channels["current_pose"][:3] - channels[f"{self.to}_pose"][:3]
        return float(np.linalg.norm(offset - [0.0, 0.0, self.height]))

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Return a number between 0 and 1."""
        return 1.0 - float(np.tanh(5.0 * self.away(channels)))


@dataclass(frozen=True, kw_only=True)
class Place:
    """True when ``object_pose`` is near ``goal_pose`` and the tool is slow.

    Progress sums three terms: the tool's nearness to the object, the object's nearness to the goal,
    and the gripper's closing at the object (after ManiSkill's dense rewards).

    Args:
        radius: largest distance from the goal [m]
        speed: largest speed of the tool [m/s]
        width: largest gripper width [m].
    """

    radius: Positive = 0.025
    speed: Positive = 0.1
    width: Positive = 0.08

    channels = ("current_pose", "current_twist", "object_pose", "goal_pose", "gripper/state")

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        away = np.linalg.norm(channels["object_pose"][:3] - channels["goal_pose"][:3])
        return bool(
            away < self.radius and np.linalg.norm(channels["current_twist"][:3]) < self.speed
        )

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Return a number between 0 and 5."""
        reach = np.linalg.norm(channels["current_pose"][:3] - channels["object_pose"][:3])
        away = np.linalg.norm(channels["object_pose"][:3] - channels["goal_pose"][:3])
        closed = 1.0 - min(float(channels["gripper/state"][0]) / self.width, 1.0)
        near, placed = 1.0 - np.tanh(5.0 * reach), 1.0 - np.tanh(5.0 * away)
        return float(near + np.exp(-((reach / 0.02) ** 2)) * closed + 3.0 * placed)


@dataclass(frozen=True, kw_only=True)
class Push:
    """True when ``object_pose`` is near ``goal_pose``; a handle is an object, too.

    Progress sums the tool's nearness to the object and the object's nearness to the goal.

    Args:
        radius: largest distance from the goal [m]
        flat: ignore heights, as on a table
    """

    radius: Positive = 0.05
    flat: bool = True

    channels = ("current_pose", "object_pose", "goal_pose")

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        return self.away(channels) < self.radius

    def away(self, channels: dict[str, np.ndarray]) -> float:
        """Return the remaining distance [m]."""
        size = 2 if self.flat else 3
        return float(np.linalg.norm((channels["object_pose"] - channels["goal_pose"])[:size]))

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Return a number between 0 and 4."""
        reach = float(np.linalg.norm((channels["current_pose"] - channels["object_pose"])[:3]))
        return 4.0 - float(np.tanh(5.0 * reach)) - 3.0 * float(np.tanh(5.0 * self.away(channels)))


@dataclass(frozen=True, kw_only=True)
class Stack:
    """True when ``object_pose`` rests on the object at ``goal_pose``, and the tool has moved away.

    Args:
        height: height between the centres of the objects [m]
        radius: largest horizontal distance of the objects [m]
        slack: tolerance of the height [m]
        clear: smallest distance of the tool from the object [m]
    """

    height: Positive = 0.04
    radius: Positive = 0.03
    slack: Positive = 0.008
    clear: Positive = 0.05

    channels = ("current_pose", "object_pose", "goal_pose")

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        offset = (channels["object_pose"] - channels["goal_pose"])[:3]
        tool = float(np.linalg.norm((channels["current_pose"] - channels["object_pose"])[:3]))
        return bool(
            np.hypot(offset[0], offset[1]) < self.radius
            and abs(offset[2] - self.height) < self.slack
            and tool > self.clear
        )


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """True when the TCP is below ``object_pose`` (the rim) and near its centre.

    Args:
        depth: required depth below the rim [m]
        radius: largest distance from the centre [m]
    """

    depth: Positive = 0.02
    radius: Positive = 0.01

    channels = ("current_pose", "object_pose")

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        offset = channels["current_pose"][:3] - channels["object_pose"][:3]
        return bool(offset[2] < -self.depth and np.hypot(offset[0], offset[1]) < self.radius)


@dataclass(frozen=True, kw_only=True)
class Outside:
    """True when a position lies outside of a box.

    Args:
        low: lowest corner of the box in the robot's base frame [m]
        high: highest corner of the box [m]
        what: channel of the pose
    """

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    what: str = "object_pose"

    def __post_init__(self) -> None:
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise RecipeError(
                f"failure.low: expected at most high {list(self.high)}, got {list(self.low)}"
            )

    @property
    def channels(self) -> tuple[str, ...]:
        """The observed channels."""
        return (self.what,)

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        position = channels[self.what][:3]
        return bool((position < self.low).any() or (position > self.high).any())


@dataclass(frozen=True, kw_only=True)
class External:
    """True when ``task/success`` is above a threshold.

    Args:
        threshold: smallest value of the external signal
    """

    threshold: float = 0.5

    channels = ("task/success",)

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        signal = channels["task/success"]
        return bool(signal.size and signal[0] > self.threshold)
