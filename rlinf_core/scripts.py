"""Scripted operators by name: they stand in for a person, and for an expert. Ours are in ``sim_bridges.scripted``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from rlinf_core import plugins
from rlinf_core.errors import RecipeError
from rlinf_core.settings.base import Discriminated
from rlinf_core.settings.signature import parameters, values

if TYPE_CHECKING:
    from rlinf_core.task import Channels, Task

OURS = {"insertion": "sim_bridges.scripted:InsertionOperator", "reach": "sim_bridges.scripted:ReachOperator",
        "pick": "sim_bridges.scripted:PickOperator"}
GIVEN = ("action", "noise", "seed")  # by whoever makes it; everything else is a parameter


class Script(Protocol):
    """An operator that knows one task, made of the task's ``ActionSpec``, a ``noise`` and a ``seed``.

    Attributes:
        channels: what it looks at.
    """

    channels: tuple[str, ...]

    def reset(self, seed: int | None = None) -> None:
        """A new episode; with a seed, the same one again."""

    def act(self, channels: Channels) -> np.ndarray:
        """Normalised action (dim,)."""


def scripts() -> list[str]:
    """Names of all scripts."""
    return plugins.names("scripts", OURS)


def script(kind: str) -> type:
    """The class of a script (``rlinf_core.plugins``); RecipeError names the nearest known one."""
    return plugins.find("scripts", kind, OURS, "script.kind")


def make_script(task: Task, noise: float = 0.12, seed: int = 0) -> Script:
    """The operator that the task's ``script`` names; RecipeError if it names none."""
    if task.script is None:
        raise RecipeError(f"script: expected in the task's file 'script: {{kind: ...}}', one of {', '.join(scripts())}, or "
                          "one of your own; got none. Say which script shows how it is done, or demonstrate it yourself")
    return script(dict(task.script)["kind"])(task.spec.action, noise=noise, seed=seed, **values(task.script, "kind"))


SCRIPT = Discriminated("kind", lambda kind: parameters(script(kind), GIVEN, "kind"), scripts, optional=True)
