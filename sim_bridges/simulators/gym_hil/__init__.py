"""Franka-Sim in gym-hil's version: a Panda with a Robotiq hand, and a cube to lift.

The arm is under operational-space control. The goal is the point at which the cube counts as
lifted. After SERL (arXiv 2401.16013).
"""

from __future__ import annotations

import numpy as np

from sim_bridges.core.adapters import unrotated_pose
from sim_bridges.core.mujoco import Scene, numpy_seed

PACKAGE, INSTALL = "gym_hil", "make setup"
# Robotiq 2F-85: largest width, and the driver joint's angle when closed
WIDTH_M, DRIVER_RAD = 0.085, 0.80
GOAL_M = 0.13  # height of the goal above the cube's start; 0.10 counts as lifted


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 20 ms, ten steps of MuJoCo."""

    tick_s = 0.02
    cameras = ("front", "wrist", "video")
    joint_names = tuple(f"panda_joint{i}" for i in range(1, 8))

    def __init__(self) -> None:
        from gym_hil.envs.panda_pick_gym_env import PandaPickCubeGymEnv

        self.env = PandaPickCubeGymEnv(control_dt=self.tick_s, random_block_position=True)
        self.env.close()  # closes its own renderer
        self.scene = Scene(
            self.env.model,
            self.env.data,
            "pinch",
            cameras={"front": "front", "wrist": "handcam_rgb", "video": "front"},
        )
        self._driver = self.env.model.joint("right_driver_joint").qposadr[0]
        self.reset(0)

    def reset(self, seed: int) -> None:
        with numpy_seed(seed):
            self.env.reset(seed=seed)
        block = self.env.data.sensor("block_pos").data
        self._goal = unrotated_pose(block + [0.0, 0.0, GOAL_M])

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        data, action = self.env.data, np.zeros(7)
        if target_pose is not None:
            action[:3] = self.scene.to_world(target_pose[:3]) - data.mocap_pos[0]
        if gripper_width is not None:
            action[6] = 1.0 - gripper_width / WIDTH_M - data.ctrl[self.env._gripper_ctrl_id] / 255.0
        self.env.apply_action(action)

    def tcp_pose(self) -> np.ndarray:
        return self.scene.tool_pose()

    def gripper_width(self) -> float:
        return float(
            np.clip(1.0 - self.env.data.qpos[self._driver] / DRIVER_RAD, 0.0, 1.0) * WIDTH_M
        )

    def channels(self) -> dict[str, np.ndarray]:
        data, block = self.env.data, self.env.data.body("block")
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": data.qpos[:7].copy(),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self.scene.pose(block.xpos, block.xquat),
            "goal_pose": self._goal.copy(),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        return bool(self.env._is_success())

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return self.scene.render(camera, height, width)
