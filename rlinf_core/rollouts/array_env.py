"""Simulators that step a batch of environments at once on a GPU, with tensors as results.

``TensorRollouts`` builds on-policy rollouts from these tensors. Evaluations and off-policy
algorithms use the same environments through NumPy arrays (``ArrayEnv``).
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
    """One time step of N environments, like ``envs.Steps``, as tensors on their device."""

    next_observations: Batch
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    success: Tensor
    observation: Batch


class TensorEnv(Protocol):
    """N environments of one task that are stepped at once.

    An ended episode restarts in the same step.
    """

    spec: StationSpec
    size: int
    device: torch.device
    exclusive: bool  # a process can hold only one: evaluations then use the training environments

    def reset(self, seeds: Sequence[int]) -> Batch:
        """Start an episode of scene ``seeds[i]`` in environment i.

        Returns ``vectors`` (N, V) and images.
        """
        ...

    def step(self, actions: Tensor) -> TensorSteps:
        """Play normalised actions (N, A) for one time step."""
        ...

    def close(self) -> None:
        """Close the simulator."""
        ...


class ArrayEnv(BatchedEnv):
    """A ``TensorEnv`` as an ``envs.VectorEnv``.

    Attributes:
        tensors: the tensor environments.
        resets: number of resets here; each one discards the episodes of ``TensorRollouts``.
    """

    def __init__(self, tensors: TensorEnv, name: str) -> None:
        self.tensors = tensors
        self.name = name
        self.spec = tensors.spec
        self.size = tensors.size
        self.resets = 0
        self.episode_steps = np.zeros(self.size, int)  # time steps of each episode

    def reset(self, seeds: Sequence[int]) -> Arrays:
        self.resets += 1
        self.episode_steps[:] = 0
        observation = self.tensors.reset([int(seed) for seed in seeds])
        self.check({"observation": observation["vectors"]}, self.episode_steps)
        return _arrays(observation)

    def check(self, values: Batch, episode_steps: np.ndarray) -> None:
        """Check that all values are finite.

        Args:
            values: tensors by name, with N as the first axis.
            episode_steps: (N,) time steps of each episode, for the error.

        Raises:
            SpecError: a value is not finite; the text names environment and time step.
        """
        for name, tensor in values.items():
            array = tensor.detach()
            if bool(torch.isfinite(array).all()):
                continue
            rows = array.reshape(self.size, -1).numpy(force=True)
            bad = ~np.isfinite(rows)
            index = int(np.flatnonzero(bad.any(axis=1))[0])
            with at_step(self.name, int(episode_steps[index])):
                raise SpecError(
                    f"'{name}' of environment {index}: expected finite values, got {rows[bad][0]}"
                )

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        self.check_all_active(active)
        steps = self.tensors.step(
            torch.as_tensor(np.asarray(actions, np.float32), device=self.tensors.device)
        )
        self.episode_steps += 1
        self.check(
            {"observation": steps.next_observations["vectors"], "reward": steps.reward},
            self.episode_steps,
        )
        self.episode_steps[_array(torch.maximum(steps.terminated, steps.truncated)) > 0] = 0
        return Steps(
            _arrays(steps.next_observations),
            _array(steps.reward),
            _array(steps.terminated),
            _array(steps.truncated),
            _array(steps.success),
            _arrays(steps.observation),
        )

    def close(self) -> None:
        self.tensors.close()


class TensorRollouts(Rollouts):
    """On-policy rollouts on the device of the environments; each chunk executes one action.

    A resumed run starts new episodes.
    """

    def __init__(self, env: ArrayEnv, policy: Policy, seed: int = 0, first_scene: int = 0) -> None:
        super().__init__(env, policy, seed, first_scene)
        self.tensors = env.tensors
        self.last_observation: Batch | None = None
        self.env: ArrayEnv = env
        self.resets = env.resets
        if policy.config.executed != 1:
            raise RecipeError(
                f"policy.n_action_steps: expected 1 with env '{env.name}', whose environments are "
                f"stepped at once, got {policy.config.executed}"
            )

    def play(self, chunks: int = 0, group: int = 0) -> Experience:
        """Play ``chunks`` time steps of every environment, from the end of the last rollout on."""
        if group:
            raise RlinfError(
                f"{self.env.size} environments are stepped at once: expected a learner for parts "
                "of episodes (ppo, async_ppo), got one for groups of complete episodes"
            )
        if self.last_observation is None or self.env.resets != self.resets:
            self.last_observation = self.tensors.reset(self.scenes(self.env.size))
            self.resets = self.env.resets
        observation = self.last_observation
        steps: list[dict[str, Any]] = []
        for _ in range(chunks):
            chunk, observation = self._step(observation)
            steps.append(chunk)
        self.last_observation = observation
        rollout = Rollout(**{name: _stack([step[name] for step in steps]) for name in steps[0]})
        self._check(rollout)
        return Experience(rollouts=[rollout], steps=chunks * self.env.size)

    def _check(self, rollout: Rollout) -> None:
        """Check once per rollout that all values are finite, since a check waits for the device."""
        finite = {
            "observation": rollout.next_observations["vectors"],
            "reward": rollout.step_rewards,
        }
        if all(bool(torch.isfinite(values).all()) for values in finite.values()):
            return
        episode_steps = np.zeros(self.env.size, int)
        for step, done in enumerate(rollout.done.numpy(force=True) > 0):
            episode_steps += 1
            self.env.check({name: values[step] for name, values in finite.items()}, episode_steps)
            episode_steps[done] = 0

    def _step(self, before: Batch) -> tuple[dict[str, Any], Batch]:
        """Play one action of each environment.

        Returns:
            The tensors of one rollout step by name, and the next observation.
        """
        images = {name: image for name, image in before.items() if name != "vectors"}
        observation = Observation(
            before["vectors"], images, (self.env.spec.instruction,) * self.env.size
        )
        policy_inputs = {
            name: value
            for name, value in self.policy.to_batch(observation).items()
            if name not in before
        }
        chunk = self.policy.act(
            observation.to(self.policy.device), explore=True, generator=self.generator
        )
        if chunk.log_probs is None:
            raise RlinfError(
                "rollouts: expected log-probabilities of the sampled actions, got none. Train a "
                "policy with a density (policy.kind)"
            )
        started, busy = time.perf_counter(), time.thread_time()
        steps = self.tensors.step(chunk.actions[:, 0].to(self.tensors.device))
        self.simulate_s += time.perf_counter() - started
        self.simulate_busy_s += time.thread_time() - busy
        ones = torch.ones_like(steps.reward)
        return {
            "observations": before | policy_inputs,
            "next_observations": steps.next_observations | policy_inputs,
            "actions": chunk.drawn[:, :1],
            "log_probs": chunk.log_probs[:, :1].flatten(1),
            "step_rewards": steps.reward[:, None],
            "steps": ones,
            "terminated": steps.terminated,
            "done": torch.maximum(steps.terminated, steps.truncated),
            "mask": ones,
            "versions": self.version * ones,
        }, steps.observation


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: _stack([value[name] for value in values]) for name in values[0]}
    return torch.stack(values)


def _array(values: Tensor) -> np.ndarray:
    return values.numpy(force=True).astype(float)


def _arrays(values: Batch) -> Arrays:
    return {name: tensor.numpy(force=True) for name, tensor in values.items()}
