"""Environments in processes of their own, for a policy that acts on all of them in one batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlinf_core.core.errors import RestartLimitError, RlinfError
from rlinf_core.policies.base import Policy
from rlinf_core.recipes import Recipe
from rlinf_core.rollouts.collect import AlternatingRollouts, Rollouts
from rlinf_core.rollouts.envs import Steps, VectorEnv
from rlinf_core.specs.arrays import Arrays
from rlinf_core.trainer.distributed.ray_cluster import check_started, connect, cpus_for, lost_errors

MakeEnvs = Callable[[Recipe, int], VectorEnv]
RESTARTS = 10  # maximum restarts of simulator processes in a run
HALF_STRIDE = 5_000_000  # distance of the scenes of two halves
SEED_STRIDE = 7_919  # distance of the scenes of a process and its replacement


class SimulatorProcess:
    """Ray actor with some of the environments."""

    def __init__(self, recipe: Recipe, make: MakeEnvs, size: int) -> None:
        self.env = make(recipe, size)

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def describe(self) -> Any:
        """Return the observation and action spec."""
        return self.env.spec

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the environments."""
        return getattr(self.env, name)(*arguments)


class RemoteEnvs:
    """A ``VectorEnv`` in several processes that step in parallel.

    A dead process is replaced, and its episodes are truncated.

    Args:
        recipe: recipe of the environments.
        make: builds the environments.
        processes: Ray actors with ``share`` environments each.
        share: environments of a process.
    """

    auto_reset = True

    def __init__(self, recipe: Recipe, make: MakeEnvs, processes: list[Any], share: int) -> None:
        self.ray = connect(recipe.placement.ray)
        self.recipe = recipe
        self.make = make
        self.processes = processes
        self.share = share
        self.died = 0
        self.size = share * len(processes)
        self.spec = self._call(0, "describe")
        self.seeds = np.arange(self.size)
        self.newest: list[Arrays] = [{} for _ in processes]

    @classmethod
    def start_envs(cls, recipe: Recipe, make: MakeEnvs, size: int, count: int) -> RemoteEnvs:
        """Start ``size`` environments in ``count`` new processes."""
        ray = connect(recipe.placement.ray)
        processes = [_spawn(ray, recipe, make, size // count) for _ in range(count)]
        return cls(recipe, make, processes, size // count)

    def halves(self) -> list[RemoteEnvs]:
        """Return two vectors with half of the processes each."""
        middle = len(self.processes) // 2
        parts = self.processes[:middle], self.processes[middle:]
        return [RemoteEnvs(self.recipe, self.make, part, self.share) for part in parts]

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self.seeds = np.array(list(seeds))
        self.newest = self._call_all("reset", [[row.tolist()] for row in self._parts(self.seeds)])
        return _concatenate(self.newest)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        masks = [None] * len(self.processes) if active is None else self._parts(active)
        parts = self._call_all(
            "step", [list(pair) for pair in zip(self._parts(actions), masks, strict=True)]
        )
        self.newest = [part.observation for part in parts]
        none_held = np.zeros(self.share, bool)
        flags = [none_held if part.held is None else part.held for part in parts]
        held = np.concatenate(flags) if any(part.held is not None for part in parts) else None
        names = ("reward", "terminated", "truncated", "success")
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return Steps(
            _concatenate([part.next_observations for part in parts]),
            observation=_concatenate(self.newest),
            held=held,
            **columns,
        )

    def expert(self) -> np.ndarray:
        return np.concatenate(self._call_all("expert", [[] for _ in self.processes]))

    def state_dict(self) -> dict[str, Any]:
        states = self._call_all("state_dict", [[] for _ in self.processes])
        return {str(index): state for index, state in enumerate(states)} if all(states) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state) == len(self.processes):
            self._call_all("load_state_dict", [[state[str(index)]] for index in range(len(state))])

    def render(self, index: int = 0) -> np.ndarray:
        picture: np.ndarray = self._call(index // self.share, "call", "render", index % self.share)
        return picture

    def close(self) -> None:
        for process in self.processes:
            self.ray.kill(process)

    def _parts(self, values: np.ndarray) -> list[np.ndarray]:
        return np.split(np.asarray(values), len(self.processes))

    def _call_all(self, name: str, arguments: list[list[Any]]) -> list[Any]:
        answers = [
            process.call.remote(name, *row)
            for process, row in zip(self.processes, arguments, strict=True)
        ]
        return [self._answer(index, name, answer) for index, answer in enumerate(answers)]

    def _answer(self, index: int, name: str, answer: Any) -> Any:
        try:
            return self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RlinfError):
                raise error.cause from None
            raise RlinfError(f"a simulator process stopped: {error}") from error
        except lost_errors() as error:
            observation = self._replace(index, error)
            if name != "step":
                if name == "reset":
                    return observation
                return self._call(index, "call", name)
            nothing, last = np.zeros(self.share), self.newest[index] or observation
            return Steps(last, nothing, nothing, np.ones(self.share), nothing, observation)

    def _replace(self, index: int, error: Exception) -> Arrays:
        """Replace a dead process, and return the first observation of its new episodes."""
        check_started("simulator processes", error)
        self.died += 1
        if self.died > RESTARTS:
            raise RestartLimitError(
                f"simulator processes died {self.died} times, the last by: {error}. The last "
                "checkpoint is valid. Fewer placement.simulators need less memory"
            ) from error
        print(
            f"a simulator process died and is replaced ({self.died} of {RESTARTS}): {error}",
            flush=True,
        )
        self.processes[index] = _spawn(self.ray, self.recipe, self.make, self.share)
        seeds = self._parts(self.seeds)[index] + SEED_STRIDE * self.died
        observation: Arrays = self._call(index, "call", "reset", seeds.tolist())
        return observation

    def _call(self, index: int, method: str, *arguments: Any) -> Any:
        try:
            return self.ray.get(getattr(self.processes[index], method).remote(*arguments))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RlinfError):
                raise error.cause from None
            raise RlinfError(f"a simulator process stopped: {error}") from error
        except lost_errors() as error:
            check_started("simulator processes", error)
            raise RlinfError(f"a simulator process died at its start: {error}") from error


def _spawn(ray: Any, recipe: Recipe, make: MakeEnvs, size: int) -> Any:
    return ray.remote(num_cpus=cpus_for(recipe.placement))(SimulatorProcess).remote(
        recipe, make, size
    )


def _concatenate(parts: list[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def rollout_envs(recipe: Recipe, make: MakeEnvs, size: int) -> VectorEnv:
    """Return the environments for rollouts, in own processes if the recipe says so."""
    placement = recipe.placement
    if not placement.simulators:
        return make(recipe, size)
    return RemoteEnvs.start_envs(
        recipe, make, size, placement.simulators // max(placement.workers, 1)
    )


def make_rollouts(
    kind: type[Rollouts], env: VectorEnv, policy: Policy, seed: int, scene: int, group: int
) -> Rollouts:
    """Return rollouts in environments; remote environments are split into two alternating halves.

    The policy acts for one half while the other is stepped.

    Args:
        kind: class of the rollouts.
        env: environments.
        policy: policy to play.
        seed: seed of the exploration noise.
        scene: first scene.
        group: number of environments of one scene, which stay in one half.
    """
    if not isinstance(env, RemoteEnvs) or len(env.processes) % 2 or (env.size // 2) % max(group, 1):
        return kind(env, policy, seed, scene)
    halves = env.halves()
    return AlternatingRollouts(
        env,
        [
            kind(half, policy, seed + index * SEED_STRIDE, scene + index * HALF_STRIDE)
            for index, half in enumerate(halves)
        ],
    )
