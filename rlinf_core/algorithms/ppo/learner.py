"""PPO: clipped policy gradient with a learned value and generalised advantages.

Schulman et al. 2017, arXiv 1707.06347; details after Huang et al. 2022, "The 37 implementation
details of PPO". An episode that was only cut off by time still counts the next state's value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_core.algorithms.common.advantages import gae, normalise_advantages, token_advantages
from rlinf_core.algorithms.common.on_policy import OnPolicy
from rlinf_core.algorithms.common.policy_losses import masked_mean, value_loss
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.running_statistics import RunningReturn
from rlinf_core.algorithms.ppo import Config
from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.sharding import mean
from rlinf_core.policies.small.gaussian.policy import Value

# size of the value function's text encoding, if the policy reads the instruction itself
SENTENCE_FEATURES = 64


class Learner(OnPolicy):
    """Trains an actor with a density, and a value function with the actor's inputs."""

    config: Config

    def extra_modules(self) -> dict[str, torch.nn.Module]:
        config = self.policy.config
        self.returns = RunningReturn(self.config.discount)
        of_tokens = self.policy.value_network()
        if of_tokens is not None:
            self.value = of_tokens
            return {"value": self.value, "returns": self.returns}
        # like a vision-language-action model
        has_instructions = self.policy.reads_instructions and not config.sentence_features
        self.value = Value(
            self.policy.spec,
            config.but(sentence_features=SENTENCE_FEATURES) if has_instructions else config,
        )
        self.value.encoder.load_state_dict(self.policy.encoder_state(), strict=False)
        return {"value": self.value, "returns": self.returns}

    def prepare(self, rollout: Rollout) -> Batch:
        if rollout.counted is not None:
            return self._prepare_tokens(rollout, rollout.counted[0])
        config = self.config
        gammas = config.discount**rollout.steps
        rewards = rollout.discounted_rewards(config.discount)
        if config.scale_rewards:
            rewards = self.returns.scale_rewards(rewards, rollout.done, rollout.steps, rollout.mask)
        values = self.value(_flat(rollout.observations))
        next_values = self.value(_flat(rollout.next_observations))
        values, next_values = values.view(rewards.shape), next_values.view(rewards.shape)
        stops = {
            "truncation": rollout.terminated,
            "always": torch.zeros_like(rewards),
            "never": rollout.done,
        }
        advantages = gae(
            rewards,
            values,
            next_values,
            stops[config.bootstrap],
            rollout.done,
            gammas,
            config.gae_lambda,
        )
        returns = advantages + values
        if config.normalise:
            advantages = normalise_advantages(advantages, rollout.mask)
        return {
            "advantages": advantages,
            "returns": returns,
            "values": values,
            "weights": rollout.mask,
        }

    def _prepare_tokens(self, rollout: Rollout, counted: Tensor) -> Batch:
        """Return advantages of each token that the policy drew, (1, N, E), over those tokens alone.

        Args:
            rollout: rollout of conversations, T = 1. An episode's reward ends each of its rows.
            counted: 1 for those tokens, (N, E).
        """
        values = self.value({"actions": rollout.actions[0]}) * counted
        returns = rollout.per_row(rollout.returns)
        rows = torch.arange(len(counted), device=counted.device)
        rewards = torch.zeros_like(values)
        order = torch.arange(counted.shape[1], device=counted.device)
        rewards[rows, (counted * order).argmax(dim=1)] = returns
        advantages = token_advantages(
            rewards, values, counted, self.config.discount, self.config.gae_lambda
        )[None]
        targets = advantages + values[None]
        if self.config.normalise:
            advantages = normalise_advantages(
                advantages, counted[None] * rollout.mask.unsqueeze(-1)
            )
        return {
            "advantages": advantages,
            "returns": targets,
            "values": values[None],
            "weights": rollout.mask,
        }

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        loss, metrics = super().loss(batch)
        config = self.config
        losses = value_loss(
            self.value(batch), batch["values"], batch["returns"], config.value_clip, config.huber
        )
        value = mean(losses) if losses.ndim == 1 else masked_mean(losses, batch["executed"])
        return loss + config.value_weight * value, metrics | {"value_loss": value.item()}


def _flat(batch: Batch) -> Batch:
    return {name: values.flatten(0, 1) for name, values in batch.items()}
