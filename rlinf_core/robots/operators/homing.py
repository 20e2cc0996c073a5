"""The way to the home pose of a robot's YAML, in actions of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError
from rlinf_core.core.rotation import angle, inverse, product, to_vector, unit
from rlinf_core.interlock import Limits
from rlinf_core.interlock.limits_file import load_limits
from rlinf_core.robots.config import Home, Robot
from rlinf_core.specs.arrays import ActionSpec

GAIN = 2.0  # [1/s] of the remaining way
FRACTION = 0.5  # fraction of the task's largest action
NEAR_M, NEAR_RAD = 0.005, 0.03  # an arm this near is at home


@dataclass(frozen=True)
class Goal:
    """The home of one arm, in the form of its interlock's actions.

    Attributes:
        pose: the tool's pose in the base frame: position [m], quaternion x y z w; three numbers
            leave the rotation free.
        joints: angle [rad] by name, in the order of the action's numbers; None if actions move the
            tool.
    """

    pose: tuple[float, ...] = ()
    joints: Mapping[str, float] | None = None

    def remaining(
        self, action: ActionSpec, pose: np.ndarray, joints: Mapping[str, float]
    ) -> np.ndarray:
        """Return the remaining way, (dim,) in SI units, as one action; the gripper stays.

        Args:
            action: action spec of this arm.
            pose: the measured pose (7,), if actions move the tool.
            joints: the measured angles, if actions move joints.

        Raises:
            KeyError: a joint's angle is missing.
        """
        error = np.zeros(action.dim)
        if self.joints is not None:
            error[: len(self.joints)] = [
                angle - joints[name] for name, angle in self.joints.items()
            ]
            return error
        error[:3] = np.asarray(self.pose[:3]) - pose[:3]
        if action.dim >= 6 and len(self.pose) == 7:
            error[3:6] = to_vector(product(unit(self.pose[3:]), inverse(unit(tuple(pose[3:])))))
        return error

    def is_reached(self, error: np.ndarray) -> bool:
        """Return True if the remaining way is negligible."""
        if self.joints is not None:
            return bool(np.abs(error).max() <= NEAR_RAD)
        return bool(np.linalg.norm(error[:3]) <= NEAR_M and np.linalg.norm(error[3:6]) <= NEAR_RAD)


def next_action(error: np.ndarray, action: ActionSpec, control_hz: float) -> np.ndarray:
    """Return the next action on the straight way, in [-1, 1], slower near its end."""
    si_step = action.from_si(error * GAIN / control_hz)
    return si_step * min(1.0, FRACTION / max(float(np.abs(si_step).max()), 1e-9))


@dataclass(frozen=True)
class Homes:
    """The goals of a station's arms, and the maximum age of an enable [s]."""

    goals: dict[str, Goal]
    lease_s: float

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Homes:
        """Rebuild homes from the result of ``asdict``."""
        goals = {
            arm: Goal(tuple(goal["pose"]), goal.get("joints"))
            for arm, goal in document["goals"].items()
        }
        return cls(goals, document["lease_s"])


def homes_of(robot: Robot, action: ActionSpec) -> Homes | None:
    """Return the homes of a robot for actions of a task; None if its YAML has none.

    Raises:
        RecipeError: a home does not match the task's actions, or exceeds the interlock's limits.
    """
    named_homes = {arm: home for arm, home in robot.homes.items() if home is not None}
    limits = {arm: load_limits(robot.limits_by_arm[arm]) for arm in named_homes}
    goals = {
        arm: home_goal(
            f"home of arm '{arm}'" if arm else "home", home, action.control_mode, limits[arm]
        )
        for arm, home in named_homes.items()
    }
    return (
        Homes(goals, min(arm_limits.enable_lease for arm_limits in limits.values()))
        if goals
        else None
    )


def home_goal(where: str, home: Home, control_mode: str, limits: Limits) -> Goal:
    """Return the goal of a YAML's home under these limits.

    Raises:
        RecipeError: the home does not fit; the message begins with ``where``.
    """
    if control_mode == "tcp_delta":
        if home.position is None:
            raise RecipeError(
                f"{where}: expected 'position', since the task moves the tool, got only joints"
            )
        _check(where, ("x", "y", "z"), home.position, limits.box_low, limits.box_high)
        deviation = (
            angle(product(unit(home.orientation), inverse(limits.nominal)))
            if home.orientation
            else 0.0
        )
        if deviation > limits.cone:
            raise RecipeError(
                f"{where}: expected an orientation within the limits' cone, {limits.cone} rad from "
                f"{list(limits.nominal)}, got {deviation:.2f} rad"
            )
        return Goal((*home.position, *home.orientation))
    if set(home.joints) != set(limits.joint_names):
        raise RecipeError(
            f"{where}: expected 'joints' with {', '.join(limits.joint_names)}, since the task "
            f"moves joints, got {', '.join(home.joints) or 'none'}"
        )
    joints = {name: home.joints[name] for name in limits.joint_names}
    # the range that the interlock allows
    low, high = (
        [joint + sign * limits.joint_margin for joint in end]
        for end, sign in ((limits.joint_low, 1.0), (limits.joint_high, -1.0))
    )
    _check(where, limits.joint_names, tuple(joints.values()), tuple(low), tuple(high))
    return Goal(joints=joints)


def _check(
    where: str,
    names: tuple[str, ...],
    values: tuple[float, ...],
    low: tuple[float, ...],
    high: tuple[float, ...],
) -> None:
    for name, value, lowest, highest in zip(names, values, low, high, strict=True):
        if not lowest <= value <= highest:
            raise RecipeError(
                f"{where}: expected {name} within the limits, {lowest} to {highest}, got {value}. "
                "Move it, or widen the limits"
            )
