"""The environments of a recipe: simulated stations, Gymnasium environments, or a batched
simulator.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rlinf_core.recipes import Recipe

if TYPE_CHECKING:
    from rlinf_core.rollouts.array_env import ArrayEnv
    from rlinf_core.rollouts.envs import VectorEnv


def stations(recipe: Recipe, size: int) -> VectorEnv:
    """Return ``size`` environments of a recipe in this process."""
    from sim_bridges.core.gym import Environments, StationEnv, plain
    from sim_bridges.core.station import simulated_station

    if recipe.env:
        if recipe.gymnasium_id:
            return plain(recipe.gymnasium_id, size, recipe.env_options)
        return batch(recipe, size)
    return Environments([StationEnv(simulated_station(recipe)) for _ in range(size)])


def batch(recipe: Recipe, size: int) -> ArrayEnv:
    """Return ``size`` environments of a batched simulator on the recipe's device."""
    from rlinf_core.policies.torch_device import device_of
    from rlinf_core.rollouts.array_env import ArrayEnv
    from sim_bridges.core.interface import installed

    simulator, _, task = recipe.env.partition(":")
    module = importlib.import_module(f"sim_bridges.simulators.{simulator}.batched")
    with installed(simulator):
        return ArrayEnv(module.Batched(task, size, device_of(recipe.device)), recipe.env)
