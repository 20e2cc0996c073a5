"""Simulators that step a batch of environments at once, on a GPU: what comes of them stays there, as tensors.

Rollouts of on-policy learners are made of their tensors as they are (``TensorRollouts``); evaluations and learners with a
replay see them as the other environments, in arrays (``ArrayEnv``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.core.errors import RecipeError, RlinfError, SpecError
from rlinf_core.policies.base import Batch, Observation, Policy
from rlinf_core.rollouts.collect import Rollouts
from rlinf_core.rollouts.envs import BatchedEnv, Steps, at_step
from rlinf_core.rollouts.types import Experience
from rlinf_core.specs.arrays import Arrays, StationSpec


@dataclass
class TensorSteps:
    """One time step of N environments, as ``vector_env.Steps``, in tensors on their device."""

    next_observations: Batch
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    success: Tensor
    observation: Batch


class TensorEnv(Protocol):
    """N environments of one task, stepped at once; each begins its next episode in the same step."""

    spec: StationSpec
    size: int
    device: torch.device
    alone: bool  # whether there can be no second one in the process: what evaluates is then what is learned from

    def reset(self, seeds: Sequence[int]) -> Batch:
        """Begin an episode of scene ``seeds[i]`` in each; ``vectors`` (N, V), images by name."""
        ...

    def step(self, actions: Tensor) -> TensorSteps:
        """Play normalised actions (N, A) for one time step."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


class ArrayEnv(BatchedEnv):
    """A ``TensorEnv`` as a ``vector_env.VectorEnv``.

    Attributes:
        tensors: it.
        resets: how often somebody began episodes here, who left behind what ``TensorRollouts`` had begun.
    """

    def __init__(self, tensors: TensorEnv, name: str) -> None:
        self.tensors, self.name, self.spec, self.size, self.resets = tensors, name, tensors.spec, tensors.size, 0
        self.played = np.zeros(self.size, int)  # time steps of each episode

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self.resets += 1
        self.played[:] = 0
        observation = self.tensors.reset([int(seed) for seed in seeds])
        self.check({"observation": observation["vectors"]}, self.played)
        return _arrays(observation)

    def check(self, values: Batch, played: np.ndarray) -> None:
        """SpecError names the environment and the time step, of ``played`` (N,), of what is not finite."""
        for name, tensor in values.items():
            array = tensor.detach()
            if bool(torch.isfinite(array).all()):
                continue
            bad = ~np.isfinite(rows := array.reshape(self.size, -1).numpy(force=True))
            index = int(np.flatnonzero(bad.any(axis=1))[0])
            with at_step(self.name, int(played[index])):
                raise SpecError(f"'{name}' of environment {index}: expected finite values, got {rows[bad][0]}")

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        self.check_all(active)
        steps = self.tensors.step(torch.as_tensor(np.asarray(actions, np.float32), device=self.tensors.device))
        self.played += 1
        self.check({"observation": steps.next_observations["vectors"], "reward": steps.reward},
                   self.played)
        self.played[_array(torch.maximum(steps.terminated, steps.truncated)) > 0] = 0
        return Steps(_arrays(steps.next_observations), _array(steps.reward), _array(steps.terminated),
                     _array(steps.truncated), _array(steps.success), _arrays(steps.observation))

    def close(self) -> None:
        self.tensors.close()


class TensorRollouts(Rollouts):
    """``rollouts.ChunkRollouts`` for on-policy learners, without leaving the environments' device; one action is played of
    each chunk. A resumed run begins new episodes."""

    def __init__(self, env: ArrayEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        super().__init__(env, policy, seed, first_scene)
        self.tensors = env.tensors
        self.last_observation: Batch | None = None
        self.env: ArrayEnv = env
        self.resets = env.resets
        if policy.config.executed != 1:
            raise RecipeError(
                f"policy.n_action_steps: expected 1 with env '{env.name}', whose environments are stepped at once, "
                f"got {policy.config.executed}"
            )

    def play(self, chunks: int = 0, group: int = 0) -> Experience:
        """So many time steps of every environment, going on where the last rollout stopped."""
        if group:
            raise RlinfError(f"{self.env.size} environments that are stepped at once: expected a learner from parts of "
                             "episodes (ppo, async_ppo), got one from groups of whole ones")
        if self.last_observation is None or self.env.resets != self.resets:
            self.last_observation = self.tensors.reset(self.scenes(self.env.size))
            self.resets = self.env.resets
        observation = self.last_observation
        steps: list[dict[str, Any]] = []
        for _ in range(chunks):
            chunk, observation = self._step(observation)
            steps.append(chunk)
        self.last_observation = observation
        rollout = Rollout(**{name: _stacked([step[name] for step in steps]) for name in steps[0]})
        self._check(rollout)
        return Experience(rollouts=[rollout], steps=chunks * self.env.size)

    def _check(self, rollout: Rollout) -> None:
        """Check that the environments gave finite values; once a rollout, since each check waits
        for the device.
        """
        finite = {"observation": rollout.next_observations["vectors"], "reward": rollout.step_rewards}
        if all(bool(torch.isfinite(values).all()) for values in finite.values()):
            return
        played = np.zeros(self.env.size, int)
        for step, done in enumerate(rollout.done.numpy(force=True) > 0):
            played += 1
            self.env.check({name: values[step] for name, values in finite.items()}, played)
            played[done] = 0

    def _step(self, before: Batch) -> tuple[dict[str, Any], Batch]:
        """One action of each, a rollout's tensors by name without their first axis; and what is observed after it."""
        images = {name: image for name, image in before.items() if name != "vectors"}
        observation = Observation(before["vectors"], images, (self.env.spec.instruction,) * self.env.size)
        policy_inputs = {name: value for name, value in self.policy.to_batch(observation).items() if name not in before}
        chunk = self.policy.act(observation.to(self.policy.device), explore=True, generator=self.generator)
        if chunk.log_probs is None:
            raise RlinfError("rollouts: expected log-probabilities of what the policy drew, got none. Learn on policy from "
                             "one that has a density (policy.kind)")
        started, busy = time.perf_counter(), time.thread_time()
        steps = self.tensors.step(chunk.actions[:, 0].to(self.tensors.device))
        self.simulate_s += time.perf_counter() - started
        self.simulate_busy_s += time.thread_time() - busy
        ones = torch.ones_like(steps.reward)
        return {"observations": before | policy_inputs, "next_observations": steps.next_observations | policy_inputs,
                "actions": chunk.drawn[:, :1], "log_probs": chunk.log_probs[:, :1].flatten(1),
                "step_rewards": steps.reward[:, None], "steps": ones,
                "terminated": steps.terminated, "done": torch.maximum(steps.terminated, steps.truncated), "mask": ones,
                "versions": self.version * ones}, steps.observation


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return torch.stack(values)


def _array(values: Tensor) -> np.ndarray:
    return values.numpy(force=True).astype(float)


def _arrays(values: Batch) -> Arrays:
    return {name: tensor.numpy(force=True) for name, tensor in values.items()}
