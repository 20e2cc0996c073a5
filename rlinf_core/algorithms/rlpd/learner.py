"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics.

Ball, Smith, Kostrikov, Levine: Efficient Online Reinforcement Learning with Offline Data, arXiv
2302.02948. The critics are one batched module. Three means keep a warm-started actor's skill.
First, the demonstrations' likelihood stays in its loss (``cloning``; like in DAPG, Rajeswaran et
al. 2018, arXiv 1709.10087). The actor then leaves the demonstrations only as far as they vary, and
in the last millimetres they vary little. Second, its own successes count as demonstrations
(``self_imitation``; Oh et al. 2018, arXiv 1806.05635). Third, it may climb a lower bound of the
critics' values (``pessimism``; An et al. 2021, arXiv 2110.01548).

A person is not always quick. With ``cloning_filter``, the actor does not clone an action that all
critics judge worse than its own (the Q-filter of Nair et al. 2018, arXiv 1709.10089, with one
critic; several do not agree before they know something).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf_core.algorithms.common.actor_critic import TargetNetworks
from rlinf_core.algorithms.rlpd import Config
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.sharding import noise
from rlinf_core.policies.small.tanh_gaussian.policy import cloning_loss, sample_squashed


class Learner(TargetNetworks):
    """Every batch holds online transitions first and demonstrations in its second half."""

    config: Config

    def value(self, values: Tensor) -> Tensor:
        return lower_bound(values, self.config.pessimism)

    def actor_proposal(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(batch)
        action, log_probs = sample_squashed(
            mean, log_std, self.generator, self.actor.executed_size, self.actor.robot_mask(batch)
        )
        return action, log_probs, torch.stack([mean, log_std])

    def regularise(self, batch: Batch, proposed_actions: Tensor) -> tuple[Tensor, dict[str, Any]]:
        # the online half has one more if the number is odd
        config, half = self.config, (len(batch["action"]) + 1) // 2
        demonstrated = batch["action"][half:]
        if config.cloning_noise:
            demonstrated = demonstrated + config.cloning_noise * noise(
                torch.randn, demonstrated.shape, self.generator, demonstrated.device
            )
        mean, log_std = proposed_actions[:, half:]
        robot_actions = self.actor.robot_mask(batch)
        demonstrations = {name: part[half:] for name, part in batch.items()}
        clone_mask = self.clone_mask(demonstrations, mean) if config.cloning_filter else 1.0
        cloning = cloning_loss(
            demonstrated,
            mean,
            log_std,
            robot_actions if robot_actions is None else robot_actions[half:],
            clone_mask,
        )
        return config.cloning * 0.1 ** (self.updates / config.cloning_steps) * cloning, {
            "cloning": cloning.item()
        }

    @torch.no_grad()
    def clone_mask(self, batch: Batch, mean: Tensor) -> Tensor:
        """Return 0 (B,) if all critics prefer the actor's action to a batch's, else 1.

        The actor's action is tanh(``mean``).
        """
        features = self.encoder(batch)
        demonstrated_q, actor_q = (
            self.critics(features, self.executed(batch, action))
            for action in (batch["action"], torch.tanh(mean))
        )
        return (demonstrated_q > actor_q).any(dim=0).float()


def lower_bound(values: Tensor, deviations: float) -> Tensor:
    """Return the mean over the ensemble (E, B), less ``deviations`` of its standard deviations."""
    mean = values.mean(dim=0)
    return mean - deviations * values.std(dim=0, correction=0) if deviations else mean
