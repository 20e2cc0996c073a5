"""A 1 kHz Cartesian impedance controller over Franka's protocol (FCI), in its own process.

libfranka's client holds Python's lock while it waits for the robot, and would starve other threads.
The owner sends commands over a ``multiprocessing`` connection and receives the state of every
second cycle.
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

STIFFNESS = np.array([1500.0] * 3 + [80.0] * 3)  # [N/m, Nm/rad]
DAMPING = np.array([110.0] * 3 + [6.0] * 3)
POSTURE_STIFFNESS, POSTURE_DAMPING = 10.0, 3.0
MAX_TORQUE_STEP = 0.9  # largest change of a torque in one cycle [Nm]; the robot allows 1
MAX_SPEED, MAX_ROTATION_SPEED = 0.5, 1.5  # largest speeds of the set-point [m/s, rad/s]
CYCLE_S, TIMEOUT_S = 0.001, 0.2  # after 0.2 s without a target, the arm holds its position
COLLISION_N, COLLISION_NM = 100.0, 80.0
FLANGE_M = 0.107  # from joint 7 to the flange
TOOL_M, TOOL_TURN = 0.1034, -np.pi / 4  # from the flange to between the fingers of the Franka hand
REPORT_CYCLES = 2  # cycles between two reports
JUMP_NM = 5.0  # jump of a torque that the robot refuses
JUMP, LATE = "controller_torque_discontinuity", "communication_constraints_violation"


class RobotState(NamedTuple):
    """The robot's state in one cycle. Arrays are lists; the frame O is the robot's base."""

    time_s: float
    q: list[float]
    pose: list[float]  # tool pose: xyz, quaternion wxyz
    twist: list[float]
    wrench: list[float]  # exerted by the robot on its surroundings
    mode: str  # libfranka's mode: Idle, Move, Reflex, ...
    errors: list[str]
    success_rate: float


def drive(connection: Connection, address: str) -> None:
    """Run the control loop until ``connection`` closes or the robot disappears."""
    import pylibfranka

    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # the owner has ended
        try:
            Loop(
                connection,
                pylibfranka,
                pylibfranka.Robot(address, pylibfranka.RealtimeConfig.kIgnore),
            ).run()
        # NetworkException and similar ones are RuntimeErrors
        except (pylibfranka.FrankaException, RuntimeError) as error:
            connection.send(f"{type(error).__name__}: {error}")


class Loop:
    """Moves the arm while it has no error. An error ends the motion; ``recover`` starts another."""

    def __init__(self, connection: Connection, library: Any, robot: Any) -> None:
        import mujoco

        self.connection, self.library, self.robot, self.mujoco = connection, library, robot, mujoco
        torques, forces = [COLLISION_NM] * 7, [COLLISION_N] * 6
        robot.set_collision_behavior(torques, torques, forces, forces)
        self.model = robot.load_model()
        self.flags = [name for name in dir(library.Errors) if not name.startswith("_")]
        self.jacobian, self.tool = np.zeros((6, 7)), np.eye(4)
        self.home = np.zeros(0)
        self.target: np.ndarray | None = None
        self.recovery_requested = False
        self.provoked = ""
        self.cycles = 0

    def run(self) -> None:
        while True:
            with contextlib.suppress(self.library.ControlException, self.library.CommandException):
                self._move()  # the next state holds the reason for the end or the refusal
            self._wait()

    def _move(self) -> None:
        """Run one motion until an error ends it."""
        control = self.robot.start_torque_control()
        state, _ = control.readOnce()
        self.target = None
        self.silent_s = 0.0
        self.provoked = ""
        torque = np.zeros(7)
        self._update(state)
        self.setpoint = self._pose()
        self.home = np.array(state.q) if not self.home.size else self.home
        while True:
            self._read_commands()
            commanded = self._torque(state)
            torque = torque + (
                np.clip(commanded - torque, -MAX_TORQUE_STEP, MAX_TORQUE_STEP)
                if self.provoked != JUMP
                else JUMP_NM
            )
            if self.provoked == LATE:
                time.sleep(0.1)
            self.provoked = ""
            control.writeOnce(self.library.Torques(torque.tolist()))
            state, _ = control.readOnce()
            self._update(state)

    def _wait(self) -> None:
        """Report the reason for the end of the motion until the owner asks for a recovery."""
        self.recovery_requested = False
        while not self.recovery_requested:
            state = self.robot.read_once()
            self._update(state)
            self._read_commands()
        with contextlib.suppress(self.library.CommandException):
            self.robot.automatic_error_recovery()

    def _read_commands(self) -> None:
        while self.connection.poll():
            command, value = self.connection.recv()
            if command == "target":
                self.target = np.array(value)
                self.silent_s = 0.0
            elif command == "recover":
                self.recovery_requested = True
            elif command == "provoke":
                self.provoked = value

    def _update(self, state: Any) -> None:
        """Store this cycle's tool frame and Jacobian, and report every second cycle.

        The library's Jacobian is that of the flange. The server's O_T_EE is that of joint 7.
        """
        joint7 = np.array(state.O_T_EE).reshape(4, 4).T
        jacobian = np.array(self.model.zero_jacobian(state)).reshape(7, 6).T
        self.tool = joint7 @ FROM_JOINT_7
        # from the flange to the tool, along joint 7's axis
        x, y, z = (joint7[:3, 2] * TOOL_M).tolist()
        self.jacobian[:3] = (
            jacobian[:3] - np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]]) @ jacobian[3:]
        )
        self.jacobian[3:] = jacobian[3:]
        self.speeds = np.array(state.dq)
        self.cycles += 1
        # never wait here: the robot does not
        if self.cycles % REPORT_CYCLES == 0 and select.select([], [self.connection], [], 0)[1]:
            errors = (
                state.current_errors
                if self._names(state.current_errors)
                else state.last_motion_errors
            )
            stopped = state.robot_mode != self.library.RobotMode.Move
            self.connection.send(
                RobotState(
                    self.cycles * CYCLE_S,
                    list(state.q),
                    self._pose().tolist(),
                    (self.jacobian @ self.speeds).tolist(),
                    list(state.O_F_ext_hat_K),
                    state.robot_mode.name,
                    self._names(errors) if stopped else [],
                    state.control_command_success_rate,
                )
            )

    def _names(self, errors: Any) -> list[str]:
        return [name for name in self.flags if getattr(errors, name)]

    def _pose(self) -> np.ndarray:
        quaternion = np.empty(4)
        self.mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(self.tool[:3, :3]).ravel())
        return np.concatenate([self.tool[:3, 3], quaternion])

    def _torque(self, state: Any) -> np.ndarray:
        """Return the joint torques (7,) [Nm].

        tau = J^T (K e - D v) + N^T posture + coriolis (Hogan 1985; Khatib 1987). libfranka
        compensates gravity.
        """
        self.silent_s += CYCLE_S
        pose = self._pose()
        if self.target is not None and self.silent_s <= TIMEOUT_S:
            self._follow(self.target)
        elif self.target is not None:
            self.target = None
            self.setpoint = pose
        error = np.empty(6)
        error[:3] = self.setpoint[:3] - pose[:3]
        self.mujoco.mju_subQuat(error[3:], self.setpoint[3:], pose[3:])
        error[3:] = self.tool[:3, :3] @ error[3:]
        jacobian, posture_error = self.jacobian, self.home - np.array(state.q)
        posture = POSTURE_STIFFNESS * posture_error - POSTURE_DAMPING * self.speeds
        posture -= jacobian.T @ np.linalg.solve(
            jacobian @ jacobian.T + 1e-4 * np.eye(6), jacobian @ posture
        )
        wrench = STIFFNESS * error - DAMPING * (jacobian @ self.speeds)
        return jacobian.T @ wrench + posture + np.array(self.model.coriolis(state))

    def _follow(self, target: np.ndarray) -> None:
        """Move the set-point towards ``target`` at no more than its largest speeds.

        A faster set-point would make the torque jump.
        """
        delta, turn = target[:3] - self.setpoint[:3], np.empty(3)
        self.mujoco.mju_subQuat(turn, target[3:], self.setpoint[3:])
        self.setpoint[:3] += delta * min(1.0, MAX_SPEED * CYCLE_S / max(math.hypot(*delta), 1e-9))
        self.mujoco.mju_quatIntegrate(
            self.setpoint[3:],
            turn,
            min(1.0, MAX_ROTATION_SPEED * CYCLE_S / max(math.hypot(*turn), 1e-9)),
        )


def _from_joint_7() -> np.ndarray:
    cos, sin = np.cos(TOOL_TURN), np.sin(TOOL_TURN)
    return np.array(
        [
            [cos, -sin, 0.0, 0.0],
            [sin, cos, 0.0, 0.0],
            [0.0, 0.0, 1.0, FLANGE_M + TOOL_M],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )


FROM_JOINT_7 = _from_joint_7()
