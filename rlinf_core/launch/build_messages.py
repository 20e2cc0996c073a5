"""``rlinf messages``: build rlinf_msgs with CMake for the sourced ROS, or for the ROS wheels.

Messages are compiled for one Python and one ROS, so no wheel contains them; each installation
builds them once. Message packages of vendors that this ROS lacks (``ros_ws/definitions``) are
built, too.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.extras import how_to_get
from rlinf_core.core.paths import (
    built_messages,
    message_definitions,
    message_packages,
    message_sources,
)
from rlinf_core.core.ros import ros_is_sourced

SILENCE_S = 4.0
PROSE = (".md", ".rst")  # files that are not compiled
STEP = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]")
PYTHON_INCLUDES = re.compile(r'INTERFACE_INCLUDE_DIRECTORIES "[^";]*/include/python3\.\d+;[^"]*"')


def build_messages() -> Path:
    """Build and install rlinf_msgs and missing vendor messages, unless they are up to date.

    Returns:
        The installation prefix.

    Raises:
        RlinfError: no ROS, no compiler, or the build failed; its last lines are quoted.
    """
    prefix, total = built_messages(), 1 + len(message_definitions())
    _build(message_sources(), prefix, f"[1 of {total}] ")
    for number, sources in enumerate(message_definitions(), 2):
        if _has_ros(sources.name, prefix):
            _forget(sources.name, prefix)
        else:
            _build(sources, prefix, f"[{number} of {total}] ")
    return prefix


def _build(sources: Path, prefix: Path, position: str) -> None:
    name, recipe = sources.name, _recipe(sources)
    stamp = prefix / f"share/{name}/built_from"
    if message_packages(name) and stamp.exists() and stamp.read_text() == recipe:
        print(f"{position}{name}: up to date in {prefix}")
        return
    for tool, remedy in (
        ("cmake", f"{how_to_get('ros')}, or apt-get install cmake"),
        ("cc", "apt-get install gcc"),
        ("c++", "apt-get install g++"),
    ):
        if not shutil.which(tool, path=_path()):
            raise RlinfError(
                f"{name}: expected the tool {tool}, which is not installed. Run: {remedy}"
            )
    print(f"{position}{name}: compiling for Python {sys.version.split()[0]}", flush=True)
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder:
        _run(
            name,
            _configure(sources, Path(folder), prefix),
            "looking for the compiler, Python and ROS",
        )
        _run(
            name,
            ["cmake", "--build", folder, "--parallel", str(os.cpu_count() or 1)],
            "generating and compiling",
        )
        _run(name, ["cmake", "--install", folder], "installing")
    stamp.write_text(recipe)
    print(f"{name}: built in {time.monotonic() - started_at:.0f} s, into {prefix}")


def _has_ros(name: str, prefix: Path) -> bool:
    """Return whether the sourced ROS contains the package."""
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(":") if ros_is_sourced() else []
    return any(
        (Path(prefix_path) / "share" / name).is_dir()
        for prefix_path in prefixes
        if prefix_path and Path(prefix_path) != prefix
    )


def _forget(name: str, prefix: Path) -> None:
    """Remove messages that were built before the installed ROS contained them."""
    site = message_packages(name)
    for folder in (prefix / "share" / name, *([site / name] if site else [])):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (
        *prefix.glob(f"lib/lib{name}__*"),
        *prefix.glob(f"share/ament_index/resource_index/*/{name}"),
    ):
        file.unlink()  # the loader would find them before ROS's own
    print(f"{name}: the sourced ROS's own")


def _recipe(source: Path) -> str:
    """Return the inputs of the build: the definitions, this Python, and the ROS distribution."""
    sources = hashlib.sha256()
    for path in sorted(
        path for path in source.rglob("*") if path.is_file() and path.suffix not in PROSE
    ):
        sources.update(path.name.encode() + path.read_bytes())
    ros = os.environ["ROS_DISTRO"] if ros_is_sourced() else sys.prefix
    return f"{sources.hexdigest()} {sys.version.split()[0]} {ros}\n"


def _configure(sources: Path, build: Path, prefix: Path) -> list[str]:
    command = [
        "cmake",
        "-S",
        str(sources),
        "-B",
        str(build),
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        "-DBUILD_TESTING=OFF",
        *(["-G", "Ninja"] if shutil.which("ninja", path=_path()) else []),
    ]
    if ros_is_sourced():
        return command  # ROS's own Python has the generators' imports
    import numpy

    repair_exports(Path(sys.prefix), f"{_include()};{numpy.get_include()}")
    return [*command, f"-DPython3_EXECUTABLE={sys.executable}"]


def repair_exports(prefix: Path, include: str) -> None:
    """Replace directories of the build machine in the CMake files of the ROS wheels."""
    for path in prefix.glob("share/*/cmake/*Export.cmake"):
        text = path.read_text()
        repaired = PYTHON_INCLUDES.sub(f'INTERFACE_INCLUDE_DIRECTORIES "{include}"', text)
        if repaired != text:
            new = path.with_name(f"{path.name}.new")
            new.write_text(repaired)
            os.replace(new, path)  # not in place: uv hard-links such files between environments


def _include() -> str:
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        raise RlinfError(
            f"rlinf_msgs: expected Python's headers in {include}. Run: apt-get install "
            f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
        )
    return include


def _path() -> str:
    """Return PATH for the build: the virtual environment first, or last for a sourced ROS."""
    path, python_folder = os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)
    others = [entry for entry in path.split(":") if entry != python_folder]
    return ":".join([*others, python_folder] if ros_is_sourced() else [python_folder, *others])


def _environment() -> dict[str, str]:
    environment = os.environ | {"PATH": _path()}
    environment.pop("VIRTUAL_ENV", None)
    if not ros_is_sourced():
        environment |= {"AMENT_PREFIX_PATH": sys.prefix, "CMAKE_PREFIX_PATH": sys.prefix}
    return environment


def _run(name: str, command: list[str], doing: str) -> None:
    print(f"  {doing}", flush=True)
    try:
        process = subprocess.Popen(
            command, env=_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise RlinfError(f"{name}: cannot run {command[0]}: {error}") from error
    assert process.stdout is not None
    output = list(progress(process.stdout, doing))
    if process.wait():
        ros = "the sourced ROS" if ros_is_sourced() else f"the ROS wheels ({how_to_get('ros')})"
        raise RlinfError(
            f"{name}: `{' '.join(command[:2])}` failed against {ros}:\n" + "".join(output[-25:])
        )


def progress(lines: Iterable[str], doing: str, silence_s: float = SILENCE_S) -> Iterator[str]:
    """Yield the lines; print each tenth of the build, and a line after ``silence_s`` without one.

    A compiler's own lines are not printed, so they do not count.
    """
    percent = 0
    started_at = printed_at = time.monotonic()
    waiting = _arriving(lines)
    while True:
        try:
            line = waiting.get(timeout=max(0.0, printed_at + silence_s - time.monotonic()))
        except queue.Empty:
            line = ""
        if line is None:
            return
        now, before = time.monotonic(), percent
        if match := STEP.match(line):
            percent = max(percent, int(match[1]) * 100 // int(match[2] or 100))
        if percent // 10 > before // 10:
            print(f"  {percent} % compiled", flush=True)
            printed_at = now
        elif now - printed_at >= silence_s:
            print(f"  still {doing}, {now - started_at:.0f} s so far", flush=True)
            printed_at = now
        if line:
            yield line


def _arriving(lines: Iterable[str]) -> queue.SimpleQueue[str | None]:
    """Return a queue that a thread fills with the lines; None follows the last one."""
    arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            arrived.put(line)
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    return arrived
