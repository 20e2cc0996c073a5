"""Evaluation: one episode of every scene, without exploring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlinf_core.policies.base import Policy
from rlinf_core.rollouts.envs import ActFunction, ChunkExecutor, EpisodeAccumulator, VectorEnv
from rlinf_core.rollouts.types import Trajectory


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one episode.

    Attributes:
        scene: number of the scene.
        success: the task succeeded.
        failure: the task failed; both are False at a time limit.
        value: undiscounted return.
        steps: time steps.
    """

    scene: int
    success: bool
    failure: bool
    value: float
    steps: int

    @property
    def outcome(self) -> str:
        """The outcome in words: success, failure or time limit."""
        return "success" if self.success else "failure" if self.failure else "time limit"


def evaluate(
    env: VectorEnv, policy: Policy, scenes: Sequence[int], watch: Callable[[], None] = lambda: None
) -> list[EpisodeResult]:
    """Play one episode of every scene without exploration.

    A policy with ``stochastic_eval`` draws the same noise for the same scenes.

    Args:
        env: environments to play in.
        policy: policy to evaluate; ``config.executed`` actions of each chunk are executed.
        scenes: numbers of the scenes.
        watch: called before every time step.
    """
    generator = torch.Generator(policy.device).manual_seed(scenes[0] if scenes else 0)
    return play(
        env,
        lambda observation: policy.act(observation, explore=False, generator=generator),
        policy.config.executed,
        scenes,
        watch,
        policy.device,
    )


def play(
    env: VectorEnv,
    act: ActFunction,
    execute: int,
    scenes: Sequence[int],
    watch: Callable[[], None] = lambda: None,
    device: torch.device | str = "cpu",
) -> list[EpisodeResult]:
    """Play one episode of every scene with the chunks of ``act`` (see ``ChunkExecutor``)."""
    results = []
    for start in range(0, len(scenes), env.size):
        group = list(scenes[start : start + env.size])
        observation = env.reset(group + group[:1] * (env.size - len(group)))
        chunks = ChunkExecutor(env, act, execute, device)
        returns, lengths = np.zeros(env.size), np.zeros(env.size)
        done, solved, failed = np.zeros(env.size), np.zeros(env.size), np.zeros(env.size)
        while not done[: len(group)].all():
            watch()
            steps = env.step(chunks.next(observation))
            returns += steps.reward * (1 - done)
            solved = np.maximum(solved, steps.success * (1 - done))
            failed = np.maximum(failed, steps.failure * (1 - done))
            lengths += 1 - done
            done = np.maximum(done, steps.done)
            chunks.after(steps)
            observation = steps.observation
        results += [
            EpisodeResult(
                scene, bool(solved[i]), bool(failed[i]), float(returns[i]), int(lengths[i])
            )
            for i, scene in enumerate(group)
        ]
    return results


def record(env: VectorEnv, policy: Policy, episodes: int, first_scene: int) -> list[Trajectory]:
    """Play episodes without exploration, and return them with their observations.

    Each environment plays the same number of episodes. Scenes are numbered from ``first_scene``.
    """
    generator = torch.Generator(policy.device).manual_seed(first_scene)
    chunks = ChunkExecutor(
        env,
        lambda observation: policy.act(observation, explore=False, generator=generator),
        policy.config.executed,
        policy.device,
    )
    accumulator = EpisodeAccumulator(env.size)
    remaining = np.full(env.size, -(-episodes // env.size))  # episodes of each environment
    trajectories: list[Trajectory] = []
    observation = env.reset(range(first_scene, first_scene + env.size))
    while remaining.any():
        actions = chunks.next(observation)
        steps = env.step(actions)
        ended = np.flatnonzero(steps.done)
        for index, (episode, _) in zip(
            ended, accumulator.add(observation, actions, steps), strict=True
        ):
            if remaining[index]:
                remaining[index] -= 1
                trajectories.append(episode)
        chunks.after(steps)
        observation = steps.observation
    return trajectories[:episodes]
