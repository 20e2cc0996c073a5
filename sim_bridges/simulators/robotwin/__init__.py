"""RoboTwin 2: one arm of its pair does one of its tasks, on SAPIEN.

Chen et al. 2025, arXiv 2506.18088; written against its sources of August 2026. The task's own check
defines success. RoboTwin is a repository rather than a package: ROBOTWIN_ROOT names its folder with
its assets, and RLINF_PYTHON_ROBOTWIN a Python with its dependencies. The arm's drives follow
inverse kinematics. RoboTwin still builds its planners at the start, and cuRobo's need CUDA. The
other arm stays still. A scene with the object on its side is skipped for the next one.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.rotation import inverse, product, to_vector
from sim_bridges.core.adapters import next_command, resized, working_directory

PACKAGE = "robotwin"
INSTALL = "see https://robotwin-platform.github.io/doc, then export ROBOTWIN_ROOT=<its folder>"
MAX_ATTEMPTS = 40  # scenes tried until objects rest on this arm's side
MIDDLE_M = 0.1  # either arm reaches this far to both sides of the table's middle
# the interlock's width for RoboTwin's opening of 1, of any gripper; its tasks call more than 0.8
# open
WIDEST_M = 0.08
CLEAR_INTERVAL = 5  # scenes between two clearings of its render cache, as in its own scripts
FOLDERS = ("env_cfg/task_config", "task_config")  # in main; in stable_2.0 and RLinf_support
VIEWS = {"front": "head_camera", "video": "head_camera"}


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 20 ms, five steps of SAPIEN.

    Args:
        task: one of its tasks, e.g. place_empty_cup.
        object, goal: attributes of the task that hold the object and its destination
        arm: left or right.
        config: name of the task configuration
    """

    tick_s = 0.02
    cameras = ("front", "wrist", "video")

    def __init__(
        self,
        task: str = "place_empty_cup",
        object: str = "cup",
        goal: str = "coaster",
        arm: Literal["left", "right"] = "left",
        config: str = "demo_clean",
    ) -> None:
        root = os.environ.get("ROBOTWIN_ROOT")
        if not root or not (Path(root) / "envs" / f"{task}.py").exists():
            raise RecipeError(
                f"robotwin: expected ROBOTWIN_ROOT to name RoboTwin's folder, with a task {task} "
                f"in envs/; got {root!r}"
            )
        if arm not in ("left", "right"):
            raise RecipeError(f"robotwin: arm: expected left or right, got '{arm}'")
        self._root = Path(root).resolve()
        sys.path.insert(0, root)
        import sapien

        self._sapien = sapien
        self._names = (object, goal)
        self._arm = arm
        self._options = _options(self._root, task, config)
        with working_directory(self._root):
            self._unstable = importlib.import_module("envs.utils").UnStableError
            self.env = getattr(importlib.import_module(f"envs.{task}"), task)()
        self.instruction = task.replace("_", " ")
        self._episode_count = 0
        self.reset(0)
        self._substeps = round(self.tick_s / self.env.scene.get_timestep())
        self.joint_names = tuple(joint.get_name() for joint in self._joints)

    def reset(self, seed: int) -> None:
        with working_directory(self._root):
            self._lay_out(seed)
        robot = self._robot = self.env.robot
        self._entity, self._joints, end, self._gripper, scale = (
            getattr(robot, f"{self._arm}_{name}")
            for name in ("entity", "arm_joints", "ee", "gripper", "gripper_scale")
        )
        self._closed, self._open = map(float, scale)
        active = self._entity.get_active_joints()
        self._arm_mask = np.array([joint in self._joints for joint in active])
        self._joint_indices = [active.index(joint) for joint in self._joints]
        self._finger = active.index(self._gripper[0][0])
        self._end = end.child_link
        self._kinematics = self._entity.create_pinocchio_model()
        self._end_index = self._entity.get_links().index(self._end)
        self._base = self._joints[0].parent_link.get_entity_pose()
        # the kinematics are in the root's frame
        self._base_in_root = self._entity.get_root_pose().inv() * self._base
        self._tool_in_end = self._end.get_entity_pose().inv() * self._tool()
        self._object, self._goal = (getattr(self.env, name) for name in self._names)
        self._command, self._last_pose = (self.tcp_pose(), self.gripper_width()), self.tcp_pose()
        self._angles = self._entity.get_qpos()[self._joint_indices]

    def _lay_out(self, seed: int) -> None:
        """Set up the scene of this seed, or the next usable one.

        A scene is unusable if its objects do not rest or lie on the other arm's side.
        """
        for attempt in range(MAX_ATTEMPTS):
            if self._episode_count:
                self.env.close_env(clear_cache=self._episode_count % CLEAR_INTERVAL == 0)
            self._episode_count += 1
            try:
                self.env.setup_demo(
                    now_ep_num=0, seed=seed + attempt * 1_000_003, is_test=True, **self._options
                )
            except self._unstable:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                continue
            side = 1.0 if self._arm == "right" else -1.0
            if side * float(getattr(self.env, self._names[0]).get_pose().p[0]) > -MIDDLE_M:
                return
        raise RlinfError(
            f"robotwin: expected a scene in which the {self._names[0]} is within the {self._arm} "
            f"arm's reach, got none in {MAX_ATTEMPTS}. Set the option arm to the other one"
        )

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        target = (
            self._base_in_root
            * self._sapien.Pose(pose[:3], pose[[6, 3, 4, 5]])
            * self._tool_in_end.inv()
        )
        angles, is_solved, _ = self._kinematics.compute_inverse_kinematics(
            self._end_index,
            target,
            initial_qpos=self._entity.get_qpos(),
            active_qmask=self._arm_mask,
            max_iterations=100,
        )
        if is_solved:
            speeds = (angles[self._joint_indices] - self._angles) / self.tick_s
            self._angles = angles[self._joint_indices]
        else:
            speeds = np.zeros(len(self._joint_indices))
        self._last_pose = self.tcp_pose()
        for _ in range(self._substeps):
            self._robot.set_arm_joints(self._angles, speeds, self._arm)
            self.drive(width)
            self.env.scene.step()

    def drive(self, width: float) -> None:
        """Command the gripper's width [m]; ``WIDEST_M`` opens it fully."""
        self._robot.set_gripper(min(width / WIDEST_M, 1.0), self._arm, gripper_eps=0.0)

    def tcp_pose(self) -> np.ndarray:
        return self._in_base(self._tool())

    def gripper_width(self) -> float:
        opening = (self._entity.get_qpos()[self._finger] - self._closed) / (
            self._open - self._closed
        )
        return float(WIDEST_M * opening)

    def channels(self) -> dict[str, np.ndarray]:
        pose = self.tcp_pose()
        rotation = to_vector(product(pose[3:], inverse(self._last_pose[3:])))
        return {
            "current_pose": pose,
            "current_twist": np.array([*(pose - self._last_pose)[:3], *rotation]) / self.tick_s,
            "joint_states": self._entity.get_qpos()[self._joint_indices].astype(float),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._in_base(self._object.get_pose()),
            "goal_pose": self._in_base(self._goal.get_pose()),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        return bool(self.env.check_success())

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        self.env._update_render()
        self.env.cameras.update_picture()
        picture = self.env.cameras.get_rgb()[VIEWS.get(camera, f"{self._arm}_camera")]["rgb"]
        return resized(np.asarray(picture, np.uint8), height, width)

    def _tool(self) -> object:
        pose = getattr(self._robot, f"get_{self._arm}_tcp_pose")()
        return self._sapien.Pose(pose[:3], pose[3:])

    def _in_base(self, pose: Any) -> np.ndarray:
        """Return a pose (7,) in the arm's base frame."""
        in_base = self._base.inv() * pose
        return np.concatenate([in_base.p, in_base.q[[1, 2, 3, 0]]]).astype(float)


def _options(root: Path, task: str, config: str) -> dict[str, object]:
    """Return the options that RoboTwin's own scripts pass to ``setup_demo``."""
    folder = next(
        (root / name for name in FOLDERS if (root / name / f"{config}.yml").is_file()), None
    )
    if folder is None:
        raise RecipeError(
            f"robotwin: config: expected {config}.yml in {' or '.join(FOLDERS)} of {root}, got "
            "neither. Is this RoboTwin 2?"
        )
    options = load_plain((folder / f"{config}.yml").read_text()) | {
        "task_name": task,
        "task_config": config,
    }
    embodiment_config = load_plain((folder / "_embodiment_config.yml").read_text())
    embodiments = options["embodiment"]
    for side, embodiment in (
        ("left", embodiments[0]),
        ("right", embodiments[0] if len(embodiments) == 1 else embodiments[1]),
    ):
        file = embodiment_config[embodiment]["file_path"]
        options[f"{side}_robot_file"] = file
        options[f"{side}_embodiment_config"] = load_plain((root / file / "config.yml").read_text())
    options["dual_arm_embodied"] = len(embodiments) == 1
    if len(embodiments) == 3:
        options["embodiment_dis"] = embodiments[2]
    return options
