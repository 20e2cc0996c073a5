"""Rollouts that on-policy learners take from a vector of environments."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from rlinf_core.algorithms.parts.on_policy import Rollout
from rlinf_core.policies.chunks import ChunkSchedule
from rlinf_core.policies.policy import Batch, Observation, Policy
from rlinf_core.training.vector import VectorEnv


class Collector:
    """Plays a policy that has log-probabilities in a vector of environments, all deciding together.

    Args:
        env: the environments.
        policy: of whose chunks ``execute`` actions are played, fewer where an episode ends.
        seed: of its noise; scenes count on from ``first_scene``.
    """

    def __init__(self, env: VectorEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        self.env, self.policy = env, policy
        self.generator = torch.Generator(policy.device).manual_seed(seed)
        self.schedule = ChunkSchedule(env.size, policy.config.executed)
        self.scene, self.observation, self.version, self.simulate_s = first_scene, None, 0, 0.0

    def play(self, decisions: int = 0, group: int = 0) -> Rollout:
        """So many decisions of every environment, or one episode of each, ``group`` side by side in the same scene."""
        return self.decisions(decisions) if decisions else self.episodes(group)

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
        """One decision of each; whose chunk is cut short waits until the others have played theirs."""
        before = Observation.of_arrays(self.env.spec, self.observation, self.policy.device)
        chunk = self.policy.act(before, explore=True, generator=self.generator)
        played, size, execute = chunk.actions.numpy(force=True), self.env.size, chunk.execute
        rewards, terminated, ended = np.zeros((size, execute)), np.zeros(size), np.zeros(size)
        steps, following = np.zeros(size), dict(self.observation)
        self.schedule.decided(alive > 0)
        for index in range(execute):
            still = ~self.schedule.due
            if not still.any():
                break
            started = time.perf_counter()
            result = self.env.step(played[:, index], still)
            self.simulate_s += time.perf_counter() - started
            rewards[:, index] = result.reward * still
            terminated = np.maximum(terminated, result.terminated * still)
            following = {name: np.where(_like(still, values), values, following[name])
                         for name, values in result.following.items()}
            ended = np.maximum(ended, result.ended * still)
            steps += still
            self.schedule.advance(still)
            self.schedule.cut((result.ended > 0) & still)
            if result.held is not None:
                self.schedule.cut(result.held & still)
            self.observation = result.observation
        numbers = {"rewards": rewards, "steps": steps, "terminated": terminated, "ended": ended, "mask": alive}
        return {"before": _batch(before), "following": _batch(Observation.of_arrays(self.env.spec, following)),
                "actions": chunk.drawn[:, :execute].cpu(), "log_probs": chunk.log_probs[:, :execute].cpu(),
                **{name: torch.from_numpy(values).float() for name, values in numbers.items()}}

    def _rollout(self, records: list[dict]) -> Rollout:
        def stacked(name: str) -> Tensor:
            return torch.stack([record[name] for record in records])

        def batches(name: str) -> Batch:
            return {key: torch.stack([record[name][key] for record in records]) for key in records[0][name]}

        mask = stacked("mask")
        return Rollout(batches("before"), batches("following"), stacked("actions"), stacked("log_probs"),
                       stacked("rewards"), stacked("steps"), stacked("terminated"), stacked("ended"), mask,
                       torch.full_like(mask, float(self.version)))


def _batch(observation: Observation) -> Batch:
    """On the CPU, where rollouts wait for the learner."""
    return observation.to("cpu").batch


def _like(flags: np.ndarray, values: np.ndarray) -> np.ndarray:
    return flags.reshape(-1, *[1] * (values.ndim - 1))
