"""LIBERO: a Panda and a language instruction, in robosuite 1.4.

Liu et al. 2023, arXiv 2306.03310. The task's own predicates define success. LIBERO needs an older
robosuite than ours and so has its own environment. The adapter leaves out the observation and
reward of its ``step``. LIBERO's placement rules draw the scenes; its fixed start states are not
used.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.core.rotation import rotate
from sim_bridges.core.adapters import next_command, unrotated_pose
from sim_bridges.core.mujoco import Scene, numpy_seed

PACKAGE, INSTALL = "libero", "make libero"
DEADBAND_M = 0.004  # error of the width below which the gripper does not move
STIFFNESS = 600  # stiffness of the controller; with robosuite's own 150 the arm lags by 0.25 s


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is LIBERO's control period, 20 Hz.

    Args:
        suite: libero_spatial, libero_object, libero_goal, libero_10 or libero_90.
        task: name of a task. Its first goal gives the object and its place
    """

    tick_s = 0.05
    cameras = ("front", "wrist", "video")
    VIEWS = {"front": "agentview", "wrist": "robot0_eye_in_hand", "video": "agentview"}
    joint_names = tuple(f"panda_joint{i}" for i in range(1, 8))

    def __init__(
        self,
        suite: str = "libero_object",
        task: str = "pick_up_the_cream_cheese_and_place_it_in_the_basket",
    ) -> None:
        # without it, LIBERO asks for the path at the keyboard
        os.environ.setdefault("LIBERO_CONFIG_PATH", str(Path(sys.prefix) / "libero"))
        import robosuite
        from libero.libero import benchmark
        from libero.libero.envs import bddl_utils, env_wrapper

        logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
        suites = benchmark.get_benchmark_dict()
        if suite not in suites:
            raise RecipeError(
                f"libero: expected a suite of {', '.join(suites)}; got "
                f"'{suite}'{nearest(suite, suites)}"
            )
        tasks = suites[suite]()
        names = tasks.get_task_names()
        if task not in names:
            raise RecipeError(
                f"libero: expected a task of {suite}: {', '.join(names)}; got "
                f"'{task}'{nearest(task, names)}"
            )
        file = tasks.get_task_bddl_file_path(names.index(task))
        problem = bddl_utils.get_problem_info(file)
        self.instruction = problem["language_instruction"]
        control = robosuite.load_controller_config(default_controller="OSC_POSE") | {
            "kp": STIFFNESS
        }
        self.env = env_wrapper.TASK_MAPPING[problem["problem_name"]](
            file,
            robots=["Panda"],
            controller_configs=control,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=round(1 / self.tick_s),
            horizon=10**9,
            ignore_done=True,
            hard_reset=False,
        )
        self._substeps = round(self.env.control_timestep / self.env.model_timestep)
        self.scene: Any = None  # a Scene from the first reset on
        self.reset(0)

    def reset(self, seed: int) -> None:
        with numpy_seed(seed):
            self.env.reset()
        robot, sim = self.env.robots[0], self.env.sim
        self._robot = robot
        self._fingers = robot._ref_gripper_joint_pos_indexes
        # robosuite 1.4 does not reset it
        robot.gripper.current_action = np.zeros(robot.gripper.dof)
        # a hard reset creates another model
        if self.scene is None or self.scene.model is not sim.model._model:
            if self.scene is not None:
                self.scene.close()
            self.scene = Scene(
                sim.model._model,
                sim.data._data,
                robot.gripper.important_sites["grip_site"],
                hidden=(0,),
                cameras=self.VIEWS,
            )
        self.scene.place(robot.base_pos)
        self._find_object_and_goal()
        self._command = self.tcp_pose(), self.gripper_width()

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        width_error = self.gripper_width() - width
        grip = 0.0 if abs(width_error) < DEADBAND_M and width > DEADBAND_M else np.sign(width_error)
        action, sim = np.array([0.0] * 6 + [grip]), self.env.sim
        for substep in range(self._substeps):
            sim.forward()
            if substep == 0:
                self._robot.controller.set_goal(
                    action[:6], self.scene.to_world(pose[:3]), _matrix(pose[3:])
                )
            self._robot.control(action, policy_step=False)
            sim.step()

    def tcp_pose(self) -> np.ndarray:
        return self.scene.tool_pose()

    def gripper_width(self) -> float:
        return float(np.abs(self.env.sim.data.qpos[self._fingers]).sum())

    def channels(self) -> dict[str, np.ndarray]:
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": self.env.sim.data.qpos[self._robot._ref_joint_pos_indexes].copy(),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._pose(self._object),
            "goal_pose": self._pose(self._goal),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        return bool(self.env._check_success())

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return self.scene.render(camera, height, width)

    def _find_object_and_goal(self) -> None:
        """Set the object and the destination of the first goal that names two things.

        They are bodies or sites of regions.
        """
        goals = self.env.parsed_problem["goal_state"]
        self._object, self._goal = next(
            (goal[1:] for goal in goals if len(goal) == 3), (self.env.obj_of_interest[0],) * 2
        )

    def _pose(self, name: str) -> np.ndarray:
        data = self.scene.data
        if name in self.env.obj_body_id:
            body = self.env.obj_body_id[name]
            return self.scene.pose(data.xpos[body], data.xquat[body])
        return unrotated_pose(self.scene.to_base(data.site(name).xpos))


def _matrix(quaternion_xyzw: np.ndarray) -> np.ndarray:
    return np.array([rotate(quaternion_xyzw, axis) for axis in np.eye(3)]).T
