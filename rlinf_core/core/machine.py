"""Locks of this machine, and remedies for device files that this user may not open.

A lock is a Unix socket with an abstract name (unix(7)): one process holds it, whatever user it
belongs to. It has no file, so there is no link to follow, no mode and nothing to clean. The kernel
frees it when its process ends, and names the process and the user that hold it. It is as wide as
the network namespace, like DDS: a container with the host's network shares it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import socket
import struct
from pathlib import Path

from rlinf_core.core.paths import data_folder

MAX_NAME = 100  # bytes of an abstract name; Linux takes 107
ANSWER_S = 0.2
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class HeldError(Exception):
    """Another process holds the lock; the text names it."""


def acquire(name: str) -> socket.socket:
    """Hold a lock until the socket is closed or this process ends.

    Args:
        name: name of the lock, on this machine.

    Raises:
        HeldError: another process holds it.
        OSError: the machine grants no socket.
    """
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(_address(name))
        lock.listen(1)  # so that others can ask for its holder
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            raise HeldError(holder(name)) from error
        raise
    return lock


def acquire_device(path: str | os.PathLike[str]) -> socket.socket:
    """Hold the lock of a device file, independent of the file's name; raises like ``acquire``."""
    status = os.stat(path)
    return acquire(f"device/{status.st_rdev or f'{status.st_dev}:{status.st_ino}'}")


def is_held(name: str) -> bool:
    """Return True if a process, this one included, holds the lock."""
    try:
        acquire(name).close()
    except HeldError:
        return True
    return False


def holder(name: str) -> str:
    """Return the process and the user that hold a lock, in words."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_S)
        try:
            probe.connect(_address(name))
            raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return "an unidentified process (sudo ss -xlp | grep rlinf)"
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    where = f"process {pid}" if pid else "a process of another container"
    return f"{where} of {user_name(uid)}"


def user_name(uid: int) -> str:
    """Return a user's name and number, for messages."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _address(name: str) -> bytes:
    raw = os.fsencode(f"rlinf/{name}")
    if len(raw) > MAX_NAME:
        raw = b"rlinf/" + hashlib.sha256(raw).hexdigest().encode()
    return b"\0" + raw


OPERATOR_RULES = "configs/operators/70-rlinf-operators.rules"
DEVICE_RULES = "configs/devices/71-rlinf-devices.rules"  # cameras and grippers


def access_denied_text(device_name: str, path: str | Path, rules: str = OPERATOR_RULES) -> str:
    """Return the message for a device that may not be opened."""
    return (
        f"permission denied: cannot read {device_name} at {path}. It needs the udev rule "
        f"{Path(rules).name}. Run: {_install(rules)}"
    )


def missing_rule_hint(rules: str = DEVICE_RULES) -> str:
    """Return a hint after "not found": a device without its udev rule may be unreadable."""
    return (
        f"If it is plugged in, its udev rule {Path(rules).name} may be missing. Run: "
        f"{_install(rules)}"
    )


def _install(rules: str) -> str:
    return (
        f"sudo cp {data_folder() / rules} /etc/udev/rules.d/ && sudo udevadm control --reload "
        "&& sudo udevadm trigger. Then plug it in again"
    )
