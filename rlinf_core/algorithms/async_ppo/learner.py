"""Asynchronous PPO: rollouts of somewhat older policies, by the decoupled objective.

Hilton, Cobbe, Schulman 2021, arXiv 2110.00641; in use: AReaL, arXiv 2505.24298. The ratio is taken
to a *proximal* policy near the newest. Each sample is weighted by pi_proximal / pi_behaviour, or
dropped if the two are too far apart.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rlinf_core.algorithms.async_ppo import Config
from rlinf_core.algorithms.common.on_policy import rollout_log_probs
from rlinf_core.algorithms.common.policy_losses import policy_loss
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.ppo.learner import Learner as PPO
from rlinf_core.policies.encoder import Batch


class Learner(PPO):
    """PPO on samples of several versions."""

    config: Config

    def prepare(self, rollout: Rollout) -> Batch:
        fresh = (self.updates - rollout.versions <= self.config.max_staleness).float()
        mask = rollout.mask * fresh
        # statistics leave out stale samples too
        data = super().prepare(replace(rollout, mask=mask))
        if self.config.proximal == "recomputed":
            data["proximal"] = rollout_log_probs(self.policy, rollout, mask)
        else:
            data["versions"] = rollout.versions
        return data

    def proximal_log_probs(self, log_probs: Tensor, old_log_probs: Tensor, batch: Batch) -> Tensor:
        if "proximal" in batch:
            return self.aggregate(batch["proximal"], batch)
        versions = batch["versions"][:, None]
        return interpolate_proximal(log_probs.detach(), old_log_probs, versions, self.updates)

    def objective(self, log_probs: Tensor, old_log_probs: Tensor, batch: Batch) -> Tensor:
        config = self.config
        proximal = self.proximal_log_probs(log_probs, old_log_probs, batch)
        return decoupled_loss(
            log_probs,
            proximal,
            old_log_probs,
            self.advantages(batch),
            config.clip_low,
            config.clip_high,
            config.dual_clip,
            config.weight_limit,
        )


def interpolate_proximal(
    newest: Tensor, behaviour: Tensor, version: Tensor, newest_version: int
) -> Tensor:
    """Return log pi_proximal, interpolated between behaviour and newest policy by version."""
    span = (newest_version + 1 - version).clamp(min=1.0)
    return behaviour + (span - 1.0) / span * (newest - behaviour)


def decoupled_loss(
    log_probs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    dual: float,
    limit: float,
) -> Tensor:
    """Return -w min(r A, clip(r) A) with r = pi / pi_proximal and w = pi_proximal / pi_behaviour.

    Beyond ``limit``, w is 0.
    """
    weights = (proximal - behaviour).exp().detach()
    weights = torch.where(weights <= limit, weights, torch.zeros_like(weights))
    return policy_loss(log_probs, proximal, advantages, low, high, dual, weights)
