"""RLPD: SAC with half of every batch from demonstrations, and an ensemble of LayerNorm critics.

Ball, Smith, Kostrikov, Levine: Efficient Online Reinforcement Learning with Offline Data, arXiv 2302.02948. The critics
are one batched module; a warm-started actor keeps close to the demonstrations by a decaying cloning term.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.algorithms.tensors import following, shift_images, to_tensors
from rlinf_core.policies.actor import Actor, Batch, Encoder, log_prob


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


class Critics(nn.Module):
    """E critics Q_e(s, a) evaluated together: features (B, F) and actions (B, A) to values (E, B)."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], size: int) -> None:
        super().__init__()
        widths = (inputs, *hidden, 1)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in zip(widths, widths[1:], strict=False):
            bound = fan_in ** -0.5
            self.weights.append(nn.Parameter(torch.empty(size, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.zeros(size, 1, fan_out)))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([features, action], dim=-1).expand(self.weights[0].shape[0], -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = F.relu(F.layer_norm(x, x.shape[-1:]))
        return torch.baddbmm(self.biases[-1], x, self.weights[-1]).squeeze(-1)


def critic_target(reward: Tensor, discount: Tensor, next_values: Tensor, gamma: float,
                  entropy_bonus: Tensor | float = 0.0) -> Tensor:
    """y = r + gamma d (min_e Q_e(s', a') - alpha log pi(a' | s')), with next_values (subset, B)."""
    return reward + gamma * discount * (next_values.min(dim=0).values - entropy_bonus)


def critic_loss(values: Tensor, target: Tensor) -> Tensor:
    """Mean over batch of squared errors, summed over the ensemble (E, B)."""
    return ((values - target) ** 2).mean(dim=1).sum()


def actor_loss(values: Tensor, log_probs: Tensor, temperature: Tensor) -> Tensor:
    """E[alpha log pi(a | s) - mean_e Q_e(s, a)] with values (E, B)."""
    return (temperature * log_probs - values.mean(dim=0)).mean()


class RLPD:
    """Learner of one actor; ``update`` takes an online and a demonstration half-batch."""

    def __init__(self, actor: Actor, config: Config, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.actor, self.config, self.updates = actor, config, 0
        self.encoder = Encoder(actor.spec, actor.config)
        self.encoder.load_state_dict(actor.encoder.state_dict())
        self.critics = Critics(self.encoder.size + actor.spec.action.dim, config.critic_hidden, config.critics)
        self.target = copy.deepcopy(nn.ModuleList([self.encoder, self.critics])).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(float(np.log(config.initial_temperature))))
        rate = config.learning_rate
        self.critic_optimiser = torch.optim.Adam([*self.encoder.parameters(), *self.critics.parameters()], lr=rate)
        self.actor_optimiser = torch.optim.Adam(actor.parameters(), lr=rate)
        self.temperature_optimiser = torch.optim.Adam([self.log_temperature], lr=rate)
        self.generator = torch.Generator().manual_seed(seed)

    def update(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """One critic step, and every ``actor_every``-th time an actor and a temperature step.

        ``batch`` holds online transitions first and demonstrations in its second half.
        """
        tensors = shift_images(to_tensors(batch), self.config.image_shift, self.generator)
        metrics = self._update_critics(tensors)
        self.updates += 1
        if self.updates > self.config.critic_warmup and self.updates % self.config.actor_every == 0:
            metrics |= self._update_actor(tensors)
        return metrics

    def _update_critics(self, batch: Batch) -> dict[str, float]:
        config = self.config
        with torch.no_grad():
            next_batch = following(batch)
            next_action, next_log_prob = self.actor.sample(next_batch, self.generator)
            subset = torch.randperm(config.critics, generator=self.generator)[: config.target_critics]
            next_values = self.target[1](self.target[0](next_batch), next_action)[subset]
            bonus = self.log_temperature.exp() * next_log_prob if config.entropy_backup else 0.0
            target = critic_target(batch["reward"], batch["discount"], next_values, config.discount, bonus)
        values = self.critics(self.encoder(batch), batch["action"])
        loss = critic_loss(values, target)
        _descend(self.critic_optimiser, loss, config.clip_gradient)
        with torch.no_grad():
            online = [*self.encoder.parameters(), *self.critics.parameters()]
            torch._foreach_lerp_(list(self.target.parameters()), online, config.target_rate)
        return {"critic_loss": loss.item(), "q": values.mean().item()}

    def _update_actor(self, batch: Batch) -> dict[str, float]:
        config = self.config
        mean, log_std = self.actor(batch)
        raw = mean + log_std.exp() * torch.randn(mean.shape, generator=self.generator)
        log_probs = log_prob(raw, mean, log_std)
        self.critics.requires_grad_(False)
        with torch.no_grad():
            features = self.encoder(batch)
        values = self.critics(features, torch.tanh(raw))
        self.critics.requires_grad_(True)
        loss = actor_loss(values, log_probs, self.log_temperature.exp().detach())
        weight = config.cloning * 0.1 ** (self.updates / config.cloning_steps)
        half = len(mean) // 2
        cloning = ((torch.tanh(mean[half:]) - batch["action"][half:].clamp(-1, 1)) ** 2).sum(-1).mean()
        _descend(self.actor_optimiser, loss + weight * cloning, config.clip_gradient)
        entropy = -log_probs.detach().mean()
        target_entropy = config.target_entropy * mean.shape[-1]
        _descend(self.temperature_optimiser, self.log_temperature.exp() * (entropy - target_entropy), np.inf)
        return {"actor_loss": loss.item(), "entropy": entropy.item(), "cloning": cloning.item(),
                "temperature": self.log_temperature.exp().item()}

    def _modules(self) -> dict[str, Any]:
        return {"actor": self.actor, "encoder": self.encoder, "critics": self.critics, "target": self.target}

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        return {"critic": self.critic_optimiser, "actor": self.actor_optimiser,
                "temperature": self.temperature_optimiser}

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, temperature, counter and random state."""
        return {"modules": {name: dict(module.state_dict()) for name, module in self._modules().items()},
                "optimisers": {name: _flat(optimiser) for name, optimiser in self._optimisers().items()},
                "log_temperature": self.log_temperature.detach(), "updates": self.updates,
                "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if nothing had happened."""
        for name, module in self._modules().items():
            module.load_state_dict({key: torch.as_tensor(value) for key, value in state["modules"][name].items()})
        for name, optimiser in self._optimisers().items():
            _restore(optimiser, state["optimisers"][name])
        with torch.no_grad():
            self.log_temperature.copy_(torch.as_tensor(state["log_temperature"]))
        self.updates = state["updates"]
        self.generator.set_state(torch.as_tensor(state["generator"]))


def _descend(optimiser: torch.optim.Optimizer, loss: Tensor, clip: float) -> None:
    optimiser.zero_grad()
    loss.backward()
    if np.isfinite(clip):
        nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], clip)
    optimiser.step()


def _flat(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """The moments alone, by the number of their parameter; the settings come from the config."""
    return {str(index): dict(moments) for index, moments in optimiser.state_dict()["state"].items()}


def _restore(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    moments = {int(index): {key: torch.as_tensor(value) for key, value in entry.items()}
               for index, entry in state.items()}
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
