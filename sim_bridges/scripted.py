"""Scripted operators: they stand in for a person at the SpaceMouse, and for an expert that is asked. One class each.

``act(channels)`` answers the robot side's newest channels with a normalised action; an operator sees more than a policy.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlinf_core.specs import ActionSpec
from rlinf_core.task import Channels

Fraction = Annotated[float, Field(ge=0, le=1)]


class ScriptedArm:
    """A person's unsteadiness at the arm.

    Args:
        action: what is acted in.
        noise: standard deviation of the demonstration noise, in normalised units, correlated in time.
        pause: probability of a moment's hesitation, per step.
        seed: of both.
    """

    channels: tuple[str, ...] = ("current_pose", "object_pose")

    def __init__(self, action: ActionSpec, noise: float = 0.12, pause: Fraction = 0.08, seed: int = 0) -> None:
        self.action, self.noise, self.pause = action, noise, pause
        self.scale_m = np.asarray(action.scale[:3])
        self._random = np.random.default_rng(seed)
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        """Without noise again."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._noise = np.zeros(3)

    def hesitates(self) -> bool:
        """One step on in the noise; whether it hesitates."""
        self._noise = 0.6 * self._noise + self.noise * self._random.normal(size=3)
        return bool(self._random.random() < self.pause)


class InsertionOperator(ScriptedArm):
    """Goes above the socket, lowers, and pushes in."""

    GAIN, ALIGNED_M = 0.4, 0.002  # how much of the remaining way one action covers; lateral error at which it pushes

    def reset(self, seed: int | None = None) -> None:
        """A new preferred height above the rim."""
        super().reset(seed)
        self._approach_m = self._random.uniform(0.015, 0.04)

    def act(self, channels: Channels) -> np.ndarray:
        """Normalised action (3,)."""
        offset = channels["object_pose"][:3] - channels["current_pose"][:3]
        if self.hesitates():
            return np.clip(0.3 * self._noise, -1, 1)
        lateral = float(np.hypot(offset[0], offset[1]))
        low = offset[2] > -self._approach_m - 0.005
        wanted = np.array([offset[0], offset[1], offset[2] + self._approach_m])
        if low and lateral < self.ALIGNED_M:
            wanted[2] = -0.5 * self.scale_m[2] / self.GAIN
        action = self.GAIN * wanted / self.scale_m
        steadiness = 0.1 if lateral < 0.01 else 1.0
        return np.clip(action + steadiness * self._noise, -1, 1)


class ReachOperator(ScriptedArm):
    """Goes straight to a point above the object.

    Args:
        height: of that point [m].
    """

    def __init__(self, action: ActionSpec, height: float = 0.03, **common: Any) -> None:
        self.height = height
        super().__init__(action, **common)

    def act(self, channels: Channels) -> np.ndarray:
        """Normalised action (3,)."""
        hesitates = self.hesitates()
        offset = channels["object_pose"][:3] - channels["current_pose"][:3] + [0.0, 0.0, self.height]
        return np.clip((0.0 if hesitates else 0.6) * offset / self.scale_m + self._noise, -1, 1)


class PickOperator(ScriptedArm):
    """Goes above the object with an open gripper, down, closes, and carries it to the goal; begins again if it slips.

    Args:
        above: height [m] from which it goes down.
        grasp: height [m] of the tool above the object's centre at which it closes.
        closing: steps that it waits for the gripper to close.
        carry: height [m] above the goal at which the object is carried there.
        release: whether it is let go of at the goal.
        gain: how much of the remaining way one action covers; an arm that lags swings about its goal if that is much.
    """

    ALIGNED_M = 0.012
    channels = ("current_pose", "object_pose", "goal_pose")

    def __init__(self, action: ActionSpec, above: float = 0.07, grasp: float = 0.0,
                 closing: Annotated[int, Field(ge=0)] = 3, carry: float = 0.0,
                 release: bool = False, gain: Annotated[float, Field(gt=0, le=1)] = 0.7, **common: Any) -> None:
        self.above, self.grasp, self.closing, self.carry, self.release = above, grasp, closing, carry, release
        self.gain = gain
        super().__init__(action, **common)

    def reset(self, seed: int | None = None) -> None:
        """The gripper is open."""
        super().reset(seed)
        self._closed, self._let_go = 0, False

    def act(self, channels: Channels) -> np.ndarray:
        """Normalised action (4,): the way, and the gripper's width."""
        hesitates = self.hesitates()
        offset = channels["object_pose"][:3] - channels["current_pose"][:3] + [0.0, 0.0, self.grasp]
        lateral, away = float(np.hypot(offset[0], offset[1])), float(np.linalg.norm(offset))
        if self._closed and away > 0.05:
            self._closed = 0
        steadiness = 0.15 if lateral < 2 * self.ALIGNED_M else 1.0
        if self._closed or away < self.ALIGNED_M:
            self._closed += 1
            way = self._carried(channels) if self._closed > self.closing else np.zeros(3)
        else:
            way = offset + [0.0, 0.0, 0.0 if lateral < self.ALIGNED_M else max(self.above, 0.0)]
        action = np.zeros(len(self.action.scale))
        action[:3] = (0.0 if hesitates else self.gain) * way / self.scale_m + steadiness * self._noise
        action[3] = -1.0 if self._closed and not self._let_go else 1.0
        return np.clip(action, -1, 1)

    def _carried(self, channels: Channels) -> np.ndarray:
        """The way to the goal: up first, then across, then down; once there and let go of, up."""
        way = channels["goal_pose"][:3] - channels["object_pose"][:3] + [0.0, 0.0, self.carry]
        across = float(np.hypot(way[0], way[1]))
        if self.carry and across > 2 * self.ALIGNED_M and way[2] > 0.03:
            way[:2] = 0.0
        self._let_go |= self.release and across < self.ALIGNED_M
        return np.array([0.0, 0.0, self.above]) if self._let_go else way
