"""A Gaussian actor with a learned, state-independent deviation, and a value function.

Both are for the PPO family. Trunks of tanh layers, orthogonal initialisation, a small last layer
(Andrychowicz et al. 2021, arXiv 2006.05990). Actions are not squashed: numbers outside [-1, 1] are
clipped to be played, and judged as drawn.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.policies.base import ActionChunk, Batch, Observation, OnPolicyActor
from rlinf_core.policies.encoder import Encoder, Head
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.policies.sharding import noise
from rlinf_core.policies.small.gaussian import Config
from rlinf_core.specs.arrays import StationSpec

_LOG_2_PI = float(np.log(2.0 * np.pi))


class GaussianActor(OnPolicyActor):
    """pi(a | s) = N(mean(s), exp(log_std)^2) over chunks of H normalised actions."""

    config: Config

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__(spec, config or Config())
        self.encoder = Encoder(spec, self.config)
        self.mean = tanh_mlp(self.encoder.size, self.config.hidden, self.action_size, gain=0.01)
        self.log_std = nn.Parameter(torch.full((spec.action.dim,), self.config.initial_log_std))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean (B, H, A) and log standard deviation (A,)."""
        mean = self.mean(self.encoder(batch)).unflatten(
            -1, (self.config.horizon, self.spec.action.dim)
        )
        return mean, self.log_std

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``."""
        return self.encoder.state_dict()

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density and entropy of each action of chunks (B, H, A), both (B, H).

        The chunks may be cut after their first actions.
        """
        mean, log_std = self(batch)
        log_probs = log_density(actions, mean[:, : actions.shape[1]], log_std)
        return log_probs, (log_std + 0.5 + 0.5 * _LOG_2_PI).sum().expand(log_probs.shape)

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return chunks (B, H, A) as drawn, and their log-densities (B, H)."""
        mean, log_std = self(batch)
        deviations = noise(torch.randn, mean.shape, generator, mean.device)
        return torch.addcmul(mean, log_std.exp(), deviations), _density(deviations, log_std)

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions, clipped to [-1, 1]; ``drawn`` holds the draws (B, H, A)."""
        draws, batch = self.is_stochastic(explore), self.to_batch(observation)
        drawn, log_probs = self.sample(batch, generator) if draws else (self(batch)[0], None)
        return self.chunk(drawn.clamp(-1.0, 1.0), drawn, log_probs)

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return -E log pi(a | s) of demonstrated actions (B, H A)."""
        return (
            -self.log_probs(batch, actions.unflatten(-1, (-1, self.spec.action.dim)))[0]
            .sum(dim=-1)
            .mean()
        )


def log_density(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density (...,) of each action (..., A) under N(mean, exp(log_std)^2)."""
    return _density((actions - mean) / log_std.exp(), log_std)


def _density(deviations: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density (...,) at a distance of ``deviations`` (..., A) from the mean."""
    return torch.addcmul(-0.5 * _LOG_2_PI - log_std, deviations, deviations, value=-0.5).sum(dim=-1)


class Value(nn.Module):
    """V(s) (B,), with a separate encoder."""

    def __init__(self, spec: StationSpec, config: PolicySettings) -> None:
        super().__init__()
        self.encoder = Encoder(spec, config)
        self.head = tanh_mlp(self.encoder.size, config.hidden, 1, gain=1.0)

    def forward(self, batch: Batch) -> Tensor:
        return self.head(self.encoder(batch)).squeeze(-1)


def tanh_mlp(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    """Return linear and tanh for every hidden width, then a head initialised with ``gain``."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_orthogonal(nn.Linear(inputs, width), np.sqrt(2.0)), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _orthogonal(Head(inputs, outputs), gain))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


Policy = GaussianActor
