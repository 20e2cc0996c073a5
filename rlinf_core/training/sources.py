"""Where experience comes from: environments in this process, or rollout workers on Ray, each with some of its own.

``start`` asks for more, by the policy as it is then; ``take`` waits for it. Asked for before what came is learned from,
workers play while the learner learns (pipelined).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms.parts.on_policy import Rollout
from rlinf_core.cluster.local import start_ray
from rlinf_core.policies import make_policy
from rlinf_core.policies.policy import ActionChunk, Observation, Policy
from rlinf_core.recipes import Recipe
from rlinf_core.training.playing import Chunks, Episodes
from rlinf_core.training.rollouts import Collector
from rlinf_core.training.vector import Arrays, VectorEnv

Make = Callable[[Recipe, int], VectorEnv]
SCENES_APART = 10_000_000  # between the scenes of two workers


Episode = tuple[Any, ...]  # the arguments of ``ReplayBuffer.insert_episode``


class Player:
    """Plays a policy, exploring, and hands out whole episodes.

    Args:
        env: the environments.
        policy: of whose chunks ``execute`` actions are played.
        seed: of its noise; scenes count on from ``first_scene``.
    """

    def __init__(self, env: VectorEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        self.env, self.policy, self.first_scene = env, policy, first_scene
        self.random, self.generator = np.random.default_rng(seed), torch.Generator(policy.device).manual_seed(seed)
        self.observation: Arrays | None = None
        self.simulate_s, self.version, self.by_chance = 0.0, 0, False

    def play(self, steps: int, by_chance: bool = False) -> list[Episode]:
        """``steps`` time steps of every environment, decided by the policy or at random; what ended in them."""
        self.by_chance = by_chance
        if self.observation is None:
            self.observation = self.env.reset(range(self.first_scene, self.first_scene + self.env.size))
            self.gather = Episodes(self.env.size)
            self.chunks = Chunks(self.env, self._decide, self.policy.config.executed, self.policy.device)
        ended = []
        for _ in range(steps):
            played = self.chunks.next(self.observation)
            started = time.perf_counter()
            result = self.env.step(played)
            self.simulate_s += time.perf_counter() - started
            remarks = (self.chunks.decided, self.chunks.drawn) if self.policy.latent_size else ()
            ended += [tuple(episode) for _, *episode in self.gather.add(self.observation, played, result, *remarks)]
            self.chunks.after(result)
            self.observation = result.observation
        return ended

    def _decide(self, observation: Observation) -> ActionChunk:
        if not self.by_chance:
            return self.policy.act(observation, explore=True, generator=self.generator)
        config = self.policy.config
        size = (len(observation), config.horizon, self.env.spec.action.dim)
        drawn = torch.from_numpy(self.random.uniform(-1.0, 1.0, size).astype(np.float32))
        return ActionChunk(drawn, config.executed, drawn)


class Here:
    """One player in this process."""

    def __init__(self, player: Player | Collector) -> None:
        self.player, self.size = player, player.env.size

    def start(self, version: int, **amount: Any) -> None:
        """Ask for an ``amount``: arguments of the player."""
        self.player.version, self.amount = version, amount

    def take(self) -> tuple[list[Any], dict[str, float]]:
        """What every player brought, and seconds by part, beside those of the environments."""
        before, started = self.player.simulate_s, time.perf_counter()
        brought = self.player.play(**self.amount)
        return [brought], {"infer": time.perf_counter() - started - (self.player.simulate_s - before)}

    def close(self) -> None:
        """Nothing was started."""


@dataclass
class Order:
    """What workers are sent: the policy's weights by name, its version, and how much to play."""

    weights: dict[str, np.ndarray]
    version: int
    amount: dict[str, Any]


class Worker:
    """Ray actor: a player of its own."""

    def __init__(self, recipe: Recipe, make: Make, kind: type, index: int) -> None:
        torch.set_num_threads(1)
        self.env = make(recipe, recipe.simulation.environments // recipe.simulation.workers)
        self.policy = make_policy(self.env.spec, recipe.policy)
        self.player = kind(self.env, self.policy, recipe.seed + index, index * SCENES_APART)

    def play(self, order: Order) -> tuple[Any, float, float]:
        """What was ordered, and the seconds spent to simulate and in all."""
        self.policy.load_state_dict({name: torch.tensor(values) for name, values in order.weights.items()})
        self.player.version = order.version
        before, started = self.player.simulate_s, time.perf_counter()
        brought = self.player.play(**order.amount)
        if isinstance(brought, Rollout):
            brought = {item.name: _numpy(getattr(brought, item.name)) for item in fields(Rollout)}
        return brought, self.player.simulate_s - before, time.perf_counter() - started


class OnRay:
    """Workers as Ray actors; arguments as ``Worker``'s, and the policy that they follow."""

    def __init__(self, recipe: Recipe, make: Make, kind: type, policy: Policy) -> None:
        import ray

        count = recipe.simulation.workers
        if not ray.is_initialized():
            start_ray(count + 1)
        self.ray, self.policy, self.size = ray, policy, recipe.simulation.environments
        self.workers = [ray.remote(num_cpus=1)(Worker).remote(recipe, make, kind, index) for index in range(count)]
        self.pending: list[Any] = []

    def start(self, version: int, **amount: Any) -> None:
        """Send every worker the policy as it is now."""
        weights = {name: tensor.numpy(force=True).copy() for name, tensor in self.policy.state_dict().items()}
        order = self.ray.put(Order(weights, version, amount))
        self.pending = [worker.play.remote(order) for worker in self.workers]

    def take(self) -> tuple[list[Any], dict[str, float]]:
        """As ``Here``, of all workers; their seconds are means over them."""
        started = time.perf_counter()
        answers = self.ray.get(self.pending)
        waited = time.perf_counter() - started
        brought = [Rollout(**{name: _tensors(value) for name, value in answer[0].items()})
                   if isinstance(answer[0], dict) else answer[0] for answer in answers]
        simulated = float(np.mean([answer[1] for answer in answers]))
        total = float(np.mean([answer[2] for answer in answers]))
        return brought, {"wait": waited, "workers_simulate": simulated, "workers_infer": total - simulated}

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            self.ray.kill(worker)


def _numpy(value: Any) -> Any:
    return {key: tensor.numpy() for key, tensor in value.items()} if isinstance(value, dict) else value.numpy()


def _tensors(value: Any) -> Any:
    return {key: torch.tensor(array) for key, array in value.items()} if isinstance(value, dict) else torch.tensor(value)
