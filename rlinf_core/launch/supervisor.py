"""A supervisor that starts, restarts and ends a station's processes without ROS's launch.

``launch/*.launch.py`` give the same list to launch_ros. The supervisor also removes shared-memory
segments of Fast DDS (35 MB each) whose process was killed. Fast DDS holds a file lock (flock) for
each segment and port while its process lives; ``fastdds shm clean`` uses the same rule. Only files
of this user are touched, and links are not followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.core.errors import REFUSED, RlinfError, escape_control
from rlinf_core.core.machine import HeldError, acquire
from rlinf_core.core.paths import ROS_LOG_DIR, replacement_folders
from rlinf_core.core.ros import ros_environment
from rlinf_core.core.signals import defer_signals, end_with_parent
from rlinf_core.launch.graph import ONCE, Process
from rlinf_core.launch.restart import (
    History,
    describe_end,
    ends_last,
    last_error_in,
    shutdown_groups,
)

SHARED_MEMORY = Path("/dev/shm")
LOCK = re.compile(r"(fastrtps_(?:[0-9a-z]{16}|port[0-9]{1,5}))_[es]l")
YOUNG_S = 10.0  # age below which its process may not have locked it yet


def free_segments(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove segments of dead processes of this user, and return their names."""
    locks: defaultdict[str, list[Path]] = defaultdict(list)
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            if match := LOCK.fullmatch(entry):
                locks[match[1]].append(folder / entry)
    return [name for name, paths in locks.items() if _free(folder, name, paths)]


def _free(folder: Path, name: str, locks: list[Path]) -> bool:
    """Remove a segment if all its locks are free, and return whether it was removed."""
    with contextlib.ExitStack() as held:
        for path in locks:
            try:
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                held.callback(os.close, handle)
                status = os.fstat(handle)
                old = time.time() - status.st_mtime > YOUNG_S
                if not (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and old):
                    return False
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # held by a live process, or gone
                return False
        for path in (folder / name, folder / f"sem.{name}_mutex", *locks):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()
    return True


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@dataclass
class Child:
    """A running process and its history."""

    process: Process
    popen: subprocess.Popen
    history: History
    log_offset: int = 0  # size of its log before this start


class Supervisor:
    """Context manager of a station's processes. Call ``poll`` often.

    Args:
        run_dir: folder of ``logs/<name>.log`` and ``params/<name>.yaml``.
        domain_id: ROS_DOMAIN_ID.
    """

    def __init__(self, run_dir: Path, domain_id: int) -> None:
        self.run_dir = run_dir
        self.environment = ros_environment(domain_id)
        self.children: dict[str, Child] = {}
        self.events: list[str] = []
        free_segments()  # left by a killed station
        folders = ["logs", "params"]
        if ROS_LOG_DIR in replacement_folders():
            self.environment[ROS_LOG_DIR] = str(run_dir / "ros_logs")
            folders.append("ros_logs")
        for name in folders:
            (run_dir / name).mkdir(parents=True, exist_ok=True)

    def start(self, process: Process) -> Child:
        """Start a process. Raises RlinfError if one of this name runs already."""
        if process.name in self.children and self.children[process.name].popen.poll() is None:
            raise RlinfError(
                f"{process.name} is already running under this supervisor. End it first",
                code="RL-E208",
            )
        before = self._log_size(process.name)
        popen, history = self._spawn(process), History(process, time.monotonic())
        child = self.children[process.name] = Child(process, popen, history, before)
        return child

    def run(self, name: str, command: list[str], restart: str) -> Child:
        """Start and supervise any other command."""
        return self.start(Process(name, "", "", "", "", {"command": command}, (), restart))

    def poll(self) -> list[str]:
        """Check all processes, restart ended ones, and return descriptions of the events.

        Raises:
            RlinfError: the station cannot continue.
        """
        new_events = []
        for child in self.children.values():
            code = child.popen.poll()
            if code is None or child.process.restart == ONCE:
                continue
            new_events.append(self._handle_end(child, code))
        self.events += new_events
        return new_events

    def _handle_end(self, child: Child, code: int) -> str:
        """Restart a process that has ended, and return the event in words."""
        name, log = child.process.name, self.run_dir / "logs" / f"{child.process.name}.log"
        refusal = _refusal(log, child.log_offset) if code in (1, REFUSED) else ""
        outcome = child.history.record_end(code, time.monotonic(), refusal)
        if not outcome.restarts:
            reason = outcome.refusal or (_log_tail(log) if code == REFUSED else "")
            raise RlinfError(
                f"{outcome.text}: {reason}\nIts log: {log}"
                if reason
                else f"{outcome.text}. {_log_tail(log)}"
            )
        child.log_offset = self._log_size(name)
        try:
            child.popen = self._spawn(child.process)
        except OSError as error:
            raise RlinfError(
                f"{name} ended ({describe_end(code)}) and cannot be restarted: {error}. Free "
                "memory, raise this machine's limit of processes, or make that folder accessible"
            ) from error
        return f"{outcome.text}{f': {outcome.refusal}' if outcome.refusal else ''}"

    def stop(self) -> None:
        """End the nodes that command and record, then interlock and robot side."""
        for names in shutdown_groups(child.process for child in self.children.values()):
            _end([self.children[name] for name in names])
        free_segments()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        with defer_signals():  # a second signal does not interrupt the shutdown
            self.stop()

    def _log_size(self, name: str) -> int:
        log = self.run_dir / "logs" / f"{name}.log"
        return log.stat().st_size if log.exists() else 0

    def _spawn(self, process: Process) -> subprocess.Popen:
        command = process.parameters.get("command") or command_line(
            process, self.run_dir / "params"
        )
        with open(self.run_dir / "logs" / f"{process.name}.log", "ab") as log:
            return subprocess.Popen(
                command,
                env=self.environment,
                stdin=None if process.terminal else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=not process.terminal,
                preexec_fn=_node_begins if process.module else end_with_parent,
            )


@contextlib.contextmanager
def only_station(name: str, domain_id: int) -> Iterator[None]:
    """Hold the lock of station ``name`` in this ROS domain on this machine, for all users.

    Two stations of one name would command each other's robot.

    Raises:
        RlinfError: another process holds the lock.
    """
    try:
        lock = acquire(f"station/{domain_id}/{name}")
    except HeldError as error:
        raise RlinfError(
            f"station '{name}' is already running in ROS_DOMAIN_ID {domain_id} on this machine, "
            f"as {error}. Stop it, or give this one another station.domain_id (and bridge.port)",
            code="RL-E208",
        ) from error
    except OSError as error:
        raise RlinfError(
            f"station '{name}': cannot check whether it is already running: {error}. Free sockets "
            "of this machine",
            code="RL-E208",
        ) from error
    with lock:
        yield


def _log_tail(log: Path) -> str:
    """Return the last line of a log that is no INFO message of rclpy, for an error."""
    every = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    lines = [line for line in every if not line.startswith("[INFO]")] or every
    return (
        f"Its last line: '{escape_control(lines[-1][:300])}'. See {log}" if lines else f"See {log}"
    )


def _refusal(log: Path, since: int) -> str:
    """Return the last error in a log from byte ``since`` on; empty if there is none."""
    return last_error_in(log.read_bytes()[since:].decode(errors="replace"))


class _Quoting(yaml.SafeDumper):
    """Quotes every string.

    ROS's parser would read `123e12`, `y` or `nan`, which PyYAML leaves bare, as other types.
    """


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def parameters_file(process: Process, folder: Path) -> Path:
    """Write a process's ROS parameter file and return its path.

    An equal file is not written again, so that a restart works on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{process.name}.yaml"
    values = process.parameters | (
        {"nodes": json.dumps([_hosted(node, folder) for node in process.nodes])}
        if process.nodes
        else {}
    )
    text = yaml.dump({"/**": {"ros__parameters": values}}, Dumper=_Quoting, sort_keys=False)
    if not path.is_file() or path.read_bytes() != text.encode():
        path.write_text(text)
    return path


def command_line(process: Process, folder: Path) -> list[str]:
    """Return the command that starts a process without ROS's tools.

    ``folder`` gets its parameter file.
    """
    return [sys.executable, "-m", process.module, *_ros_arguments(process, folder)]


def _ros_arguments(process: Process, folder: Path) -> list[str]:
    parameters = parameters_file(process, folder)
    remappings = [item for old, new in process.remappings for item in ("-r", f"{old}:={new}")]
    return [
        "--ros-args",
        "-r",
        f"__ns:={process.namespace}",
        *remappings,
        "--params-file",
        str(parameters),
    ]


def _hosted(node: Process, folder: Path) -> dict[str, Any]:
    """Return the description of a hosted node for the process that hosts it."""
    return {
        "name": node.name,
        "module": node.module,
        "arguments": _ros_arguments(node, folder),
        "ends_station": ends_last(node),
    }


def _end(children: list[Child]) -> None:
    """End process groups by SIGINT, SIGTERM, then SIGKILL, each ``stop_s`` after the other."""
    started_at = time.monotonic()
    signals_sent = dict.fromkeys((child.popen.pid for child in children), 0)
    end = started_at + len(STOP_SIGNALS) * max(
        (child.process.stop_s for child in children), default=0.0
    )
    while (
        alive := [child for child in children if child.popen.poll() is None]
    ) and time.monotonic() < end:
        for child in alive:
            at = signals_sent[child.popen.pid]
            if (
                at < len(STOP_SIGNALS)
                and time.monotonic() - started_at >= at * child.process.stop_s
            ):
                _signal(child.popen, STOP_SIGNALS[at])
                signals_sent[child.popen.pid] += 1
        time.sleep(0.05)


def _signal(popen: subprocess.Popen, number: int) -> None:
    """Send a signal to a process; SIGKILL reaches its whole process group."""
    with contextlib.suppress(ProcessLookupError):
        is_group_leader = os.getpgid(popen.pid) == popen.pid  # otherwise the group is ours
        if is_group_leader and number == signal.SIGKILL:
            os.killpg(popen.pid, number)
        else:
            popen.send_signal(number)


def _node_begins() -> None:
    """Block signals until the node handles them.

    While Python starts, they would print a traceback.
    """
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
