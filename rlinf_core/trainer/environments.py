"""Environments of a run: those that the policy learns in, and those of evaluations."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from rlinf_core.algorithms.common.settings import ROLLOUTS, is_offline
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import CONVERSATIONS, RECORDINGS, SIMULATORS, STATIONS, source_of
from rlinf_core.recipes.station import embodiment_recipes, is_simulated, learned_spec
from rlinf_core.rollouts.array_env import ArrayEnv
from rlinf_core.rollouts.envs import VectorEnv
from rlinf_core.specs.arrays import StationSpec, TextSpec
from rlinf_core.specs.embodiment import joined
from rlinf_core.trainer.distributed.remote_envs import MakeEnvs, rollout_envs
from rlinf_core.trainer.worlds import imagined_envs

MAX_EVALUATED = 8  # environments of evaluations, of each robot


@dataclass
class RunEnvironments:
    """Environments of a run; stations and conversations have none.

    Attributes:
        training: environments in which the policy of one robot learns.
        held_out: environments for its evaluations.
        robots: environments in which each robot learns, if several share the policy.
        held_out_robots: environments for evaluations of each robot.
    """

    training: VectorEnv | None = None
    held_out: VectorEnv | None = None
    robots: dict[str, VectorEnv] = field(default_factory=dict)
    held_out_robots: dict[str, VectorEnv] = field(default_factory=dict)

    def spec(self, recipe: Recipe) -> StationSpec:
        """Return the observation and action spec of the environments, or of the recipe's source."""
        if source_of(recipe) == CONVERSATIONS:
            return TextSpec()
        if self.robots:
            return joined({name: env.spec for name, env in self.robots.items()})
        return self.training.spec if self.training else learned_spec(recipe)


def make_run_environments(recipe: Recipe, make: MakeEnvs, ending: ExitStack) -> RunEnvironments:
    """Return the environments of a run.

    Args:
        recipe: recipe of the run.
        make: builds a number of simulated environments.
        ending: closes the environments.
    """
    source_kind = source_of(recipe)
    if source_kind == CONVERSATIONS:
        return RunEnvironments()
    if not recipe.embodiments:
        return _one_robot_environments(recipe, source_kind, make, ending)
    if source_kind == STATIONS or not is_simulated(recipe):
        return RunEnvironments()
    size = recipe.simulation.environments or 1
    robots = robot_environments(recipe, make, ending, size)
    held_out = robots
    if not is_offline(recipe.algorithm):  # training episodes must not be interrupted
        held_out = robot_environments(recipe, make, ending, min(size, MAX_EVALUATED))
    return RunEnvironments(robots=robots, held_out_robots=held_out)


def robot_environments(
    recipe: Recipe, make: MakeEnvs, ending: ExitStack, size: int
) -> dict[str, VectorEnv]:
    """Return ``size`` environments of each robot of a recipe, by name. ``ending`` closes them."""
    envs = {}
    for name, robot_recipe in embodiment_recipes(recipe).items():
        envs[name] = make(robot_recipe, size)
        ending.callback(envs[name].close)
    return envs


def _one_robot_environments(
    recipe: Recipe, source_kind: str, make: MakeEnvs, ending: ExitStack
) -> RunEnvironments:
    simulation, placement = recipe.simulation, recipe.placement
    envs = RunEnvironments()
    if recipe.world.run:
        if is_simulated(recipe):
            envs.held_out = make(recipe, min(simulation.environments, MAX_EVALUATED))
            ending.callback(envs.held_out.close)
        envs.training = imagined_envs(recipe)
        return envs
    # without workers this process plays, and with a free placement it may play later
    may_play = not placement.workers or (placement.auto and "workers" not in placement.fixed)
    if simulation.environments and may_play:
        env = (
            make(recipe, simulation.environments)
            if placement.workers
            else rollout_envs(recipe, make, simulation.environments)
        )
        ending.callback(env.close)
        envs.training = envs.held_out = env
    if isinstance(envs.training, ArrayEnv) and envs.training.tensors.exclusive:
        check_single_process(recipe)
    elif source_kind == SIMULATORS or (source_kind == RECORDINGS and is_simulated(recipe)):
        envs.held_out = make(recipe, min(simulation.environments or 1, MAX_EVALUATED))
        ending.callback(envs.held_out.close)
        envs.training = envs.training or envs.held_out
    return envs


def check_single_process(recipe: Recipe) -> None:
    """Raise RecipeError if evaluations in the only environment of a process would lose episodes."""
    if recipe.algorithm.learns_from != ROLLOUTS:
        raise RecipeError(
            f"env: '{recipe.env}' exists once in a process, and evaluations interrupt its "
            "episodes. Expected an algorithm that continues with new episodes (ppo, async_ppo), "
            f"got {recipe.algorithm.name}"
        )
