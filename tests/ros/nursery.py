"""Nodes' processes from one that has imported already what they import: each a fork of it, and else as it would be.

Hundreds of nodes are started, and most of what each would compute is its imports. What a test wants to see of a node that
still imports, or of a whole station as a user starts it, begins with ``python -m`` all the same (``launching.supervisor``).
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rlinf_core.interrupts import end_with_parent
from rlinf_core.launching.supervisor import Supervisor, command_line

NODES = ["rlinf.camera", "rlinf.controller", "rlinf.director", "rlinf.driver", "rlinf.environment", "rlinf.interlock",
         "rlinf.operator", "rlinf.page", "rlinf.recorder", "rlinf.station_client", "rlinf.uplink", "sim_bridges.ros_bridge",
         "rlinf_core.cli.main"]  # what asks a station, by Quick.command
LEARNING = ["rlinf.local_policy", "rlinf.policy", "rlinf_core.cli.trainer", "rlinf_core.cli.main",
            "rlinf_core.trainer.train"]  # with torch
SHARE = Path("/proc/self/autogroup")  # of the cores, among sessions
OF_A_TEST = {"ROS_DOMAIN_ID", "PYTEST_CURRENT_TEST",
             "MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_AUDIODRIVER", "TORCHINDUCTOR_CACHE_DIR"}  # these, what it imports sets
ARM = 25  # the priority of a simulated arm in real time: a robot's own controller waits for no busy core either


class Quick(Supervisor):
    """A supervisor whose children begin at once."""

    def start(self, process):
        if process.name == "sim_bridge" and not process.parameters["lockstep"]:
            process.parameters.setdefault("priority", ARM)
        return super().start(process)

    def _spawn(self, process):
        command = process.parameters.get("command") or command_line(process, self.run_dir / "params")
        kind = next((kind for kind in (LEARNING, NODES) if command[2] in kind), None) if command[1] == "-m" else None
        if process.terminal or kind is None or (nursery := Nursery.of(kind, self.environment)) is None:
            return super()._spawn(process)
        return nursery.start(command[2:], self.environment, self.run_dir / "logs" / f"{process.name}.log",
                             blocked=bool(process.module))

    def command(self, *words):
        """``rlinf`` with these words, and the file of what it says."""
        log = Path(tempfile.mkstemp(suffix=".log", dir=self.run_dir / "logs")[1])
        argv = ["rlinf_core.cli.main", *words]
        if nursery := Nursery.of(NODES, self.environment):
            return nursery.start(argv, self.environment, log, blocked=False), log
        with log.open("w") as out:
            return subprocess.Popen([sys.executable, "-m", *argv], env=self.environment, stdin=subprocess.DEVNULL,
                                    stdout=out, stderr=subprocess.STDOUT), log


class Nursery:
    """The client's side: one process with these modules."""

    kept = {}

    @classmethod
    def of(cls, modules, environment):
        """That of these modules, where it was begun with the same environment as is wanted now."""
        wanted = {name: value for name, value in environment.items() if name not in OF_A_TEST}
        nursery = cls.kept.get(modules[0]) or cls.kept.setdefault(modules[0], cls(modules, wanted))
        return nursery if nursery.environment == wanted else None

    def __init__(self, modules, environment):
        self.environment, self.ended, self.lock, (self.ours, its) = environment, {}, threading.Lock(), socket.socketpair()
        subprocess.Popen([sys.executable, __file__, str(its.fileno()), *modules], env=environment, start_new_session=True,
                         stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])
        its.close()
        self.heard = b""

    def start(self, argv, environment, log, blocked):
        wanted = {"argv": argv, "environment": environment, "log": str(log), "folder": os.getcwd(), "blocked": blocked,
                  "last": os.environ.get("LAST", "")}
        with self.lock:
            self.ours.sendall(json.dumps(wanted).encode() + b"\n")
            return Forked(self, next(said["began"] for said in self.said(None) if "began" in said), argv)

    def said(self, patience_s):
        """Its words, as they come; of whoever has ended, it is kept."""
        while select.select([self.ours], [], [], patience_s)[0] and (more := self.ours.recv(4096)):
            *lines, self.heard = (self.heard + more).split(b"\n")
            said = [json.loads(line) for line in lines]
            self.ended |= {each["ended"]: each["status"] for each in said if "ended" in each}
            yield from said

    def code(self, pid):
        """None while it lives."""
        with self.lock:
            for _ in self.said(0):
                pass
            return os.waitstatus_to_exitcode(self.ended[pid]) if pid in self.ended else None


class Forked:
    """As subprocess.Popen has it."""

    def __init__(self, nursery, pid, args):
        self.nursery, self.pid, self.args, self.returncode = nursery, pid, args, None

    def poll(self):
        self.returncode = self.nursery.code(self.pid) if self.returncode is None else self.returncode
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


def fork_for(client):
    """Serve until nobody asks any more; returns, in each child, what was asked for."""
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    lines = client.makefile("r")
    while True:
        ready = select.select([client, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            for pid, status in iter(reaped, None):
                client.sendall(json.dumps({"ended": pid, "status": status}).encode() + b"\n")
        if client in ready:
            line = lines.readline()
            if not line:
                os._exit(0)  # and its children with it
            if not (pid := forked()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (woken, wake):
                    os.close(each)
                lines.close()
                client.close()
                return json.loads(line)
            client.sendall(json.dumps({"began": pid}).encode() + b"\n")


def forked():
    """``os.fork()``, of which LTTng is told, as its own wrapper tells it: rclpy brings it, with two threads.

    It begins these anew in the child, at whose end it looks for them; one that has none may be ended by SIGSEGV.
    """
    loaded = re.findall(r"\S*/liblttng-ust(?:-[0-9a-f]{8})?\.so\S*", Path("/proc/self/maps").read_text())
    lttng = ctypes.CDLL(loaded[0]) if loaded else None
    told = "lttng_ust_" if hasattr(lttng, "lttng_ust_before_fork") else "ust_"  # since 2.13, and before
    signals = ctypes.create_string_buffer(128)  # a sigset_t
    if lttng:
        lttng[f"{told}before_fork"](signals)
    pid = os.fork()
    if lttng:
        lttng[f"{told}after_fork_{'parent' if pid else 'child'}"](signals)
    return pid


def reaped():
    with contextlib.suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        return (pid, status) if pid else None
    return None


def become(wanted):
    """What ``python -m`` would have begun with."""
    end_with_parent()
    os.setsid()
    if wanted["last"]:
        SHARE.write_text(wanted["last"])
    blocked = signal.SIG_BLOCK if wanted["blocked"] else signal.SIG_UNBLOCK
    signal.pthread_sigmask(blocked, (signal.SIGINT, signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    log = os.open(wanted["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    random.seed()
    importlib.import_module("numpy").random.seed()
    sys.argv = wanted["argv"]
    if wanted["blocked"]:
        importlib.reload(importlib.import_module("rlinf"))  # it looks at the command line, and takes signals


def read_meshes():
    """MuJoCo keeps what it makes of an arm's meshes, which takes a second, for as long as a process lives, and its forks.

    How it renders each of them decides for itself, when it imports it.
    """
    os.environ["MUJOCO_GL"] = "disable"
    importlib.import_module("sim_bridges.franka_mujoco").Simulator()
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in ("mujoco", "sim_bridges") and (getattr(module, "__file__", None) or "").endswith(".py"):
            del sys.modules[name]  # but what is compiled, which has them


if __name__ == "__main__":
    sys.path[0] = ""  # as `python -m` has it; what is beside this file is no module
    if "sim_bridges.ros_bridge" in sys.argv:
        read_meshes()
    for name in sys.argv[2:]:
        importlib.import_module(name)
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    asked = fork_for(socket.socket(fileno=int(sys.argv[1])))
    become(asked)
    runpy.run_module(asked["argv"][0], run_name="__main__", alter_sys=True)
