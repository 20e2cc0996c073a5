"""REINFORCE++: what came after each step, whitened over the whole rollout, in PPO's clipped objective; no value function.

Hu et al. 2025, arXiv 2501.03262. The baseline variant first takes off the mean return of the scene's group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlinf_core.algorithms import grpo
from rlinf_core.algorithms.parts.advantages import group_advantages, normalised, rewards_to_go
from rlinf_core.algorithms.parts.on_policy import Rollout
from rlinf_core.policies.actor import Batch


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Config):
    """Hyper-parameters of REINFORCE++: those of GRPO, and

    Attributes:
        baseline: take off the group's mean return.
        beta: weight of the log-ratio to the policy that training began with, taken off every step's reward.
    """

    baseline: bool = False
    beta: float = 0.001


class Learner(grpo.Learner):
    """With ``baseline``, the environments of a group lie side by side; without, the group does not matter."""

    config: Config

    @property
    def needs_reference(self) -> bool:
        return self.config.beta > 0.0 or super().needs_reference

    def prepare(self, rollout: Rollout) -> Batch:
        config, mask, drift = self.config, rollout.mask, torch.zeros_like(rollout.rewards)
        if config.beta:
            flat = {name: values.flatten(0, 1) for name, values in rollout.observations.items()}
            reference, _ = self.reference.log_probs(flat, rollout.actions.flatten(0, 1))
            drift = (rollout.log_probs - reference.view(rollout.log_probs.shape)).mul(rollout.executed).sum(dim=-1)
        if config.baseline:
            centred = group_advantages(rollout.returns, config.group, scale=False)
            advantages = centred.expand(mask.shape) - rewards_to_go(config.beta * drift * mask, mask)
        else:
            advantages = rewards_to_go((rollout.rewards - config.beta * drift) * mask, mask)
        return {"advantages": normalised(advantages, mask), "weights": mask}
