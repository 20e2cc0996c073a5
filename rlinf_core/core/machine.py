"""Resources of this machine: named locks, devices, OpenGL for MuJoCo, and loopback addresses.

A lock is a Unix socket with an abstract name (unix(7)): one process holds it, whatever user it
belongs to. It has no file, so there is no link to follow, no mode and nothing to clean. The kernel
frees it when its process ends, and names the process and the user that hold it. It is as wide as
the network namespace, like DDS: a container with the host's network shares it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import hashlib
import ipaddress
import os
import pwd
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RlinfError, nearest
from rlinf_core.core.paths import shared

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
    """Hold the lock of a device file, independent of the file's name; raises like ``take``."""
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


OPERATORS = "configs/operators/70-rlinf-operators.rules"
DEVICES = "configs/devices/71-rlinf-devices.rules"  # cameras and grippers


def refused(device_name: str, path: str | Path, rules: str = OPERATORS) -> str:
    """Return the message for a device that may not be opened."""
    return (
        f"permission denied: cannot read {device_name} at {path}. It needs the udev rule "
        f"{Path(rules).name}. Run: {_install(rules)}"
    )


def missing(rules: str = DEVICES) -> str:
    """Return a hint after "not found": a device without its udev rule may be unreadable."""
    return (
        f"If it is plugged in, its udev rule {Path(rules).name} may be missing. Run: "
        f"{_install(rules)}"
    )


def _install(rules: str) -> str:
    return (
        f"sudo cp {shared() / rules} /etc/udev/rules.d/ && sudo udevadm control --reload && sudo "
        "udevadm trigger. Then plug it in again"
    )


VARIABLE, PLATFORM = "MUJOCO_GL", "PYOPENGL_PLATFORM"
LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # offscreen, in the order of preference
WINDOWS = ("glfw", "glx", "enable", "enabled", "on", "true", "1")  # need a display
OFF = ("disable", "disabled", "off", "false", "0")


def _quiet_renderers() -> None:
    """Drop errors of graphics contexts that are collected after OpenGL has gone.

    This happens at the end of the process.
    """
    before = sys.unraisablehook
    if getattr(before, "__name__", "") == "_without_graphics":
        return

    def _without_graphics(unraisable: Any) -> None:
        module = getattr(unraisable.object, "__module__", None) or ""
        if not str(module).startswith(GRAPHICS):
            before(unraisable)

    sys.unraisablehook = _without_graphics


GRAPHICS = ("mujoco", "OpenGL")


def choose() -> str:
    """Set MUJOCO_GL for this process and its children; return its value.

    MuJoCo reads it at import. Call this before. A value of the shell stays. Foreign renderers that
    are not closed before the process ends print nothing then.

    Raises:
        RlinfError: MuJoCo could not be imported with the shell's value.
    """
    _quiet_renderers()
    name = os.environ.get(VARIABLE, "").strip().lower()
    if sys.platform != "linux":
        return name
    platform = os.environ.get(PLATFORM, "").strip().lower()
    if not name:
        name = next(
            (
                library
                for library in LIBRARIES
                if platform in ("", library) and has_library(library)
            ),
            "glfw" if os.environ.get("DISPLAY") else "disable",
        )
        os.environ[VARIABLE] = name
        return name
    if name not in (*LIBRARIES, *WINDOWS, *OFF):
        allowed = (*LIBRARIES, "glfw", "disable")
        raise RlinfError(
            f"{VARIABLE}: expected one of {', '.join(allowed)}, got "
            f"'{name}'{nearest(name, allowed)}. Correct it in this shell, or unset {VARIABLE}"
        )
    if name in LIBRARIES and not has_library(name):
        raise RlinfError(
            f"{VARIABLE}={name}: expected the library lib{LIBRARIES[name]}, found none. Install "
            f"libegl1 and libosmesa6, or unset {VARIABLE}"
        )
    if name in LIBRARIES and platform not in ("", name):
        raise RlinfError(
            f"{VARIABLE}={name}: expected {PLATFORM} to be the same or unset, got '{platform}'. "
            f"Unset {PLATFORM}"
        )
    return name


def has_library(name: str) -> bool:
    """Return True if the library of an offscreen renderer can be loaded."""
    library = LIBRARIES[name]
    for file in (f"lib{library}.so", f"lib{library}.so.1", ctypes.util.find_library(library)):
        with suppress(OSError):
            if file and ctypes.CDLL(file):
                return True
    return False


def is_loopback(host: str) -> bool:
    """Return True for loopback addresses and ``localhost``.

    Other host names are not resolved; they give False.
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def connect_address(host: str) -> str:
    """Return the address to connect to for a server on this machine that listens on ``host``.

    A wildcard address (0.0.0.0, ::) becomes the loopback address.
    """
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
