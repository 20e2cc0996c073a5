"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics.

Ball, Smith, Kostrikov, Levine: Efficient Online Reinforcement Learning with Offline Data, arXiv 2302.02948. The critics
are one batched module; a warm-started actor keeps close to the demonstrations by a decaying cloning term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf_core.algorithms.parts.actor_critic import SlowSettings, SlowTargets
from rlinf_core.policies.actor import Batch, squashed


@dataclass(frozen=True, kw_only=True)
class Config(SlowSettings):
    """Hyper-parameters of RLPD: those of every actor-critic with slow targets (half of a batch are demonstrations), and

    Attributes:
        cloning: weight of the cloning term on demonstrations at first.
        cloning_steps: steps over which it decays to a tenth.
    """

    critics: int = 4
    critic_hidden: tuple[int, ...] = (128, 128)
    discount: float = 0.97
    initial_temperature: float = 0.02
    target_entropy: float = -2.0  # the demo's tolerances need little noise
    entropy_backup: bool = False
    actor_every: int = 2
    critic_warmup: int = 500
    cloning: float = 0.3
    cloning_steps: int = 20000
    image_shift: int = 3


class Learner(SlowTargets):
    """Every batch holds online transitions first and demonstrations in its second half."""

    config: Config
    begins_cloned = half_demonstrations = True

    def value(self, values: Tensor) -> Tensor:
        return values.mean(dim=0)

    def decide(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(batch)
        return *squashed(mean, log_std, self.generator, self.actor.judged_size), mean

    def regularise(self, batch: Batch, mean: Tensor) -> tuple[Tensor, dict[str, Any]]:
        half = len(mean) // 2
        cloning = ((torch.tanh(mean[half:]) - batch["action"][half:].clamp(-1, 1)) ** 2).sum(-1).mean()
        weight = self.config.cloning * 0.1 ** (self.updates / self.config.cloning_steps)
        return weight * cloning, {"cloning": cloning.item()}
