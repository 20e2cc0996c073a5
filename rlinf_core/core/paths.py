"""Folders of this distribution and of its user: data files, a writable home, and the version.

Files other than Python lie in the source tree, or in the installed distribution. A home may be
read-only, on a full or lost network drive, or absent, for example in a container. ROS's nodes end
at once without a folder for their logs; missing caches slow a run down, or end it. Libraries
therefore get other folders if they cannot write to the home.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

from rlinf_core.core.errors import RecipeError

SOURCE = Path(__file__).resolve().parents[2]  # folder of our packages; the root of a clone
# folders of Python packages in a clone
NODES = sorted(path.parent for path in SOURCE.glob("ros_ws/src/rlinf_*/setup.py"))


def in_source_tree() -> bool:
    """Return True if this runs from a clone, and not from an installed wheel."""
    return (SOURCE / "configs").is_dir()


def data_folder() -> Path:
    """Return the folder with ``configs``, ``robots``, ``launch`` and ``ros_ws/src``."""
    return SOURCE if in_source_tree() else Path(__file__).parents[1] / "share"


def expand_user(path: str | Path, where: str) -> Path:
    """Return a config's path with ~ and ~user expanded.

    Raises:
        RecipeError: there is no such user; the message begins with ``where``.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(
            f"{where}: expected a path in which ~name is the home of a user of this machine, got "
            f"'{path}'. Write ./ before a file name that begins with ~"
        ) from error


@cache
def bundled_packages() -> Path:
    """Return a folder from which only our packages can be imported, for another Python.

    That Python has its own versions of all other packages.
    """
    if in_source_tree():
        return SOURCE
    folder = tempfile.TemporaryDirectory(prefix="rlinf-packages-")
    atexit.register(folder.cleanup)
    for name in ("rlinf_core", "sim_bridges"):
        Path(folder.name, name).symlink_to(SOURCE / name)
    return Path(folder.name)


def message_sources() -> Path:
    """Return the ROS package rlinf_msgs: .msg, .srv and .action files, and their build files."""
    return data_folder() / "ros_ws/src/rlinf_msgs"


def message_definitions() -> list[Path]:
    """Return foreign ROS packages, made from their published fields, for a ROS without them."""
    return sorted(
        path.parent for path in (data_folder() / "ros_ws/definitions").glob("*/package.xml")
    )


def built_messages() -> Path:
    """Return the prefix into which ``rlinf messages`` installs rlinf_msgs.

    The prefix is the clone's workspace, or the Python environment.
    """
    return SOURCE / "ros_ws/install/rlinf_msgs" if in_source_tree() else Path(sys.prefix)


def message_packages(name: str = "rlinf_msgs") -> Path | None:
    """Return the ``sys.path`` folder of rlinf_msgs; None until it is built for this Python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = ("lib/{}/site-packages", "local/lib/{}/dist-packages", "lib/{}/dist-packages")
    folders_of_messages = (built_messages() / folder.format(version) for folder in folders)
    return next(
        (folder for folder in folders_of_messages if (folder / name / "__init__.py").is_file()),
        None,
    )


ROS_LOG_DIR = "ROS_LOG_DIR"
CACHES = {
    "XDG_CACHE_HOME": "",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "MPLCONFIGDIR": "matplotlib",
    "TRITON_CACHE_DIR": "triton",
    "NUMBA_CACHE_DIR": "numba",
    "CUDA_CACHE_PATH": "cuda",
    "MESA_SHADER_CACHE_DIR": "mesa",
}
# torch executes its content; the default place is /tmp, by name
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def can_write(folder: Path) -> bool:
    """Return True if files can be written into a folder, or into a new folder with this path.

    The check creates nothing.
    """
    try:
        existing = next(candidate for candidate in (folder, *folder.parents) if candidate.exists())
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


@cache
def replacement_folders() -> dict[str, str]:
    """Return environment variables with folders that replace those in an unwritable home.

    They are empty folders of this process, removed at its end. A variable that the user has set is
    left out.
    """
    home = _home()
    folders: dict[str, str] = {}
    log = _ros_log(home)
    if not os.environ.get(ROS_LOG_DIR) and not (log and can_write(log)):
        folders[ROS_LOG_DIR] = str(_spare() / "ros_log")
    if home and can_write(home / ".cache"):
        return folders | (
            {} if os.environ.get(INDUCTOR) else {INDUCTOR: str(home / ".cache/rlinf/torchinductor")}
        )
    if home and (home / ".cache/huggingface").is_dir():  # the folder is readable
        folders["HF_HOME"] = str(home / ".cache/huggingface")
    folders |= {name: str(_spare() / folder) for name, folder in CACHES.items()}
    folders[INDUCTOR] = str(_spare() / "torchinductor")
    return {name: place for name, place in folders.items() if not os.environ.get(name)}


def home_remedy() -> str:
    """Return a person's remedy for an unwritable home; empty if it is writable."""
    names = [name for name in (ROS_LOG_DIR, "XDG_CACHE_HOME") if name in replacement_folders()]
    exports = " ".join(f"{name}=/a/folder" for name in names)
    return f"name writable folders: export {exports}" if names else ""


def _home() -> Path | None:
    home = os.path.expanduser("~")
    return Path(home) if home.startswith("/") else None  # a user without a home


def _ros_log(home: Path | None) -> Path | None:
    """Return ROS's default folder of logs, if any; ROS knows only the home in HOME."""
    if os.environ.get("ROS_HOME"):
        return Path(os.environ["ROS_HOME"], "log")
    return home / ".ros/log" if home and os.environ.get("HOME") else None


@cache
def _spare() -> Path:
    folder = tempfile.mkdtemp(prefix="rlinf-home-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


DISTRIBUTION = "rlinf"


def _installed() -> str:
    """Return the installed version; ``0+source`` if the packages are only on the path."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+source"


VERSION = _installed()
