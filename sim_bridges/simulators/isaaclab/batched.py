"""Isaac Lab's own tasks as a batch on the GPU, with its actions, observations and rewards.

The observations are those of ``policy``. Training runs in Isaac Sim's own Python, with rlinf
installed there. Isaac Lab begins the next episode before it reports the end of the last one. The
adapter therefore uses the last observation before the end as the final one, as Isaac Lab's own
learners (rsl_rl) do. None of its tasks reports success; reports show returns. Versions 2.3 and 3.0
are tested against a stand-in (docs/simulators/index.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from rlinf_core.core.errors import RecipeError
from rlinf_core.policies.base import Batch
from rlinf_core.rollouts.array_env import TensorSteps
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from sim_bridges.simulators.isaaclab.package import check_task, installed_release


class Batched:
    """A ``rlinf_core.rollouts.array_env.TensorEnv``.

    Args:
        task: Isaac Lab's name of the task, e.g. Isaac-Reach-Franka (2.3: Isaac-Reach-Franka-v0).
        size: number of environments.
        device: cuda or cpu.
    """

    exclusive = True  # one simulation per process

    def __init__(self, task: str, size: int, device: torch.device) -> None:
        release = installed_release()
        self._exit_stack = ExitStack()
        release.launch(self._exit_stack, str(device), cameras=False)
        import gymnasium
        import isaaclab_tasks  # noqa: F401 (registers its tasks)
        from isaaclab_tasks.utils import parse_env_cfg

        check_task(task, release)
        config = parse_env_cfg(task, device=str(device), num_envs=size)
        release.launch(self._exit_stack, str(device), cameras=False, config=config)
        env: Any = gymnasium.make(task, cfg=config).unwrapped
        self.env = env
        self.size = size
        self.device = torch.device(self.env.device)
        observation = self._vectors(self.env.reset(seed=0)[0], task)
        dim = _action_size(env)
        action = ActionSpec(
            "isaaclab", tuple([f"a{i}" for i in range(dim)]), (1.0,) * dim, ("",) * dim
        )
        self.spec = StationSpec(
            (ArraySpec("policy", (observation.shape[1],)),), action, 1.0 / float(self.env.step_dt)
        )
        self._last_observation = observation

    def reset(self, seeds: Sequence[int]) -> Batch:
        """Reset every environment with the first seed; Isaac Lab takes only one."""
        self._last_observation = self._vectors(self.env.reset(seed=int(seeds[0]) % 2**31)[0])
        return {"vectors": self._last_observation}

    def step(self, actions: torch.Tensor) -> TensorSteps:
        observation, reward, terminated, truncated, _ = self.env.step(actions.clamp(-1.0, 1.0))
        now, ended = self._vectors(observation), terminated | truncated
        last = torch.where(ended[:, None], self._last_observation, now)
        self._last_observation = now
        return TensorSteps(
            {"vectors": last},
            reward.float(),
            terminated.float(),
            truncated.float(),
            torch.zeros_like(reward),
            {"vectors": now},
        )

    def close(self) -> None:
        self.env.close()
        self._exit_stack.close()

    @staticmethod
    def _vectors(observation: Any, task: str = "") -> torch.Tensor:
        values = observation["policy"]
        if not isinstance(values, torch.Tensor) or values.ndim != 2:
            raise RecipeError(
                f"env 'isaaclab:{task}': expected observations 'policy' (N, V), got "
                f"{getattr(values, 'shape', type(values).__name__)}. Use a task with state "
                "observations"
            )
        return values.float()


def _action_size(env: Any) -> int:
    """Return the size of an action of a manager-based or a direct task."""
    manager = getattr(env, "action_manager", None)
    return int(
        manager.total_action_dim if manager is not None else env.single_action_space.shape[0]
    )
