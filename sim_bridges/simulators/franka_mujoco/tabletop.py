"""Pandas at a table in MuJoCo, each under a Cartesian impedance controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim_bridges.core.mujoco import Scene

HOME = np.array([0.0, 0.35, 0.0, -2.10, 0.0, 2.45, 0.785])
# x points forward, as a Franka hand's does in its ready pose
TOOL_DOWN_XYZW = np.array([1.0, 0.0, 0.0, 0.0])
JOINTS = tuple(f"panda_joint{i}" for i in range(1, 8))
PEG_HALF_WIDTH_M = 0.0125
COMMAND_TIMEOUT_S = 0.2

STIFFNESS = np.array([1500.0] * 3 + [80.0] * 3)  # [N/m, Nm/rad]
DAMPING = np.array([110.0] * 3 + [6.0] * 3)
POSTURE_STIFFNESS, POSTURE_DAMPING = 10.0, 3.0
TORQUE_LIMIT = np.array([87.0] * 4 + [12.0] * 3)


class Arm:
    """The joints, tool and controller of one arm.

    Poses are in its base frame, which has the world's orientation.

    Args:
        model, data: MuJoCo's.
        prefix: prefix of the arm's names in the model.
        origin: position of its base in the world [m].
        cameras: the scene's cameras, from our name to the model's.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        prefix: str = "",
        origin: tuple[float, float, float] = (0.0, 0.0, 0.0),
        cameras: dict[str, str] | None = None,
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self.model = model
        self.data = data
        self.origin = np.array(origin)
        first = model.joint(f"{prefix}joint1")
        self._joints, self._dofs = (
            slice(start, start + 7) for start in (first.qposadr[0], first.dofadr[0])
        )
        motor = next(
            index for index in range(model.nu) if model.actuator_trnid[index, 0] == first.id
        )
        self._motors = slice(motor, motor + 7)
        addresses = (model.sensor(f"{prefix}{name}").adr[0] for name in ("force", "torque"))
        self._wrench_slices = [slice(address, address + 3) for address in addresses]
        self._tcp = model.site(f"{prefix}tcp").id
        self._full_jacobian = np.zeros((6, model.nv))
        self._jacobian = self._full_jacobian[:, self._dofs]
        self.scene = Scene(model, data, f"{prefix}tcp", origin=origin, cameras=cameras)

    def place(self, position: np.ndarray) -> None:
        """Put the tool at ``position`` (3,) in the base frame, pointing down, without motion."""
        self.data.qpos[self._joints] = self._inverse_kinematics(position + self.origin)

    def rest(self) -> None:
        """Hold the current pose from now on."""
        self._target = self.tcp_pose()
        self._silent_s = 0.0

    def set_target(self, target_pose: np.ndarray | None, tick_s: float) -> None:
        """Set the target of a tick.

        After 200 ms without a target the arm holds its pose, as the robot side's own timeout does.
        """
        self._silent_s = 0.0 if target_pose is not None else self._silent_s + tick_s
        if target_pose is not None:
            self._target = np.asarray(target_pose, dtype=float)
        elif self._silent_s >= COMMAND_TIMEOUT_S > self._silent_s - tick_s:
            self._target = self.tcp_pose()
        self._aim = self._target[:3] + self.origin, _wxyz(self._target[3:])

    def control(self, refresh_posture: bool) -> None:
        """Set the motor torques: tau = J^T (K e - D v) + N^T posture + bias.

        Hogan 1985; Khatib 1987.
        """
        data = self.data
        jacobian = self._jacobian
        position, rotation = self._aim
        speeds = data.qvel[self._dofs]
        self._mujoco.mj_jacSite(
            self.model, data, self._full_jacobian[:3], self._full_jacobian[3:], self._tcp
        )
        error = np.empty(6)
        error[:3] = position - data.site_xpos[self._tcp]
        error[3:] = self._rotation_error(rotation)
        if refresh_posture:
            inverse = np.linalg.solve(jacobian @ jacobian.T + 1e-4 * np.eye(6), jacobian)
            posture = (
                POSTURE_STIFFNESS * (HOME - data.qpos[self._joints]) - POSTURE_DAMPING * speeds
            )
            self._posture = posture - jacobian.T @ (inverse @ posture)
        torque = jacobian.T @ (STIFFNESS * error - DAMPING * (jacobian @ speeds))
        data.ctrl[self._motors] = np.clip(
            torque + self._posture + data.qfrc_bias[self._dofs], -TORQUE_LIMIT, TORQUE_LIMIT
        )

    def tcp_pose(self) -> np.ndarray:
        """Return the pose (7,) of the peg's tip, xyz and quaternion xyzw."""
        return self.scene.tool_pose()

    def channels(self) -> dict[str, np.ndarray]:
        """Return the arm's reported state."""
        data = self.data
        rotation = data.site_xmat[self._tcp].reshape(3, 3)
        twist = self._jacobian @ data.qvel[self._dofs]
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": twist,
            "wrench": np.concatenate(
                [-rotation @ data.sensordata[part] for part in self._wrench_slices]
            ),
            "joint_states": data.qpos[self._joints].copy(),
            "gripper/state": np.array([2 * PEG_HALF_WIDTH_M]),
        }

    def _rotation_error(self, rotation_wxyz: np.ndarray) -> np.ndarray:
        """Return the rotation vector from the measured to the target orientation (base frame)."""
        measured, error = np.empty(4), np.empty(3)
        self._mujoco.mju_mat2Quat(measured, self.data.site_xmat[self._tcp])
        self._mujoco.mju_subQuat(error, rotation_wxyz, measured)
        return self.data.site_xmat[self._tcp].reshape(3, 3) @ error

    def _inverse_kinematics(self, position: np.ndarray) -> np.ndarray:
        """Return joint angles near HOME with the tool at ``position`` in the world, pointing down.

        Damped least squares.
        """
        data, target, jacobian = self.data, _wxyz(TOOL_DOWN_XYZW), self._jacobian
        data.qpos[self._joints] = HOME
        for _ in range(50):
            self._mujoco.mj_kinematics(self.model, data)
            self._mujoco.mj_comPos(self.model, data)
            self._mujoco.mj_jacSite(
                self.model, data, self._full_jacobian[:3], self._full_jacobian[3:], self._tcp
            )
            error = np.concatenate(
                [position - data.site_xpos[self._tcp], self._rotation_error(target)]
            )
            if np.abs(error).max() < 1e-6:
                break
            gram = jacobian @ jacobian.T + 1e-6 * np.eye(6)
            data.qpos[self._joints] += jacobian.T @ np.linalg.solve(gram, error)
        return data.qpos[self._joints].copy()


def _wxyz(quaternion_xyzw: np.ndarray) -> np.ndarray:
    return np.asarray(quaternion_xyzw)[[3, 0, 1, 2]]


Origin = tuple[float, float, float]


class Tabletop:
    """Time, arms and pictures of a scene.

    Args:
        model: MuJoCo's model; ``compiled`` builds one.
        bases: position of each arm's base [m], by the prefix of its names in the model.
    """

    tick_s = 0.01
    cameras: tuple[str, ...] = ("front", "wrist", "video")
    joint_names = JOINTS

    def __init__(self, model: Any, bases: Mapping[str, Origin]) -> None:
        import mujoco

        self._mujoco = mujoco
        self.model = model
        self.data = mujoco.MjData(model)
        self._substeps = round(self.tick_s / model.opt.timestep)
        cameras = {name: name for name in self.cameras}
        self._arm_list = [
            Arm(model, self.data, prefix, origin, cameras) for prefix, origin in bases.items()
        ]
        self.scene = self._arm_list[0].scene  # for pictures, which show every arm

    def _clear(self) -> None:
        self._mujoco.mj_resetData(self.model, self.data)

    def _begin(self) -> None:
        """Start a scene: every arm holds its start pose."""
        self._mujoco.mj_forward(self.model, self.data)
        for arm in self._arm_list:
            arm.rest()

    def _tick(self, *targets: np.ndarray | None) -> None:
        for arm, target in zip(self._arm_list, targets, strict=True):
            arm.set_target(target, self.tick_s)
        for substep in range(self._substeps):
            self._mujoco.mj_step1(self.model, self.data)
            for arm in self._arm_list:
                arm.control(refresh_posture=substep == 0)
            self._mujoco.mj_step2(self.model, self.data)

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        self.scene.hidden = (3, 4, 5) if camera == "video" else (1, 2, 4, 5)
        return self.scene.render(camera, height, width)

    def vertical_fov(self, camera: str) -> float:
        """Return a camera's vertical field of view [rad]."""
        return self.scene.vertical_fov(camera)


class OneArm(Tabletop):
    """A scene of one arm that holds a peg.

    The TCP is the tip of the peg, and the table's top is z = 0.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, {"": (0.0, 0.0, 0.0)})
        self.arm = self._arm_list[0]

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Advance one tick. After 200 ms without a target the arm holds its pose."""
        self._tick(target_pose)

    def tcp_pose(self) -> np.ndarray:
        """Return the pose (7,) of the peg's tip, xyz and quaternion xyzw."""
        return self.arm.tcp_pose()

    def gripper_width(self) -> float:
        """Return the peg's width [m]."""
        return 2 * PEG_HALF_WIDTH_M


def compile_model(mjcf: str) -> Any:
    """Return MuJoCo's model of a scene."""
    import mujoco

    return mujoco.MjModel.from_xml_string(mjcf)
