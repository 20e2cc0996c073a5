"""Grippers by kind, one module each; deleting the module and its node deletes the kind.

A module holds ``Gripper``, its settings in robot.yaml; its ``node`` is the module to run, which
subscribes to ``gripper/command`` and publishes ``gripper/state``. If a gripper does not obey, the
node stops publishing, and the interlock holds (S22). A custom one is ``kind:
package.module:Class``, or an entry point ``rlinf.grippers``.
"""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field, model_validator

from rlinf_core.config.base import Discriminated, Positive, Settings
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError


class GripperSettings(Settings):
    """Base of every gripper's settings.

    Attributes:
        node: the module whose ``main`` runs it; its parameter ``settings`` is these settings as
            JSON.
    """

    node: ClassVar[str] = ""

    kind: str = Field(description="kind of the gripper")
    width: Positive = Field(0.085, le=0.5, description="distance between the open fingers [m]")
    open_at: float = Field(description="position value of the device when open")
    closed_at: float = Field(0.0, description="position value of the device when closed")
    timeout_s: Positive = Field(
        3.0, description="longest time for an answer to a command [s]. A later one counts as lost"
    )

    @model_validator(mode="after")
    def _moves(self) -> GripperSettings:
        if self.open_at == self.closed_at:
            raise ValueError(
                f"open_at: expected a position that differs from closed_at, got {self.open_at:g} "
                "for both"
            )
        return self

    @property
    def where(self) -> str:
        """The device's port or topic; empty for one below the arm's name."""
        return ""

    @property
    def twin_node(self) -> str:
        """The module of a process in the hardware's place; empty for none."""
        return ""

    def position(self, width: float) -> float:
        """Convert a width [m] to the device's unit."""
        return self.closed_at + (self.open_at - self.closed_at) * min(
            max(width / self.width, 0.0), 1.0
        )

    def opening(self, position: float) -> float:
        """Return the width [m] at a position of the device; NaN for other units, such as degrees.

        Flexible fingers may be a little further than closed or open, by up to half of the range.
        """
        share = (position - self.closed_at) / (self.open_at - self.closed_at)
        return min(max(share, 0.0), 1.0) * self.width if -0.5 <= share <= 1.5 else math.nan


def grippers() -> list[str]:
    """Return the names of all kinds."""
    return plugins.valid_names("grippers", plugins.module_places(__name__, __file__))


def gripper(kind: str) -> type[GripperSettings]:
    """Return the settings' class of a kind (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: there is no such kind; the message suggests the nearest name.
    """
    where = "gripper.kind"
    gripper_class = plugins.find_class(
        "grippers",
        kind,
        plugins.module_places(__name__, __file__),
        "Gripper",
        GripperSettings,
        where,
    )
    if not gripper_class.node:
        raise RecipeError(
            f"{where}: '{kind}': expected {gripper_class.__name__} to define 'node', the module to "
            "run"
        )
    return gripper_class


GRIPPER = Discriminated("kind", gripper, grippers, optional=True)
