"""Rewards from the robot side's channels, so that simulated and real stations judge alike.

Each reward has its own module.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from rlinf_core.config.base import Discriminated, Settings, constructor_arguments, settings_model
from rlinf_core.core import plugins

BUILTIN = {
    "classifier": "rlinf_core.tasks.rewards.classifier:Classifier",
    "insertion": "rlinf_core.tasks.rewards.geometry:Insertion",
    "outside": "rlinf_core.tasks.rewards.geometry:Outside",
    "place": "rlinf_core.tasks.rewards.geometry:Place",
    "progress": "rlinf_core.tasks.rewards.progress:Progress",
    "push": "rlinf_core.tasks.rewards.geometry:Push",
    "reach": "rlinf_core.tasks.rewards.geometry:Reach",
    "stack": "rlinf_core.tasks.rewards.geometry:Stack",
    "external": "rlinf_core.tasks.rewards.geometry:External",
    "vlm": "rlinf_core.tasks.rewards.vlm:VLM",
}


class Success(Protocol):
    """A test, from the robot side's channels, that the task is done (or, as a failure, cannot be).

    ``channels`` names the needed channels.
    """

    channels: tuple[str, ...]

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        """Return True if the task is done."""


@runtime_checkable
class Shaped(Success, Protocol):
    """A test with a measure of progress, for a shaped reward."""

    def progress(self, channels: dict[str, np.ndarray]) -> float:
        """Return a number that grows towards success."""


@runtime_checkable
class Stateful(Success, Protocol):
    """A test that uses more than the present time step."""

    def begin(self) -> None:
        """Begin another episode."""


@runtime_checkable
class CanAbstain(Success, Protocol):
    """A test that may be unable to judge.

    Attributes:
        trouble: the present reason why it cannot judge, in words; empty if it can.
    """

    trouble: str


def reward_names() -> list[str]:
    """Return the names of all rewards."""
    return plugins.valid_names("rewards", BUILTIN)


def reward_class(kind: str) -> type:
    """Return the class of a reward (``rlinf_core.core.plugins``).

    Raises:
        RecipeError: there is no such reward; the message suggests the nearest name.
    """
    return plugins.find("rewards", kind, BUILTIN, "reward.kind")


def make_success(settings: Settings) -> Success:
    """Return the test in a task's ``reward`` or ``failure``, with its parameters."""
    return reward_class(dict(settings)["kind"])(**constructor_arguments(settings, "kind"))


REWARD = Discriminated(
    "kind", lambda kind: settings_model(reward_class(kind), key="kind"), reward_names
)
