"""Isaac Lab: a Franka lifts a cube to a commanded pose on PhysX.

Differential inverse kinematics drive the arm. Mittal et al. 2023, arXiv 2301.04195; versions 2.3
and 3.0 (``package.py`` holds their differences). Name its Python in RLINF_PYTHON_ISAACLAB
(``isaaclab.sh -p`` prints it). This task runs on PhysX in both versions, which comes with Isaac
Sim.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from rlinf_core.core.errors import RecipeError
from sim_bridges.core.adapters import next_command, resized
from sim_bridges.simulators.isaaclab.package import check_task, installed_release, tensor

PACKAGE = "isaaclab"
INSTALL = (
    "see https://isaac-sim.github.io/IsaacLab, then export RLINF_PYTHON_ISAACLAB=<its python.sh>"
)
FOREVER_S = 1e9
SQUEEZED_M = -0.01  # set-point of a closed finger, so that it presses
SIZE = (480, 640)  # size of Isaac Sim's pictures; ours are resized from them
VIEW = np.array([0.195, 0.0, 0.981, 0.0])  # the camera's orientation, x y z w


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``. A tick is 50 ms, five steps of PhysX.

    Args:
        task: manager-based task with absolute poses. Its scene has ``robot``, ``ee_frame`` and
            ``object``, and a command ``object_pose``. Empty takes that of the installed version
        device: cuda:0, or cpu.
    """

    tick_s = 0.05
    cameras = ("front", "video")
    joint_names = tuple(f"panda_joint{i}" for i in range(1, 8))

    def __init__(self, task: str = "", device: str = "cuda:0") -> None:
        self._release, self._exit_stack = installed_release(), ExitStack()
        self._release.launch(self._exit_stack, device, cameras=True)
        import gymnasium
        import isaaclab.sim
        import isaaclab_tasks  # noqa: F401 (registers its tasks)
        import torch
        from isaaclab.envs import mdp
        from isaaclab.sensors import CameraCfg
        from isaaclab_tasks.utils import parse_env_cfg

        task = task or self._release.lift
        check_task(task, self._release)
        config = parse_env_cfg(task, device=device, num_envs=1)
        if not hasattr(config.commands, "object_pose") or not hasattr(config.scene, "ee_frame"):
            raise RecipeError(
                f"isaaclab: expected a task that moves an object to a pose (Lift), got '{task}'"
            )
        config.decimation = round(self.tick_s / config.sim.dt)
        for name in vars(config.terminations):
            setattr(config.terminations, name, None)  # the task file decides when an episode ends
        config.episode_length_s = FOREVER_S
        config.commands.object_pose.resampling_time_range = (FOREVER_S, FOREVER_S)
        config.actions.arm_action.body_offset.pos = config.scene.ee_frame.target_frames[
            0
        ].offset.pos
        config.actions.gripper_action = mdp.JointPositionActionCfg(
            asset_name="robot", joint_names=["panda_finger.*"], scale=1.0, use_default_offset=False
        )
        config.scene.front = CameraCfg(
            prim_path="{ENV_REGEX_NS}/front",
            height=SIZE[0],
            width=SIZE[1],
            data_types=["rgb"],
            update_period=0.0,
            spawn=isaaclab.sim.PinholeCameraCfg(),
            offset=CameraCfg.OffsetCfg(
                pos=(1.6, 0.0, 0.7),
                rot=tuple(self._release.from_xyzw(VIEW).tolist()),
                convention="world",
            ),
        )
        self._release.launch(self._exit_stack, device, cameras=True, config=config)
        self.env: Any = gymnasium.make(task, cfg=config).unwrapped
        self._torch = torch
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)
        scene = self.env.scene
        self._robot, self._frame, self._object = scene["robot"], scene["ee_frame"], scene["object"]
        self._hand = self._robot.find_bodies("panda_hand")[0][0]
        self._goal = self._release.to_xyzw(
            _array(self.env.command_manager.get_command("object_pose"))
        )
        self._command = self.tcp_pose(), self.gripper_width()

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        pose, width = self._command = next_command(self._command, target_pose, gripper_width)
        finger = width / 2 if width > 1e-3 else SQUEEZED_M
        action = np.concatenate([pose[:3], self._release.from_xyzw(pose[3:]), [finger, finger]])
        self.env.step(
            self._torch.as_tensor(action[None], dtype=self._torch.float32, device=self.env.device)
        )

    def tcp_pose(self) -> np.ndarray:
        data = self._frame.data
        return self._release.to_xyzw(
            np.concatenate([_array(data.target_pos_source)[0], _array(data.target_quat_source)[0]])
        )

    def gripper_width(self) -> float:
        return float(max(_array(self._robot.data.joint_pos)[-2:].sum(), 0.0))

    def channels(self) -> dict[str, np.ndarray]:
        robot, object_ = self._robot.data, self._object.data
        position = _array(object_.root_pos_w) - _array(robot.root_pos_w)
        angular = _array(robot.body_link_ang_vel_w)[self._hand]
        from_hand = (
            _array(self._frame.data.target_pos_w)[0] - _array(robot.body_link_pos_w)[self._hand]
        )
        linear = _array(robot.body_link_lin_vel_w)[self._hand] + np.cross(angular, from_hand)
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": np.concatenate([linear, angular]),
            "joint_states": _array(robot.joint_pos)[:7],
            "gripper/state": np.array([self.gripper_width()]),
            "object_pose": self._release.to_xyzw(
                np.concatenate([position, _array(object_.root_quat_w)])
            ),
            "goal_pose": self._goal.copy(),
        }

    def succeeded(self) -> None:
        """Return None: Isaac Lab's lift task gives a reward and no verdict."""

    def close(self) -> None:
        """End the simulation."""
        self.env.close()
        self._exit_stack.close()

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        self.env.sim.render()
        front = self.env.scene["front"]
        front.update(0.0, force_recompute=True)
        picture = tensor(front.data.output["rgb"])[0].cpu().numpy()[..., :3]
        return resized(np.asarray(picture, np.uint8), height, width)


def _array(values: Any) -> np.ndarray:
    """Return the array of the only environment."""
    return tensor(values)[0].cpu().numpy().astype(float)
