"""IQL: learning from a fixed set of transitions, without values of other actions.

Kostrikov, Nair, Levine 2021, arXiv 2110.06169.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from rlinf_core.algorithms.common.actor_critic import Critics, critic_loss, discount_powers
from rlinf_core.algorithms.common.image_augmentation import shift_images
from rlinf_core.algorithms.common.learner import BaseLearner
from rlinf_core.algorithms.common.optimizer import adam, anneal, optimizer_step, polyak_update
from rlinf_core.algorithms.common.tensors import next_observations, to_tensors
from rlinf_core.algorithms.iql import Config
from rlinf_core.policies.encoder import Encoder
from rlinf_core.policies.small.gaussian.policy import Value
from rlinf_core.policies.small.tanh_gaussian.policy import Actor, squashed_log_prob


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Return E |tau - 1(u < 0)| u^2 with u = Q - V (equation 5)."""
    return ((expectile - (difference < 0).to(difference.dtype)).abs() * difference**2).mean()


def advantage_weights(advantage: Tensor, temperature: float, limit: float) -> Tensor:
    """Return exp(beta A), bounded (equation 7)."""
    return (temperature * advantage).exp().clamp(max=limit)


class Learner(BaseLearner):
    """Critics, value and actor from batches of a fixed replay."""

    def __init__(self, actor: Actor, config: Config, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.actor = actor
        self.config = config
        self.updates = 0
        self.encoder = Encoder(actor.spec, actor.config)
        self.encoder.load_state_dict(actor.encoder.state_dict())
        self.critics = Critics(self.encoder.size + actor.executed_size, config.critic_hidden, 2)
        self.target = copy.deepcopy(
            torch.nn.ModuleList([self.encoder, self.critics])
        ).requires_grad_(False)
        self.value = Value(actor.spec, actor.config.but(hidden=config.critic_hidden))
        self.value.encoder.load_state_dict(actor.encoder.state_dict())
        self.modules = {
            "actor": actor,
            "encoder": self.encoder,
            "critics": self.critics,
            "target": self.target,
            "value": self.value,
        }
        self.to_device_and_seed(actor.device, seed)
        rate = config.learning_rate
        self.optimisers = {
            "critic": adam([*self.encoder.parameters(), *self.critics.parameters()], lr=rate),
            "value": adam(self.value.parameters(), lr=rate),
            "actor": adam(actor.parameters(), lr=rate),
        }

    def update(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """Make one step of critics, value and actor."""
        config = self.config
        tensors = shift_images(to_tensors(batch, self.device), config.image_shift, self.generator)
        # the actor is cloned from the full chunk
        executed = tensors["action"][:, : self.actor.executed_size]
        with torch.no_grad():
            q = self.target[1](self.target[0](tensors), executed).min(dim=0).values
        value = self.value(tensors)
        value_loss = expectile_loss(q - value, config.expectile)
        optimizer_step(self.optimisers["value"], value_loss)
        with torch.no_grad():
            gamma = discount_powers(tensors, config.discount)
            target = tensors["reward"] + gamma * tensors["discount"] * self.value(
                next_observations(tensors)
            )
        q_loss = critic_loss(self.critics(self.encoder(tensors), executed), target)
        optimizer_step(self.optimisers["critic"], q_loss)
        online = [*self.encoder.parameters(), *self.critics.parameters()]
        polyak_update(self.target.parameters(), online, config.target_rate)
        mean, log_std = self.actor(tensors)
        raw = torch.atanh(tensors["action"].clamp(-0.97, 0.97))
        weights = advantage_weights(q - value.detach(), config.temperature, config.weight_limit)
        actor_loss = -(weights * squashed_log_prob(raw, mean, log_std)).mean()
        anneal(self.optimisers["actor"], config.learning_rate, self.updates / config.steps)
        optimizer_step(self.optimisers["actor"], actor_loss)
        self.updates += 1
        return {
            "value_loss": value_loss.item(),
            "critic_loss": q_loss.item(),
            "actor_loss": actor_loss.item(),
            "q": q.mean().item(),
        }
