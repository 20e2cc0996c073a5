"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics.

Ball, Smith, Kostrikov, Levine: Efficient Online Reinforcement Learning with Offline Data, arXiv 2302.02948. The critics
are one batched module; a warm-started actor keeps close to the demonstrations by a decaying cloning term.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf_core.algorithms.common.actor_critic import TargetNetworks
from rlinf_core.algorithms.rlpd.config import Config
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.tanh_gaussian.policy import squashed


class Learner(TargetNetworks):
    """Every batch holds online transitions first and demonstrations in its second half."""

    config: Config

    def value(self, values: Tensor) -> Tensor:
        return values.mean(dim=0)

    def decide(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(batch)
        return *squashed(mean, log_std, self.generator, self.actor.executed_size), mean

    def regularise(self, batch: Batch, mean: Tensor) -> tuple[Tensor, dict[str, Any]]:
        half = len(mean) // 2
        cloning = ((torch.tanh(mean[half:]) - batch["action"][half:].clamp(-1, 1)) ** 2).sum(-1).mean()
        weight = self.config.cloning * 0.1 ** (self.updates / self.config.cloning_steps)
        return weight * cloning, {"cloning": cloning.item()}
