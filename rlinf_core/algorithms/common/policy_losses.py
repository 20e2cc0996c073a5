"""Losses of the PPO family: clipped and truncated objectives, value loss, importance weights.

Means over a mask count every element once, also if several processes share a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.sharding import all_sum, world_size

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


def importance_weights(
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
    unit, bound = correction.split("_")
    difference = (trainer - engine) * executed
    if unit == "sequence":
        difference = difference.sum(dim=-1, keepdim=True).expand(difference.shape)
    ratio = bounded_exp(difference)
    if bound == "truncate":
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


def mean_weights(mask: Tensor) -> Tensor:
    """Return each element's weight in a masked mean over all shards.

    The processes' results must then be averaged.
    """
    # the mask may have fractional weights
    return mask * (world_size() / all_sum(mask.sum()).clamp(min=1e-8))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the mask, of all shards once the processes' results are averaged."""
    return (values * mean_weights(mask)).sum()


def aggregate_log_probs(log_probs: Tensor, level: str) -> Tensor:
    """Return log-probabilities of a chunk's actions (B, H) (``action``) or of the chunk (B, 1)."""
    return log_probs if level == "action" else log_probs.sum(dim=1, keepdim=True)
