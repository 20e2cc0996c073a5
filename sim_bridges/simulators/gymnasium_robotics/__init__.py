"""Gymnasium-Robotics: the Fetch robot picks a block up and brings it to a goal.

Plappert et al. 2018, arXiv 1802.09464. The tool follows a mocap body. The adapter leaves out the
observation and reward of its ``step``, which take half of its time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, nearest
from sim_bridges.core.adapters import next_command, unrotated_pose
from sim_bridges.core.mujoco import Scene

PACKAGE, INSTALL = "gymnasium_robotics", "make simulators"
STEP_M = 0.05  # motion of an action of 1


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 50 ms, 25 steps of MuJoCo.

    Args:
        task: FetchPickAndPlace-v4, FetchPush-v4, FetchSlide-v4 or FetchReach-v4. The last has no
            object
    """

    tick_s = 0.05
    cameras = ("front", "video")
    joint_names = tuple(
        f"robot0:{name}_joint"
        for name in (
            "shoulder_pan",
            "shoulder_lift",
            "upperarm_roll",
            "elbow_flex",
            "forearm_roll",
            "wrist_flex",
            "wrist_roll",
        )
    )

    def __init__(self, task: str = "FetchPickAndPlace-v4") -> None:
        import gymnasium
        import gymnasium_robotics

        gymnasium.register_envs(gymnasium_robotics)
        tasks = sorted(
            name
            for name, env_spec in gymnasium.registry.items()
            if name.startswith("Fetch")
            # mujoco_py is obsolete
            and "Dense" not in name
            and "MujocoPy" not in str(env_spec.entry_point)
        )
        if task not in tasks:
            raise RecipeError(
                f"gymnasium_robotics: task: expected one of {', '.join(tasks)}; got '{task}'"
                f"{nearest(task, tasks)}"
            )
        env: Any = gymnasium.make(task).unwrapped
        self.env = env
        self.env.n_substeps = round(self.tick_s / self.env.model.opt.timestep)
        self.env.reset(seed=0)
        base = self.env.data.body("robot0:base_link").xpos.copy()
        self.scene = Scene(
            self.env.model,
            self.env.data,
            "robot0:grip",
            base,
            cameras={"front": "external_camera_0", "video": "external_camera_0"},
        )
        self._joints = [self.env.model.joint(name).qposadr[0] for name in self.joint_names]
        self._fingers = [
            self.env.model.joint(f"robot0:{side}_gripper_finger_joint").qposadr[0] for side in "rl"
        ]
        self._block = self.env.data.site("object0") if self.env.has_object else None

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self._command = self.tcp_pose(), self.gripper_width()

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        delta = self.scene.to_world(pose[:3]) - self.env.data.site_xpos[self.scene.tool]
        grip = width / 2 - self.env.data.qpos[self._fingers].mean()
        action = np.append(np.clip(delta / STEP_M, -1.0, 1.0), np.clip(grip, -1.0, 1.0))
        self.env._set_action(action)
        self.env._mujoco_step(action)

    def tcp_pose(self) -> np.ndarray:
        return self.scene.tool_pose()

    def gripper_width(self) -> float:
        return float(max(self.env.data.qpos[self._fingers].sum(), 0.0))

    def channels(self) -> dict[str, np.ndarray]:
        object_pose = (
            {} if self._block is None else {"object_pose": self.scene.pose_of(self._block)}
        )
        return object_pose | {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": self.env.data.qpos[self._joints].copy(),
            "gripper/state": np.array([self.gripper_width()]),
            "goal_pose": unrotated_pose(self.scene.to_base(self.env.goal)),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        position = (
            self.env.data.site_xpos[self.scene.tool] if self._block is None else self._block.xpos
        )
        return bool(self.env._is_success(position, self.env.goal))

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return self.scene.render(camera, height, width)
