"""The environments of a recipe: simulated stations, Gymnasium environments, a batched simulator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rlinf_core.recipes import Recipe

if TYPE_CHECKING:
    from rlinf_core.rollouts.array_env import ArrayEnv
    from rlinf_core.rollouts.envs import VectorEnv


def make_environments(recipe: Recipe, size: int) -> VectorEnv:
    """Return ``size`` environments of a recipe in this process."""
    from sim_bridges.core.gym import Environments, StationEnv
    from sim_bridges.core.gymnasium_envs import make_gymnasium
    from sim_bridges.core.station import simulated_station

    if recipe.env:
        if recipe.gymnasium_id:
            return make_gymnasium(recipe.gymnasium_id, size, recipe.env_options)
        return make_batched(recipe, size)
    return Environments([StationEnv(simulated_station(recipe)) for _ in range(size)])


def make_batched(recipe: Recipe, size: int) -> ArrayEnv:
    """Return ``size`` environments of a batched simulator on the recipe's device."""
    from rlinf_core.policies.torch_device import device_of
    from rlinf_core.rollouts.array_env import ArrayEnv
    from sim_bridges.core.interface import import_errors_explained

    simulator, _, task = recipe.env.partition(":")
    module = importlib.import_module(f"sim_bridges.simulators.{simulator}.batched")
    with import_errors_explained(simulator):
        return ArrayEnv(module.Batched(task, size, device_of(recipe.device)), recipe.env)
