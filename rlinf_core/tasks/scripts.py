"""Scripted operators by name, which replace a person or an expert.

Ours are in ``sim_bridges.scripted``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlinf_core.config.base import Discriminated, Settings, constructor_arguments, settings_model
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError
from rlinf_core.tasks.rewards.arms import channels_of_arm, channels_of_arms, knows_one_arm

if TYPE_CHECKING:
    from rlinf_core.specs.arrays import StationSpec

BUILTIN = {
    name: f"sim_bridges.scripted:{name.title()}Operator"
    for name in ("insertion", "joints", "pick", "push", "reach", "search")
}
ARM_SEED_STRIDE = 7919  # difference of the seeds of two arms' scripts
CALLER_ARGUMENTS = ("action", "noise", "seed")  # all other arguments come from the task file


Channels = dict[str, np.ndarray]


class ScriptedTask(Protocol):
    """The part of a task behind a script.

    Attributes:
        script: ``kind`` and parameters of the scripted operator; None if the task has none.
        spec: specs of the station.
    """

    @property
    def script(self) -> Settings | None: ...

    @property
    def spec(self) -> StationSpec: ...


class Script(Protocol):
    """An operator for one task, made from the task's ``ActionSpec``, a ``noise`` and a ``seed``.

    Attributes:
        channels: the observed channels.
    """

    channels: tuple[str, ...]

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode; the same seed repeats it."""

    def act(self, channels: Channels) -> np.ndarray:
        """Return the normalised action (dim,)."""


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return plugins.valid_names("scripts", BUILTIN)


def script_class(kind: str) -> type:
    """Return the class of a script (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: there is no such script; the message suggests the nearest name.
    """
    return plugins.find("scripts", kind, BUILTIN, "script.kind")


def make_script(task: ScriptedTask, noise: float = 0.12, seed: int = 0) -> Script:
    """Return the operator in the task's ``script``; one per arm if it knows one arm.

    Raises:
        RecipeError: the task names no script.
    """
    if task.script is None:
        raise RecipeError(
            "script: expected in the task's file 'script: {kind: ...}', one of "
            f"{', '.join(script_names())}, or one of your own; got none. Name the script for "
            "demonstrations, or demonstrate yourself"
        )
    kind: Any = script_class(dict(task.script)["kind"])
    action, parameters = task.spec.action, constructor_arguments(task.script, "kind")
    if action.arms and knows_one_arm(kind.channels):
        return PerArmScript(
            {
                arm: kind(
                    action.of_arm(arm),
                    noise=noise,
                    seed=seed + ARM_SEED_STRIDE * place,
                    **parameters,
                )
                for place, arm in enumerate(action.arms)
            }
        )
    return kind(action, noise=noise, seed=seed, **parameters)


class PerArmScript:
    """A script for one arm, used for each of several arms at once.

    Args:
        scripts: script of each arm by its name, in the order of the action.
    """

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.channels = channels_of_arms(next(iter(scripts.values())).channels, list(scripts))

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode; the same seed repeats it."""
        for place, one in enumerate(self.scripts.values()):
            one.reset(None if seed is None else seed + ARM_SEED_STRIDE * place)

    def act(self, channels: Channels) -> np.ndarray:
        """Return the normalised action (dim,): the arms' actions one after the other."""
        return np.concatenate(
            [one.act(channels_of_arm(channels, arm)) for arm, one in self.scripts.items()]
        )


SCRIPT = Discriminated(
    "kind",
    lambda kind: settings_model(script_class(kind), CALLER_ARGUMENTS, "kind"),
    script_names,
    optional=True,
)
