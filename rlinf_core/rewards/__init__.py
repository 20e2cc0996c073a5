"""Rewards computed from the robot side's channels, so that simulated and real stations judge alike; one file each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_core.errors import RecipeError, nearest

Success = Callable[[dict[str, np.ndarray]], bool]

REWARDS = {"insertion": "rlinf_core.rewards.insertion"}


def make_success(config: dict[str, Any]) -> Success:
    """Build the success test of a task from its ``reward`` section: ``kind`` and that kind's parameters."""
    config = dict(config)
    kind = config.pop("kind", None)
    if kind not in REWARDS:
        raise RecipeError(f"reward.kind: expected one of {', '.join(REWARDS)}, got {kind!r}{nearest(str(kind), REWARDS)}")
    try:
        return importlib.import_module(REWARDS[kind]).success(**config)
    except TypeError as error:
        raise RecipeError(f"reward '{kind}': {error}") from error
