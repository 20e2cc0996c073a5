"""The state of a Universal Robots arm's twin, without ROS: modes, program, joints, tool pose."""

from __future__ import annotations

import math

import numpy as np

# values of SafetyMode
NORMAL, REDUCED, PROTECTIVE, SAFEGUARD, SYSTEM_ESTOP, ROBOT_ESTOP = 1, 2, 3, 5, 6, 7
POWER_OFF, IDLE, RUNNING = 3, 5, 7  # values of RobotMode
PROTECTIVE_STOP = "protective_stop"
SAFEGUARD_STOP = "safeguard_stop"
ESTOP = "robot_emergency_stop"
PROGRAM = "program_stopped"
SILENT = "silent"
FROZEN = "frozen"
SLOWED = "slowed"
INJECTIONS = ("", PROTECTIVE_STOP, SAFEGUARD_STOP, ESTOP, PROGRAM, SILENT, FROZEN, SLOWED)
SLOW = 20.0  # speed slider [%]
HOME = (0.0, -1.57, 1.57, -1.57, -1.57, 0.0)
MAX_SPEED, TAU_S = 3.14, 0.02  # largest joint speed [rad/s]; time constant of the joints' lag [s]
# Denavit-Hartenberg parameters of a UR5e (universal-robots.com): a [m], d [m], alpha [rad], one row
# per joint
UR5E = (
    (0.0, 0.1625, math.pi / 2),
    (-0.425, 0.0, 0.0),
    (-0.3922, 0.0, 0.0),
    (0.0, 0.1333, math.pi / 2),
    (0.0, 0.0997, -math.pi / 2),
    (0.0, 0.0996, 0.0),
)


def tool_pose(joints: np.ndarray) -> np.ndarray:
    """Return the pose (7,) of tool0 in the frame ``base`` for the joints (6,) [rad].

    The pose is xyz [m] and quaternion xyzw.
    """
    transform = np.eye(4)
    for angle, (a, d, alpha) in zip(joints, UR5E, strict=True):
        c, s, ca, sa = math.cos(angle), math.sin(angle), math.cos(alpha), math.sin(alpha)
        transform = transform @ np.array(
            [
                [c, -s * ca, s * sa, a * c],
                [s, c * ca, -c * sa, a * s],
                [0.0, sa, ca, d],
                [0.0, 0.0, 0.0, 1.0],
            ]
        )
    return np.concatenate([transform[:3, 3], quaternion(transform[:3, :3])])


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """Return the quaternion (4,) xyzw of a rotation matrix (3, 3).

    It is the eigenvector of Bar-Itzhack's symmetric matrix, which has no singular case.
    """
    m = rotation
    k = np.array(
        [
            [m[0, 0] - m[1, 1] - m[2, 2], 0.0, 0.0, 0.0],
            [m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], 0.0, 0.0],
            [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1], 0.0],
            [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], np.trace(m)],
        ]
    )
    return np.asarray(np.linalg.eigh(k / 3.0)[1][:, -1])  # eigh reads the lower triangle


def joints_at(pose: np.ndarray, joints: np.ndarray, steps: int = 4) -> np.ndarray:
    """Return joints (6,) [rad] near ``joints`` for the pose (7,) of tool0.

    Damped least squares (Nakamura 1986).
    """
    joints = np.array(joints, dtype=float)
    for _ in range(steps):
        tool = tool_pose(joints)
        error = np.concatenate([pose[:3] - tool[:3], _rotation_vector(pose[3:], tool[3:])])
        if np.abs(error).max() < 1e-5:
            break
        jacobian = np.stack(
            [_jacobian_column(joints, tool, axis) for axis in range(len(joints))], axis=1
        )
        joints += jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 1e-5 * np.eye(6), error)
    return joints


def _jacobian_column(
    joints: np.ndarray, tool: np.ndarray, axis: int, step: float = 1e-5
) -> np.ndarray:
    """Return the tool's motion (6,) per unit of one joint, by a finite difference."""
    moved_joints = joints.copy()
    moved_joints[axis] += step
    after = tool_pose(moved_joints)
    return np.concatenate([after[:3] - tool[:3], _rotation_vector(after[3:], tool[3:])]) / step


def _rotation_vector(to: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the rotation vector (3,) [rad] from ``start`` to ``to`` (xyzw), in the base frame."""
    x, y, z, w = to
    sx, sy, sz, sw = -start[0], -start[1], -start[2], start[3]
    vector = np.array(
        [
            w * sx + x * sw + y * sz - z * sy,
            w * sy - x * sz + y * sw + z * sx,
            w * sz + x * sy - y * sx + z * sw,
        ]
    )
    real = w * sw - x * sx - y * sy - z * sz
    length = float(np.linalg.norm(vector))
    angle = 2.0 * math.atan2(length, abs(real))
    return vector * (math.copysign(angle, real) / length if length > 1e-12 else 0.0)


class Control:
    """The robot and its driver. ``inject`` sets a fault; the dashboard's own steps clear it.

    Args:
        locked_s: time for which a protective stop cannot be unlocked [s].
    """

    def __init__(self, locked_s: float = 5.0) -> None:
        self.locked_s = locked_s
        self.safety = NORMAL
        self.robot = RUNNING
        self.program = True
        self.injected = ""
        self.fault_at = 0.0
        self.joints = np.array(HOME)
        self.place(self.joints)

    @property
    def follows(self) -> bool:
        """Whether a controller moves the arm."""
        return (
            self.safety in (NORMAL, REDUCED)
            and self.robot == RUNNING
            and self.program
            and self.injected != FROZEN
        )

    @property
    def scaling(self) -> float:
        """Return the value of speed_scaling [%]."""
        if self.follows and self.injected == SLOWED:
            return SLOW
        return 100.0 if self.follows or self.injected == FROZEN else 0.0

    def inject(self, fault: str, now: float) -> None:
        """Set a fault, one of INJECTIONS.

        An empty one releases the safeguard or e-stop that a person held. It unlocks and starts
        nothing.
        """
        if self.injected == FROZEN and fault != FROZEN:
            self.program = False  # the program ended when nobody answered it
        self.injected, self.fault_at = fault, now
        if fault == PROTECTIVE_STOP:
            self.safety = PROTECTIVE
            self.program = False
        elif fault == SAFEGUARD_STOP:
            self.safety = SAFEGUARD
        elif fault == ESTOP:
            self.safety = ROBOT_ESTOP
            self.robot = POWER_OFF
            self.program = False
        elif fault == PROGRAM:
            self.program = False
        elif not fault and self.safety in (SAFEGUARD, ROBOT_ESTOP):
            self.safety = NORMAL  # after an e-stop the power stays off

    def unlock(self, now: float) -> str:
        """Unlock a protective stop; return the reason for a refusal, or an empty string."""
        if self.safety != PROTECTIVE:
            return ""
        if now - self.fault_at < self.locked_s:
            return f"Cannot unlock protective stop until {self.locked_s:g}s after occurrence"
        self.safety = NORMAL
        return ""

    def power(self, mode: int) -> str:
        """Set the robot mode at the pendant: power on, then release the brakes."""
        if self.safety not in (NORMAL, REDUCED):
            return "not in this safety mode"
        self.robot = mode
        return ""

    def start(self) -> str:
        """Start the robot's program, with External Control."""
        if self.safety not in (NORMAL, REDUCED) or self.robot != RUNNING:
            return "the robot does not run"
        if not self.program:
            self.program = True
            self.place(self.joints)  # the controllers hold the current position
        return ""

    def command(self, times: list[float], points: np.ndarray) -> None:
        """Accept a trajectory while a controller is active.

        If the first point is later than now, the trajectory begins at the arm's position, as in
        ros2_controllers' ``Trajectory::sample``.

        Args:
            times: the points' times (n,) [s].
            points: joint positions (n, 6) [rad].
        """
        if self.follows:
            first_knot = [] if times[0] <= 0.0 else [(0.0, self.joints)]
            knots = [*first_knot, *zip(times, points, strict=True)]
            self.times = [time for time, _ in knots]
            self.points = np.stack([point for _, point in knots])
            self.time_on_path_s = 0.0

    def place(self, joints: np.ndarray) -> None:
        """Put the joints (6,) [rad] there at once, without motion."""
        self.joints = joints.copy()
        self.times = [0.0]
        self.points = joints.copy()[None]
        self.time_on_path_s = 0.0

    def advance(self, seconds: float) -> None:
        """Move each joint towards the trajectory, within its largest speed.

        The speed slider slows the trajectory down.
        """
        if self.follows:
            self.time_on_path_s += seconds * self.scaling / 100.0
            target = np.array(
                [
                    np.interp(self.time_on_path_s, self.times, joint_path)
                    for joint_path in self.points.T
                ]
            )
            delta = (target - self.joints) * min(1.0, seconds / TAU_S)
            self.joints = self.joints + np.clip(delta, -MAX_SPEED * seconds, MAX_SPEED * seconds)
