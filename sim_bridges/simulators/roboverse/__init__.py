"""RoboVerse: a task of its MetaSim with the MuJoCo handler; by default a Franka lifts a cube.

Geng et al. 2025, arXiv 2504.18904; written against its repository of June 2025 (roboverse-py
0.1.17). PyPI's packages metasim and roboverse are something else. ROBOVERSE_ROOT names a clone. The
handler loads the robot's MJCF from the clone's roboverse_data, which RoboVerse downloads. The
adapter adds a site for the tool and two cameras, solves the inverse kinematics, and places the
objects by the seed. The checker of the task defines success.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlinf_core.core.errors import RecipeError, RlinfError
from sim_bridges.core.adapters import next_command, working_directory
from sim_bridges.core.mujoco import Scene
from sim_bridges.simulators.mujoco_arm.control import Joints

PACKAGE = "metasim"
INSTALL = (
    "git clone https://github.com/RoboVerseOrg/RoboVerse, and in a Python environment of its own "
    "pip install mujoco==3.8.1 dm_control==1.0.41 torch gymnasium loguru huggingface_hub rich tqdm "
    "imageio rootutils numpy pydantic pyyaml opencv-python-headless; then export "
    "ROBOVERSE_ROOT=<the clone> and RLINF_PYTHON_ROBOVERSE=<its python>"
)
GOAL_M = 0.15  # height of the goal above the object's start; the checker counts 0.1
TOOL_SITE = "rlinf_tool"
Metres = Annotated[float, Field(ge=0, lt=1)]


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is the handler's 25 steps of 2 ms.

    Args:
        task: task of metasim.cfg.tasks with one object, such as maniskill:PickCube
        object: name of the task's object of object_pose
        robot: robot of metasim.cfg.robots with joints of one arm and two fingers
        mjcf: another MJCF of the robot than RoboVerse's; its model has the robot's name, and each
            joint an actuator of the same name
        tool_m: distance of the tool from the robot's ee_body_name, along its z axis [m]
        object_range_m: half the side of the square about (0.5, 0) with the objects [m]
    """

    cameras = ("front", "video")

    def __init__(
        self,
        task: str = "maniskill:PickCube",
        object: str = "cube",
        robot: str = "franka",
        mjcf: str = "",
        tool_m: Metres = 0.1034,
        object_range_m: Metres = 0.08,
    ) -> None:
        root = os.environ.get("ROBOVERSE_ROOT")
        if not root or not (Path(root) / "metasim" / "sim" / "mujoco").is_dir():
            raise RecipeError(
                "roboverse: expected ROBOVERSE_ROOT to name a clone of RoboVerse, with "
                f"metasim/sim/mujoco; got {root!r}"
            )
        self._root = Path(root).resolve()
        self._object = object
        self._range = object_range_m
        sys.path.insert(0, str(self._root))
        with working_directory(self._root):
            self.handler: Any = _handler(
                task, robot, str(Path(mjcf).resolve()) if mjcf else "", tool_m
            )
        model = self.handler.physics.model.ptr
        self.data = self.handler.physics.data.ptr
        self._robot = self.handler.robot
        if object not in self.handler.object_dict:
            raise RecipeError(
                f"roboverse: object: expected one of {', '.join(self.handler.object_dict)}, got "
                f"'{object}'"
            )
        prefix = self.handler.tool_site.rpartition("/")[0] + "/"
        cameras = {"front": "front", "video": "video"}
        self.scene = Scene(model, self.data, self.handler.tool_site, cameras=cameras)
        fingers = [name for name, actuator in self._robot.actuators.items() if actuator.is_ee]
        if len(fingers) != 2:
            raise RecipeError(
                f"roboverse: robot: expected one with two fingers, got '{robot}' with "
                f"{', '.join(fingers) or 'none'}"
            )
        self.joint_names = tuple(name for name in self._robot.actuators if name not in fingers)
        self._fingers = fingers
        home = np.array([self._robot.default_joint_positions[name] for name in self.joint_names])
        names = [prefix + name for name in self.joint_names]
        self._joints = Joints(model, names, self.handler.tool_site, home)
        self._finger_indices = [model.joint(prefix + name).qposadr[0] for name in fingers]
        self.tick_s = round(self.handler.decimation * model.opt.timestep, 6)
        self.reset(0)

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.handler.physics.reset()
        object_states = {}
        for item in self.handler.objects:
            size = getattr(item, "size", None)
            height = 0.5 * size[2] if size is not None else item.default_position[2]
            shift = random.uniform(-self._range, self._range, 2)
            object_states[item.name] = {
                "pos": np.array([0.5 + shift[0], shift[1], height]),
                "rot": np.array([1.0, 0.0, 0.0, 0.0]),
            }
        robot = {"dof_pos": dict(self._robot.default_joint_positions)}
        self.handler.set_states([{"objects": object_states, "robots": {self._robot.name: robot}}])
        self.handler.checker.reset(self.handler, env_ids=[0])
        self._targets = self.data.qpos[self._joints.positions].copy()
        self._command = self.tcp_pose(), self.gripper_width()
        start = self._object_pose()
        self._goal = np.concatenate([start[:3] + [0.0, 0.0, GOAL_M], start[3:]])

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        self._targets = self._joints.solve(
            self.data, self._targets, self.scene.to_world(pose[:3]), pose[[6, 3, 4, 5]]
        )
        targets = dict(zip(self.joint_names, map(float, self._targets), strict=True))
        targets |= dict.fromkeys(self._fingers, width / 2)
        name = self._robot.name
        self.handler.set_dof_targets(name, [{name: {"dof_pos_target": targets}}])
        self.handler.simulate()

    def tcp_pose(self) -> np.ndarray:
        return self.scene.tool_pose()

    def gripper_width(self) -> float:
        return float(np.abs(self.data.qpos[self._finger_indices]).sum())

    def _object_pose(self) -> np.ndarray:
        position = self.handler.get_pos(self._object)[0].numpy().astype(float)
        return self.scene.pose(position, self.handler.get_rot(self._object)[0].numpy())

    def channels(self) -> dict[str, np.ndarray]:
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": self.data.qpos[self._joints.positions].copy(),
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._object_pose(),
            "goal_pose": self._goal.copy(),
            "task/success": np.array([float(self.succeeded())]),
        }

    def succeeded(self) -> bool:
        return bool(self.handler.checker.check(self.handler)[0])

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return self.scene.render(camera, height, width)


def _handler(task: str, robot: str, mjcf: str, tool_m: float) -> Any:
    """Return the launched MuJoCo handler, with a tool's site and two cameras in its model."""
    from loguru import logger
    from metasim.cfg.scenario import ScenarioCfg
    from metasim.sim.mujoco import MujocoHandler
    from metasim.utils.setup_util import get_robot, get_task

    logger.remove()  # it prints a line for each step

    class Handler(MujocoHandler):
        def _init_mujoco(self) -> Any:
            model = super()._init_mujoco()
            attached = self.mj_objects[self.robot.name]
            hand = attached.find("body", self.robot.ee_body_name)
            if hand is None:
                raise RecipeError(
                    f"roboverse: mjcf: expected a body {self.robot.ee_body_name}, got none"
                )
            self.tool_site = hand.add("site", name=TOOL_SITE, pos=(0, 0, tool_m)).full_identifier
            for name, place, axes in (
                ("front", (1.25, 0.0, 0.55), (0, 1, 0, -0.5, 0, 0.87)),
                ("video", (1.12, -0.78, 0.62), (0.725, 0.689, 0, -0.224, 0.236, 0.946)),
            ):
                model.worldbody.add("camera", name=name, pos=place, xyaxes=axes, fovy=45)
            light = {"pos": (1.0, -1.0, 2.0), "dir": (-0.5, 0.5, -0.9)}
            model.worldbody.add("light", castshadow=False, **light)
            return model

    try:
        task_cfg, robot_cfg = get_task(task), get_robot(robot)
    except (AttributeError, ImportError, ValueError, TypeError) as error:
        raise RecipeError(
            f"roboverse: expected a task such as maniskill:PickCube and a robot such as franka, "
            f"got '{task}' and '{robot}': {error}"
        ) from error
    task_cfg.traj_filepath = None  # the seed places the objects; recorded trajectories are not used
    if mjcf:
        robot_cfg.mjcf_path = mjcf
    try:
        scenario = ScenarioCfg(
            task=task_cfg,
            robots=[robot_cfg],
            sim="mujoco",
            num_envs=1,
            headless=True,
            try_add_table=False,
        )
    except Exception as error:  # the download of assets fails in many ways
        raise RlinfError(
            f"roboverse: expected the assets of '{task}' and '{robot}' in roboverse_data, got an "
            f"error of their download: {error}. Clone "
            "https://huggingface.co/datasets/RoboVerseOrg/roboverse_data into the clone"
        ) from error
    handler = Handler(scenario)
    handler.launch()
    return handler
