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
from rlinf_core.recipes import Recipe
from rlinf_core.training.playing import Chunks, Episodes
from rlinf_core.training.rollouts import Collector, to_batch
from rlinf_core.training.vector import Arrays, VectorEnv

Make = Callable[[Recipe, int], VectorEnv]
SCENES_APART = 10_000_000  # between the scenes of two workers


class Player:
    """Plays a policy, exploring, and hands out whole episodes.

    Args:
        env: the environments.
        policy: with ``sample``; one that only chooses noise says by ``played`` what that leads to.
        seed: of its noise; scenes count on from ``first_scene``.
    """

    def __init__(self, env: VectorEnv, policy: Any, seed: int = 0, first_scene: int = 0) -> None:
        self.env, self.policy, self.first_scene = env, policy, first_scene
        self.random, self.generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.observation: Arrays | None = None
        self.simulate_s = 0.0

    def play(self, steps: int, by_chance: bool = False) -> list[tuple]:
        """``steps`` time steps of every environment; the (observations, actions, rewards, discounts) of what ended."""
        if self.observation is None:
            self.observation = self.env.reset(range(self.first_scene, self.first_scene + self.env.size))
            self.gather = Episodes(self.env.size)
            self.chunks = Chunks(self.env.size, self.policy.config.horizon, parts=2)
        ended = []
        for _ in range(steps):
            played, remembered = self.chunks.next(self.observation, self._by_chance if by_chance else self._decide)
            started = time.perf_counter()
            result = self.env.step(played)
            self.simulate_s += time.perf_counter() - started
            ended += [tuple(episode) for _, *episode, _ in self.gather.add(self.observation, remembered, result)]
            self.chunks.drop(result.ended)
            self.observation = result.observation
        return ended

    def _decide(self, observation: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """What is played and what is remembered, each (n, H A): the same, unless the policy only chooses noise."""
        batch = to_batch(observation)
        with torch.inference_mode():
            chosen = self.policy.sample(batch, self.generator)[0]
            played = self.policy.played(batch, chosen) if hasattr(self.policy, "played") else chosen
        return played.numpy(), chosen.numpy()

    def _by_chance(self, observation: Arrays) -> tuple[np.ndarray, np.ndarray]:
        size = self.env.spec.action.dim * self.policy.config.horizon
        chosen = self.random.uniform(-1.0, 1.0, (len(observation["vectors"]), size)).astype(np.float32)
        return chosen, chosen


def ask(player: Player | Collector, amount: dict[str, Any]) -> Any:
    """What a player or a collector answers: episodes, or a rollout."""
    if isinstance(player, Player):
        return player.play(**amount)
    return player.decisions(**amount) if "count" in amount else player.episodes(**amount)


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
        brought = ask(self.player, self.amount)
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
        brought = ask(self.player, order.amount)
        if isinstance(brought, Rollout):
            brought = {item.name: _numpy(getattr(brought, item.name)) for item in fields(Rollout)}
        return brought, self.player.simulate_s - before, time.perf_counter() - started


class OnRay:
    """Workers as Ray actors; arguments as ``Worker``'s, and the policy that they follow."""

    def __init__(self, recipe: Recipe, make: Make, kind: type, policy: Any) -> None:
        import ray

        count = recipe.simulation.workers
        if not ray.is_initialized():
            start_ray(count + 1)
        self.ray, self.policy, self.size = ray, policy, recipe.simulation.environments
        self.workers = [ray.remote(num_cpus=1)(Worker).remote(recipe, make, kind, index) for index in range(count)]
        self.pending: list[Any] = []

    def start(self, version: int, **amount: Any) -> None:
        """Send every worker the policy as it is now."""
        weights = {name: tensor.detach().numpy().copy() for name, tensor in self.policy.state_dict().items()}
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
