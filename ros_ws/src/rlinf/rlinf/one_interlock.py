"""One interlock commands a station on this machine (S23), however it was started."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path
from typing import TextIO

from rlinf_core.errors import RlinfError
from rlinf_core.ros import shell_domain


def lock_of(namespace: str) -> Path:
    """The file whose lock says that one commands it."""
    domain = shell_domain()
    name = namespace.strip("/").replace("/", "-") or "station"
    return Path(tempfile.gettempdir()) / f"rlinf-{domain}-{name}.interlock.lock"


def _opened(path: Path) -> TextIO:
    """To read, where somebody has made it: of another's, in /tmp, the system grants no more, and a lock takes no more."""
    try:
        return open(path)
    except FileNotFoundError:
        lock = open(path, "a+")  # noqa: SIM115 (held for life)
        path.chmod(0o666)
        return lock


def only_one(namespace: str) -> TextIO:
    """Hold the right to command this station, or one arm of it, until that is closed; RlinfError if it is taken."""
    domain, path = shell_domain(), lock_of(namespace)
    try:
        lock = _opened(path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except PermissionError as error:
        raise RlinfError(f"interlock: {path} belongs to somebody else, who may command this station: {error}") from error
    except OSError as error:
        raise RlinfError(f"interlock: another one commands station '{namespace}' in ROS_DOMAIN_ID {domain} on this "
                         "machine. Two would command one robot: stop the other station, or rename this one") from error
    return lock
