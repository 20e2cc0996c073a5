"""Rewards computed from the robot side's channels, so that simulated and real stations judge alike; one file each."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np

from rlinf_core.errors import RecipeError, nearest

REWARDS = {"classifier": "rlinf_core.rewards.classifier:Classifier", "insertion": "rlinf_core.rewards.insertion:Insertion",
           "outside": "rlinf_core.rewards.outside:Outside", "place": "rlinf_core.rewards.place:Place",
           "reach": "rlinf_core.rewards.reach:Reach", "told": "rlinf_core.rewards.told:Told"}


class Success(Protocol):
    """Judges from the robot side's channels, which it names, whether the task is done, or, as a failure, cannot be done.

    With ``progress(channels) -> float``, larger the nearer to success, a task's reward can be shaped.
    """

    channels: tuple[str, ...]

    def __call__(self, channels: dict[str, np.ndarray]) -> bool:
        """Whether the task is done."""


def make_success(config: dict[str, Any], term: str = "reward") -> Success:
    """Build the test of success, or failure, from that section of a task: ``kind`` and that kind's parameters."""
    config = dict(config)
    kind = config.pop("kind", None)
    if kind not in REWARDS:
        raise RecipeError(f"{term}.kind: expected one of {', '.join(REWARDS)}, got {kind!r}{nearest(str(kind), REWARDS)}")
    try:
        module, _, name = REWARDS[kind].partition(":")
        return getattr(importlib.import_module(module), name)(**config)
    except TypeError as error:
        raise RecipeError(f"{term} '{kind}': {error}") from error
