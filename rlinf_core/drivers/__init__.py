"""Driver nodes: what sits beside a vendor's driver and speaks the robot interface for it; a file each, named in robot.yaml.

A file holds ``Driver``, the node's settings, which are the robot's ``options``; its ``node`` is the module that is run.
One of one's own is ``driver: package.module:Class``, or an entry point ``rlinf.drivers``; deleting a file deletes a driver.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import ClassVar

from rlinf_core import plugins
from rlinf_core.errors import RecipeError
from rlinf_core.settings.base import Settings

SIMULATOR, EXTERNAL = "simulator", "external"  # no node of ours: a simulator itself, or somebody else's


class DriverSettings(Settings):
    """Base of every driver's settings.

    Attributes:
        node: the module whose ``main`` runs it; its parameter ``settings`` is these as JSON.
    """

    node: ClassVar[str] = ""


def drivers() -> list[str]:
    """Names of all driver nodes."""
    return plugins.names("drivers", _files())


def driver(name: str, where: str = "driver") -> type[DriverSettings]:
    """The settings of a driver's node (``rlinf_core.plugins``); RecipeError names the nearest known one."""
    found = plugins.find("drivers", name, {SIMULATOR: "", EXTERNAL: ""} | _files(), where)
    kind = getattr(found, "Driver", None) if isinstance(found, ModuleType) else found
    if not (isinstance(kind, type) and issubclass(kind, DriverSettings) and kind.node):
        raise RecipeError(f"{where}: '{name}': expected a class that extends rlinf_core.drivers.DriverSettings and says "
                          f"its 'node', got {kind}")
    return kind


def _files() -> dict[str, str]:
    return {path.stem: f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py")}
