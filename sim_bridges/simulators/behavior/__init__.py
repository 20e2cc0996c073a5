"""BEHAVIOR-1K: a household robot in OmniGibson, on Isaac Sim.

Li et al. 2024, arXiv 2403.09227. The adapter was written against the OmniGibson in BEHAVIOR-1K's
sources of 2026; it refuses PyPI's 1.1.1. The activity's own goals define success. Isaac Sim has its
own Python: name it in RLINF_PYTHON_BEHAVIOR. The robot's base stays still, because the robot
interface does not move bases. A cached activity restores the same recorded scene for every seed;
the adapter then moves the object, by the seed.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.rotation import inverse, product, rotate, to_vector
from sim_bridges.core.adapters import next_command, resized

PACKAGE = "omnigibson"
INSTALL = "see https://behavior.stanford.edu, then export RLINF_PYTHON_BEHAVIOR=<its python>"
WIDEST_M = 0.08  # width of the robot's open gripper
SIZE = (480, 640)  # size of OmniGibson's pictures; ours are resized from them


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 50 ms, six steps of physics.

    Args:
        activity: BEHAVIOR activity with cached scenes
        scene: name of the home
        robot: a robot of OmniGibson.
        object, goal: names of the object and its destination in the activity's
            definition, for example ``apple.n.01_1``
        spread_m: half the side of the square in which the object begins, about its recorded place
            [m]. 0 makes all scenes equal
    """

    tick_s = 0.05
    cameras = ("front", "video")

    def __init__(
        self,
        activity: str = "putting_away_Halloween_decorations",
        scene: str = "Rs_int",
        robot: str = "franka",
        object: str = "candle.n.01_1",
        goal: str = "cabinet.n.01_1",
        spread_m: float = 0.03,
    ) -> None:
        # read at import; without it, OmniGibson needs a display
        os.environ.setdefault("OMNIGIBSON_HEADLESS", "1")
        import omnigibson
        import torch

        if (version := str(getattr(omnigibson, "__version__", ""))).startswith("1."):
            raise RlinfError(
                "behavior: expected the OmniGibson from BEHAVIOR-1K's sources, got PyPI's "
                f"{version}, whose robots and activities differ. {INSTALL}"
            )
        if not 0.0 <= spread_m <= 0.5:
            raise RecipeError(f"behavior: spread_m: expected 0 to 0.5, got {spread_m}")
        self.spread_m = spread_m
        self._torch = torch
        self._names = (object, goal)
        pose = {
            "name": "InverseKinematicsController",
            "mode": "absolute_pose",
            "command_input_limits": None,
            "command_output_limits": None,
        }
        hand = {
            "name": "MultiFingerGripperController",
            "mode": "smooth",
            "motor_type": "position",
            "command_output_limits": "default",
        }
        self.env = omnigibson.Environment(
            configs={
                "env": {
                    "action_frequency": 1 / self.tick_s,
                    "rendering_frequency": 1 / self.tick_s,
                    "physics_frequency": 120,
                    "automatic_reset": False,
                    "external_sensors": [
                        {
                            "sensor_type": "VisionSensor",
                            "name": "front",
                            "relative_prim_path": "/front",
                            "modalities": ["rgb"],
                            "sensor_kwargs": {"image_height": SIZE[0], "image_width": SIZE[1]},
                            "position": [1.5, 0.0, 1.5],
                            "orientation": [0.27, 0.27, 0.65, 0.65],
                        }
                    ],
                },
                "scene": {"type": "InteractiveTraversableScene", "scene_model": scene},
                "robots": [
                    {
                        "model": robot,
                        "name": "robot",
                        "obs_modalities": [],
                        "action_normalize": False,
                        "grasping_mode": "physical",
                        "controller_config": {"arm_0": pose, "gripper_0": hand},
                    }
                ],
                "task": {
                    "type": "BehaviorTask",
                    "activity_name": activity,
                    "online_object_sampling": False,
                    # presampled poses are for its mobile manipulators
                    "use_presampled_robot_pose": False,
                },
            }
        )
        scope = self._scope()
        missing = [name for name in self._names if name not in scope]
        if missing:
            raise RecipeError(
                f"behavior: expected a name of {activity}'s ({', '.join(scope)}), got "
                f"{', '.join(missing)}"
            )
        self.instruction = activity.replace("_", " ")
        self.reset(0)
        self.joint_names = tuple(list(self._robot.joints)[index] for index in self._arm_joints)

    def reset(self, seed: int) -> None:
        self._torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        self.env.reset()
        # newer versions hold a list per environment, older ones the robot itself
        robots = self.env.robots[0]
        self._robot = robots[0] if isinstance(robots, list | tuple) else robots
        self._done = False
        self._arm = self._robot.default_arm
        self._arm_joints = [int(index) for index in self._robot.arm_control_idx[self._arm]]
        self._fingers = [int(index) for index in self._robot.gripper_control_idx[self._arm]]
        self._object, self._goal = (self._scope()[name] for name in self._names)
        self._move_object(seed)
        self._command = self.tcp_pose(), self.gripper_width()

    def _scope(self) -> Any:
        """Return the activity's objects by name.

        Newer versions hold one such mapping per environment, older ones a single mapping.
        """
        scopes = getattr(self.env.task, "object_scopes", None)
        return self.env.task.object_scope if scopes is None else scopes[0]

    def _move_object(self, seed: int) -> None:
        """Move the object to a random place about its recorded one."""
        position, quaternion = self._object.get_position_orientation()
        shift = np.random.default_rng(seed).uniform(-self.spread_m, self.spread_m, 2)
        self._object.set_position_orientation(
            position=position + self._tensor([*shift, 0.0]), orientation=quaternion
        )

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        action = self._torch.zeros(self._robot.action_dim)
        indices = self._robot.controller_action_idx
        action[indices[f"arm_{self._arm}"]] = self._tensor([*pose[:3], *to_vector(pose[3:])])
        action[indices[f"gripper_{self._arm}"]] = self._tensor([2.0 * width / WIDEST_M - 1.0])
        _, _, terminated, _, _ = self.env.step({self._robot.name: action})
        self._done = bool(np.any(np.asarray(terminated)))

    def tcp_pose(self) -> np.ndarray:
        return _pose(*self._robot.get_relative_eef_pose(arm=self._arm))

    def gripper_width(self) -> float:
        return float(self._robot.get_joint_positions()[self._fingers].sum())

    def channels(self) -> dict[str, np.ndarray]:
        robot, arm = self._robot, self._arm
        twist = [
            np.asarray(robot.get_relative_eef_lin_vel(arm=arm)),
            np.asarray(robot.get_relative_eef_ang_vel(arm=arm)),
        ]
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": np.concatenate(twist).astype(float),
            "joint_states": np.asarray(robot.get_joint_positions(), float)[self._arm_joints],
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._in_base(self._object),
            "goal_pose": self._in_base(self._goal),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        return self._done

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return resized(np.asarray(self.env.render(), np.uint8), height, width)

    def _tensor(self, values: list[float]) -> Any:
        return self._torch.tensor(values, dtype=self._torch.float32)

    def _in_base(self, object_: Any) -> np.ndarray:
        """Return an object's pose (7,) in the robot's base frame."""
        pose = _pose(*object_.get_position_orientation())
        base = _pose(*self._robot.get_position_orientation())
        back = inverse(base[3:])
        return np.array([*rotate(back, pose[:3] - base[:3]), *product(back, pose[3:])])


def _pose(position: object, quaternion: object) -> np.ndarray:
    return np.concatenate([np.asarray(position, float), np.asarray(quaternion, float)])
