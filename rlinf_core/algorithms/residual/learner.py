"""Residual RL: RLPD of a correction of a frozen base policy, which grows with success.

ResFiT (Ankile et al. 2025, arXiv 2509.19301) and PLD (Xiao et al. 2025, arXiv 2511.00091). Critics
judge the executed action: the base's action with its correction. Actor and targets use the full
correction, so that learning does not depend on the share that is played. Demonstrations and
takeovers are cloned as corrections.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf_core.algorithms.residual import Config
from rlinf_core.algorithms.rlpd.learner import Learner as RLPD
from rlinf_core.policies.base import Batch
from rlinf_core.policies.small.residual.policy import ResidualActor
from rlinf_core.policies.small.tanh_gaussian.policy import sample_squashed


class Learner(RLPD):
    """Learns the correction of a ``ResidualActor``; ``share`` of a batch is played from now on."""

    config: Config
    actor: ResidualActor

    def update(self, batch: dict[str, Any]) -> dict[str, float]:
        """Make one step of RLPD; the played share of the correction follows the batch's."""
        share = batch.get("share")
        metrics = super().update(
            {name: values for name, values in batch.items() if name != "share"}
        )
        if share is None:
            return metrics
        for module in self.modules.values():
            if isinstance(module, ResidualActor):
                module.share.fill_(float(share[0]))
        return metrics | {"share": float(share[0])}

    def actor_proposal(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self.actor(batch)
        correction, log_probs = sample_squashed(
            mean, log_std, self.generator, self.actor.executed_size
        )
        return (
            self.actor.apply_correction(batch, correction),
            log_probs,
            torch.stack([mean, log_std]),
        )

    def regularise(self, batch: Batch, proposed_actions: Tensor) -> tuple[Tensor, dict[str, Any]]:
        corrections = self.actor.correction_to(batch, batch["action"])
        return super().regularise(batch | {"action": corrections}, proposed_actions)

    @torch.no_grad()
    def clone_mask(self, batch: Batch, mean: Tensor) -> Tensor:
        """See RLPD; the batch's ``action`` is a correction."""
        features = self.encoder(batch)
        demonstrated_q, actor_q = (
            self.critics(
                features, self.executed(batch, self.actor.apply_correction(batch, correction))
            )
            for correction in (batch["action"], torch.tanh(mean))
        )
        return (demonstrated_q > actor_q).any(dim=0).float()
