"""Moves an arm's tool to a pose: inverse kinematics, and computed torque on the joints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

STIFFNESS, DAMPING = 900.0, 60.0  # feedback of the joints' error [1/s^2, 1/s], critically damped
STEPS = 12  # largest number of inverse kinematics' steps in a tick
STEP_RAD = 0.2  # largest change of a joint in one step
DAMPED = 0.002  # damping of the least squares (Nakamura and Hanafusa, 1986) [m]
TURN_M = 0.3  # length that a radian of the tool's turn counts as
SLIM_TURN_M = 0.01  # the same for arms with fewer than six joints
POSTURE = 0.05  # share of the path back to the home posture per step, if the arm has a spare joint
NEAR_M, NEAR_RAD = 1e-5, 1e-4
NEAR_FRICTION = 1e-3  # error of a joint beyond which dry friction is compensated


class Joints:
    """The joints of an arm in a model.

    Args:
        model: MuJoCo's model.
        names: the joints, from base to tool.
        tool: name of the tool's site.
        home: the posture to which spare joints return (J,) [rad or m].
    """

    def __init__(self, model: Any, names: Sequence[str], tool: str, home: np.ndarray) -> None:
        import mujoco

        self._mujoco, self.model, self.home = mujoco, model, home
        indices = [model.joint(name).id for name in names]
        self.positions = np.array([model.jnt_qposadr[index] for index in indices])
        self.speeds = np.array([model.jnt_dofadr[index] for index in indices])
        ranges = [
            model.jnt_range[index] if model.jnt_limited[index] else (-np.inf, np.inf)
            for index in indices
        ]
        self.low, self.high = np.array(ranges).T
        self.force = np.array([_force(mujoco, model, index) for index in indices])
        self.tool = model.site(tool).id
        self.turn_m = TURN_M if len(names) >= 6 else SLIM_TURN_M
        self._scratch = mujoco.MjData(model)
        self._jacobian = np.zeros((6, model.nv))
        self._mass = np.zeros((model.nv, model.nv))

    def solve(
        self,
        data: Any,
        joints: np.ndarray,
        position: np.ndarray,
        rotation: np.ndarray,
        steps: int = STEPS,
    ) -> np.ndarray:
        """Return joints (J,) with the tool at a pose in the world, by the Jacobian's least squares.

        An arm of fewer than six joints reaches the position and turns the tool as little as it can.

        Args:
            data: holds the positions of the model's other joints.
            joints: first guess (J,).
            position: (3,) [m].
            rotation: quaternion wxyz.
            steps: largest number of steps.
        """
        scratch = self._scratch
        scratch.qpos[:], scratch.mocap_pos[:] = data.qpos, data.mocap_pos
        joints = joints.copy()
        for _ in range(steps):
            scratch.qpos[self.positions] = joints
            self._mujoco.mj_kinematics(self.model, scratch)
            self._mujoco.mj_comPos(self.model, scratch)
            error = self.error(scratch, position, rotation)
            step = self._step(scratch, error, joints)
            if np.abs(error[:3]).max() < NEAR_M and np.abs(error[3:]).max() < NEAR_RAD:
                break
            joints = np.clip(joints + step, self.low, self.high)
            if np.abs(step).max() < 1e-6:
                break
        return joints

    def error(self, data: Any, position: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        """Return the error (6,) from the tool to a pose, in the world's axes [m, rad]."""
        measured, turn, error = np.empty(4), np.empty(3), np.empty(6)
        matrix = data.site_xmat[self.tool]
        self._mujoco.mju_mat2Quat(measured, matrix)
        self._mujoco.mju_subQuat(turn, rotation, measured)
        error[:3], error[3:] = position - data.site_xpos[self.tool], matrix.reshape(3, 3) @ turn
        return error

    def _step(self, data: Any, error: np.ndarray, joints: np.ndarray) -> np.ndarray:
        full = self._jacobian
        self._mujoco.mj_jacSite(self.model, data, full[:3], full[3:], self.tool)
        jacobian, free = full[:, self.speeds].copy(), np.ones(len(joints))
        for _ in range(3):
            step = self._least_squares(jacobian * free, error, joints, free)
            step *= min(1.0, STEP_RAD / max(float(np.abs(step).max()), 1e-12))
            blocked = (joints + step > self.high) & (joints >= self.high - 1e-9) | (
                joints + step < self.low
            ) & (joints <= self.low + 1e-9)
            if not (blocked & (free > 0)).any():
                break
            free[blocked] = 0.0  # a joint at its limit leaves the motion to the others
        return step

    def _least_squares(
        self, jacobian: np.ndarray, error: np.ndarray, joints: np.ndarray, free: np.ndarray
    ) -> np.ndarray:
        """Return a damped least-squares step; spare joints go home.

        The tool's turn is weighted to a length.
        """
        weights = np.array([1.0] * 3 + [self.turn_m] * 3)
        weighted = jacobian * weights[:, None]
        inverse = weighted.T @ np.linalg.inv(weighted @ weighted.T + DAMPED**2 * np.eye(6))
        step = inverse @ (weights * error)
        if len(joints) <= 6:
            return step
        return step + (np.diag(free) - inverse @ weighted) @ (POSTURE * (self.home - joints))

    def torque(self, data: Any, target: np.ndarray) -> np.ndarray:
        """Return the generalised forces (J,) that bring the joints to a target.

        Computed torque (Craig, 2005).
        """
        self._mujoco.mj_fullM(self.model, self._mass, data.qM)
        error = target - data.qpos[self.positions]
        acceleration = STIFFNESS * error - DAMPING * data.qvel[self.speeds]
        mass = self._mass[np.ix_(self.speeds, self.speeds)]
        force = mass @ acceleration + data.qfrc_bias[self.speeds] - data.qfrc_passive[self.speeds]
        force += self.model.dof_frictionloss[self.speeds] * np.tanh(error / NEAR_FRICTION)
        return np.clip(force, -self.force, self.force)


def _force(mujoco: Any, model: Any, joint: int) -> float:
    """Return the largest force of a joint [Nm or N], by its own range or its actuator's.

    It is infinite if neither has a limit.
    """
    largest = (
        float(np.abs(model.jnt_actfrcrange[joint]).max())
        if model.jnt_actfrclimited[joint]
        else np.inf
    )
    for index in range(model.nu):
        if (
            int(model.actuator_trntype[index]) != int(mujoco.mjtTrn.mjTRN_JOINT)
            or model.actuator_trnid[index, 0] != joint
        ):
            continue
        gear = abs(float(model.actuator_gear[index, 0]))
        if model.actuator_forcelimited[index]:
            largest = min(largest, gear * float(np.abs(model.actuator_forcerange[index]).max()))
        elif model.actuator_ctrllimited[index] and int(model.actuator_biastype[index]) == int(
            mujoco.mjtBias.mjBIAS_NONE
        ):
            gain = abs(float(model.actuator_gainprm[index, 0]))
            largest = min(
                largest, gear * gain * float(np.abs(model.actuator_ctrlrange[index]).max())
            )
    return largest if largest > 0 else np.inf
