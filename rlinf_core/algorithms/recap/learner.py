"""RECAP: a value labels recorded actions; the policy is cloned with the label as an input.

Physical Intelligence 2025, arXiv 2511.14759. The value is a distribution over returns (categorical,
two-hot targets). The advantage is the n-step return less the value. The best share of each batch is
labelled positive. The policy acts with a positive label. Rewards must lie between 0 and 1, as those
of tasks do.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.algorithms.common.actor_critic import discount_powers
from rlinf_core.algorithms.common.learner import BaseLearner
from rlinf_core.algorithms.common.optimizer import adam, anneal, optimizer_step, polyak_update
from rlinf_core.algorithms.common.tensors import next_observations, to_tensors
from rlinf_core.algorithms.recap import Config
from rlinf_core.policies.base import Batch
from rlinf_core.policies.encoder import Encoder, Head, mlp
from rlinf_core.policies.sharding import gather_rows, noise
from rlinf_core.policies.small.conditioned.policy import GOOD, ConditionedActor


class Value(nn.Module):
    """A distribution over returns from 0 to 1: logits (B, bins)."""

    support: Tensor

    def __init__(self, actor: ConditionedActor, hidden: tuple[int, ...], bins: int) -> None:
        super().__init__()
        self.encoder = Encoder(actor.input_spec, actor.config)
        self.trunk, self.head = mlp(self.encoder.size, hidden), Head(hidden[-1], bins)
        self.register_buffer("support", torch.linspace(0.0, 1.0, bins))

    def forward(self, batch: Batch) -> Tensor:
        logits: Tensor = self.head(self.trunk(self.encoder(batch)))
        return logits

    def mean(self, batch: Batch) -> Tensor:
        """Return the expected value (B,)."""
        return self(batch).softmax(dim=1) @ self.support


def two_hot(values: Tensor, bins: int) -> Tensor:
    """Return values (B,) in [0, 1] as distributions (B, bins) over the two nearest bins."""
    position = values.clamp(0.0, 1.0) * (bins - 1)
    low = position.floor().clamp(max=bins - 2).long()
    fraction = (position - low)[:, None]
    return F.one_hot(low, bins) * (1.0 - fraction) + F.one_hot(low + 1, bins) * fraction


class Learner(BaseLearner):
    """Learns the value and the conditioned actor from batches of recorded episodes."""

    def __init__(self, actor: ConditionedActor, config: Config, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.actor = actor
        self.config = config
        self.updates = 0
        self.value = Value(actor, config.value_hidden, config.bins)
        self.value.encoder.load_state_dict(actor.encoder.state_dict())
        self.target = copy.deepcopy(self.value).requires_grad_(False)
        self.modules = {"actor": actor, "value": self.value, "target": self.target}
        self.to_device_and_seed(actor.device, seed)
        self.optimisers = {
            "value": adam(self.value.parameters(), lr=config.learning_rate),
            "actor": adam(actor.parameters(), lr=config.learning_rate),
        }

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Normalise as every learner does, but keep the label."""
        super().fit_normalisation(vectors)
        for encoder in self._encoders():
            encoder.mean[-1], encoder.std[-1] = 0.0, 1.0

    def update(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """Make one step of the value and, after ``value_steps``, one of the actor."""
        config, tensors = self.config, to_tensors(batch, self.device)
        with torch.no_grad():
            bootstrap = self.target.mean(next_observations(tensors))
            returns = (
                tensors["reward"]
                + discount_powers(tensors, config.discount) * tensors["discount"] * bootstrap
            )
        logits = self.value(tensors)
        value_loss = F.cross_entropy(logits, two_hot(returns, config.bins))
        optimizer_step(self.optimisers["value"], value_loss)
        polyak_update(self.target.parameters(), self.value.parameters(), config.target_rate)
        self.updates += 1
        with torch.no_grad():
            advantages = returns - logits.softmax(dim=1) @ self.value.support
        metrics = {
            "value_loss": value_loss.item(),
            "value": returns.mean().item(),
            "advantage": gather_rows(advantages).std().item(),
        }
        if self.updates <= config.value_steps:
            return metrics
        actor_steps = max(1, config.steps - config.value_steps)
        fraction_done = (self.updates - config.value_steps) / actor_steps
        anneal(self.optimisers["actor"], config.learning_rate, fraction_done)
        labelled = tensors | {"vectors": self.add_labels(tensors["vectors"], advantages)}
        action = tensors["action"] + config.min_std * noise(
            torch.randn, tensors["action"].shape, self.generator, self.device
        )
        loss = self.actor.imitation_loss(labelled, action, self.generator)
        optimizer_step(self.optimisers["actor"], loss)
        return metrics | {"actor_loss": loss.item()}

    def add_labels(self, vectors: Tensor, advantages: Tensor) -> Tensor:
        """Return vectors (B, V + 1) with the labels of advantages (B,)."""
        config = self.config
        limit = gather_rows(advantages).quantile(1.0 - config.positive_share)
        labels = torch.where(advantages >= limit, GOOD, -GOOD)
        uniform = noise(torch.rand, labels.shape, self.generator, self.device)
        labels = torch.where(uniform < config.label_dropout, torch.zeros_like(labels), labels)
        return torch.cat([vectors[:, :-1], labels[:, None]], dim=1)
