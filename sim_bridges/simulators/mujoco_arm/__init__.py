"""Any arm's MJCF or URDF in MuJoCo, moved by tool poses. ``rlinf new robot`` writes its YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlinf_core.config.base import FileFromFolder, Positive
from rlinf_core.core.errors import RlinfError
from sim_bridges.core.adapters import unrotated_pose
from sim_bridges.core.mujoco import Scene
from sim_bridges.simulators.mujoco_arm.anatomy import Anatomy, find_arm, name_parts
from sim_bridges.simulators.mujoco_arm.control import Joints
from sim_bridges.simulators.mujoco_arm.loading import compile_model, load
from sim_bridges.simulators.mujoco_arm.scene import (
    GOAL,
    TOOL,
    add_drives,
    add_surroundings,
    add_tool,
)

PACKAGE, INSTALL = "mujoco", "make setup"
Vector3 = tuple[float, float, float]
COMMAND_TIMEOUT_S = 0.2
SETTLE_S = 1.0


class Simulator:
    """See ``sim_bridges.core.interface.Simulator``.

    The base frame is at the arm's base and has the model's axes.

    Args:
        model: MJCF or URDF with one arm on a fixed base, relative to robot.yaml
        joints: joints of the arm from base to tool. Empty finds them in the model
        tool: site or body of the tool's frame. Empty finds it
        tool_offset: position of the tool in that frame [m]
        home: joint positions at an episode's start [rad or m]. Empty takes the model's keyframe
        gripper: actuators of the gripper, or its joints in a model without actuators. Empty is no
            gripper
        gripper_open: command of each actuator for an open gripper, in the actuator's unit
        gripper_closed: command of each actuator for a closed gripper
        gripper_travel: transmission length of the first actuator, closed and open [rad or m]
        gripper_width: distance between the open fingers [m]
        goal_low: smallest x, y and z of a goal [m]
        goal_high: largest x, y and z of a goal [m]
        start_range_m: largest distance of the start from `home` on each axis [m]
        radius_m: radius of the goal [m]
    """

    tick_s = 0.05

    def __init__(
        self,
        model: FileFromFolder,
        joints: tuple[str, ...] = (),
        tool: str = "",
        tool_offset: Vector3 = (0.0, 0.0, 0.0),
        home: tuple[float, ...] = (),
        gripper: tuple[str, ...] = (),
        gripper_open: tuple[float, ...] = (),
        gripper_closed: tuple[float, ...] = (),
        gripper_travel: tuple[float, float] = (0.0, 1.0),
        gripper_width: Positive = 0.08,
        goal_low: Vector3 = (-0.1, -0.1, -0.1),
        goal_high: Vector3 = (0.1, 0.1, 0.1),
        start_range_m: Annotated[float, Field(ge=0, lt=1)] = 0.02,
        radius_m: Positive = 0.02,
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self.path = Path(model)
        source = load(self.path)
        self.notes = source.notes
        name_parts(source.spec)
        bare = compile_model(source)
        self.anatomy: Anatomy = find_arm(source, bare, joints, tool)
        self.joint_names = self.anatomy.joints
        # home of all joints, including those of the gripper
        self._rest = (bare.key_qpos[0] if bare.nkey else bare.qpos0).copy()
        self.home = self._home(bare, home)
        self.goal_low, self.goal_high = np.array(goal_low), np.array(goal_high)
        self.start_range_m, self.radius_m = start_range_m, radius_m
        self.gripper, self.gripper_travel, self.width_m = gripper, gripper_travel, gripper_width
        self.gripper_open, self.gripper_closed = np.array(gripper_open), np.array(gripper_closed)
        if not len(gripper) == len(gripper_open) == len(gripper_closed):
            raise RlinfError(
                "gripper: expected as many values of gripper_open and gripper_closed as drives, "
                f"{len(gripper)}, got {len(gripper_open)} and {len(gripper_closed)}. Correct "
                "options in robot.yaml"
            )
        add_tool(source, bare, self.anatomy, tool_offset)
        add_drives(source, bare, gripper)
        self.cameras = add_surroundings(
            source, bare, self.anatomy, self.home, (goal_low, goal_high), radius_m
        )
        self.model = compile_model(source)
        self.data = mujoco.MjData(self.model)
        self.arm = Joints(self.model, self.joint_names, TOOL, self.home)
        self._disable_arm_actuators()
        still = self.anatomy.hand + self.anatomy.ignored + (() if gripper else self.anatomy.fingers)
        self._still = [self.model.joint(name).qposadr[0] for name in still]
        self._still_speeds = [self.model.joint(name).dofadr[0] for name in still]
        self._substeps = max(1, round(self.tick_s / self.model.opt.timestep))
        self.model.opt.timestep = self.tick_s / self._substeps
        self._clear()
        self.scene = Scene(
            self.model,
            self.data,
            TOOL,
            tuple(self.data.body(self.anatomy.base).xpos),
            cameras={name: name for name in self.cameras},
        )
        self._goal = self.model.body(GOAL).mocapid[0]
        self._drives = [self.model.actuator(name).id for name in self._drive_names()]
        self.reset(0)

    def _home(self, model: Any, home: tuple[float, ...]) -> np.ndarray:
        if home and len(home) != len(self.joint_names):
            raise RlinfError(
                f"home: expected {len(self.joint_names)} angles, of "
                f"{', '.join(self.joint_names)}, got {len(home)}. Correct options.home in "
                "robot.yaml"
            )
        if home:
            return np.array(home)
        return np.array([self._rest[model.joint(name).qposadr[0]] for name in self.joint_names])

    def _drive_names(self) -> tuple[str, ...]:
        """Return the actuators that move the gripper."""
        names = [self.model.actuator(index).name for index in range(self.model.nu)]
        if lacking := [name for name in self.gripper if name not in names]:
            raise RlinfError(
                f"{self.path}: gripper: expected actuators of the model or joints of a gripper, "
                f"got '{lacking[0]}'. It has {', '.join(names) or 'none'}. Correct "
                "options.gripper in robot.yaml"
            )
        return self.gripper

    def _disable_arm_actuators(self) -> None:
        """Disable the model's own servos or motors; the controller's torques replace them."""
        joints = {self.model.joint(name).id for name in self.joint_names}
        transmission = int(self._mujoco.mjtTrn.mjTRN_JOINT)
        for index in range(self.model.nu):
            if (
                int(self.model.actuator_trntype[index]) == transmission
                and self.model.actuator_trnid[index, 0] in joints
            ):
                self.model.actuator_gainprm[index] = self.model.actuator_biasprm[index] = 0.0

    def reset(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._clear()
        goal = random.uniform(self.goal_low, self.goal_high)
        self.data.mocap_pos[self._goal] = self.scene.to_world(goal)
        start = random.uniform(-self.start_range_m, self.start_range_m, 3)
        self.place(start)
        self._set_gripper(self.width_m)
        self._silent_s = 0.0
        for _ in range(round(SETTLE_S / self.tick_s) if self.gripper else 0):
            self._step()
        self._mujoco.mj_forward(self.model, self.data)

    def _clear(self) -> None:
        self._mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = self._rest
        self._mujoco.mj_kinematics(self.model, self.data)

    def place(self, offset: np.ndarray) -> None:
        """Put the joints at ``home``, with the tool moved by ``offset`` (3,) [m]."""
        self.data.qpos[self.arm.positions] = self.home
        self._mujoco.mj_kinematics(self.model, self.data)
        position, rotation = self._tool()
        joints = self.arm.solve(self.data, self.home, position + offset, rotation, steps=40)
        self.data.qpos[self.arm.positions] = self._joints = joints
        self._mujoco.mj_forward(self.model, self.data)
        self._aim = self._tool()

    def _tool(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the tool's position (3,) and quaternion wxyz in the world."""
        rotation = np.empty(4)
        self._mujoco.mju_mat2Quat(rotation, self.data.site_xmat[self.arm.tool])
        return self.data.site_xpos[self.arm.tool].copy(), rotation

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Advance one tick. After 200 ms without a target the arm holds its pose."""
        self._silent_s = 0.0 if target_pose is not None else self._silent_s + self.tick_s
        if target_pose is not None:
            target = np.asarray(target_pose, dtype=float)
            self._aim = self.scene.to_world(target[:3]), target[[6, 3, 4, 5]]
        elif self._silent_s >= COMMAND_TIMEOUT_S > self._silent_s - self.tick_s:
            self._aim, self._joints = self._tool(), self.data.qpos[self.arm.positions].copy()
        if gripper_width is not None:
            self._set_gripper(gripper_width)
        self._joints = self.arm.solve(self.data, self._joints, *self._aim)
        self._step()

    def _step(self) -> None:
        """Advance one tick of physics."""
        for _ in range(self._substeps):
            self.data.qpos[self._still] = self._rest[self._still]  # joints that nothing here moves
            self.data.qvel[self._still_speeds] = 0.0
            self._mujoco.mj_step1(self.model, self.data)
            self.data.qfrc_applied[self.arm.speeds] = self.arm.torque(self.data, self._joints)
            self._mujoco.mj_step2(self.model, self.data)

    def _set_gripper(self, width: float) -> None:
        share = min(max(width / self.width_m, 0.0), 1.0)
        self.data.ctrl[self._drives] = self.gripper_closed + share * (
            self.gripper_open - self.gripper_closed
        )

    def gripper_width(self) -> float | None:
        if not self.gripper:
            return None
        closed, opened = self.gripper_travel
        share = (self.data.actuator_length[self._drives[0]] - closed) / (opened - closed)
        return float(min(max(share, 0.0), 1.0) * self.width_m)

    def tcp_pose(self) -> np.ndarray:
        return self.scene.tool_pose()

    def channels(self) -> dict[str, np.ndarray]:
        goal = unrotated_pose(self.scene.to_base(self.data.mocap_pos[self._goal]))
        channels = {
            "current_pose": self.tcp_pose(),
            "current_twist": self.scene.tool_twist(),
            "joint_states": self.data.qpos[self.arm.positions].copy(),
            "goal_pose": goal,
            "task/success": np.array([float(self.succeeded())]),
        }
        if self.gripper:
            channels["gripper/state"] = np.array([self.gripper_width()])
        return channels

    def succeeded(self) -> bool:
        """Return whether the tool is at the goal."""
        away = self.data.site_xpos[self.arm.tool] - self.data.mocap_pos[self._goal]
        return bool(np.linalg.norm(away) < self.radius_m)

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        return self.scene.render(camera, height, width)

    def vertical_fov(self, camera: str) -> float:
        """Return a camera's vertical field of view [rad]."""
        return self.scene.vertical_fov(camera)

    def close(self) -> None:
        self.scene.close()
