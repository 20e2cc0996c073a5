"""Rollouts in vectorised environments, for off-policy, on-policy and expert (DAgger) algorithms."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, cast

import numpy as np
import torch

from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.usage import Usage, measure_usage
from rlinf_core.policies.base import ActionChunk, Observation, Policy
from rlinf_core.policies.torch_device import restore
from rlinf_core.rollouts.envs import ChunkExecutor, EpisodeAccumulator, Steps, VectorEnv
from rlinf_core.rollouts.types import DEMONSTRATION, Experience, Trajectory
from rlinf_core.specs.arrays import Arrays


@dataclass
class RolloutUsage:
    """Time usage of a rollout.

    Attributes:
        total: usage of the whole rollout.
        simulate: wall seconds of the environments.
        environment: (busy, idle) seconds of the environments.
        policy: (busy, idle) seconds of the policy.
    """

    total: Usage
    simulate: float
    environment: tuple[float, float]
    policy: tuple[float, float]


class Rollouts(ABC):
    """Base of rollouts: plays a policy with exploration.

    Args:
        env: environments to play in.
        policy: policy to play; ``config.executed`` actions of each chunk are executed, fewer at the
            end of an episode.
        seed: seed of the exploration noise.
        first_scene: number of the first scene; later episodes count on.

    Attributes:
        scene: scene of the next episode.
        simulate_s: wall seconds spent in the environments.
        simulate_busy_s: CPU seconds of this thread in the environments.
        version: version of the policy.
        acting_lock: lock that these rollouts hold while they act, and release while they wait for
            their environments; None without alternating rollouts (``AlternatingRollouts``).
        lock_wait_s: wall seconds spent waiting for ``acting_lock``.
    """

    def __init__(self, env: VectorEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        self.env = env
        self.policy = policy
        self.scene = first_scene
        self.random = np.random.default_rng(seed)
        self.generator = torch.Generator(policy.device).manual_seed(seed)
        self.observation: Arrays | None = None
        self.simulate_s = 0.0
        self.simulate_busy_s = 0.0
        self.version = 0
        self.acting_lock: Lock | None = None
        self.lock_wait_s = 0.0

    def play_measured(self, length: RolloutLength) -> tuple[Experience, RolloutUsage]:
        """Play a rollout of length ``length`` and measure its usage."""
        before, busy_before = self.simulate_s, self.simulate_busy_s
        with measure_usage() as usage:
            experience = self.play(**length)
        simulate = self.simulate_s - before
        busy = self.simulate_busy_s - busy_before
        off_core = max(usage.wall_s - usage.busy_s, 1e-9)  # asleep, or waiting for a core
        stepping = usage.idle_s * min(1.0, max(0.0, simulate - busy) / off_core)
        policy = max(0.0, usage.busy_s - busy), usage.idle_s - stepping
        return experience, RolloutUsage(usage, simulate, (busy, stepping), policy)

    @abstractmethod
    def play(self, *_: Any, **length: Any) -> Experience:
        """Play a rollout. The keyword arguments are the keys of ``RolloutLength`` of this kind."""

    def continue_noise(self, former: Rollouts) -> None:
        """Take over random state and scenes of rollouts with another number of environments."""
        self.random = former.random
        self.generator = former.generator
        self.scene = former.scene

    def state_dict(self) -> dict[str, Any]:
        """Return the state for an exact resume, without the environments if they have no state."""
        env_state = (
            {}
            if self.observation is None
            else {"env": self.env.state_dict(), "observation": self.observation}
        )
        return env_state | {
            "generator": self.generator.get_state(),
            "random": [self.random.bit_generator.state],
            "scene": self.scene,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state.

        New episodes start if the state holds no environments, or another number of them.
        """
        restore(self.generator, state["generator"], self.version)
        self.random.bit_generator.state = state["random"][0]
        self.scene = state.get("scene", self.scene)  # missing in older checkpoints
        if state.get("env") and len(state["observation"]["vectors"]) == self.env.size:
            self.env.load_state_dict(state["env"])
            self.observation = state["observation"]

    def begin(self) -> Arrays:
        """Start new episodes in the next scenes and return their first observation."""
        return self.env.reset(self.scenes(self.env.size))

    def scenes(self, count: int) -> range:
        """Return the next ``count`` unused scenes."""
        self.scene += count
        return range(self.scene - count, self.scene)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        """Step the environments once and measure the time."""
        started, busy = time.perf_counter(), time.thread_time()
        if self.acting_lock is not None:
            self.acting_lock.release()
        try:
            result = self.env.step(actions, active)
        finally:
            self.simulate_s += time.perf_counter() - started
            self.simulate_busy_s += time.thread_time() - busy
            if self.acting_lock is not None:
                started = time.perf_counter()
                self.acting_lock.acquire()
                self.lock_wait_s += time.perf_counter() - started
        return result

    def cut(self) -> list[Trajectory]:
        """Return the unfinished episodes, truncated here. The next rollout starts new ones.

        On-policy rollouts have none, because they return every chunk at once.
        """
        self.observation = None
        return []


class AccumulatedRollouts(Rollouts):
    """Base of rollouts that return complete episodes, which may take several calls of ``play``."""

    def __init__(self, env: VectorEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        super().__init__(env, policy, seed, first_scene)
        self.accumulator = EpisodeAccumulator(env.size)

    @abstractmethod
    def _with_extras(self, episode: Trajectory, extras: list[np.ndarray]) -> Trajectory:
        """Return an episode with the further values (T, ...) that were accumulated with it."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"gather": self.accumulator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.observation is not None:
            self.accumulator.load_state_dict(state["gather"])

    def cut(self) -> list[Trajectory]:
        if self.observation is None:
            return []
        pieces = self.accumulator.cut(self.observation)
        super().cut()
        return [self._with_extras(episode, extras) for episode, extras in pieces]


class EpisodeRollouts(AccumulatedRollouts):
    """Returns complete episodes, for off-policy algorithms."""

    random_warmup = False

    def __init__(self, env: VectorEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        super().__init__(env, policy, seed, first_scene)
        self.chunks = ChunkExecutor(env, self._act, policy.config.executed, policy.device)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"chunks": self.chunks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.observation is not None:
            self.chunks.load_state_dict(state["chunks"])

    def cut(self) -> list[Trajectory]:
        if self.observation is not None:
            self.chunks.schedule.cut()
        return super().cut()

    def play(self, steps: int, random_warmup: bool = False) -> Experience:
        """Play ``steps`` time steps of every environment and return the episodes that ended.

        Args:
            steps: time steps of each environment.
            random_warmup: draw uniform actions instead of the policy's.
        """
        observation = self.begin() if self.observation is None else self.observation
        self.random_warmup = random_warmup
        finished = []
        for _ in range(steps):
            actions = self.chunks.next(observation)
            result = self.step(actions)
            step_extras = (
                (self.chunks.chunk_starts, self.chunks.drawn) if self.policy.latent_size else ()
            )
            for episode, extras in self.accumulator.add(observation, actions, result, *step_extras):
                finished.append(self._with_extras(episode, extras))
            self.chunks.after(result)
            self.observation = observation = result.observation
        return Experience(finished, steps=steps * self.env.size)

    def _act(self, observation: Observation) -> ActionChunk:
        if not self.random_warmup:
            return self.policy.act(observation, explore=True, generator=self.generator)
        config = self.policy.config
        size = (len(observation), config.horizon, self.env.spec.action.dim)
        drawn = torch.from_numpy(self.random.uniform(-1.0, 1.0, size).astype(np.float32))
        return ActionChunk(drawn, config.executed, drawn)

    def _with_extras(self, episode: Trajectory, extras: list[np.ndarray]) -> Trajectory:
        """Add chunk starts and latents, if the policy has latent noise."""
        if not extras:
            return episode
        chunk_starts, latents = extras
        return replace(episode, chunk_starts=chunk_starts, latents=latents)


class ExpertRollouts(AccumulatedRollouts):
    """Mixes actions of policy and expert; recorded actions are the expert's labels (DAgger)."""

    def play(self, steps: int, expert_fraction: float) -> Experience:
        """Play ``steps`` time steps of every environment; the script acts in a fraction of them."""
        observation = self.begin() if self.observation is None else self.observation
        finished = []
        for _ in range(steps):
            labels = self.env.expert()
            policy_input = Observation.from_arrays(self.env.spec, observation, self.policy.device)
            policy_actions = (
                self.policy.act(policy_input, explore=True, generator=self.generator)
                .actions[:, 0]
                .numpy(force=True)
            )
            by_expert = self.random.random(self.env.size) < expert_fraction
            result = self.step(np.where(by_expert[:, None], labels, policy_actions))
            for episode, extras in self.accumulator.add(observation, labels, result, by_expert):
                finished.append(self._with_extras(episode, extras))
            self.observation = observation = result.observation
        return Experience(finished, steps=steps * self.env.size)

    def _with_extras(self, episode: Trajectory, extras: list[np.ndarray]) -> Trajectory:
        """Add the commander of each transition."""
        (by_expert,) = extras
        return replace(episode, sources=np.where(by_expert, "operator", "policy").tolist())


class ChunkRollouts(Rollouts):
    """Returns chunks with their log-probabilities, for on-policy algorithms."""

    def __init__(self, env: VectorEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        super().__init__(env, policy, seed, first_scene)
        self.device = policy.device

    def play(self, chunks: int = 0, group: int = 0) -> Experience:
        """Play ``chunks`` chunks of every environment, or one episode of each.

        Args:
            chunks: chunks of each environment; 0 plays whole episodes.
            group: number of environments that play the same scene (GRPO).
        """
        rollout = self.chunks(chunks) if chunks else self.episodes(group)
        return Experience(rollouts=[rollout], steps=int(rollout.steps.sum()))

    def chunks(self, count: int) -> Rollout:
        """Play ``count`` chunks in every environment, from where the last rollout stopped (PPO)."""
        observation = self.begin() if self.observation is None else self.observation
        chunks = []
        for _ in range(count):
            chunk, observation = self._play_chunk(observation, np.ones(self.env.size))
            chunks.append(chunk)
        self.observation = observation
        return _stack_chunks(chunks)

    def episodes(self, group: int) -> Rollout:
        """Play one episode in every environment.

        ``group`` neighbours have the same scene (the GRPO family).
        """
        observation = self.env.reset(
            [scene for scene in self.scenes(self.env.size // group) for _ in range(group)]
        )
        alive, chunks = np.ones(self.env.size), []
        while alive.any():
            chunk, observation = self._play_chunk(observation, alive)
            chunks.append(chunk)
            alive = alive * (1.0 - chunk["done"])
        self.observation = None
        return _stack_chunks(chunks)

    def _play_chunk(self, observation: Arrays, alive: np.ndarray) -> tuple[dict[str, Any], Arrays]:
        """Play one chunk in every environment; one whose chunk ends early waits for the others.

        Args:
            observation: observation by name, (N, ...).
            alive: (N,), 1 where the episode goes on.

        Returns:
            The chunk's arrays by name, (N, ...), and the next observation.
        """
        policy_input = Observation.from_arrays(self.env.spec, observation, self.device)
        observations = {
            name: values.numpy(force=True)
            for name, values in self.policy.to_batch(policy_input).items()
        }
        chunk = self.policy.act(policy_input, explore=True, generator=self.generator)
        if chunk.log_probs is None:
            raise RlinfError(
                "rollouts: expected log-probabilities of the sampled actions, got none. Train a "
                "policy with a density (policy.kind)"
            )
        actions = chunk.actions.numpy(force=True)
        size, execute = self.env.size, chunk.execute
        rewards = np.zeros((size, execute))
        terminated, done, steps = np.zeros(size), np.zeros(size), np.zeros(size)
        next_observations = dict(observations)
        # environments that still execute their chunk, as in ``ChunkSchedule``
        executing = alive > 0
        for index in range(execute):
            if not executing.any():
                break
            result = self.step(actions[:, index], executing)
            rewards[:, index] = result.reward * executing
            terminated += result.terminated * executing
            for name, values in result.next_observations.items():
                if name in observations:
                    next_observations[name] = _where(executing, values, next_observations[name])
            ended = result.done * executing
            done = done + ended
            steps = steps + executing
            observation = result.observation
            executing = executing & (ended == 0.0)
            if result.held is not None:
                executing &= ~result.held
        arrays = {
            "observations": observations,
            "step_rewards": rewards,
            "steps": steps,
            "next_observations": next_observations,
            "terminated": terminated,
            "actions": chunk.drawn[:, :execute].numpy(force=True),
            "done": done,
            "mask": alive,
            "log_probs": chunk.log_probs[:, :execute].flatten(1).numpy(force=True),
            "versions": np.full(size, float(self.version)),
        }
        return arrays, observation


def _where(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return ``new`` (N, ...) in the rows of a mask (N,), and ``old`` in the others."""
    if mask.all():
        return new
    return np.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)


class AlternatingRollouts(Rollouts):
    """Alternating rollouts of two halves: the policy acts for one half while the other is stepped.

    It never acts for both at once: two threads of Python are slower than one after the other.

    Args:
        env: all environments.
        parts: rollouts of each half, with the same policy.
    """

    def __init__(self, env: VectorEnv, parts: list[Rollouts]) -> None:
        super().__init__(env, parts[0].policy)
        self.parts = parts
        self.shared_lock = Lock()
        self.threads = ThreadPoolExecutor(len(parts), "rollouts")

    def play(self, **length: Any) -> Experience:
        return self.play_measured(cast(RolloutLength, length))[0]

    def play_measured(self, length: RolloutLength) -> tuple[Experience, RolloutUsage]:
        waited_s = sum(part.lock_wait_s for part in self.parts)
        for part in self.parts:
            part.version = self.version
        with measure_usage() as usage:
            futures = [self.threads.submit(self._play_part, part, length) for part in self.parts]
            results = [future.result() for future in futures]
        waited_s = sum(part.lock_wait_s for part in self.parts) - waited_s
        experience = Experience(
            [trajectory for half, _ in results for trajectory in half.trajectories],
            [rollout for half, _ in results for rollout in half.rollouts],
            sum(half.steps for half, _ in results),
        )
        usages = [part_usage for _, part_usage in results]
        simulate = sum(part.simulate for part in usages) / len(usages)
        environment = _sum_pairs([part.environment for part in usages])
        busy_s, idle_s = _sum_pairs([part.policy for part in usages])
        policy = busy_s, max(0.0, idle_s - waited_s)
        return experience, RolloutUsage(usage, simulate, environment, policy)

    def _play_part(self, part: Rollouts, length: RolloutLength) -> tuple[Experience, RolloutUsage]:
        """Play one half, which acts only while the other one does not."""
        with self.shared_lock:
            part.acting_lock = self.shared_lock
            try:
                return part.play_measured(length)
            finally:
                part.acting_lock = None

    def continue_noise(self, former: Rollouts) -> None:
        if isinstance(former, AlternatingRollouts):
            for part, other in zip(self.parts, former.parts, strict=True):
                part.continue_noise(other)

    def cut(self) -> list[Trajectory]:
        return [trajectory for part in self.parts for trajectory in part.cut()]

    def state_dict(self) -> dict[str, Any]:
        return {"stages": {str(index): part.state_dict() for index, part in enumerate(self.parts)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for index, part in enumerate(self.parts):
            if str(index) in state.get("stages", {}):
                part.load_state_dict(state["stages"][str(index)])


def _sum_pairs(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the sums of (busy, idle) seconds."""
    return sum(busy for busy, _ in pairs), sum(idle for _, idle in pairs)


def demonstrate(env: VectorEnv, episodes: int, first_scene: int) -> list[Trajectory]:
    """Return ``episodes`` successful episodes of the task's script.

    Raises RlinfError if too few succeed.
    """
    observation = env.reset(range(first_scene, first_scene + env.size))
    accumulator = EpisodeAccumulator(env.size)
    solved: list[Trajectory] = []
    attempts = 0
    while len(solved) < episodes:
        actions = env.expert()
        result = env.step(actions)
        for episode, _ in accumulator.add(observation, actions, result):
            attempts += 1
            if episode.success:
                solved.append(replace(episode, mode=DEMONSTRATION))
        observation = result.observation
        if attempts >= 20 and len(solved) < attempts // 10:
            raise RlinfError(
                f"demonstrations: the task's script solved {len(solved)} of {attempts} episodes; "
                "expected at least one in ten. Is it the script of this task (its file's "
                "'script')?"
            )
    return solved[:episodes]


def _stack_chunks(chunks: list[dict[str, Any]]) -> Rollout:
    """Stack chunks to a rollout on the CPU."""

    def stack(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: stack([value[name] for value in values]) for name in values[0]}
        array = np.stack(values)
        return torch.from_numpy(
            array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)
        )

    return Rollout(**{name: stack([chunk[name] for chunk in chunks]) for name in chunks[0]})
