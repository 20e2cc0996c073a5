"""Base of the PPO family: epochs of minibatches over one rollout."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from rlinf_core.algorithms.common.learner import BaseLearner
from rlinf_core.algorithms.common.optimizer import adam, optimizer_step
from rlinf_core.algorithms.common.policy_losses import (
    aggregate_log_probs,
    bounded_exp,
    mean_weights,
    policy_loss,
)
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import OnPolicySettings
from rlinf_core.policies.base import OnPolicyActor
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.sharding import shard, world_size


def rollout_log_probs(policy: OnPolicyActor, rollout: Rollout, mask: Tensor) -> Tensor:
    """Return the log-probabilities under ``policy`` of a rollout's draws, in the rollout's shape.

    Elements with 0 in ``mask`` (T, N) keep their log-probabilities and are not evaluated:
    a padding chunk has no observation and no instruction. One row is always evaluated. The
    processes of a group, each with its own rows, therefore gather the same layers.
    """
    valid = mask.flatten() > 0
    valid[0] = True
    observed = rollout.observations | {"executed": rollout.executed}
    log_probs, _ = policy.log_probs(
        {name: values.flatten(0, 1)[valid] for name, values in observed.items()},
        rollout.actions.flatten(0, 1)[valid],
    )
    result = rollout.log_probs.flatten(0, 1).clone()
    result[valid] = log_probs.to(result.dtype)
    return result.view(rollout.log_probs.shape)


class OnPolicy(BaseLearner):
    """Learner of an actor with a density; ``update`` takes one rollout.

    A subclass defines the advantages.

    Args:
        policy: the actor.
        config: config of the algorithm.
        seed: seed of minibatches.
    """

    def __init__(self, policy: OnPolicyActor, config: OnPolicySettings, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.policy = policy
        self.config = config
        self.updates = 0
        policy.differentiates_entropy = config.entropy > 0.0
        self.modules = {"policy": policy} | self.extra_modules()
        self.to_device_and_seed(policy.device, seed)
        parameters = [
            p for module in self.modules.values() for p in module.parameters() if p.requires_grad
        ]
        self.optimisers = {"policy": adam(parameters, lr=config.learning_rate, eps=1e-5)}

    def extra_modules(self) -> dict[str, torch.nn.Module]:
        """Return the modules that are trained beside the policy."""
        return {}

    @abstractmethod
    def prepare(self, rollout: Rollout) -> Batch:
        """Return the tensors that minibatches need beside the rollout, each (T, N, ...).

        ``advantages`` and ``weights`` are required.
        """

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Train epochs of minibatches over one rollout; return their mean metrics."""
        rollout = rollout.to(self.device)
        if self.config.anneal_updates:
            for group in self.optimisers["policy"].param_groups:
                group["lr"] = self.config.learning_rate * max(
                    1.0 - self.updates / self.config.anneal_updates, 0.0
                )
        with torch.no_grad():
            data = self.prepare(rollout)
        data |= rollout.observations | {
            "actions": rollout.actions,
            "log_probs": rollout.log_probs,
            "executed": rollout.executed,
        }
        flat = {name: values.flatten(0, 1) for name, values in data.items()}
        valid = torch.nonzero(flat["weights"])[:, 0]
        totals: dict[str, float] = {}
        # smallest number of rows in a minibatch, so that no process has none
        count, least = 0, max(2, world_size())
        pieces = max(1, min(self.config.minibatches, len(valid) // least))
        for _ in range(self.config.epochs):
            order = valid[torch.randperm(len(valid), generator=self.generator, device=self.device)]
            for index in order.chunk(pieces):
                if len(index) < least:
                    continue
                rank_index = shard(index)
                metrics = self.step({name: values[rank_index] for name, values in flat.items()})
                count += 1
                for name, value in metrics.items():
                    totals[name] = totals.get(name, 0.0) + value
        self.updates += 1
        return {name: value / max(count, 1) for name, value in totals.items()}

    def step(self, batch: Batch) -> dict[str, float]:
        """Make one gradient step on a minibatch."""
        loss, metrics = self.loss(batch)
        optimizer_step(self.optimisers["policy"], loss, self.config.clip_gradient)
        return metrics | {"loss": loss.item()}

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return the clipped objective, less the entropy bonus, over the played actions."""
        config, executed = self.config, batch["executed"]
        element_log_probs, element_entropy = self.evaluate(batch)
        log_probs = self.aggregate(element_log_probs, batch)
        old_log_probs = self.aggregate(batch["log_probs"], batch)
        weights = batch["weights"][:, None] * (executed if config.level == "action" else 1.0)
        weights = self.normalized_weights(weights.expand(log_probs.shape))
        loss = (self.objective(log_probs, old_log_probs, batch) * weights).sum()
        entropy = element_entropy if config.entropy else element_entropy.detach()
        entropy = (self.aggregate(entropy, batch) * weights).sum()
        if config.entropy:
            loss = loss - config.entropy * entropy
        penalty, penalty_metrics = self.penalty(element_log_probs, batch)
        if penalty is not None:
            loss = loss + penalty
        with torch.no_grad():
            log_ratio = log_probs - old_log_probs
            proximal_log_probs = self.proximal_log_probs(log_probs, old_log_probs, batch)
            ratio = bounded_exp(log_probs - proximal_log_probs)
            clipped = ((ratio < 1.0 - config.clip_low) | (ratio > 1.0 + config.clip_high)).float()
            metrics = {
                "entropy": entropy.item(),
                "kl": ((bounded_exp(log_ratio) - 1.0 - log_ratio) * weights).sum().item(),
                "clipped": (clipped * weights).sum().item(),
            }
        return loss, metrics | penalty_metrics

    def evaluate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies (B, E) of the played actions."""
        return self.policy.log_probs(batch, batch["actions"])

    def normalized_weights(self, weights: Tensor) -> Tensor:
        """Return weights (B, E or 1) of which the loss is the sum over the elements."""
        return mean_weights(weights)

    def penalty(self, log_probs: Tensor, batch: Batch) -> tuple[Tensor | None, dict[str, float]]:
        """Return a term for the loss, from the log-probabilities (B, E), and its metrics."""
        return None, {}

    def aggregate(self, log_probs: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities (B, E) of played actions, or (B, 1), the chunk's sum or mean."""
        executed = batch["executed"]
        aggregated = aggregate_log_probs(log_probs * executed, self.config.level)
        if self.config.level == "mean":
            return aggregated / executed.sum(dim=1, keepdim=True).clamp(min=1.0)
        return aggregated

    def proximal_log_probs(self, log_probs: Tensor, old_log_probs: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities (B, E or 1) of the policy around which the ratio is clipped."""
        return old_log_probs

    def objective(self, log_probs: Tensor, old_log_probs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each element, from log-probabilities (B, E or 1)."""
        config, advantages = self.config, self.advantages(batch)
        return policy_loss(
            log_probs,
            old_log_probs,
            advantages,
            config.clip_low,
            config.clip_high,
            config.dual_clip,
        )

    @staticmethod
    def advantages(batch: Batch) -> Tensor:
        """Return the advantages of each chunk (B, 1), or of each of its elements (B, E)."""
        advantages = batch["advantages"]
        return advantages if advantages.ndim == batch["executed"].ndim else advantages[:, None]
