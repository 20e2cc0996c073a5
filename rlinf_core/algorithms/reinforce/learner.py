"""REINFORCE++: rewards to go, whitened over the rollout, in PPO's clipped objective.

There is no value function. Hu et al. 2025, arXiv 2501.03262. The baseline variant first subtracts
the mean return of the scene's group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_core.algorithms.common.advantages import (
    group_advantages,
    normalise_advantages,
    rewards_to_go,
)
from rlinf_core.algorithms.common.on_policy import rollout_log_probs
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.grpo.learner import Learner as GRPO
from rlinf_core.algorithms.reinforce import Config
from rlinf_core.policies.encoder import Batch


class Learner(GRPO):
    """Trains with rewards to go.

    With ``baseline``, the environments of a group lie side by side.
    """

    config: Config

    @property
    def needs_reference(self) -> bool:
        return self.config.beta > 0.0 or super().needs_reference

    def advantages_and_weights(self, rollout: Rollout) -> Batch:
        config = self.config
        mask = rollout.mask
        drift = torch.zeros_like(rollout.log_probs)
        if config.beta:
            reference = rollout_log_probs(self.reference, rollout, mask)
            drift = (rollout.log_probs - reference).mul(rollout.executed)
        if rollout.counted is not None:
            return self._token_advantages(rollout, drift)
        drift = drift.sum(dim=-1)
        if config.baseline:
            centred = group_advantages(rollout.returns, config.group, scale=False)
            advantages = centred.expand(mask.shape) - rewards_to_go(
                config.beta * drift * mask, mask
            )
        else:
            advantages = rewards_to_go((rollout.rewards - config.beta * drift) * mask, mask)
        return {
            "advantages": normalise_advantages(advantages, mask),
            "weights": self.weights(rollout),
        }

    def _token_advantages(self, rollout: Rollout, drift: Tensor) -> Batch:
        """Return the advantage of each token (T, N, E), normalised over all tokens.

        The advantage is its episode's return minus the drift from the token on.
        """
        returns, counted = rollout.returns, rollout.mask.unsqueeze(-1) * rollout.executed
        if self.config.baseline:
            returns = group_advantages(returns, self.config.group, scale=False)
        to_go = drift.flip(-1).cumsum(dim=-1).flip(-1)
        advantages = rollout.per_row(returns).unsqueeze(-1) - self.config.beta * to_go
        return {
            "advantages": normalise_advantages(advantages, counted),
            "weights": self.weights(rollout),
        }
