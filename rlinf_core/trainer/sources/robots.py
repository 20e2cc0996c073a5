"""Several simulated robots that share a policy, as one source.

Each robot plays its own task and is evaluated in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.policies.base import NetworkPolicy, SingleRobotPolicy
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.station import embodiment_recipes
from rlinf_core.rollouts.envs import VectorEnv
from rlinf_core.rollouts.evaluate import EpisodeResult, evaluate
from rlinf_core.rollouts.types import Experience, Source, Trajectory
from rlinf_core.specs import arrays
from rlinf_core.specs.embodiment import JointSpec
from rlinf_core.trainer.distributed.remote_envs import MakeEnvs
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.sources.simulators import Simulators


class Robots(Source):
    """Several simulated robots as one source; each robot's episodes carry its name.

    Args:
        recipe: recipe with embodiments, all in simulators.
        envs: environments of each robot for training.
        held_out: environments of each robot for evaluation.
        policy: policy of all robots.
        make: builds the environments of workers.
        clock: clock of the run.
    """

    asynchronous = False

    def __init__(
        self,
        recipe: Recipe,
        envs: dict[str, VectorEnv],
        held_out: dict[str, VectorEnv],
        policy: NetworkPolicy,
        make: MakeEnvs,
        clock: Clock,
    ) -> None:
        assert isinstance(policy.spec, JointSpec)
        self.spec = policy.spec
        self.envs = envs
        self.held_out = held_out
        robots = embodiment_recipes(recipe)
        self.report: dict[str, Any] = {}  # unused
        self.sources = {
            name: Simulators(robots[name], env, SingleRobotPolicy(policy, env.spec), make, clock)
            for name, env in envs.items()
        }
        self.success: dict[str, float] = {}

    def demonstrate(self) -> Experience:
        """Play the recipe's number of demonstrations of each robot by its task's script."""
        return Experience(
            [
                trajectory
                for name, source in self.sources.items()
                for trajectory in self._in_joint_space(name, source.demonstrate())
            ]
        )

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return a rollout of each robot.

        Time steps count by complete episodes, as with stations.
        """
        return Experience(
            [
                trajectory
                for name, source in self.sources.items()
                for trajectory in self._in_joint_space(name, source.take(updates, length))
            ]
        )

    def _in_joint_space(self, name: str, experience: Experience) -> list[Trajectory]:
        """Return a robot's episodes in the joint observation and action space of all robots."""

        def placed(trajectory: Trajectory) -> Trajectory:
            spec = self.envs[name].spec
            vectors, actions = self.spec.with_others(
                spec, trajectory.observations["vectors"], trajectory.actions
            )
            encoded = np.repeat(
                arrays.encode_instructions([spec.instruction]), len(trajectory) + 1, axis=0
            )
            observations = (
                {arrays.INSTRUCTION: encoded} | trajectory.observations | {"vectors": vectors}
            )
            return replace(trajectory, observations=observations, actions=actions, station=name)

        return [placed(trajectory) for trajectory in experience.trajectories]

    def evaluate(self, policy: NetworkPolicy, scenes: Sequence[int]) -> list[EpisodeResult]:
        """Play one episode of every scene with each robot."""
        results_by_robot = {
            name: evaluate(env, SingleRobotPolicy(policy, env.spec), scenes)
            for name, env in self.held_out.items()
        }
        self.success = {
            name: sum(result.success for result in results) / len(results)
            for name, results in results_by_robot.items()
        }
        return [result for results in results_by_robot.values() for result in results]

    def counts(self) -> dict[str, float]:
        """Return the success rate of each robot in the last evaluation."""
        return {f"{name}/success": value for name, value in self.success.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each robot's source."""
        return {name: source.state_dict() for name, source in self.sources.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        for name, source in self.sources.items():
            source.load_state_dict(state.get(name, {}))

    def close(self) -> None:
        """Close all sources."""
        for source in self.sources.values():
            source.close()
