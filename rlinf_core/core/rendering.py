"""The renderer of MuJoCo: the environment variable MUJOCO_GL, and the offscreen libraries."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from contextlib import suppress
from typing import Any

from rlinf_core.core.errors import RlinfError, nearest

MUJOCO_GL = "MUJOCO_GL"  # the environment variable
OFFSCREEN_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # in the order of preference
WINDOW_VALUES = ("glfw", "glx", "enable", "enabled", "on", "true", "1")  # need a display
OFF_VALUES = ("disable", "disabled", "off", "false", "0")
GRAPHICS_PACKAGES = ("mujoco", "OpenGL")


def _quiet_renderers() -> None:
    """Drop errors of graphics contexts that the end of the process collects after OpenGL."""
    before = sys.unraisablehook
    if getattr(before, "__name__", "") == "_without_graphics":
        return

    def _without_graphics(unraisable: Any) -> None:
        module = getattr(unraisable.object, "__module__", None) or ""
        if not str(module).startswith(GRAPHICS_PACKAGES):
            before(unraisable)

    sys.unraisablehook = _without_graphics


def set_mujoco_gl() -> str:
    """Set MUJOCO_GL for this process and its children; return its value.

    MuJoCo reads the variable at its import, so call this function before. A value of the shell
    stays. Renderers that are still open at the end of the process print no errors.

    Raises:
        RlinfError: MuJoCo could not be imported with the shell's value.
    """
    _quiet_renderers()
    name = os.environ.get(MUJOCO_GL, "").strip().lower()
    if sys.platform != "linux":
        return name
    platform = os.environ.get("PYOPENGL_PLATFORM", "").strip().lower()
    if not name:
        name = next(
            (
                library
                for library in OFFSCREEN_LIBRARIES
                if platform in ("", library) and has_library(library)
            ),
            "glfw" if os.environ.get("DISPLAY") else "disable",
        )
        os.environ[MUJOCO_GL] = name
        return name
    if name not in (*OFFSCREEN_LIBRARIES, *WINDOW_VALUES, *OFF_VALUES):
        allowed = (*OFFSCREEN_LIBRARIES, "glfw", "disable")
        raise RlinfError(
            f"MUJOCO_GL: expected one of {', '.join(allowed)}, got "
            f"'{name}'{nearest(name, allowed)}. Correct it in this shell, or unset MUJOCO_GL"
        )
    if name in OFFSCREEN_LIBRARIES and not has_library(name):
        raise RlinfError(
            f"MUJOCO_GL={name}: expected the library lib{OFFSCREEN_LIBRARIES[name]}, found none. "
            "Install libegl1 and libosmesa6, or unset MUJOCO_GL"
        )
    if name in OFFSCREEN_LIBRARIES and platform not in ("", name):
        raise RlinfError(
            f"MUJOCO_GL={name}: expected PYOPENGL_PLATFORM to be the same or unset, got "
            f"'{platform}'. Unset PYOPENGL_PLATFORM"
        )
    return name


def has_library(name: str) -> bool:
    """Return True if the library of an offscreen renderer can be loaded."""
    library = OFFSCREEN_LIBRARIES[name]
    for file in (f"lib{library}.so", f"lib{library}.so.1", ctypes.util.find_library(library)):
        with suppress(OSError):
            if file and ctypes.CDLL(file):
                return True
    return False
