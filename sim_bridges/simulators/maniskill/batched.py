"""ManiSkill's own tasks as a batch on the GPU: joint control, state observations, dense reward.

Without a GPU it steps one environment, which is enough to try a recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.policies.base import Batch
from rlinf_core.rollouts.array_env import TensorSteps
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec


class Batched:
    """A ``rlinf_core.rollouts.array_env.TensorEnv``.

    Args:
        task: ManiSkill's name of the task.
        size: number of environments.
        device: cuda or cpu.
    """

    exclusive = False

    def __init__(self, task: str, size: int, device: torch.device) -> None:
        import gymnasium
        import mani_skill.envs  # noqa: F401 (registers its tasks)
        from mani_skill.utils.registration import REGISTERED_ENVS
        from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

        if task not in REGISTERED_ENVS:
            raise RecipeError(
                f"env: expected maniskill: and a task of its own, got '{task}'"
                f"{nearest(task, REGISTERED_ENVS)}"
            )
        on_gpu = device.type == "cuda"
        if size > 1 and not on_gpu:
            raise RecipeError(
                f"env 'maniskill:{task}': expected simulation.environments = 1 on {device.type}, "
                f"got {size}. ManiSkill steps batches only on a GPU"
            )
        env = gymnasium.make(
            task,
            num_envs=size,
            obs_mode="state",
            reward_mode="normalized_dense",
            sim_backend="physx_cuda" if on_gpu else "physx_cpu",
            render_backend="gpu" if on_gpu else "cpu",
        )
        self.env: Any = ManiSkillVectorEnv(env, size)
        self.size = size
        self.device = self.env.device
        space, observation_space = self.env.single_action_space, self.env.single_observation_space
        self.low, self.high = (
            torch.as_tensor(bound, device=self.device) for bound in (space.low, space.high)
        )
        action = ActionSpec(
            "maniskill",
            tuple([f"a{i}" for i in range(len(space.low))]),
            (1.0,) * len(space.low),
            ("",) * len(space.low),
        )
        self.spec = StationSpec(
            (ArraySpec("state", (int(np.prod(observation_space.shape)),)),),
            action,
            float(self.env.base_env.control_freq),
        )

    def reset(self, seeds: Sequence[int]) -> Batch:
        return {"vectors": self.env.reset(seed=[int(seed) % 2**31 for seed in seeds])[0].float()}

    def step(self, actions: torch.Tensor) -> TensorSteps:
        played = self.low + (actions.clamp(-1.0, 1.0) + 1.0) / 2.0 * (self.high - self.low)
        observation, reward, terminated, truncated, info = self.env.step(played)
        last, final_info = info.get("final_observation", observation), info.get("final_info", info)
        success = final_info.get("success", torch.zeros(self.size, device=self.device))
        return TensorSteps(
            {"vectors": last.float()},
            reward.float(),
            terminated.float(),
            torch.as_tensor(truncated, device=self.device).float().expand(self.size),
            success.float(),
            {"vectors": observation.float()},
        )

    def close(self) -> None:
        self.env.close_extras()
