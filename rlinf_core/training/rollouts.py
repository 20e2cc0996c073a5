"""Rollouts that on-policy learners take from a vector of environments."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from rlinf_core.algorithms.parts.on_policy import Rollout
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.gaussian.policy import GaussianActor
from rlinf_core.training.vector import Arrays, VectorEnv


def to_batch(arrays: Arrays) -> Batch:
    """Arrays as tensors."""
    return {name: torch.as_tensor(np.ascontiguousarray(values)) for name, values in arrays.items()}


class Collector:
    """Plays a Gaussian policy in a vector of environments, chunk after chunk.

    Args:
        env: the environments.
        policy: whose chunks of H actions are played to their end, or to the episode's.
        seed: of its noise; scenes count on from ``first_scene``.
    """

    def __init__(self, env: VectorEnv, policy: GaussianActor, seed: int = 0, first_scene: int = 0) -> None:
        self.env, self.policy, self.generator = env, policy, torch.Generator().manual_seed(seed)
        self.scene, self.observation, self.version, self.simulate_s = first_scene, None, 0, 0.0

    def decisions(self, count: int) -> Rollout:
        """``count`` decisions of every environment, going on where the last rollout stopped (PPO)."""
        if self.observation is None:
            self.observation = self.env.reset(self._scenes(self.env.size))
        records = [self._decide(np.ones(self.env.size)) for _ in range(count)]
        return self._rollout(records)

    def episodes(self, group: int) -> Rollout:
        """One whole episode of every environment, ``group`` side by side in the same scene (GRPO and its kin)."""
        scenes = np.repeat(self._scenes(self.env.size // group), group)
        self.observation, alive, records = self.env.reset(scenes.tolist()), np.ones(self.env.size), []
        while alive.any():
            records.append(self._decide(alive))
            alive = alive * (1.0 - records[-1]["ended"].numpy())
        self.observation = None
        return self._rollout(records)

    def _scenes(self, count: int) -> np.ndarray:
        self.scene += count
        return np.arange(self.scene - count, self.scene)

    def _decide(self, alive: np.ndarray) -> dict[str, Tensor | Batch]:
        before = to_batch(self.observation)
        with torch.inference_mode():
            actions, log_probs = self.policy.sample(before, self.generator)
        played = np.clip(actions.numpy(), -1.0, 1.0)
        size = self.env.size
        reward, terminated, ended = np.zeros(size), np.zeros(size), np.zeros(size)
        following: Arrays = {}
        for index in range(played.shape[1]):
            still = (ended == 0) & (alive > 0)  # after its episode's end an environment waits for the next decision
            if not still.any():
                break
            started = time.perf_counter()
            steps = self.env.step(played[:, index], still)
            self.simulate_s += time.perf_counter() - started
            reward += steps.reward * still
            terminated = np.maximum(terminated, steps.terminated * still)
            following = {name: np.where(_like(still, values), values, following[name]) if following else values
                         for name, values in steps.following.items()}
            ended = np.maximum(ended, steps.ended)
            self.observation = steps.observation
        numbers = {"reward": reward, "terminated": terminated, "ended": ended, "mask": alive}
        return {"before": before, "following": to_batch(following), "actions": actions.clone(),
                "log_probs": log_probs.clone(),
                **{name: torch.as_tensor(values, dtype=torch.float32) for name, values in numbers.items()}}

    def _rollout(self, records: list[dict]) -> Rollout:
        def stacked(name: str) -> Tensor:
            return torch.stack([record[name] for record in records])

        def batches(name: str) -> Batch:
            return {key: torch.stack([record[name][key] for record in records]) for key in records[0][name]}

        mask = stacked("mask")
        return Rollout(batches("before"), batches("following"), stacked("actions"), stacked("log_probs"), stacked("reward"),
                       stacked("terminated"), stacked("ended"), mask, torch.full(mask.shape, float(self.version)))


def _like(flags: np.ndarray, values: np.ndarray) -> np.ndarray:
    return flags.reshape(-1, *[1] * (values.ndim - 1))
