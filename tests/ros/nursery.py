"""Nodes' processes from one that has imported already what they import: each a fork of it, and else
as it would be.

Hundreds of nodes are started, and most of what each would compute is its imports. What a test wants
to see of a node that still imports, or of a whole station as a user starts it, begins with
``python -m`` all the same (``launching.supervisor``).
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

# what asks a station, by Quick.command
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
# with torch
LEARNING = [
    "rlinf_station.local_policy",
    "rlinf_station.policy",
    "rlinf_core.cli.trainer",
    "rlinf_core.cli.main",
    "rlinf_core.trainer.train",
]
PROCESS = Path(__file__).with_name("nursery_process.py")
# these, what it imports sets
OF_A_TEST = {
    "ROS_DOMAIN_ID",
    "PYTEST_CURRENT_TEST",
    "MUJOCO_GL",
    "PYOPENGL_PLATFORM",
    "SDL_AUDIODRIVER",
    "TORCHINDUCTOR_CACHE_DIR",
}
# the priority of a simulated arm in real time: a robot's own controller waits for no busy core
# either
ARM = 25


class Quick(Supervisor):
    """A supervisor whose children begin at once."""

    def start(self, process):
        if process.name == "sim_bridge" and not process.parameters["lockstep"]:
            process.parameters.setdefault("priority", ARM)
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
            or (nursery := Nursery.of(kind, self.environment)) is None
        ):
            return super()._spawn(process)
        return nursery.start(
            command[2:],
            self.environment,
            self.run_dir / "logs" / f"{process.name}.log",
            blocked=bool(process.module),
        )

    def command(self, *words):
        """``rlinf`` with these words, and the file of what it says."""
        log = Path(tempfile.mkstemp(suffix=".log", dir=self.run_dir / "logs")[1])
        argv = ["rlinf_core.cli.main", *words]
        if nursery := Nursery.of(NODES, self.environment):
            return nursery.start(argv, self.environment, log, blocked=False), log
        with log.open("w") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *argv],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            ), log


class Nursery:
    """The client's side of one process with these modules (``nursery_process.py``)."""

    instances = {}

    @classmethod
    def of(cls, modules, environment):
        """That of these modules, where it was begun with the same environment as is wanted now."""
        wanted = {name: value for name, value in environment.items() if name not in OF_A_TEST}
        nursery = cls.instances.get(modules[0]) or cls.instances.setdefault(
            modules[0], cls(modules, wanted)
        )
        return nursery if nursery.environment == wanted else None

    def __init__(self, modules, environment):
        self.environment = environment
        self.ended = {}
        self.lock = threading.Lock()
        self.ours, its = socket.socketpair()
        subprocess.Popen(
            [sys.executable, PROCESS, str(its.fileno()), *modules],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
        its.close()
        self.buffer = b""

    def start(self, argv, environment, log, blocked):
        wanted = {
            "argv": argv,
            "environment": environment,
            "log": str(log),
            "folder": os.getcwd(),
            "blocked": blocked,
            "last": os.environ.get("LAST", ""),
        }
        with self.lock:
            self.ours.sendall(json.dumps(wanted).encode() + b"\n")
            return Forked(
                self,
                next(
                    message["began"] for message in self.read_messages(None) if "began" in message
                ),
                argv,
            )

    def read_messages(self, patience_s):
        """Its words, as they come; of whoever has ended, it is kept."""
        while select.select([self.ours], [], [], patience_s)[0] and (more := self.ours.recv(4096)):
            *lines, self.buffer = (self.buffer + more).split(b"\n")
            messages = [json.loads(line) for line in lines]
            self.ended |= {
                message["ended"]: message["status"] for message in messages if "ended" in message
            }
            yield from messages

    def code(self, pid):
        """None while it lives."""
        with self.lock:
            for _ in self.read_messages(0):
                pass
            return os.waitstatus_to_exitcode(self.ended[pid]) if pid in self.ended else None


class Forked:
    """A forked process with the interface of subprocess.Popen."""

    def __init__(self, nursery, pid, args):
        self.nursery, self.pid, self.args, self.returncode = nursery, pid, args, None

    def poll(self):
        self.returncode = (
            self.nursery.code(self.pid) if self.returncode is None else self.returncode
        )
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
