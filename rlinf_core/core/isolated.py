"""A process with a separate Python, for packages that conflict with ours.

It is called through a socket.

``make genesis`` (libero, calvin, lerobot) makes such a Python in ``.venvs/``.
``RLINF_PYTHON_<NAME>`` names another one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.paths import SOURCE, bundled_packages


def python_of(name: str) -> str | None:
    """Return the Python for a part's packages, from its environment variable or ``.venvs``."""
    configured = os.environ.get(f"RLINF_PYTHON_{name.upper().replace('.', '_')}")
    default_python = SOURCE / ".venvs" / name / "bin" / "python"
    return configured or (str(default_python) if default_python.exists() else None)


class IsolatedProcess:
    """A process that ends with ``close``, or together with this process.

    Attributes:
        connection: socket of the process.

    Args:
        python: path of the interpreter.
        arguments: arguments of the interpreter. The descriptor of its socket follows them.
        name: name of the process, for messages.
        timeout_s: timeout of the socket [s].

    Raises:
        RlinfError: the interpreter cannot be started.
    """

    def __init__(self, python: str, arguments: Sequence[str], name: str, timeout_s: float) -> None:
        self.name, self.python = name, python
        socket_here, child_socket = socket.socketpair()
        socket_here.settimeout(timeout_s)
        folder = bundled_packages()
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self.process = subprocess.Popen(
                [python, "-W", "ignore", *arguments, str(child_socket.fileno())],
                cwd=folder,
                pass_fds=[child_socket.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # processes that it starts, as python.sh does, end with it
                stdout=sys.stderr.fileno() if _is_file(sys.stderr) else None,
                env=os.environ | {"PYTHONPATH": paths},
            )
        except OSError as error:
            raise RlinfError(f"{name}: cannot start {python}: {error}") from error
        child_socket.close()
        self.connection = socket_here

    def close(self) -> None:
        """End the process and everything that it has started."""
        if self.process.returncode is None:  # otherwise another process may have its id by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()

    def ended(self) -> RlinfError:
        """Return the error for a process that closed its socket, with its exit code."""
        self.process.wait()
        return RlinfError(
            f"{self.name}: its process in {self.python} ended with code {self.process.returncode}. "
            "Its output is above"
        )


def end_with(descriptor: int) -> None:
    """End this session once the other side is gone, even in the middle of a computation.

    It is a session of its own: neither Ctrl-C nor the end of its parent reaches it.
    """
    poller = select.poll()
    poller.register(descriptor, 0)  # a hang-up is reported in any case
    poller.poll()
    os.killpg(0, signal.SIGKILL)


def _is_file(stream: Any) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError):
        return False
