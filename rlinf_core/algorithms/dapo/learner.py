"""DAPO: GRPO with a higher upper clip, equal step weights, informative groups and length shaping.

Yu et al. 2025, arXiv 2503.14476. Groups without a gradient are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.dapo import Config
from rlinf_core.algorithms.grpo.learner import Learner as GRPO
from rlinf_core.policies.encoder import Batch


class Learner(GRPO):
    """GRPO's groups; a group with equal returns has no weight."""

    config: Config

    def advantages_and_weights(self, rollout: Rollout) -> Batch:
        returns = self._shaped_returns(rollout)
        informative = rollout.per_row(has_gradient_signal(returns, self.config.group))
        advantages = rollout.per_row(self.group_relative(returns))
        return {
            "advantages": advantages.expand(rollout.mask.shape),
            "weights": self.weights(rollout) * informative,
        }

    def _shaped_returns(self, rollout: Rollout) -> Tensor:
        """Return the returns (M,), less the penalty of an episode's length."""
        config = self.config
        if not config.safe_length:
            return rollout.returns
        lengths = rollout.mask if rollout.counted is None else rollout.mask * rollout.steps
        return rollout.returns + length_penalty(
            rollout.per_episode(lengths.sum(dim=0)), config.safe_length, config.length_buffer
        )

    def needs_more_rollouts(self, rollout: Rollout, rollouts: int) -> bool:
        """Return True until as many groups are informative as were played at first.

        Dynamic sampling (section 3.2).
        """
        informative = float(
            has_gradient_signal(self._shaped_returns(rollout), self.config.group).sum()
        )
        return (
            informative < len(rollout.returns) / rollouts and rollouts <= self.config.max_resample
        )


def has_gradient_signal(returns: Tensor, group: int) -> Tensor:
    """Return 1 for the episodes of groups in which returns differ, (N,)."""
    grouped = returns.view(-1, group)
    return (
        (grouped.max(dim=1).values - grouped.min(dim=1).values > 1e-6)
        .float()
        .repeat_interleave(group)
    )


def length_penalty(lengths: Tensor, safe: int, buffer: int) -> Tensor:
    """Return 0 up to ``safe`` chunks or tokens, then fall to -1 over ``buffer`` (equation 13)."""
    return -torch.clamp((lengths - safe) / buffer, 0.0, 1.0)
