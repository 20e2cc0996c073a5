"""Driver nodes: each one translates a vendor's driver to the robot interface.

A module holds ``Driver``, the node's settings, which are the robot's ``options``; its ``node`` is
the module to run. robot.yaml names the driver. A custom one is ``driver: package.module:Class``, or
an entry point ``rlinf.drivers``. Deleting a module deletes its driver.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlinf_core.config.base import Settings
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError

# no node of ours: a simulator itself, or a foreign publisher
SIMULATOR, EXTERNAL = "simulator", "external"


class DriverSettings(Settings):
    """Base of every driver's settings.

    Attributes:
        node: the module whose ``main`` runs it; its parameter ``settings`` is these settings as
            JSON.
        repeats: True if it publishes ``robot/fault`` ten times a second, so that a hang is noticed.
    """

    node: ClassVar[str] = ""
    repeats: ClassVar[bool] = False

    address: str = Field(
        "",
        pattern=r"^[A-Za-z0-9.:-]*$",
        description="address of the robot's controller, for `rlinf doctor station`. Empty pings "
        "nothing",
    )

    @property
    def has_gripper(self) -> bool:
        """Whether the driver also commands a gripper."""
        return False

    def findings(self) -> list[tuple[str, str, str]]:
        """Return rows of `rlinf doctor station` about the hardware: name, state and remedy.

        The remedy is empty without a fault.
        """
        return []


def drivers() -> list[str]:
    """Return the names of all driver nodes."""
    return plugins.valid_names("drivers", plugins.module_places(__name__, __file__))


def driver(name: str, where: str = "driver") -> type[DriverSettings]:
    """Return the settings' class of a driver's node (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: there is no such driver; the message suggests the nearest name.
    """
    builtin = {SIMULATOR: "", EXTERNAL: ""} | plugins.module_places(__name__, __file__)
    kind = plugins.find_class("drivers", name, builtin, "Driver", DriverSettings, where)
    if not kind.node:
        raise RecipeError(
            f"{where}: '{name}': expected {kind.__name__} to define 'node', the module to run"
        )
    return kind
