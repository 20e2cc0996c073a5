"""The arm of a Franka's twin behind Franka's own protocol (FCI): libfranka's client, and franka-sim's robot beneath it.

franka-sim (Barış Yazıcı, https://github.com/BarisYazici/libfranka-sim, Apache-2.0) answers libfranka's clients as an FR3 of
server version 10 does, around MuJoCo, with the robot's modes, errors and recovery. It wants another NumPy than ours, and so
lives in an environment of its own. In real time alone: nobody but the robot moves its clock. One on a machine by its port.
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
PORT, BEGINS_S, SILENT_S, REFRESHED_S = 1337, 60.0, 5.0, 2.0
ARMATURE = 0.1  # of each joint [kg m2]: the rotors, which the URDF leaves out
START = np.array([0.5, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])  # of the tool, pointing down
START_S, NEAR_M = 15.0, 0.005
XYZW, WXYZ = [0, 1, 2, 4, 5, 6, 3], [0, 1, 2, 6, 3, 4, 5]  # of a pose in the other order
HELD_M, SOCKET_RANGE_M, RIM_M = 0.08, 0.06, 0.05  # the hand is open; the socket is the demo's


class Simulator:
    """See ``sim_bridges.core.interface.Simulator`` and ``Faulting``: an arm in free space, and where a socket might be.

    Args:
        enforce_motion_limits: what breaks the FCI's limits of torque, speed and place stops the arm, as on the robot.
        enforce_communication: so do 20 answers in a row that came too late: only on a machine that has time for 1 kHz.
    """

    tick_s = 0.01
    cameras: tuple[str, ...] = ()
    joint_names = tuple(f"fr3_joint{number}" for number in range(1, 8))

    def __init__(self, enforce_motion_limits: bool = True, enforce_communication: bool = False) -> None:
        import franka_sim  # noqa: F401  (whether it is there)
        import pylibfranka  # noqa: F401

        self._enforced = {JUMP: enforce_motion_limits, LATE: enforce_communication}
        self._folder = tempfile.TemporaryDirectory(prefix="rlinf-fci-")
        self._server = self._start()
        self._connection, theirs = multiprocessing.Pipe()
        self._loop = multiprocessing.get_context("spawn").Process(target=drive, args=(theirs, "127.0.0.1"), daemon=True)
        self._loop.start()
        theirs.close()
        self._state = self._hear(BEGINS_S)
        self._due_s = self._state.time_s
        self._go(START)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Another place for the socket; the arm stays where it is, as a real one does."""
        away = np.random.default_rng(seed).uniform(-SOCKET_RANGE_M, SOCKET_RANGE_M, 2)
        self._object = np.array([0.5 + away[0], away[1], RIM_M, 0.0, 0.0, 0.0, 1.0])

    def advance(self, target_pose: np.ndarray | None, gripper_width: float | None = None) -> None:
        """Until a tick of the robot's time has passed since the last one."""
        if target_pose is not None:
            self._say("target", np.asarray(target_pose, float)[WXYZ].tolist())
        self._due_s += self.tick_s
        while self._state.time_s < self._due_s or self._connection.poll():
            self._state = self._hear(SILENT_S)
        self._due_s = max(self._due_s, self._state.time_s - self.tick_s)

    def tcp_pose(self) -> np.ndarray:
        return np.array(self._state.pose)[XYZW]

    def gripper_width(self) -> float:
        """Nothing is between the fingers, which are the twin's own."""
        return HELD_M

    def channels(self) -> dict[str, np.ndarray]:
        state = self._state
        return {"current_pose": self.tcp_pose(), "current_twist": np.array(state.twist), "wrench": -np.array(state.wrench),
                "joint_states": np.array(state.q), "gripper/state": np.array([HELD_M]), "object_pose": self._object.copy()}

    def succeeded(self) -> None:
        """It has no task of its own."""

    def render(self, camera: str, height: int, width: int) -> np.ndarray:
        raise RlinfError(f"camera '{camera}': expected none of franka-sim, which is run without pictures")

    # What stops it
    @property
    def faults(self) -> tuple[str, ...]:
        """The robot's errors, by libfranka's names; empty while it moves."""
        return tuple(self._state.errors)

    def provoke(self, fault: str) -> bool:
        """Bring the robot to an error of its own; False where that is not had by what is sent to it."""
        if self._enforced.get(fault):
            self._say("provoke", fault)
        return self._enforced.get(fault, False)

    def recover(self) -> bool:
        """libfranka's automaticErrorRecovery, and another motion; whether the arm is ready then."""
        if self._state.mode != "Move":
            self._say("recover", None)
        deadline = time.monotonic() + REFRESHED_S
        while self._state.mode != "Move" and time.monotonic() < deadline:
            self._state = self._hear(SILENT_S)
        return self._state.mode == "Move"

    def close(self) -> None:
        """End its processes."""
        self._loop.kill()
        self._server.kill()
        self._server.wait()

    # Its processes
    def _start(self) -> subprocess.Popen[bytes]:
        """franka-sim's server, once it answers; RlinfError with what it printed where it does not."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", PORT))
            except OSError as error:
                raise RlinfError(f"franka-sim: expected port {PORT} of this machine to be free, which is that of a robot: "
                                 f"{error}. Stop the other station with such a twin", code="RL-E205") from error
        (model := Path(self._folder.name) / "fr3.xml").write_text(_model())
        log = Path(self._folder.name) / "franka_sim.log"
        options = [f"--{'' if on else 'no-'}enforce-{what}" for what, on in
                   (("motion-limits", self._enforced[JUMP]), ("comm-constraints", self._enforced[LATE]))]
        with log.open("wb") as file:
            server = subprocess.Popen([sys.executable, "-m", "franka_sim.run_server", "--no-gripper", *options],
                                      stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      env=os.environ | {"FR3_MJCF": str(model)}, preexec_fn=end_with_parent)
        deadline = time.monotonic() + BEGINS_S
        while not _answers():
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise RlinfError(f"franka-sim: its server did not answer; it printed:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        self._folder.cleanup()  # it has read its model; what it says from now on, nobody reads
        return server

    def _go(self, pose: np.ndarray) -> None:
        deadline = time.monotonic() + START_S
        while np.linalg.norm(np.array(self._state.pose[:3]) - pose[:3]) > NEAR_M:
            if time.monotonic() > deadline:
                raise RlinfError(f"franka-sim: expected the tool at {pose[:3]} m after {START_S:.0f} s, got "
                                 f"{np.round(self._state.pose[:3], 3)}. Its machine is too busy for a robot's 1 kHz")
            self.advance(pose)

    def _say(self, word: str, value: Any) -> None:
        try:
            self._connection.send((word, value))
        except OSError as error:
            raise RlinfError(f"franka-sim: its client has ended: {error}") from error

    def _hear(self, patience_s: float) -> RobotState:
        try:
            answer = self._connection.recv() if self._connection.poll(patience_s) else f"no state for {patience_s:.0f} s"
        except (EOFError, OSError):
            answer = "its client has ended"
        if isinstance(answer, str):
            raise RlinfError(f"franka-sim: {answer}")
        return answer


def _answers() -> bool:
    from franka_sim.health_check import HealthCheckError, check_server

    try:
        check_server("127.0.0.1", PORT, timeout=2.0)
    except (HealthCheckError, OSError):
        return False
    return True


def _model() -> str:
    """The FR3 by the URDF that franka-sim serves, without meshes, which it would fetch: kinematics, masses and friction."""
    import franka_sim
    import mujoco

    robot = xml.parse(Path(franka_sim.__file__).parent / "models" / "fr3.urdf").getroot()
    for link in robot.iter("link"):
        for shape in [*link.findall("visual"), *link.findall("collision")]:
            link.remove(shape)
    xml.SubElement(xml.SubElement(robot, "mujoco"), "compiler", fusestatic="false", balanceinertia="true")
    spec = mujoco.MjSpec.from_string(xml.tostring(robot, encoding="unicode"))
    for joint in spec.joints:
        joint.armature = ARMATURE
    spec.compile()
    return str(spec.to_xml())
