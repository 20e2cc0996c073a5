"""Scripted operators, which replace a person with a SpaceMouse or an expert (DAgger).

``act(channels)`` maps the newest channels of the robot side to a normalised action. An operator may
use channels that the policy does not observe.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import load_limits
from rlinf_core.robots.config import load_robot
from rlinf_core.robots.description import read
from rlinf_core.specs.arrays import ActionSpec
from rlinf_core.tasks.task import Channels, turn_between

Fraction = Annotated[float, Field(ge=0, le=1)]
Gain = Annotated[float, Field(gt=0, le=1)]


class ScriptedArm:
    """Base of the operators: it adds a person's noise and hesitation to the actions.

    Args:
        action: action spec.
        noise: standard deviation of the noise, in normalised units; it is correlated in time.
        pause: probability of a hesitation in a step.
        seed: seed of noise and hesitation.
    """

    channels: tuple[str, ...] = ("current_pose", "object_pose")
    noise_dim = 3  # number of action values with noise

    def __init__(
        self, action: ActionSpec, noise: float = 0.12, pause: Fraction = 0.08, seed: int = 0
    ) -> None:
        self.action, self.noise, self.pause = action, noise, pause
        self.scale_m = np.asarray(action.scale[:3])
        self._random = np.random.default_rng(seed)
        self.reset()

    def reset(self, seed: int | None = None) -> None:
        """Reset the noise."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._noise = np.zeros(self.noise_dim)

    def advance_noise(self) -> bool:
        """Advance the noise by one step, and return whether the operator hesitates."""
        self._noise = 0.6 * self._noise + self.noise * self._random.normal(size=self.noise_dim)
        return bool(self._random.random() < self.pause)


class ReachOperator(ScriptedArm):
    """Moves straight to a point above the object or the goal.

    Args:
        height: height of the point [m].
        to: channel of the object or the goal.
        gain: fraction of the remaining distance per action; an arm with lag oscillates if it is
            large.
    """

    def __init__(
        self,
        action: ActionSpec,
        height: float = 0.03,
        to: Literal["object", "goal"] = "object",
        gain: Gain = 0.6,
        **common: Any,
    ) -> None:
        self.height = height
        self.to = f"{to}_pose"
        self.gain = gain
        self.channels = ("current_pose", self.to)
        super().__init__(action, **common)

    def act(self, channels: Channels) -> np.ndarray:
        """Return a normalised action (3,)."""
        hesitates = self.advance_noise()
        offset = channels[self.to][:3] - channels["current_pose"][:3] + [0.0, 0.0, self.height]
        return np.clip(
            (0.0 if hesitates else self.gain) * offset / self.scale_m + self._noise, -1, 1
        )


class PickOperator(ScriptedArm):
    """Picks the object and carries it to the goal; it starts again if the object slips.

    Args:
        above: height from which the tool goes down [m].
        grasp: height of the tool above the object's centre at which the gripper closes [m].
        closing: steps to wait for the gripper to close.
        carry: height above the goal at which the object is carried [m].
        release: whether to release the object at the goal.
        gain: fraction of the remaining distance per action; an arm with lag oscillates if it is
            large.
    """

    ALIGNED_M = 0.012
    channels = ("current_pose", "object_pose", "goal_pose")

    def __init__(
        self,
        action: ActionSpec,
        above: float = 0.07,
        grasp: float = 0.0,
        closing: Annotated[int, Field(ge=0)] = 3,
        carry: float = 0.0,
        release: bool = False,
        gain: Gain = 0.7,
        **common: Any,
    ) -> None:
        self.above = above
        self.grasp = grasp
        self.closing = closing
        self.carry = carry
        self.release = release
        self.gain = gain
        super().__init__(action, **common)

    def reset(self, seed: int | None = None) -> None:
        """Reset the noise, with an open gripper."""
        super().reset(seed)
        self._closed = 0  # time steps since the gripper began to close
        self._is_released = False

    def act(self, channels: Channels) -> np.ndarray:
        """Return a normalised action (4,): translation and gripper width."""
        hesitates = self.advance_noise()
        offset = channels["object_pose"][:3] - channels["current_pose"][:3] + [0.0, 0.0, self.grasp]
        lateral = float(np.hypot(offset[0], offset[1]))
        distance = float(np.linalg.norm(offset))
        if self._closed and distance > 0.05:
            self._closed = 0
        steadiness = 0.15 if lateral < 2 * self.ALIGNED_M else 1.0
        if self._closed or distance < self.ALIGNED_M:
            self._closed += 1
            delta = self._path_to_goal(channels) if self._closed > self.closing else np.zeros(3)
        else:
            delta = offset + [0.0, 0.0, 0.0 if lateral < self.ALIGNED_M else max(self.above, 0.0)]
        action = np.zeros(len(self.action.scale))
        action[:3] = (
            0.0 if hesitates else self.gain
        ) * delta / self.scale_m + steadiness * self._noise
        action[3] = -1.0 if self._closed and not self._is_released else 1.0
        return np.clip(action, -1, 1)

    def _path_to_goal(self, channels: Channels) -> np.ndarray:
        """Return the path to the goal: up, across, down, and up again after a release."""
        delta = channels["goal_pose"][:3] - channels["object_pose"][:3] + [0.0, 0.0, self.carry]
        lateral = float(np.hypot(delta[0], delta[1]))
        if self.carry and lateral > 2 * self.ALIGNED_M and delta[2] > 0.03:
            delta[:2] = 0.0
        self._is_released |= self.release and lateral < self.ALIGNED_M
        return np.array([0.0, 0.0, self.above]) if self._is_released else delta


Distance = Annotated[float, Field(ge=0, le=0.5)]


class PushOperator(ScriptedArm):
    """Pushes the object to the goal from the opposite side.

    The tool travels above the object, goes down behind it and pushes. It starts again if it loses
    the object.

    Args:
        behind: distance behind the object's centre at which the tool goes down [m].
        height: height of the tool above the object's centre while it pushes [m].
        above: travel height above that [m].
        grip: constant gripper action.
        loose: maximum lateral distance of the tool from the object's path [m]; larger for arcs.
        flat: whether to ignore the goal's height, as on a table.
        gain: fraction of the remaining distance per action.
    """

    ALIGNED_M = 0.015
    channels = ("current_pose", "object_pose", "goal_pose")

    def __init__(
        self,
        action: ActionSpec,
        behind: Distance = 0.06,
        height: float = 0.0,
        above: Distance = 0.1,
        grip: Literal["closed", "open"] = "closed",
        loose: Distance = 0.04,
        flat: bool = False,
        gain: Gain = 0.6,
        **common: Any,
    ) -> None:
        self.behind = behind
        self.height = height
        self.above = above
        self.loose = loose
        self.flat = flat
        self.gain = gain
        self.grip = -1.0 if grip == "closed" else 1.0
        super().__init__(action, **common)

    def reset(self, seed: int | None = None) -> None:
        """Reset the noise, and start away from the object."""
        super().reset(seed)
        self._is_pushing = False

    def act(self, channels: Channels) -> np.ndarray:
        """Return a normalised action, with the gripper width if there is a gripper."""
        hesitates = self.advance_noise()
        tool, object_, goal = (channels[name][:3] for name in self.channels)
        direction = (goal - object_) * [1.0, 1.0, 0.0 if self.flat else 1.0]
        towards = direction / max(float(np.linalg.norm(direction)), 1e-6)
        from_object = tool - object_ - [0.0, 0.0, self.height]
        distance_along = float(from_object @ towards)
        lateral = from_object - distance_along * towards
        self._is_pushing = distance_along < 0.5 * self.behind and bool(
            np.linalg.norm(lateral) < (self.loose if self._is_pushing else self.ALIGNED_M)
        )
        velocity = (
            direction - from_object
            if self._is_pushing
            else self._approach(-self.behind * towards - from_object)
        )
        steadiness = 0.2 if self._is_pushing else 0.6
        action = np.full(len(self.action.scale), self.grip)
        action[:3] = (
            0.0 if hesitates else self.gain
        ) * velocity / self.scale_m + steadiness * self._noise
        return np.clip(action, -1, 1)

    def _approach(self, offset: np.ndarray) -> np.ndarray:
        """Return the path to the start of the push: up, across, down."""
        lateral = float(np.hypot(offset[0], offset[1]))
        if lateral < self.ALIGNED_M:
            return offset
        is_high = offset[2] + self.above < 0.03
        return np.array([*(offset[:2] if is_high else (0.0, 0.0)), offset[2] + self.above])


class InsertionOperator(ScriptedArm):
    """Moves above the socket, lowers the peg and inserts it.

    Args:
        gain: fraction of the remaining distance per action. Halve it at twice the control rate,
            since an arm with lag oscillates.
    """

    ALIGNED_M = 0.002  # lateral error below which it inserts

    def __init__(self, action: ActionSpec, gain: Gain = 0.4, **common: Any) -> None:
        self.gain = gain
        super().__init__(action, **common)

    def reset(self, seed: int | None = None) -> None:
        """Reset the noise, and draw a height above the rim."""
        super().reset(seed)
        self._approach_m = self._random.uniform(0.015, 0.04)

    def act(self, channels: Channels) -> np.ndarray:
        """Return a normalised action (3,)."""
        offset = channels["object_pose"][:3] - channels["current_pose"][:3]
        if self.advance_noise():
            return np.clip(0.3 * self._noise, -1, 1)
        lateral = float(np.hypot(offset[0], offset[1]))
        is_low = offset[2] > -self._approach_m - 0.005
        velocity = np.array([offset[0], offset[1], offset[2] + self._approach_m])
        if is_low and lateral < self.ALIGNED_M:
            velocity[2] = -0.5 * self.scale_m[2] / self.gain
        action = self.gain * velocity / self.scale_m
        steadiness = 0.1 if lateral < 0.01 else 1.0
        return np.clip(action + steadiness * self._noise, -1, 1)


class SearchOperator(ScriptedArm):
    """Presses at the estimated position of the socket and searches the hole by the measured torque.

    On a rim the contact force acts beside the peg's axis and causes a torque: the hole is on the
    opposite side. Between two walls there is no torque; the tool then spirals outward from the
    estimate. Actions are x, y, z and a rotation vector.
    """

    GAIN, ABOVE_M, PRESS_M = 0.5, 0.008, 0.008
    ALIGNED_M = 0.003  # error of position below which the peg goes down
    ALIGNED_RAD = 0.05  # error of rotation below which the peg goes down
    IN_M = 0.003  # depth that proves that the peg is in the hole
    FELT_NM = 0.04  # threshold of the torque
    STEP_M = 0.0025  # lateral step
    CIRCLE_M = 0.0015  # pitch of the spiral
    channels = ("current_pose", "object_pose", "wrench")

    def __init__(self, action: ActionSpec, **common: Any) -> None:
        super().__init__(action, **common)
        self._scale = np.asarray(action.scale)

    def reset(self, seed: int | None = None) -> None:
        """Reset the noise of translation and rotation."""
        super().reset(seed)
        self._rotation_noise = np.zeros(3)

    def advance_noise(self) -> bool:
        self._rotation_noise = 0.6 * self._rotation_noise + self.noise * self._random.normal(size=3)
        return super().advance_noise()

    def act(self, channels: Channels) -> np.ndarray:
        """Return a normalised action (6,)."""
        pose, socket, wrench = (channels[name] for name in self.channels)
        offset, turn, is_pressing = (
            socket[:3] - pose[:3],
            turn_between(pose, socket),
            wrench[2] > 1.0,
        )
        hesitates, lateral = self.advance_noise(), float(np.hypot(offset[0], offset[1]))
        velocity = np.append(offset, [0.0, 0.0, turn])
        if offset[2] > self.IN_M:  # the tip is in the hole
            velocity = np.array([0.0, 0.0, -0.02, 0.0, 0.0, turn])
        elif is_pressing and lateral < 2 * self.ALIGNED_M:
            velocity[:2], velocity[2] = self._sideways(offset, wrench) / self.GAIN, 0.0
        elif lateral > self.ALIGNED_M or abs(turn) > self.ALIGNED_RAD:
            velocity[2] += self.ABOVE_M
        else:
            velocity[2] -= self.PRESS_M
        action = self.GAIN * velocity / self._scale
        noise = np.append(
            self._noise * (0.1 if lateral < 0.01 else 1.0), 0.5 * self._rotation_noise
        )
        return np.clip((0.3 * action if hesitates else action) + noise, -1, 1)

    def _sideways(self, offset: np.ndarray, wrench: np.ndarray) -> np.ndarray:
        """Return the lateral step (2,) [m] while the tool presses."""
        felt = np.array([wrench[4], -wrench[3]])  # away from the contact
        if np.abs(felt).max() > self.FELT_NM:
            return self.STEP_M * np.clip(felt / 0.1, -1.0, 1.0)
        angle = np.arctan2(-offset[1], -offset[0]) + 1.0
        return self.CIRCLE_M * np.array([np.cos(angle), np.sin(angle)])


STEP_RAD, DAMPING = 1e-4, 0.05
Reach = Annotated[float, Field(gt=0, le=1)]


class JointsOperator(ScriptedArm):
    """Moves the joints to the goal by damped least squares (Nakamura and Hanafusa, 1986).

    The joints have the order of the limits, as everywhere on a station.

    Args:
        reach: fraction of the distance to the goal per step, within the action's scale.
        robot: robot whose URDF and limits have these joints
        link: link of the URDF that is the tool
    """

    channels = ("current_pose", "goal_pose", "joint_states")

    def __init__(
        self,
        action: ActionSpec,
        reach: Reach = 0.6,
        robot: str = "ur5e_twin",
        link: str = "tool0",
        **common: Any,
    ) -> None:
        self.reach, self.link = reach, link
        config = load_robot(robot)
        if not config.urdf or not config.limits:
            raise RecipeError(
                f"script.robot: expected a robot of one arm with a URDF, got '{robot}'"
            )
        self.description = read(config.urdf.read_text())
        self.joints = load_limits(config.limits).joint_names
        self.noise_dim = action.dim
        self.scale_rad = np.asarray(action.scale)
        super().__init__(action, **common)

    def act(self, channels: Channels) -> np.ndarray:
        """Return a normalised action (J,)."""
        hesitates, joints = self.advance_noise(), channels["joint_states"]
        delta = (0.0 if hesitates else self.reach) * (
            channels["goal_pose"][:3] - channels["current_pose"][:3]
        )
        position = self._tool(joints)
        jacobian = np.stack(
            [
                (self._tool(joints + STEP_RAD * unit) - position) / STEP_RAD
                for unit in np.eye(len(joints))
            ],
            1,
        )
        turn = (
            jacobian.T
            @ np.linalg.solve(jacobian @ jacobian.T + DAMPING**2 * np.eye(3), delta)
            / self.scale_rad
        )
        return np.clip(turn / max(1.0, np.abs(turn).max()) + self._noise, -1, 1)

    def _tool(self, joints: np.ndarray) -> np.ndarray:
        """Return the position (3,) of the tool at these joint angles [m]."""
        return np.array(
            self.description.pose(self.link, dict(zip(self.joints, joints.tolist(), strict=True)))[
                0
            ]
        )
