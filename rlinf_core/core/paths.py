"""Folders of this distribution and of its user: data files, a home that can be written, and the version.

Files that are no Python lie in the source tree, or in the installed distribution. A home may be
read-only, on a full or lost network drive, or absent, as in a container. ROS's nodes end at once
without a folder for their logs; caches slow a run down, or end it. So libraries get other folders
where they cannot write into the home.
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

SOURCE = Path(__file__).resolve().parents[2]  # of our packages: in a clone its root
NODES = sorted(path.parent for path in SOURCE.glob("ros_ws/src/rlinf_*/setup.py"))  # of a clone: folders of Python packages


def in_source_tree() -> bool:
    """Whether this runs from a clone, and not from an installed wheel."""
    return (SOURCE / "configs").is_dir()


def shared() -> Path:
    """The folder that holds ``configs``, ``robots``, ``launch`` and ``ros_ws/src``."""
    return SOURCE if in_source_tree() else Path(__file__).parents[1] / "share"


def expanded(path: str | Path, where: str) -> Path:
    """A path of a config with ~ and ~user as the homes they are; RecipeError, at ``where``, if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise RecipeError(f"{where}: expected a path, in which ~name is the home of a user of this machine, got '{path}'. "
                          "Write ./ before a name that begins with ~") from error


@cache
def packages_alone() -> Path:
    """A folder from which our packages alone can be imported: for another Python, which has its own of all others."""
    if in_source_tree():
        return SOURCE
    folder = tempfile.TemporaryDirectory(prefix="rlinf-packages-")
    atexit.register(folder.cleanup)
    for name in ("rlinf_core", "sim_bridges"):
        Path(folder.name, name).symlink_to(SOURCE / name)
    return Path(folder.name)


def message_sources() -> Path:
    """The ROS package rlinf_msgs: .msg, .srv and .action files, and how to build them."""
    return shared() / "ros_ws/src/rlinf_msgs"


def definitions() -> list[Path]:
    """ROS packages of others, from their published fields: for a ROS that lacks them."""
    return sorted(path.parent for path in (shared() / "ros_ws/definitions").glob("*/package.xml"))


def built_messages() -> Path:
    """The prefix that ``rlinf messages`` installs rlinf_msgs into: the clone's workspace, or the Python environment."""
    return SOURCE / "ros_ws/install/rlinf_msgs" if in_source_tree() else Path(sys.prefix)


def message_packages(name: str = "rlinf_msgs") -> Path | None:
    """The folder to put on ``sys.path`` for rlinf_msgs, or None while it is not built for this Python."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = ("lib/{}/site-packages", "local/lib/{}/dist-packages", "lib/{}/dist-packages")
    folders_of_messages = (built_messages() / folder.format(version) for folder in folders)
    return next((folder for folder in folders_of_messages if (folder / name / "__init__.py").is_file()), None)


ROS_LOG_DIR = "ROS_LOG_DIR"
CACHES = {"XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data",
          "MPLCONFIGDIR": "matplotlib", "TRITON_CACHE_DIR": "triton", "NUMBA_CACHE_DIR": "numba",
          "CUDA_CACHE_PATH": "cuda", "MESA_SHADER_CACHE_DIR": "mesa"}
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"  # torch runs what lies there; its own place is /tmp, by name


def can_write(folder: Path) -> bool:
    """Whether files can be written into a folder, or into a new one of that path; makes nothing."""
    try:
        existing = next(candidate for candidate in (folder, *folder.parents) if candidate.exists())
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


@cache
def replacements() -> dict[str, str]:
    """Environment variables for folders in the place of those in a home that cannot be written.

    They are empty folders of this process, removed at its end. A variable that the user has set
    stays as it is.
    """
    home = _home()
    folders: dict[str, str] = {}
    log = _ros_log(home)
    if not os.environ.get(ROS_LOG_DIR) and not (log and can_write(log)):
        folders[ROS_LOG_DIR] = str(_spare() / "ros_log")
    if home and can_write(home / ".cache"):
        return folders | ({} if os.environ.get(INDUCTOR) else {
            INDUCTOR: str(home / ".cache/rlinf/torchinductor")})
    if home and (home / ".cache/huggingface").is_dir():  # what lies there can be read
        folders["HF_HOME"] = str(home / ".cache/huggingface")
    folders |= {name: str(_spare() / folder) for name, folder in CACHES.items()}
    folders[INDUCTOR] = str(_spare() / "torchinductor")
    return {name: place for name, place in folders.items() if not os.environ.get(name)}


def explanation() -> str:
    """Return what a person can do about a home that cannot be written; empty if it can."""
    names = [name for name in (ROS_LOG_DIR, "XDG_CACHE_HOME") if name in replacements()]
    exports = " ".join(f"{name}=/a/folder" for name in names)
    return f"name folders that can be written: export {exports}" if names else ""


def _home() -> Path | None:
    home = os.path.expanduser("~")
    return Path(home) if home.startswith("/") else None  # of a user without one


def _ros_log(home: Path | None) -> Path | None:
    """Return the folder where ROS logs by default, if any; ROS knows only the home in HOME."""
    if os.environ.get("ROS_HOME"):
        return Path(os.environ["ROS_HOME"], "log")
    return home / ".ros/log" if home and os.environ.get("HOME") else None


@cache
def _spare() -> Path:
    folder = tempfile.mkdtemp(prefix="rlinf-home-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # not of a fork
        shutil.rmtree(folder, ignore_errors=True)


DISTRIBUTION = "rlinf"


def _installed() -> str:
    """The installed version; ``0+source`` where the packages are only on the path."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+source"


VERSION = _installed()
