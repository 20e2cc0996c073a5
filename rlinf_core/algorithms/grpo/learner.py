"""GRPO: several episodes of the same scene, each judged against their mean; no value function.

Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1; for robots: SimpleVLA-RL and
RLinf-VLA.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rlinf_core.algorithms.common.advantages import EPSILON, group_advantages
from rlinf_core.algorithms.common.on_policy import OnPolicy, rollout_log_probs
from rlinf_core.algorithms.common.policy_losses import (
    bounded_exp,
    importance_weights,
    policy_loss,
    truncated_loss,
)
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.grpo import Config
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.sharding import all_sum, world_size
from rlinf_core.specs.arrays import TextSpec


class Learner(OnPolicy):
    """Environments of a rollout play one episode each; those of a group lie side by side."""

    config: Config

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept as a reference."""
        return self.config.reference_kl > 0.0

    def extra_modules(self) -> dict[str, torch.nn.Module]:
        if not self.needs_reference:
            return {}
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        return {"reference": self.reference}

    def prepare(self, rollout: Rollout) -> Batch:
        config, data = self.config, self.advantages_and_weights(rollout)
        if config.mask_truncated:
            data["weights"] = data["weights"] * (
                (rollout.terminated * rollout.mask).amax(dim=0) > 0
            )
        if config.correction != "none":
            data["proximal"] = rollout_log_probs(self.policy, rollout, data["weights"])
            data["correction"] = importance_weights(
                data["proximal"],
                rollout.log_probs,
                rollout.executed,
                config.correction,
                config.correction_low,
                config.correction_high,
            )
        return data

    def advantages_and_weights(self, rollout: Rollout) -> Batch:
        """Return advantages (T, N), or (T, N, E), and weights (T, N)."""
        advantages = rollout.per_row(self.group_relative(rollout.returns))
        return {
            "advantages": advantages.expand(rollout.mask.shape),
            "weights": self.weights(rollout),
        }

    def group_relative(self, returns: Tensor) -> Tensor:
        """Return the returns (M,) of episodes relative to their group's mean, as configured."""
        advantages = group_advantages(
            returns, self.config.group, scale=self.config.scale == "group"
        )
        return (
            advantages / (returns.std() + EPSILON) if self.config.scale == "rollout" else advantages
        )

    def weights(self, rollout: Rollout) -> Tensor:
        """Return the weight of each chunk (T, N): 1, or 1 / |o_i| (equation 3)."""
        if self.config.weighting != "episode":
            return rollout.mask
        counted = rollout.mask * (rollout.steps if self.config.level == "action" else 1.0)
        per_row = rollout.per_row(rollout.per_episode(counted.sum(dim=0)))
        return rollout.mask / per_row.unsqueeze(0).clamp(min=1.0)

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies (B, E); see ``OnPolicy``.

        A conversation without an advantage has no gradient. Without a bonus or a penalty it is not
        computed: it keeps the engine's log-probabilities, and the mean entropy of the others.
        """
        is_needed = self.advantages(batch).ne(0).any(dim=1)
        if (
            not isinstance(self.policy.spec, TextSpec)
            or self.config.entropy
            or self.config.reference_kl
            or is_needed.all()
        ):
            return super().evaluate(batch)
        is_needed[0] = True  # every process of a group takes part in the gradient
        rows = is_needed.nonzero()[:, 0]
        part = {name: values[rows] for name, values in batch.items()}
        log_probs, entropy = super().evaluate(part)
        drawn = part["executed"] > 0
        return (
            batch["log_probs"].index_copy(0, rows, log_probs),
            entropy[drawn]
            .mean()
            .expand(len(is_needed), entropy.shape[1])
            .index_copy(0, rows, entropy),
        )

    def normalized_weights(self, weights: Tensor) -> Tensor:
        """Return the weight of an element in the loss.

        ``constant`` divides by the number of rows, not of elements.
        """
        if self.config.weighting != "constant":
            return super().normalized_weights(weights)
        rows = all_sum(torch.tensor(float(len(weights)), device=weights.device))
        return weights * (world_size() / (rows * self.config.constant_length))

    def proximal_log_probs(self, log_probs: Tensor, old_log_probs: Tensor, batch: Batch) -> Tensor:
        return self.aggregate(batch["proximal"], batch) if "proximal" in batch else old_log_probs

    def objective(self, log_probs: Tensor, old_log_probs: Tensor, batch: Batch) -> Tensor:
        config = self.config
        advantages = self.advantages(batch)
        proximal = self.proximal_log_probs(log_probs, old_log_probs, batch)
        weights = batch["correction"][:, : log_probs.shape[-1]] if "correction" in batch else None
        if config.objective == "cispo":
            return truncated_loss(log_probs, proximal, advantages, config.clip_high, weights)
        return policy_loss(
            log_probs,
            proximal,
            advantages,
            config.clip_low,
            config.clip_high,
            config.dual_clip,
            weights,
        )

    def penalty(self, log_probs: Tensor, batch: Batch) -> tuple[Tensor | None, dict[str, float]]:
        metrics = {}
        if "correction" in batch:
            executed = batch["executed"]
            metrics["correction"] = (
                (batch["correction"] * executed).sum() / executed.sum().clamp(min=1.0)
            ).item()
        if not self.config.reference_kl:
            return None, metrics
        reference, _ = self.reference.log_probs(batch, batch["actions"])
        weights = self.normalized_weights(batch["weights"][:, None] * batch["executed"])
        divergence = (k3(log_probs, reference) * weights).sum()
        return self.config.reference_kl * divergence, metrics | {"reference_kl": divergence.item()}


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Return exp(q - p) - (q - p) - 1, which is never negative and has the mean KL(p, q).

    DeepSeekMath, equation 4.
    """
    log_ratio = reference - log_probs
    return bounded_exp(log_ratio) - log_ratio - 1.0
