"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics.

Ball, Smith, Kostrikov, Levine: Efficient Online Reinforcement Learning with Offline Data, arXiv 2302.02948. The critics
are one batched module. What a warm-started actor can do already is kept by three means, each of which decays or fades as
critics come to know better: it stays close to the demonstrations (``cloning``), and to the policy it began with
(``reference``; as in TD3+BC, arXiv 2106.06860, but in the states it comes to itself), and it climbs a lower bound of the
critics' values (``pessimism``; An et al. 2021, arXiv 2110.01548).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from rlinf_core.algorithms.common.actor_critic import TargetNetworks
from rlinf_core.algorithms.rlpd.config import Config
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.tanh_gaussian.policy import Actor, squashed


class Learner(TargetNetworks):
    """Every batch holds online transitions first and demonstrations in its second half."""

    config: Config

    def __init__(self, actor: Actor, config: Config, seed: int = 0) -> None:
        super().__init__(actor, config, seed)
        if config.reference:
            self.modules["reference"] = copy.deepcopy(actor).requires_grad_(False)

    def value(self, values: Tensor) -> Tensor:
        return lower_bound(values, self.config.pessimism)

    def decide(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(batch)
        return *squashed(mean, log_std, self.generator, self.actor.executed_size), mean

    def regularise(self, batch: Batch, mean: Tensor) -> tuple[Tensor, dict[str, Any]]:
        config, half = self.config, len(mean) // 2
        cloning = apart(mean[half:], batch["action"][half:].clamp(-1, 1))
        loss, metrics = decayed(config.cloning, self.updates, config.cloning_steps) * cloning, {"cloning": cloning.item()}
        if config.reference:
            with torch.no_grad():
                before, _ = self.modules["reference"](batch)
            away = apart(mean, torch.tanh(before))
            loss = loss + decayed(config.reference, self.updates, config.reference_steps) * away
            metrics["away"] = away.item()
        return loss, metrics


def lower_bound(values: Tensor, deviations: float) -> Tensor:
    """Mean over the ensemble (E, B), less so many of its standard deviations."""
    mean = values.mean(dim=0)
    return mean - deviations * values.std(dim=0, correction=0) if deviations else mean


def apart(mean: Tensor, action: Tensor) -> Tensor:
    """Mean over batch of the squared distance of the most likely action, tanh(mean), from another (B, A)."""
    return ((torch.tanh(mean) - action) ** 2).sum(-1).mean()


def decayed(weight: float, updates: int, steps: int) -> float:
    """A tenth of it after so many steps, a hundredth after twice as many."""
    return weight * 0.1 ** (updates / steps)
