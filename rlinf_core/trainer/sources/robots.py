"""Simulators of several robots that share a policy: each shows its own task, and is judged in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlinf_core.algorithms.common.settings import Amount
from rlinf_core.embodiments import joined
from rlinf_core.policies.one_robot import OneRobot
from rlinf_core.policies.policy import NetworkPolicy
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.station import robots_of
from rlinf_core.rollouts.evaluation import EpisodeResult, evaluate
from rlinf_core.rollouts.experience import Experience, Source
from rlinf_core.rollouts.rollouts import demonstrate
from rlinf_core.rollouts.vector_env import VectorEnv

AT_ONCE = 8  # environments of each that are evaluated in


class Robots(Source):
    """Brings demonstrations of each, under the robots' names.

    Args:
        recipe: with embodiments, all of which are simulators.
        make: builds so many environments of one.
    """

    asynchronous = False

    def __init__(self, recipe: Recipe, make: Callable[[Recipe, int], VectorEnv]) -> None:
        self.recipe = recipe
        self.report: dict[str, Any] = {}  # nobody asks
        self.envs = {name: make(one, min(recipe.simulation.environments or 1, AT_ONCE))
                     for name, one in robots_of(recipe).items()}
        self.spec = joined({name: env.spec for name, env in self.envs.items()})
        self.success: dict[str, float] = {}

    def demonstrate(self) -> Experience:
        """The recipe's demonstrations of each, by its task's script."""
        collect, shown = self.recipe.collect, Experience()
        for name, env in self.envs.items():
            for one in demonstrate(env, collect.episodes, self.recipe.scene(collect.first_seed)):
                vectors, actions = self.spec.with_others(env.spec, one.observations["vectors"], one.actions)
                shown.trajectories.append(replace(one, observations=one.observations | {"vectors": vectors},
                                                  actions=actions, station=name))
        return shown

    def evaluate(self, policy: NetworkPolicy, scenes: Sequence[int]) -> list[EpisodeResult]:
        """One episode of every scene with each robot."""
        found = {name: evaluate(env, OneRobot(policy, env.spec), scenes) for name, env in self.envs.items()}
        self.success = {name: sum(each.success for each in results) / len(results) for name, results in found.items()}
        return [each for results in found.values() for each in results]

    def take(self, updates: int, order: Amount) -> Experience:
        """Nothing more: nothing but demonstrations is learned from."""
        return Experience()

    def counts(self) -> dict[str, float]:
        """How each did in the last evaluation."""
        return {f"{name}/success": value for name, value in self.success.items()}

    def close(self) -> None:
        """End the simulators."""
        for env in self.envs.values():
            env.close()
