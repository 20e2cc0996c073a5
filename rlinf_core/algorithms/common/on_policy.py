"""Base of the PPO family: clipped objectives, a rollout's data, and epochs of minibatches."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.algorithms.common.learner import Checkpointed, adam, optimizer_step
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import OnPolicySettings
from rlinf_core.policies.base import OnPolicyActor
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.sharding import all_sum, shard, world_size

# beyond it float32 soon overflows, and an infinite ratio has a gradient of NaN
LARGEST_LOG_RATIO = 20.0


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return exp of a log-ratio, constant beyond 20, with a gradient of 0 there."""
    return log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A) per element, with r = pi / pi_old.

    Schulman et al. 2017, arXiv 1707.06347, equation 7. ``dual`` > 1 bounds it for negative
    advantages by dual A (Ye et al. 2020, arXiv 1912.09729, equation 5). ``weights`` multiply it
    (the decoupled objective's behaviour weights).
    """
    ratio = bounded_exp(log_probs - old_log_probs)
    objective = torch.min(ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages)
    if dual:
        objective = torch.where(advantages < 0, torch.max(objective, dual * advantages), objective)
    return -(objective if weights is None else weights * objective)


def truncated_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    high: float,
    weights: Tensor | None = None,
) -> Tensor:
    """Return -sg(min(r, 1 + high)) A log pi per element; every element keeps its gradient.

    CISPO: MiniMax 2025, arXiv 2506.13585, equation 4.
    """
    ratio = bounded_exp(log_probs - old_log_probs).clamp(max=1.0 + high).detach()
    objective = ratio * advantages * log_probs
    return -(objective if weights is None else weights * objective)


def importance(
    trainer: Tensor, engine: Tensor, executed: Tensor, correction: str, low: float, high: float
) -> Tensor:
    """Return weights (..., E) of an engine's draws, whose probabilities differ from the trainer's.

    Truncated: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training" (TIS). Masked: Liu et al. 2025, "When speed kills stability" (MIS); with a lower
    bound, of tokens: IcePop, arXiv 2510.18855.

    Args:
        trainer, engine: log-probabilities (..., E) by the same weights.
        executed: 1 for drawn elements, (..., E).
        correction: ``token_`` or ``sequence_`` and ``truncate`` or ``mask``.
        low, high: bounds of the ratio; beyond them it is cut off, or the weight is 0.
    """
    difference = (trainer - engine) * executed
    if correction.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True).expand(difference.shape)
    ratio = bounded_exp(difference)
    if correction.endswith("truncate"):
        return ratio.clamp(low, high)
    return torch.where((ratio >= low) & (ratio <= high), ratio, torch.zeros_like(ratio))


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float, huber: float
) -> Tensor:
    """Return the Huber loss of the value per element, the worse of clipped and unclipped.

    ``clip`` 0 means no clip.
    """

    def loss(x: Tensor) -> Tensor:
        if huber:
            return F.huber_loss(x, returns, reduction="none", delta=huber)
        return 0.5 * F.mse_loss(x, returns, reduction="none")

    if not clip:
        return loss(values)
    return torch.max(loss(values), loss(old_values + (values - old_values).clamp(-clip, clip)))


def shares(mask: Tensor) -> Tensor:
    """Return each element's weight in a masked mean over all shards.

    The processes' results must then be averaged.
    """
    # the mask may have fractional weights
    return mask * (world_size() / all_sum(mask.sum()).clamp(min=1e-8))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the mask, of all shards once the processes' results are averaged."""
    return (values * shares(mask)).sum()


def to_level(log_probs: Tensor, level: str) -> Tensor:
    """Return log-probabilities of a chunk's actions (B, H) (``action``) or of the chunk (B, 1)."""
    return log_probs if level == "action" else log_probs.sum(dim=-1, keepdim=True)


def log_probs_of(policy: OnPolicyActor, rollout: Rollout, counts: Tensor) -> Tensor:
    """Return the log-probabilities under ``policy`` of a rollout's draws, in the rollout's shape.

    Elements without weight in ``counts`` (T, N) keep their log-probabilities and are not evaluated:
    a padding chunk has no observation and no instruction. One row is always evaluated. The
    processes of a group, each with its own rows, therefore gather the same layers.
    """
    valid = counts.flatten() > 0
    valid[0] = True
    observed = rollout.observations | {"executed": rollout.executed}
    log_probs, _ = policy.log_probs(
        {name: values.flatten(0, 1)[valid] for name, values in observed.items()},
        rollout.actions.flatten(0, 1)[valid],
    )
    result = rollout.log_probs.flatten(0, 1).clone()
    result[valid] = log_probs.to(result.dtype)
    return result.view(rollout.log_probs.shape)


class OnPolicy(Checkpointed):
    """Learner of an actor with a density; ``update`` takes one rollout.

    A subclass defines the advantages.

    Args:
        policy: the actor.
        config: config of the algorithm.
        seed: seed of minibatches.
    """

    def __init__(self, policy: OnPolicyActor, config: OnPolicySettings, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.policy, self.config, self.updates = policy, config, 0
        policy.differentiates_entropy = config.entropy > 0.0
        self.modules = {"policy": policy} | self.more_modules()
        self.place(policy.device, seed)
        parameters = [
            p for module in self.modules.values() for p in module.parameters() if p.requires_grad
        ]
        self.optimisers = {"policy": adam(parameters, lr=config.learning_rate, eps=1e-5)}

    def more_modules(self) -> dict[str, torch.nn.Module]:
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
        valid = torch.nonzero(flat["weights"]).squeeze(-1)
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
        log_probs, entropy = self.policy.log_probs(batch, batch["actions"])
        now, then = self.level(log_probs, batch), self.level(batch["log_probs"], batch)
        objective = self.objective(now, then, batch)
        weights = batch["weights"].unsqueeze(-1) * (executed if config.level == "action" else 1.0)
        counted = self.element_shares(weights.expand(now.shape))
        loss = (objective * counted).sum()
        bonus = (self.level(entropy if config.entropy else entropy.detach(), batch) * counted).sum()
        if config.entropy:
            loss = loss - config.entropy * bonus
        penalty, penalty_metrics = self.penalty(log_probs, batch)
        if penalty is not None:
            loss = loss + penalty
        with torch.no_grad():
            log_ratio = now - then
            ratio = bounded_exp(now - self.clipped_about(now, then, batch))
            clipped = ((ratio < 1.0 - config.clip_low) | (ratio > 1.0 + config.clip_high)).float()
            metrics = {
                "entropy": bonus.item(),
                "kl": ((bounded_exp(log_ratio) - 1.0 - log_ratio) * counted).sum().item(),
                "clipped": (clipped * counted).sum().item(),
            }
        return loss, metrics | penalty_metrics

    def element_shares(self, weights: Tensor) -> Tensor:
        """Return the share of each element (B, E or 1) in the loss, from its weight."""
        return shares(weights)

    def penalty(self, log_probs: Tensor, batch: Batch) -> tuple[Tensor | None, dict[str, float]]:
        """Return a term for the loss, from the log-probabilities (B, E), and its metrics."""
        return None, {}

    def level(self, log_probs: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities (B, E) of played actions, or (B, 1), the chunk's sum or mean."""
        executed = batch["executed"]
        level = to_level(log_probs * executed, self.config.level)
        return (
            level / executed.sum(dim=-1, keepdim=True).clamp(min=1.0)
            if self.config.level == "mean"
            else level
        )

    def clipped_about(self, now: Tensor, then: Tensor, batch: Batch) -> Tensor:
        """Return log-probabilities (B, E or 1) of the policy around which the ratio is clipped."""
        return then

    def objective(self, now: Tensor, then: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each element; ``now`` and ``then`` are log-probabilities (B, E
        or 1).
        """
        config, advantages = self.config, self.advantages(batch)
        return policy_loss(
            now, then, advantages, config.clip_low, config.clip_high, config.dual_clip
        )

    @staticmethod
    def advantages(batch: Batch) -> Tensor:
        """Return the advantages of each chunk (B, 1), or of each of its elements (B, E)."""
        advantages = batch["advantages"]
        return advantages if advantages.ndim == batch["executed"].ndim else advantages.unsqueeze(-1)
