"""The arm of a Franka's twin behind Franka's own protocol (FCI).

libfranka's client talks to franka-sim's robot. franka-sim (Barış Yazıcı,
https://github.com/BarisYazici/libfranka-sim, Apache-2.0) answers libfranka's clients around MuJoCo
as an FR3 of server version 10 does, with the robot's modes, errors and recovery. It needs another
NumPy than ours and so has its own environment. It runs in real time only, because only the robot
advances its clock. A machine can run one of them, because its port is fixed.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.signals import end_with_parent
from sim_bridges.twins.fci_loop import JUMP, LATE, RobotState, drive

PACKAGE, INSTALL = "franka_sim", "make fci"
PORT = 1337
START_TIMEOUT_S, STATE_TIMEOUT_S, RECOVERY_TIMEOUT_S = 60.0, 5.0, 2.0
ARMATURE = 0.1  # joint armature [kg m2]: the rotors' inertia, absent from the URDF
START = np.array([0.5, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])  # start pose of the tool, pointing down
MOTION_TIMEOUT_S, NEAR_M = 15.0, 0.005
# indices that reorder a pose's quaternion
XYZW, WXYZ = [0, 1, 2, 4, 5, 6, 3], [0, 1, 2, 6, 3, 4, 5]
GRIPPER_M, SOCKET_RANGE_M, RIM_M = 0.08, 0.06, 0.05  # the hand stays open; the socket is the demo's


class Simulator:
    """An arm in free space, with the pose of an imaginary socket.

    It implements ``Simulator`` and ``HasFaults`` of ``sim_bridges.core.interface``.

    Args:
        enforce_motion_limits: stop the arm when a command exceeds the FCI's limits of torque, speed
            or position, as the robot does.
        enforce_communication: stop the arm after 20 late answers in a row. This needs a machine
            that can keep up 1 kHz.
    """

    tick_s = 0.01
    cameras: tuple[str, ...] = ()
    joint_names = tuple(f"fr3_joint{number}" for number in range(1, 8))

    def __init__(
        self, enforce_motion_limits: bool = True, enforce_communication: bool = False
    ) -> None:
        import franka_sim  # noqa: F401  (fails here if the package is missing)
        import pylibfranka  # noqa: F401

        self._enforced = {JUMP: enforce_motion_limits, LATE: enforce_communication}
        self._folder = tempfile.TemporaryDirectory(prefix="rlinf-fci-")
        self._server = self._start()
        self._connection, child_connection = multiprocessing.Pipe()
        self._loop = multiprocessing.get_context("spawn").Process(
            target=drive, args=(child_connection, "127.0.0.1"), daemon=True
        )
        self._loop.start()
        child_connection.close()
        self._state = self._receive(START_TIMEOUT_S)
        self._due_s = self._state.time_s
        self._move_to(START)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Move the socket to another place. The arm stays where it is, as a real one does."""
        shift = np.random.default_rng(seed).uniform(-SOCKET_RANGE_M, SOCKET_RANGE_M, 2)
        self._object = np.array([0.5 + shift[0], shift[1], RIM_M, 0.0, 0.0, 0.0, 1.0])

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Advance until one tick of the robot's time has passed since the last call."""
        if target_pose is not None:
            self._send("target", np.asarray(target_pose, float)[WXYZ].tolist())
        self._due_s += self.tick_s
        while self._state.time_s < self._due_s or self._connection.poll():
            self._state = self._receive(STATE_TIMEOUT_S)
        self._due_s = max(self._due_s, self._state.time_s - self.tick_s)

    def tcp_pose(self) -> np.ndarray:
        return np.array(self._state.pose)[XYZW]

    def gripper_width(self) -> float:
        """Return the twin's fixed gripper width [m]; nothing is between the fingers."""
        return GRIPPER_M

    def channels(self) -> dict[str, np.ndarray]:
        state = self._state
        return {
            "current_pose": self.tcp_pose(),
            "current_twist": np.array(state.twist),
            "wrench": -np.array(state.wrench),
            "joint_states": np.array(state.q),
            "gripper/state": np.array([GRIPPER_M]),
            "object_pose": self._object.copy(),
        }

    def succeeded(self) -> None:
        """Return None: this simulator has no task of its own."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        raise RlinfError(
            f"camera '{camera}': expected no camera, since franka-sim renders no pictures"
        )

    # Faults
    @property
    def faults(self) -> tuple[str, ...]:
        """The robot's errors, by libfranka's names; empty while it moves."""
        return tuple(self._state.errors)

    def provoke(self, fault: str) -> bool:
        """Cause an error of the robot itself; return False if commands cannot cause this one."""
        if self._enforced.get(fault):
            self._send("provoke", fault)
        return self._enforced.get(fault, False)

    def recover(self) -> bool:
        """Run libfranka's automaticErrorRecovery and start a motion; return its success."""
        if self._state.mode != "Move":
            self._send("recover", None)
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while self._state.mode != "Move" and time.monotonic() < deadline:
            self._state = self._receive(STATE_TIMEOUT_S)
        return self._state.mode == "Move"

    def close(self) -> None:
        """End the simulator's processes."""
        self._loop.kill()
        self._server.kill()
        self._server.wait()

    # Processes
    def _start(self) -> subprocess.Popen[bytes]:
        """Start franka-sim's server and return it once it answers.

        Raises:
            RlinfError: the port is taken, or the server does not answer; the message holds its
                output.
        """
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", PORT))
            except OSError as error:
                raise RlinfError(
                    f"franka-sim: expected port {PORT} of this machine to be free, the port of "
                    f"the robot: {error}. Stop the other station with this twin",
                    code="RL-E205",
                ) from error
        (model := Path(self._folder.name) / "fr3.xml").write_text(_model())
        log = Path(self._folder.name) / "franka_sim.log"
        options = [
            f"--{'' if on else 'no-'}enforce-{process_name}"
            for process_name, on in (
                ("motion-limits", self._enforced[JUMP]),
                ("comm-constraints", self._enforced[LATE]),
            )
        ]
        with log.open("wb") as file:
            server = subprocess.Popen(
                [sys.executable, "-m", "franka_sim.run_server", "--no-gripper", *options],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"FR3_MJCF": str(model)},
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _server_answers():
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise RlinfError(
                    f"franka-sim: its server did not answer; it printed:\n{log.read_text()[-2000:]}"
                )
            time.sleep(0.1)
        self._folder.cleanup()  # the server has read its model; nobody reads its later output
        return server

    def _move_to(self, pose: np.ndarray) -> None:
        deadline = time.monotonic() + MOTION_TIMEOUT_S
        while np.linalg.norm(np.array(self._state.pose[:3]) - pose[:3]) > NEAR_M:
            if time.monotonic() > deadline:
                raise RlinfError(
                    f"franka-sim: expected the tool at {pose[:3]} m after "
                    f"{MOTION_TIMEOUT_S:.0f} s, got {np.round(self._state.pose[:3], 3)}. Its "
                    "machine is too busy for a robot's 1 kHz"
                )
            self.advance(pose)

    def _send(self, command: str, value: Any) -> None:
        try:
            self._connection.send((command, value))
        except OSError as error:
            raise RlinfError(f"franka-sim: its client has ended: {error}") from error

    def _receive(self, timeout_s: float) -> RobotState:
        try:
            answer = (
                self._connection.recv()
                if self._connection.poll(timeout_s)
                else f"no state for {timeout_s:.0f} s"
            )
        except (EOFError, OSError):
            answer = "its client has ended"
        if isinstance(answer, str):
            raise RlinfError(f"franka-sim: {answer}")
        return answer


def _server_answers() -> bool:
    from franka_sim.health_check import HealthCheckError, check_server

    try:
        check_server("127.0.0.1", PORT, timeout=2.0)
    except (HealthCheckError, OSError):
        return False
    return True


def _model() -> str:
    """Return the FR3's MJCF from franka-sim's URDF: kinematics, masses and friction.

    The meshes are dropped, because MuJoCo would try to fetch them.
    """
    import franka_sim
    import mujoco

    robot = xml.parse(Path(franka_sim.__file__).parent / "models" / "fr3.urdf").getroot()
    for link in robot.iter("link"):
        for shape in [*link.findall("visual"), *link.findall("collision")]:
            link.remove(shape)
    xml.SubElement(
        xml.SubElement(robot, "mujoco"), "compiler", fusestatic="false", balanceinertia="true"
    )
    spec = mujoco.MjSpec.from_string(xml.tostring(robot, encoding="unicode"))
    for joint in spec.joints:
        joint.armature = ARMATURE
    spec.compile()
    return str(spec.to_xml())
