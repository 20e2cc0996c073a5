"""A jail for Python programs that an agent wrote (Linux, no package).

Layers, each tested by an escape (``drill``): user, process, mount, network, IPC and host name
namespaces; a root file system that holds read-only libraries and an empty /work; an unused user id
if the caller is root; no capabilities; Landlock (no execution, writes to /work only); a seccomp
filter; resource limits with a bound on processes; a wall clock outside.

A jail that cannot be built raises JailError. No program ever runs without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RlinfError, escape_ascii

BUILD_S = 30.0  # time in which a busy machine builds a jail [s]
INSIDE = Path(__file__).with_name("jail_process.py")


class JailError(RlinfError):
    """The jail cannot be built on this machine; nothing ran."""


@dataclass(frozen=True)
class JailLimits:
    """Bounds of one program.

    Attributes:
        wall_s: seconds until the jail kills all its processes.
        cpu_s: CPU seconds of each process.
        memory_bytes: address space of each process.
        processes: processes and threads in the jail.
        file_bytes: size of /work and of each file.
        output_bytes: size of standard output, of standard error, and of the values; more kills.
    """

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 256 << 20
    processes: int = 8
    file_bytes: int = 16 << 20
    output_bytes: int = 64 << 10


DEFAULT = JailLimits()


@dataclass(frozen=True)
class Outcome:
    """The end of a program.

    Attributes:
        end: "exit", "killed", "wall_time" or "output".
        exit_code: the program's; negative: killed by that signal; None: it did not end, or it
            exceeded a limit.
        stdout: decoded, at most ``output_bytes``.
        stderr: the same.
        values: JSON text of each call's result, in the order of the inputs; shorter after an error.
    """

    end: str
    exit_code: int | None
    stdout: str
    stderr: str
    values: tuple[str, ...]


def run_program(
    program: str,
    call: str | None = None,
    inputs: Sequence[Sequence[Any]] = (),
    limits: JailLimits = DEFAULT,
) -> Outcome:
    """Run a program in its own jail; takes about 60 ms.

    Only inputs enter the jail. Compare ``values`` with the expected ones outside of it. The
    program's exit code, prints and files do not prove success.

    Args:
        program: text of a Python program.
        call: a function that it defines, called with each of ``inputs``; None runs the program
            only.
        inputs: arguments of each call, as JSON can write them.
        limits: bounds of the program.

    Raises:
        JailError: the jail cannot be built; the message names the missing layer.
    """
    job = json.dumps(
        {"program": program, "call": call, "inputs": list(inputs), "limits": asdict(limits)}
    ).encode()
    with contextlib.ExitStack() as stack:
        job_file = stack.enter_context(os.fdopen(os.memfd_create("job"), "wb"))
        job_file.write(job)
        job_file.flush()
        os.lseek(job_file.fileno(), 0, os.SEEK_SET)
        pipes = []
        for _ in range(4):
            read, write = os.pipe()
            pipes.append(
                (
                    stack.enter_context(os.fdopen(read, "rb", 0)),
                    stack.enter_context(os.fdopen(write, "wb", 0)),
                )
            )
        (_, stdout), (_, stderr), (_, result), (_, control) = pipes
        places = [str(result.fileno()), str(control.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(INSIDE), str(os.getpid()), *places],
            stdin=job_file,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[result.fileno(), control.fileno()],
            env={},
            cwd="/",
            start_new_session=True,
        )
        try:
            for _, write_end in pipes:
                write_end.close()
            end, outputs = _collect([read_end.fileno() for read_end, _ in pipes], limits)
        finally:
            process.kill()  # its descendants die, too, and close the pipes
            process.wait()
            # The jail's first process holds the control pipe, and the program holds the others.
            for read_end, _ in pipes:
                _await_end(read_end.fileno())
    return _outcome(end, outputs, limits)


def _await_end(pipe: int) -> None:
    """Wait until no process holds a pipe; the kernel ends processes within milliseconds."""
    deadline = time.monotonic() + 5.0
    os.set_blocking(pipe, False)
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            if not os.read(pipe, 65536):
                return
        time.sleep(0.002)


def _collect(pipes: Sequence[int], limits: JailLimits) -> tuple[str, list[bytes]]:
    """Return the kind of the program's end, and the bytes of each pipe until then."""
    # for the jail's build; the program's time begins when it is ready
    deadline = time.monotonic() + BUILD_S
    is_ready = False
    outputs = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                return "wall_time", [bytes(data) for data in outputs.values()]
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                outputs[key.fd] += data
                if not is_ready and outputs[pipes[3]].startswith(b"ready\n"):
                    is_ready, deadline = True, time.monotonic() + limits.wall_s
                if not data:
                    selector.unregister(key.fd)
                elif len(outputs[key.fd]) > limits.output_bytes:
                    return "output", [bytes(data) for data in outputs.values()]
    return "exit", [bytes(data) for data in outputs.values()]


def _outcome(end: str, outputs: Sequence[bytes], limits: JailLimits) -> Outcome:
    stdout, stderr, result, control = (
        data[: limits.output_bytes].decode(errors="replace") for data in outputs
    )
    reports = control.splitlines()
    if "ready" not in reports:
        problem = next((line for line in reports if line.startswith("error ")), "no report")
        raise JailError(
            f"jail: expected a machine that builds it in {BUILD_S:g} s, got "
            f"'{escape_ascii(problem)}' ({end}; {escape_ascii(stderr[-200:])}). It needs Linux "
            "5.13, user namespaces (root, or sysctl "
            "kernel.apparmor_restrict_unprivileged_userns=0) and Landlock. In Docker: "
            "--security-opt seccomp=unconfined --cap-add SYS_ADMIN"
        )
    codes = [int(line.split()[1]) for line in reports if line.startswith("exit ")]
    code = codes[0] if codes and end == "exit" else None  # it may end while it is being stopped
    if end == "exit" and (code is None or code < 0):
        end = "killed"
    values = []
    for number, line in enumerate(result.splitlines()):
        index, _, text = line.partition(" ")
        if index != str(number):
            break
        values.append(text)
    return Outcome(end, code, stdout, stderr, tuple(values))
