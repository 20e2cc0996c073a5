"""robosuite 1.5: one of its arms in one of its tasks; by default a Panda lifts a cube.

Zhu et al. 2020, arXiv 2009.12293. The arm is under operational-space control. The adapter leaves
out the observation and reward of its ``step``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.core.rotation import to_vector
from sim_bridges.core.adapters import next_command, unrotated_pose
from sim_bridges.core.mujoco import Scene, numpy_seed

PACKAGE, INSTALL = "robosuite", "make simulators"
GOAL_M = 0.12  # height of the goal above the table; robosuite counts the cube as lifted from 0.04
DEADBAND_M = 0.004  # error of the width below which the gripper does not move
STIFFNESS = 600  # stiffness of the controller; with robosuite's own 150 the arm lags by 0.25 s
# bodies and sites of the robot itself
ROBOT_PREFIXES = ("robot0", "gripper0", "fixed_mount0", "left_eef", "right_eef")


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is robosuite's control period, 20 Hz.

    Args:
        task: environment with one arm, e.g. Lift, Stack, PickPlaceCan, NutAssemblySquare or Door
        object: object, body or site of object_pose
        goal: object, body or site of goal_pose. Empty takes a point above the object's start
        robot: arm of robosuite, e.g. Panda, UR5e, Sawyer, IIWA or Kinova3
        gripper: gripper with sliding fingers, e.g. PandaGripper. Empty takes the robot's own
    """

    tick_s = 0.05
    cameras = ("front", "wrist", "video")
    VIEWS = {"front": "frontview", "wrist": "robot0_eye_in_hand", "video": "frontview"}

    def __init__(
        self,
        task: str = "Lift",
        object: str = "cube",
        goal: str = "",
        robot: str = "Panda",
        gripper: str = "default",
    ) -> None:
        import robosuite
        from robosuite.models.grippers import GRIPPER_MAPPING
        from robosuite.models.robots.robot_model import REGISTERED_ROBOTS

        tasks = [
            name
            for name in robosuite.ALL_ENVIRONMENTS
            if name != "Wipe" and not name.startswith("TwoArm")
        ]
        for key, name, choices in (
            ("task", task, tasks),
            ("robot", robot, REGISTERED_ROBOTS),
            ("gripper", gripper, ("default", *filter(None, GRIPPER_MAPPING))),
        ):
            if name not in choices:
                raise _unknown_name(key, name, choices)
        self._names = object, goal
        self._build(task, robot, "BASIC", hard_reset=False, gripper_types=gripper)

    def _build(self, task: str, robot: str, controller: str | None, **options: object) -> None:
        import logging

        import robosuite
        from robosuite.controllers import load_composite_controller_config

        logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
        control = load_composite_controller_config(controller=controller, robot=robot)
        control["body_parts"]["right"] |= {"input_type": "absolute", "kp": STIFFNESS}
        with numpy_seed(0):  # robosuite draws the cube's size here, once
            self.env = robosuite.make(
                task,
                robots=robot,
                controller_configs=control,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                control_freq=round(1 / self.tick_s),
                horizon=10**9,
                ignore_done=True,
                **options,
            )
        # RoboCasa's kitchens have no model before their first reset
        if getattr(self.env, "sim", None) is None:
            self.env.reset()
        arm = self.env.robots[0]
        self._check_fingers(arm)
        self.joint_names = tuple(
            name.replace("robot0_", "panda_" if robot.startswith("Panda") else "")
            for name in arm.robot_arm_joints
        )
        self._substeps = round(self.env.control_timestep / self.env.model_timestep)
        self.scene: Any = None  # a Scene from the first reset on
        self.reset(0)

    def _check_fingers(self, arm: Any) -> None:
        """Check that the gripper has two sliding fingers; their sum is the width.

        Raises:
            RecipeError: it has not.
        """
        import mujoco

        model = self.env.sim.model
        joints = [model.joint_name2id(name) for name in arm.gripper["right"].joints]
        if len(joints) != 2 or (model._model.jnt_type[joints] != mujoco.mjtJoint.mjJNT_SLIDE).any():
            raise RecipeError(
                "robosuite: gripper: expected one with two sliding fingers, e.g. PandaGripper; "
                f"got {type(arm.gripper['right']).__name__}, whose width cannot be computed from "
                "its joints"
            )

    def reset(self, seed: int) -> None:
        with numpy_seed(seed):
            self.env.rng = np.random.default_rng(seed)
            self.env.reset()
        self._robot = self.env.robots[0]
        model = self.env.sim.model._model
        arm = self._robot.part_controllers["right"]
        self._fingers = self._robot._ref_gripper_joint_pos_indexes["right"]
        # a hard reset creates another model
        if self.scene is None or self.scene.model is not model:
            if self.scene is not None:
                self.scene.close()
            self.scene = Scene(
                model,
                self.env.sim.data._data,
                self._robot.gripper["right"].important_sites["grip_site"],
                hidden=(0,),
                cameras=self.VIEWS,
            )
        self.scene.place(
            arm.origin_pos, float(np.arctan2(arm.origin_ori[1, 0], arm.origin_ori[0, 0]))
        )
        self._begin()
        self._command = self.tcp_pose(), self.gripper_width()

    def _begin(self) -> None:
        """Find the object and the goal; without a goal, use a point above the object."""
        self._object, self._goal = (self._find(name) for name in self._names)
        arena = self.env.model.mujoco_arena
        start = self.scene.pose_of(self._object)
        table_height = (
            arena.table_offset[2] - self.scene.origin[2]
            if hasattr(arena, "table_offset")
            else start[2]
        )
        self._point_above_object = unrotated_pose(np.array([*start[:2], table_height + GOAL_M]))

    def _find(self, name: str) -> object:
        """Return MuJoCo's view of an object, body or site by name; None without a name."""
        model = self.scene.model
        bodies = [model.body(index).name for index in range(1, model.nbody)]
        sites = [model.site(index).name for index in range(model.nsite)]
        if not name:
            return None
        # robosuite's names of an object's first body
        for body in (name, f"{name}_main", f"{name}_root"):
            if body in bodies:
                return self.scene.data.body(body)
        if name not in sites:
            names = [
                key.removesuffix("_main")
                for key in (*bodies, *sites)
                if not key.startswith(ROBOT_PREFIXES)
            ]
            raise _unknown_name("object" if name == self._names[0] else "goal", name, names)
        return self.scene.data.site(name)

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        width_error, sim = self.gripper_width() - width, self.env.sim
        grip = 0.0 if abs(width_error) < DEADBAND_M and width > DEADBAND_M else np.sign(width_error)
        action = self._robot.create_action_vector(
            {
                "right": np.concatenate([pose[:3], to_vector(pose[3:])]),
                "right_gripper": np.array([grip]),
            }
        )
        for substep in range(self._substeps):
            sim.step1() if self.env.lite_physics else sim.forward()
            self.env._pre_action(action, policy_step=substep == 0)
            sim.step2() if self.env.lite_physics else sim.step()

    def tcp_pose(self) -> np.ndarray:
        return self.scene.tool_pose()

    def gripper_width(self) -> float:
        return float(np.abs(self.env.sim.data.qpos[self._fingers]).sum())

    def channels(self) -> dict[str, np.ndarray]:
        return self._robot_channels() | {
            "object_pose": self.scene.pose_of(self._object),
            "goal_pose": self._point_above_object.copy()
            if self._goal is None
            else self.scene.pose_of(self._goal),
            "task/success": np.array([float(self.succeeded())]),
        }

    def _robot_channels(self) -> dict[str, np.ndarray]:
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": self.env.sim.data.qpos[self._robot._ref_arm_joint_pos_indexes].astype(
                float
            ),
            "gripper/state": np.array([self.gripper_width()]),
        }

    def succeeded(self) -> bool:
        return bool(self.env._check_success())

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return self.scene.render(camera, height, width)


def _unknown_name(key: str, name: str, choices: Iterable[str]) -> RecipeError:
    return RecipeError(
        f"robosuite: {key}: expected one of {', '.join(choices)}; got "
        f"'{name}'{nearest(name, choices)}"
    )
