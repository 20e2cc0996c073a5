"""Start nodes as forks of one process that has imported their modules already.

Hundreds of nodes are started in tests, and most of their computing is imports. A test of a node that
still imports, or of a whole station as a user starts it, starts processes by ``python -m`` with the
usual supervisor (``rlinf_core.launch.supervisor``).
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rlinf_core.launch.supervisor import Supervisor, command_line

# Modules of nodes, and of the commands that ``ForkingSupervisor.command`` runs.
NODES = [
    "rlinf_drivers.camera",
    "rlinf_drivers.controller",
    "rlinf_station.director",
    "rlinf_drivers.driver",
    "rlinf_station.environment",
    "rlinf_interlock.interlock",
    "rlinf_operator.operator",
    "rlinf_operator.page",
    "rlinf_station.recorder",
    "rlinf_tools.station_client",
    "rlinf_station.uplink",
    "sim_bridges.core.ros_bridge",
    "rlinf_core.cli.main",
]
# Modules that import torch.
LEARNING = [
    "rlinf_station.local_policy",
    "rlinf_station.policy",
    "rlinf_core.cli.trainer",
    "rlinf_core.cli.main",
    "rlinf_core.trainer.train",
]
PROCESS = Path(__file__).with_name("fork_server_process.py")
# Environment variables that differ between tests, or that an import sets.
TEST_VARIABLES = {
    "ROS_DOMAIN_ID",
    "PYTEST_CURRENT_TEST",
    "MUJOCO_GL",
    "PYOPENGL_PLATFORM",
    "SDL_AUDIODRIVER",
    "TORCHINDUCTOR_CACHE_DIR",
}
# The real-time priority of a simulated arm, because a robot's own controller waits for no busy core.
ARM_PRIORITY = 25


class ForkingSupervisor(Supervisor):
    """A supervisor whose children are forks, which start at once."""

    def start(self, process):
        if process.name == "sim_bridge" and not process.parameters["lockstep"]:
            process.parameters.setdefault("priority", ARM_PRIORITY)
        return super().start(process)

    def _spawn(self, process):
        command = process.parameters.get("command") or command_line(
            process, self.run_dir / "params"
        )
        kind = (
            next((kind for kind in (LEARNING, NODES) if command[2] in kind), None)
            if command[1] == "-m"
            else None
        )
        if (
            process.terminal
            or kind is None
            or (server := ForkServer.of(kind, self.environment)) is None
        ):
            return super()._spawn(process)
        return server.start(
            command[2:],
            self.environment,
            self.run_dir / "logs" / f"{process.name}.log",
            blocked=bool(process.module),
        )

    def command(self, *words):
        """Run ``rlinf`` with these arguments; return the process and the file of its output."""
        log = Path(tempfile.mkstemp(suffix=".log", dir=self.run_dir / "logs")[1])
        argv = ["rlinf_core.cli.main", *words]
        if server := ForkServer.of(NODES, self.environment):
            return server.start(argv, self.environment, log, blocked=False), log
        with log.open("w") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *argv],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            ), log


class ForkServer:
    """The client of a process that forks nodes (``fork_server_process.py``)."""

    instances = {}

    @classmethod
    def of(cls, modules, environment):
        """Return the server of these modules; None if it has another environment."""
        shared = {name: value for name, value in environment.items() if name not in TEST_VARIABLES}
        server = cls.instances.get(modules[0]) or cls.instances.setdefault(
            modules[0], cls(modules, shared)
        )
        return server if server.environment == shared else None

    def __init__(self, modules, environment):
        self.environment = environment
        self.ended = {}
        self.lock = threading.Lock()
        self.parent_socket, child_socket = socket.socketpair()
        subprocess.Popen(
            [sys.executable, PROCESS, str(child_socket.fileno()), *modules],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            pass_fds=[child_socket.fileno()],
        )
        child_socket.close()
        self.buffer = b""

    def start(self, argv, environment, log, blocked):
        request = {
            "argv": argv,
            "environment": environment,
            "log": str(log),
            "folder": os.getcwd(),
            "blocked": blocked,
            "last": os.environ.get("LAST", ""),
        }
        with self.lock:
            self.parent_socket.sendall(json.dumps(request).encode() + b"\n")
            return Forked(
                self,
                next(
                    message["began"] for message in self.read_messages(None) if "began" in message
                ),
                argv,
            )

    def read_messages(self, timeout_s):
        """Yield messages of the server; the status of ended processes is stored."""
        while select.select([self.parent_socket], [], [], timeout_s)[0] and (
            more := self.parent_socket.recv(4096)
        ):
            *lines, self.buffer = (self.buffer + more).split(b"\n")
            messages = [json.loads(line) for line in lines]
            self.ended |= {
                message["ended"]: message["status"] for message in messages if "ended" in message
            }
            yield from messages

    def code(self, pid):
        """Return a process's exit code; None while it runs."""
        with self.lock:
            for _ in self.read_messages(0):
                pass
            return os.waitstatus_to_exitcode(self.ended[pid]) if pid in self.ended else None


class Forked:
    """A forked process with the interface of subprocess.Popen."""

    def __init__(self, server, pid, args):
        self.server, self.pid, self.args, self.returncode = server, pid, args, None

    def poll(self):
        self.returncode = self.server.code(self.pid) if self.returncode is None else self.returncode
        return self.returncode

    def wait(self, timeout=None):
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)
