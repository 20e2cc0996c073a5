"""Meta-World 3: its Sawyer brings an object to a goal.

Yu et al. 2019, arXiv 1910.10897; version 3 by the Farama Foundation. The tool follows a mocap body
and does not turn. The adapter leaves out the observation and reward of its ``step``.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from rlinf_core.core.errors import RecipeError, nearest
from sim_bridges.core.adapters import unrotated_pose
from sim_bridges.core.mujoco import Scene

PACKAGE, INSTALL = "metaworld", "make simulators"
CLOSED_PADS_M = 0.024  # distance between the pads' centres when closed
SQUEEZE = 50.0  # gripper effort per metre of width error
# share per tick by which the estimated lag of the tool behind its mocap body is updated
LAG_UPDATE = 0.02


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is Meta-World's control period, 80 Hz.

    Forward is the world's y axis.

    Args:
        task: task with an object and a goal, e.g. pick-place-v3 or push-v3
    """

    tick_s = 0.0125
    cameras = ("front", "wrist", "video")
    joint_names = tuple(f"right_j{i}" for i in range(7))

    def __init__(self, task: str = "pick-place-v3") -> None:
        import mujoco
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS as TASKS

        if task not in TASKS:
            raise RecipeError(
                f"metaworld: expected one of {', '.join(TASKS)}; got '{task}'{nearest(task, TASKS)}"
            )
        self._mujoco = mujoco
        env_class = cast(Any, TASKS[task])
        self.env = env_class()
        self.env._freeze_rand_vec = False
        self.env._set_task_called = True
        self.env.seeded_rand_vec = True
        self.reset(0)
        self.scene = Scene(
            self.env.model,
            self.env.data,
            "endEffector",
            yaw=np.pi / 2,
            cameras={"front": "corner2", "wrist": "gripperPOV", "video": "corner2"},
        )

    def reset(self, seed: int) -> None:
        self.env.seed(seed % 2**31)
        self.env.reset()
        # computes the poses of the objects that the reset moved
        self._mujoco.mj_forward(self.env.model, self.env.data)
        self._effort = -1.0
        self._lag = self.env.data.mocap_pos[0] - self.env.tcp_center
        self._order_wxyz = self._quaternion_order()

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        delta = np.zeros(3)
        self._lag += LAG_UPDATE * (self.env.data.mocap_pos[0] - self.env.tcp_center - self._lag)
        if target_pose is not None:
            delta = self.scene.to_world(target_pose[:3]) + self._lag - self.env.data.mocap_pos[0]
        if gripper_width is not None:
            squeeze = float(np.clip(SQUEEZE * (self.gripper_width() - gripper_width), -1.0, 1.0))
            self._effort = squeeze if gripper_width > 1e-3 else 1.0
        self.env.set_xyz_action(np.clip(delta / self.env.action_scale, -1.0, 1.0))
        self.env.do_simulation([self._effort, -self._effort], self.env.frame_skip)

    def tcp_pose(self) -> np.ndarray:
        """Return the pose (7,) between the pads."""
        pose = self.scene.tool_pose()
        pose[:3] = self.scene.to_base(self.env.tcp_center)
        return pose

    def gripper_width(self) -> float:
        data = self.env.data
        return max(
            float(np.linalg.norm(data.body("rightpad").xpos - data.body("leftpad").xpos))
            - CLOSED_PADS_M,
            0.0,
        )

    def channels(self) -> dict[str, np.ndarray]:
        quaternion = self._quaternion()
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": self.env.data.qpos[:7].copy(),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self.scene.pose(self.env._get_pos_objects()[:3], quaternion),
            "goal_pose": unrotated_pose(self.scene.to_base(self.env._target_pos)),
            "task/success": np.array([float(self.succeeded())]),
        }

    def _quaternion(self) -> np.ndarray:
        """Return the object's quaternion (4,) w x y z."""
        quaternion = np.asarray(self.env._get_quat_objects(), float).ravel()[:4]
        return quaternion[self._order_wxyz] if quaternion.any() else np.array([1.0, 0.0, 0.0, 0.0])

    def _quaternion_order(self) -> list[int]:
        """Return the indices that turn a task's quaternion into w x y z.

        Some tasks report x y z w, as SciPy does, and some w x y z, as MuJoCo does. The order that
        matches a body of the scene is the right one.
        """
        quaternion = np.asarray(self.env._get_quat_objects(), float).ravel()[:4]
        bodies = self.env.data.xquat
        orders = [3, 0, 1, 2], [0, 1, 2, 3]
        return next(
            (order for order in orders if (np.abs(bodies @ quaternion[order]) > 1.0 - 1e-9).any()),
            orders[0],
        )

    def succeeded(self) -> bool:
        _, info = self.env.evaluate_state(self.env._get_obs(), np.zeros(4, np.float32))
        return bool(info["success"])

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        picture = self.scene.render(camera, height, width)
        # the corner cameras hang upside down
        return picture if camera == "wrist" else picture[::-1, ::-1].copy()
