"""Soft actor-critic: an ensemble of critics, slow targets, a stochastic actor, a temperature.

Haarnoja et al. 2018, arXiv 1812.05905; ensembles and random subsets for the target: REDQ, arXiv
2101.05982.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.algorithms.common.image_augmentation import shift_images
from rlinf_core.algorithms.common.learner import AVERAGED, BaseLearner, Scalar
from rlinf_core.algorithms.common.optimizer import adam, optimizer_step, polyak_update
from rlinf_core.algorithms.common.running_statistics import RunningScale
from rlinf_core.algorithms.common.settings import ActorCriticSettings, TargetNetworkSettings
from rlinf_core.algorithms.common.tensors import next_observations, to_tensors
from rlinf_core.policies.base import Batch
from rlinf_core.policies.encoder import Encoder, full_precision
from rlinf_core.policies.small.flow.policy import FlowActor
from rlinf_core.policies.small.latent_noise.policy import LatentNoiseActor
from rlinf_core.policies.small.residual.policy import ResidualActor
from rlinf_core.policies.small.tanh_gaussian.policy import Actor

SamplingActor = Actor | FlowActor | LatentNoiseActor | ResidualActor


class Critics(nn.Module):
    """E critics Q_e(s, a) in one: features (B, F) and actions (B, A) to values (E, B)."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], size: int) -> None:
        super().__init__()
        widths = (inputs, *hidden, 1)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in zip(widths, widths[1:], strict=False):
            bound = fan_in**-0.5
            self.weights.append(
                nn.Parameter(torch.empty(size, fan_in, fan_out).uniform_(-bound, bound))
            )
            self.biases.append(nn.Parameter(torch.zeros(size, 1, fan_out)))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        *hidden, last = zip(self.weights, self.biases, strict=True)
        x = torch.cat([features, action], dim=1).expand(last[0].shape[0], -1, -1)
        for weight, bias in hidden:
            x = torch.baddbmm(bias, x, weight)
            x = F.relu(F.layer_norm(x, x.shape[-1:]), inplace=True)
        with full_precision(x):
            return ensemble_layer(x, *last)


def ensemble_layer(x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    """Return the last layer of E critics, (E, B, H) to (E, B).

    A matrix product would take longer, because one factor has one column.
    """
    return (x.to(weights.dtype) * weights.mT).sum(dim=-1) + biases[:, :, 0]


def critic_target(
    reward: Tensor,
    discount: Tensor,
    next_values: Tensor,
    gamma: float | Tensor,
    entropy_bonus: Tensor | float = 0.0,
) -> Tensor:
    """Return y = r + gamma d (min_e Q_e(s', a') - alpha log pi(a' | s')), (B,).

    ``next_values`` are (subset, B).
    """
    return reward + gamma * discount * (next_values.min(dim=0).values - entropy_bonus)


def critic_loss(values: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the batch of squared errors, summed over the ensemble (E, B)."""
    return ((values - target) ** 2).mean(dim=1).sum()


def actor_loss(value: Tensor, log_probs: Tensor, temperature: Tensor) -> Tensor:
    """Return E[alpha log pi(a | s) - Q(s, a)] with value (B,)."""
    return (temperature * log_probs - value).mean()


def discount_powers(batch: Batch, gamma: float) -> float | Tensor:
    """Return gamma, or gamma to the power of a chunk transition's time steps (``steps``, (B,))."""
    return gamma ** batch["steps"] if "steps" in batch else gamma


class ActorCritic(BaseLearner):
    """Off-policy learner of one actor; ``update`` takes a batch of a replay buffer's transitions.

    Args:
        actor: has a ``sample(batch, generator) -> action, log-probability`` and an ``encoder``.
        config: config of the algorithm.
        seed: seed of weights and noise.
    """

    def __init__(self, actor: SamplingActor, config: ActorCriticSettings, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.actor = actor
        self.config = config
        self.updates = 0
        self.encoder = Encoder(actor.input_spec, actor.config)
        self.encoder.load_state_dict(actor.encoder.state_dict())
        self.critics = self.make_critics(self.encoder.size + actor.executed_size)
        self.temperature, self.value_scale = Scalar(config.initial_temperature), RunningScale()
        self.modules = {
            "actor": actor,
            "encoder": self.encoder,
            "critics": self.critics,
            "temperature": self.temperature,
            "value_scale": self.value_scale,
        }
        if config.averages:
            self.modules[AVERAGED] = copy.deepcopy(actor).requires_grad_(False)
        self.to_device_and_seed(actor.device, seed)
        make_optimiser = partial(adam, betas=(config.adam_beta, 0.999))
        last = {id(self.critics.weights[-1]), id(self.critics.biases[-1])}
        critic_groups = groupby(
            [*self.encoder.parameters(), *self.critics.parameters()], lambda p: id(p) in last
        )
        self.optimisers = {
            "critic": make_optimiser(
                [{"params": [*same], "last": is_last} for is_last, same in critic_groups]
            ),
            "actor": make_optimiser(
                [p for p in actor.parameters() if p.requires_grad], lr=config.learning_rate
            ),
            "temperature": make_optimiser(self.temperature.parameters(), lr=config.critic_lr),
        }

    def executed(self, batch: Batch, action: Tensor) -> Tensor:
        """Return the part of a chunk (B, H A) that critics see: the actions before the next chunk.

        Numbers of other robots are 0.
        """
        robot_actions = self.actor.robot_mask(batch)
        if robot_actions is not None:
            action = action * robot_actions
        return action[:, : self.actor.executed_size]

    def controlled_dimensions(self, batch: Batch) -> Tensor | int:
        """Return the mean number of action dimensions of the robots in a batch."""
        robot_actions = self.actor.robot_mask(batch)
        if robot_actions is None:
            return self.actor.executed_size
        return robot_actions[:, : self.actor.executed_size].sum(dim=1).mean()

    def make_critics(self, inputs: int) -> Critics:
        return Critics(inputs, self.config.critic_hidden, self.config.critics)

    def update(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """Make a critic step, and each ``actor_every``-th time an actor and a temperature step."""
        tensors = shift_images(
            to_tensors(batch, self.device), self.config.image_shift, self.generator
        )
        metrics = self.update_critics(tensors)
        self.updates += 1
        if self.updates > self.config.critic_warmup and self.updates % self.config.actor_every == 0:
            metrics |= self.update_actor(tensors)
        return metrics

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly.

        Checkpoints from before 2026-11-25 lack the scale of values, which was 1.
        """
        super().load_state_dict(
            state | {"modules": {"value_scale": RunningScale().state_dict()} | state["modules"]}
        )

    @abstractmethod
    def update_critics(self, batch: Batch) -> dict[str, float]:
        """Make one step of the critics."""

    def step_critics(self, values: Tensor, target: Tensor) -> dict[str, float]:
        """Make one step of the critics' values (E, B) towards their targets (B,).

        Above 1, the targets' scale is the unit of the loss, as if the last layer's weights were
        measured in it, too (PopArt, van Hasselt et al. 2016, arXiv 1602.07714). Earlier layers are
        normalised and do not grow. With Adam's small steps alone, the last layer reaches values of
        hundreds only after thousands of updates.
        """
        scale, optimiser = self.value_scale.update(target), self.optimisers["critic"]
        for group in optimiser.param_groups:
            group["lr"] = self.config.critic_lr * (scale if group["last"] else 1.0)
        loss = critic_loss(values, target) / scale**2
        optimizer_step(optimiser, loss, self.config.clip_gradient)
        return {"critic_loss": loss.item(), "q": values.mean().item()}

    def bootstrap_targets(self, batch: Batch, next_values: Tensor, next_log_prob: Tensor) -> Tensor:
        """Return the critics' targets (B,) from all their values (E, B) of the next action."""
        config = self.config
        subset = torch.randperm(config.critics, generator=self.generator, device=self.device)[
            : config.target_critics
        ]
        bonus = self.temperature() * next_log_prob if config.entropy_backup else 0.0
        return critic_target(
            batch["reward"],
            batch["discount"],
            next_values[subset],
            discount_powers(batch, config.discount),
            bonus,
        )

    def value(self, values: Tensor) -> Tensor:
        """Return the actor's objective from the ensemble's values (E, B)."""
        return values.min(dim=0).values

    def q_values(self, batch: Batch, action: Tensor) -> Tensor:
        """Return values (E, B) with a gradient to the action, but none to the critics."""
        with torch.no_grad():
            features = self.encoder(batch)
        self.critics.requires_grad_(False)
        values = self.critics(features, self.executed(batch, action))
        self.critics.requires_grad_(True)
        return values

    def update_actor(self, batch: Batch) -> dict[str, float]:
        action, log_probs, proposed_actions = self.actor_proposal(batch)
        loss = actor_loss(
            self.value(self.q_values(batch, action)), log_probs, self.temperature().detach()
        )
        more, metrics = self.regularise(batch, proposed_actions)
        optimizer_step(self.optimisers["actor"], loss + more, self.config.clip_gradient)
        if AVERAGED in self.modules:
            polyak_update(
                self.modules[AVERAGED].parameters(), self.actor.parameters(), self.config.ema_rate
            )
        entropy = -log_probs.detach().mean()
        target_entropy = self.config.target_entropy * self.controlled_dimensions(batch)
        optimizer_step(
            self.optimisers["temperature"], self.temperature() * (entropy - target_entropy)
        )
        return {
            "actor_loss": loss.item(),
            "entropy": entropy.item(),
            "temperature": self.temperature().item(),
        } | metrics

    def actor_proposal(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return a reparameterised action, its log-probability, and the input of ``regularise``."""
        action, log_probs = self.actor.sample(batch, self.generator)
        return action, log_probs, action

    def regularise(
        self, batch: Batch, proposed_actions: Tensor
    ) -> tuple[Tensor | float, dict[str, Any]]:
        """Return a term for the actor's loss, and its metrics."""
        return 0.0, {}


class TargetNetworks(ActorCritic):
    """Critics with targets from their own moving average."""

    config: TargetNetworkSettings

    def __init__(self, actor: SamplingActor, config: TargetNetworkSettings, seed: int = 0) -> None:
        super().__init__(actor, config, seed)
        self.target = copy.deepcopy(nn.ModuleList([self.encoder, self.critics])).requires_grad_(
            False
        )
        self.modules["target"] = self.target

    def critic_targets(self, batch: Batch) -> Tensor:
        """Return the critics' targets (B,)."""
        next_batch = next_observations(batch)
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(next_batch, self.generator)
            next_values = self.target[1](
                self.target[0](next_batch), self.executed(next_batch, next_action)
            )
            return self.bootstrap_targets(batch, next_values, next_log_prob)

    def update_critics(self, batch: Batch) -> dict[str, float]:
        values = self.critics(self.encoder(batch), self.executed(batch, batch["action"]))
        metrics = self.step_critics(values, self.critic_targets(batch))
        online = [*self.encoder.parameters(), *self.critics.parameters()]
        polyak_update(self.target.parameters(), online, self.config.target_rate)
        return metrics
