"""Chooses the Python of a node that ROS starts, and of a launch file, at its start.

``colcon build`` and bloom install the nodes for ROS's own Python. The distribution ``rlinf``
(rlinf_core, sim_bridges and their dependencies) may be installed in a virtual environment. The
first of these Pythons that can import it runs the node:

1. ``RLINF_PYTHON``;
2. the running Python;
3. the active environment (``VIRTUAL_ENV``);
4. the environment that has this module, or ``.venv`` in a folder above the workspace.

This module needs only the standard library.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

CHOICE = "RLINF_PYTHON"
CHOSEN = "_RLINF_PYTHON_CHOSEN"  # marks a process that has switched, so that it switches once
DISTRIBUTION = "rlinf_core"
WHERE = (
    "import sys, sysconfig, rlinf_core; print(*sys.version_info[:2], "
    "sysconfig.get_path('purelib'), sep='\\n"
    "')"
)


def switch() -> None:
    """Replace this process by the same executable in the chosen Python, if it is one of ours.

    Raises:
        ImportError: no Python here has the distribution.
    """
    switched = os.environ.pop(CHOSEN, "")
    if switched or not _is_executable(sys.argv[0]):
        return
    # before NumPy reads it: rlinf_core/core/ros.py gives the reason
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = os.environ.get(CHOICE)
    if chosen:
        is_right_python = os.path.abspath(chosen) == sys.executable
    else:
        is_right_python = find_spec(DISTRIBUTION) is not None
    if is_right_python:
        return
    python = os.path.abspath(chosen) if chosen and os.path.exists(chosen) else find()[0]
    os.execve(python, [python, *sys.argv], os.environ | {CHOSEN: "1"})


def find() -> tuple[str, list[str]]:
    """Return the chosen Python other than this one, and its major, minor and package folder.

    Raises:
        ImportError: there is none; the message names those that were tried.
    """
    tried = []
    for python in _candidates():
        if Path(python).exists():
            answer = subprocess.run([python, "-c", WHERE], text=True, capture_output=True)
            if answer.returncode == 0:
                return python, answer.stdout.splitlines()
        tried.append(python)
    raise ImportError(
        "rlinf: expected a Python with the distribution rlinf, got "
        f"{', '.join([sys.executable, *tried])}. Run make setup in the clone, or install its "
        f"wheel, and activate that environment or export {CHOICE}=<environment>/bin/python"
    )


def importable() -> str:
    """Make the distribution importable in the Python of ``ros2 launch``.

    It precedes the packages of the machine's own Python.

    Returns:
        The Python with the distribution.

    Raises:
        ImportError: there is none, or it has another version, whose compiled packages this one
            cannot load.
    """
    if not os.environ.get(CHOICE) and find_spec(DISTRIBUTION):
        return sys.executable
    python, (major, minor, folder) = find()
    if (int(major), int(minor)) != sys.version_info[:2]:
        python_version = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(
            f"rlinf: expected the distribution for Python {python_version}, which runs ros2 "
            f"launch, got {python} of Python {major}.{minor}. Install it again: make clean, then "
            f"PYTHON={sys.executable} make setup"
        )
    count = len(sys.path)
    site.addsitedir(folder)
    system = {*site.getsitepackages(), site.getusersitepackages()}
    first = next((index for index, path in enumerate(sys.path[:count]) if path in system), count)
    sys.path[first:] = sys.path[count:] + sys.path[first:count]
    return python


def _is_executable(path: str) -> bool:
    """Return whether a path is an executable of our ROS packages: lib/<package>/<name>."""
    parts = Path(path).parts
    return len(parts) > 2 and parts[-3] == "lib" and parts[-2].startswith("rlinf")


def _candidates() -> Iterator[str]:
    if chosen := os.environ.get(CHOICE):
        yield os.path.abspath(chosen)
        return
    if active := os.environ.get("VIRTUAL_ENV"):
        yield f"{active}/bin/python"
    for folder in Path(__file__).resolve().parents:
        if (folder / "pyvenv.cfg").exists():  # an environment that has this module itself
            yield str(folder / "bin/python")
        if (folder / ".venv/bin/python").exists():
            yield str(folder / ".venv/bin/python")
