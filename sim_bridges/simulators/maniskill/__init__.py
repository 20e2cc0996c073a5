"""ManiSkill 3: its Panda under its Cartesian controller, in a task with an object and a goal.

Gu et al. 2023, arXiv 2302.04659; Tao et al. 2024, arXiv 2410.00425. The adapter uses the
controller's inverse kinematics and joint drives directly. ManiSkill's own path through tensors
takes five times as long as physics for one environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, RlinfError, nearest
from sim_bridges.core.adapters import next_command, resized

PACKAGE, INSTALL = "mani_skill", "make simulators"
OBJECTS = ("cube", "obj", "cubeA", "ball", "peg")
GOALS = ("goal_site", "goal_region", "bin", "cubeB")
FINGER_M = 0.04  # largest travel of a finger
SQUEEZED_M = -0.01  # set-point of a closed finger, so that it presses


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is ManiSkill's control period, 20 Hz.

    Args:
        task: ManiSkill task with one Panda, for example PickCube-v1 or PushCube-v1
        object: actor of object_pose, by its name in the environment. Empty takes the known one
        goal: actor of goal_pose, by its name in the environment. Empty takes the known one
    """

    tick_s = 0.05
    cameras = ("front", "video")
    joint_names = tuple(f"panda_joint{i}" for i in range(1, 8))

    def __init__(self, task: str = "PickCube-v1", object: str = "", goal: str = "") -> None:
        import gymnasium
        import mani_skill.envs  # noqa: F401 (registers its tasks)
        import sapien
        import torch
        from mani_skill.utils.registration import REGISTERED_ENVS

        torch.set_num_threads(1)
        self._sapien = sapien
        self._names = (object, goal)
        if task not in REGISTERED_ENVS:
            raise RecipeError(
                "maniskill: task: expected one of ManiSkill's, got "
                f"'{task}'{nearest(task, REGISTERED_ENVS)}"
            )
        env_spec = REGISTERED_ENVS[task]
        if "panda" not in (env_spec.cls.SUPPORTED_ROBOTS or ()):
            raise RecipeError(
                f"maniskill: task: expected one for a single Panda, got '{task}', which is for "
                f"{env_spec.cls.SUPPORTED_ROBOTS or 'others'}"
            )
        try:
            self.env: Any = gymnasium.make(
                task,
                robot_uids="panda",
                obs_mode="none",
                reward_mode="none",
                control_mode="pd_ee_pose",
                render_mode="rgb_array",
                sim_backend="cpu",
                render_backend="cpu",
            ).unwrapped
        except EOFError as error:  # ManiSkill asks whether to download them
            raise RlinfError(
                f"maniskill: '{task}' needs assets that are not here: "
                f"{', '.join(env_spec.asset_download_ids)}. Run: python -m "
                f"mani_skill.utils.download_asset {env_spec.asset_download_ids[0]}"
            ) from error
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)
        robot = self.env.agent.robot
        self._robot, self._tool = robot._objs[0], self.env.agent.tcp._objs[0]
        self._to_base = self._robot.pose.inv()
        self._base_rotation = self._to_base.to_transformation_matrix()[:3, :3].astype(float)
        self._object, self._goal = (
            self._actor(key, name, names)
            for key, name, names in zip(
                ("object", "goal"), self._names, (OBJECTS, GOALS), strict=True
            )
        )
        arm, hand = (self.env.agent.controller.controllers[name] for name in ("arm", "gripper"))
        self._joints = [joint._objs[0] for joint in arm.joints]
        self._fingers = [joint._objs[0] for joint in hand.joints]
        self._kinematics, self._steps = arm.kinematics, self.env._sim_steps_per_control
        self._arm_mask = np.asarray(self._kinematics.qmask, dtype=bool)
        self._command = self.tcp_pose(), 2 * FINGER_M

    def _actor(self, key: str, name: str, names: tuple[str, ...]) -> Any:
        """Return SAPIEN's entity of one of the task's actors."""
        from mani_skill.utils.structs import Actor

        actors = [
            attribute for attribute, value in vars(self.env).items() if isinstance(value, Actor)
        ]
        name = name or next((attribute for attribute in names if attribute in actors), "")
        if name not in actors:
            raise RecipeError(
                f"maniskill: {key}: expected one of {', '.join(actors) or 'none'}, as "
                f"{self.env.spec.id} has; got '{name}'{nearest(name, actors)}. Set it in the "
                "robot's options"
            )
        return getattr(self.env, name)._objs[0]

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        angles, is_solved, _ = self._kinematics.pmodel.compute_inverse_kinematics(
            self._kinematics.end_link_idx,
            self._sapien.Pose(pose[:3], pose[[6, 3, 4, 5]]),
            initial_qpos=self._robot.qpos,
            active_qmask=self._arm_mask,
            max_iterations=100,
        )
        if is_solved:
            for joint, angle in zip(self._joints, angles, strict=False):
                joint.set_drive_target(angle)
        for finger in self._fingers:
            finger.set_drive_target(width / 2 if width > 1e-3 else SQUEEZED_M)
        for _ in range(self._steps):
            self.env.scene.step()

    def tcp_pose(self) -> np.ndarray:
        return self._in_base(self._tool.entity_pose)

    def gripper_width(self) -> float:
        return float(self._robot.qpos[-2:].sum())

    def channels(self) -> dict[str, np.ndarray]:
        linear = self._base_rotation @ self._tool.linear_velocity
        angular = self._base_rotation @ self._tool.angular_velocity
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": np.concatenate([linear, angular]).astype(float),
            "joint_states": self._robot.qpos[:7].astype(float),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._in_base(self._object.pose),
            "goal_pose": self._in_base(self._goal.pose),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        return bool(self.env.evaluate()["success"][0])

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        self.env.scene.update_render()
        if camera == "video":
            picture = self.env.render_rgb_array()[0].numpy()
        else:
            sensor = self.env._sensors["base_camera"]
            sensor.capture()
            picture = sensor.get_obs(rgb=True, depth=False, segmentation=False, position=False)[
                "rgb"
            ][0].numpy()
        return resized(picture, height, width)

    def _in_base(self, pose: Any) -> np.ndarray:
        in_base = self._to_base * pose
        return np.concatenate([in_base.p, in_base.q[[1, 2, 3, 0]]]).astype(float)
