"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics.

Ball, Smith, Kostrikov, Levine: Efficient Online Reinforcement Learning with Offline Data, arXiv 2302.02948. The critics
are one batched module; a warm-started actor keeps close to the demonstrations by a decaying cloning term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf_core.algorithms.parts.actor_critic import ActorCritic
from rlinf_core.policies.actor import Batch, squashed


@dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of RLPD.

    Attributes:
        batch_size: transitions a step, half of them demonstrations.
        critics: size of the ensemble.
        target_critics: how many of them, drawn each step, the target takes the minimum of.
        critic_hidden: widths of each critic's layers.
        discount: gamma per time step.
        target_rate: tau of the target critics' moving average.
        learning_rate: of Adam for actor, critics and temperature.
        initial_temperature: alpha at first.
        target_entropy: per action dimension; the demo's tolerances need little noise.
        entropy_backup: whether the target's value includes the entropy bonus.
        actor_every: critic steps per actor step.
        critic_warmup: critic steps before the actor begins to move.
        cloning: weight of the cloning term on demonstrations at first.
        cloning_steps: steps over which it decays to a tenth.
        clip_gradient: norm bound, per optimiser.
        image_shift: pixels by which images are moved at random (DrQ).
    """

    batch_size: int = 256
    critics: int = 4
    target_critics: int = 2
    critic_hidden: tuple[int, ...] = (128, 128)
    discount: float = 0.97
    target_rate: float = 0.005
    learning_rate: float = 3e-4
    initial_temperature: float = 0.02
    target_entropy: float = -2.0
    entropy_backup: bool = False
    actor_every: int = 2
    critic_warmup: int = 500
    cloning: float = 0.3
    cloning_steps: int = 20000
    clip_gradient: float = 10.0
    image_shift: int = 3


class Learner(ActorCritic):
    """Every batch holds online transitions first and demonstrations in its second half."""

    config: Config

    def value(self, values: Tensor) -> Tensor:
        return values.mean(dim=0)

    def decide(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(batch)
        return *squashed(mean, log_std, self.generator), mean

    def regularise(self, batch: Batch, mean: Tensor) -> tuple[Tensor, dict[str, Any]]:
        half = len(mean) // 2
        cloning = ((torch.tanh(mean[half:]) - batch["action"][half:].clamp(-1, 1)) ** 2).sum(-1).mean()
        weight = self.config.cloning * 0.1 ** (self.updates / self.config.cloning_steps)
        return weight * cloning, {"cloning": cloning.item()}
