"""Import the modules of nodes, and fork this process for each requested node.

python fork_server_process.py FILE_DESCRIPTOR MODULE...
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
import threading
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

from rlinf_core.core.signals import end_with_parent

AUTOGROUP = Path("/proc/self/autogroup")  # this session's share of the cores


def fork_for(client):
    """Serve requests until the client is gone; return in each child with its request."""
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
                os._exit(0)  # the children end with it
            if not (pid := forked()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (woken, wake):
                    os.close(fd)
                lines.close()
                client.close()
                return json.loads(line)
            client.sendall(json.dumps({"began": pid}).encode() + b"\n")


def forked():
    """Fork with the calls around it that LTTng's own wrapper makes.

    rclpy brings LTTng with two threads. The calls start them anew in the child; a child without them may
    end by SIGSEGV.
    """
    loaded = re.findall(
        r"\S*/liblttng-ust(?:-[0-9a-f]{8})?\.so\S*", Path("/proc/self/maps").read_text()
    )
    lttng = ctypes.CDLL(loaded[0]) if loaded else None
    # The prefix changed in LTTng 2.13.
    prefix = "lttng_ust_" if hasattr(lttng, "lttng_ust_before_fork") else "ust_"
    signals = ctypes.create_string_buffer(128)  # a sigset_t
    if lttng:
        lttng[f"{prefix}before_fork"](signals)
    with warnings.catch_warnings():
        # Python warns about forks of processes with threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if lttng:
        lttng[f"{prefix}after_fork_{'parent' if pid else 'child'}"](signals)
    return pid


def reaped():
    with contextlib.suppress(ChildProcessError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        return (pid, status) if pid else None
    return None


def become(request):
    """Set up the process as ``python -m`` would."""
    end_with_parent()
    os.setsid()
    if request["last"]:
        AUTOGROUP.write_text(request["last"])
    blocked = signal.SIG_BLOCK if request["blocked"] else signal.SIG_UNBLOCK
    signal.pthread_sigmask(blocked, (signal.SIGINT, signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    random.seed()
    importlib.import_module("numpy").random.seed()
    if request["argv"][0] == "rlinf_interlock.interlock":
        fork_service_process()
    if request["argv"][0] == "rlinf_core.cli.main":
        ask_by_fork()
    sys.argv = request["argv"]
    if request["blocked"]:
        # The module reads the command line and installs signal handlers.
        importlib.reload(importlib.import_module("rlinf_ros"))


def fork_service_process():
    """Fork the first service process of the interlock, which waits until the interlock starts it.

    The interlock starts later ones with Popen.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = forked()
    if not pid:
        ours.close()
        request, lines, *_ = socket.recv_fds(its, 1 << 16, 1)
        its.close()
        if not request:  # the interlock ended before it started a service process
            os._exit(0)
        _, _, code, _, *more = json.loads(request)  # python -c CODE LINE
        sys.argv = ["-c", str(lines[0]), *more]
        importlib.reload(importlib.import_module("rlinf_ros"))
        exec(code, {"__name__": "__main__"})
        sys.exit()
    its.close()
    waiting = [ours]

    def start(command, pass_fds, **how):
        if not waiting:
            return subprocess.Popen(command, pass_fds=pass_fds, **how)
        with waiting.pop() as line:
            socket.send_fds(line, [json.dumps(command).encode()], pass_fds)
        return started(command, pid)

    services = importlib.import_module("rlinf_interlock.interlock_services")
    services.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)


def ask_by_fork():
    """Let ``rlinf`` fork the client of a station, too, instead of starting a Python."""

    def start(command, env, preexec_fn, pass_fds):
        if command[1:3] != ["-m", "rlinf_tools.station_client"]:
            return subprocess.Popen(command, env=env, preexec_fn=preexec_fn, pass_fds=pass_fds)
        pid = forked()
        if pid:
            return started(command, pid)
        code = 1
        try:
            preexec_fn()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = command[2:]
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    importlib.import_module("rlinf_core.cli.terminal").subprocess = SimpleNamespace(
        Popen=start, TimeoutExpired=subprocess.TimeoutExpired
    )


def started(command, pid):
    """Return a process as if ``subprocess`` had started it."""
    process = subprocess.Popen.__new__(subprocess.Popen)
    process.args, process.pid, process.returncode, process._child_created = command, pid, None, True
    process.stdin = process.stdout = process.stderr = None
    process._waitpid_lock, process._sigint_wait_secs = threading.Lock(), 0.25
    return process


def read_meshes():
    """Read the arm's meshes once: MuJoCo caches them in this process, and so in its forks.

    The modules are imported again in each fork, where MuJoCo selects its renderer.
    """
    os.environ["MUJOCO_GL"] = "disable"
    importlib.import_module("sim_bridges.simulators.franka_mujoco").Simulator()
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in ("mujoco", "sim_bridges") and (
            getattr(module, "__file__", None) or ""
        ).endswith(".py"):
            del sys.modules[name]  # compiled modules stay, because they hold the cache


if __name__ == "__main__":
    sys.path[0] = ""  # like `python -m`; the files beside this one are no modules
    if "sim_bridges.core.ros_bridge" in sys.argv:
        read_meshes()
    if "rlinf_interlock.interlock" in sys.argv:
        # imported by the interlock's service process
        importlib.import_module("rlinf_interlock.interlock_services")
    for name in sys.argv[2:]:
        importlib.import_module(name)
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    launch = fork_for(socket.socket(fileno=int(sys.argv[1])))
    become(launch)
    runpy.run_module(launch["argv"][0], run_name="__main__", alter_sys=True)
