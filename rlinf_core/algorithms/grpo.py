"""GRPO: several episodes of the same scene, each judged against their mean; no value function.

Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1; for robots: SimpleVLA-RL and RLinf-VLA.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf_core.algorithms.parts.advantages import group_advantages
from rlinf_core.algorithms.parts.clipped import masked_mean
from rlinf_core.algorithms.parts.on_policy import OnPolicy, Rollout
from rlinf_core.policies.actor import Batch


@dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of GRPO.

    Attributes:
        group: episodes of one scene.
        groups: scenes of a rollout.
        epochs: over each rollout.
        minibatches: an epoch is cut into.
        learning_rate: of Adam.
        clip_low, clip_high: how far the ratio may fall below and rise above 1.
        dual_clip: bound of the objective for negative advantages, above 1; 0 for none.
        entropy: weight of the entropy bonus.
        reference_kl: weight of the divergence from the policy that training began with.
        level: ratios of single actions of a chunk (action) or of the whole (chunk).
        clip_gradient: norm bound.
    """

    group: int = 8
    groups: int = 8
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 3e-4
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    entropy: float = 0.0
    reference_kl: float = 0.0
    level: str = "action"
    clip_gradient: float = 1.0


class Learner(OnPolicy):
    """Environments of a rollout play one episode each; those of a group lie side by side."""

    config: Config

    def more_modules(self) -> dict[str, torch.nn.Module]:
        if not self.config.reference_kl:
            return {}
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        return {"reference": self.reference}

    def prepare(self, rollout: Rollout) -> Batch:
        advantages = group_advantages(rollout.returns, self.config.group)
        per_episode = rollout.mask / rollout.mask.sum(dim=0, keepdim=True).clamp(min=1.0)
        return {"advantages": advantages.expand(rollout.mask.shape), "weights": per_episode}

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        loss, metrics = super().loss(batch)
        if not self.config.reference_kl:
            return loss, metrics
        now, _ = self.policy.log_probs(batch, batch["actions"])
        reference, _ = self.reference.log_probs(batch, batch["actions"])
        divergence = masked_mean(k3(now, reference).mean(dim=-1), batch["weights"])
        return loss + self.config.reference_kl * divergence, metrics | {"reference_kl": divergence.item()}


def k3(now: Tensor, reference: Tensor) -> Tensor:
    """exp(q - p) - (q - p) - 1, which is never negative and whose mean is KL(p, q) (DeepSeekMath, equation 4)."""
    return (reference - now).exp() - (reference - now) - 1.0
