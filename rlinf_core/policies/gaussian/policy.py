"""A Gaussian actor with a deviation of its own, and a value function: what PPO and its kin train.

Trunks of tanh layers, orthogonal initialisation, a small last layer (Andrychowicz et al. 2021, arXiv 2006.05990). Actions
are not squashed: what lies outside [-1, 1] is clipped where it is played, and judged as it was drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.policies.encoder import Batch, Encoder
from rlinf_core.policies.gaussian.config import Config
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.specs import StationSpec

_LOG_2_PI = float(np.log(2.0 * np.pi))


class GaussianActor(nn.Module):
    """pi(a | s) = N(mean(s), exp(log_std)^2) over chunks of H normalised actions."""

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__()
        self.spec, self.config = spec, config or Config()
        self.encoder = Encoder(spec, self.config)
        self.mean = tanh_mlp(self.encoder.size, self.config.hidden, self.config.horizon * spec.action.dim, gain=0.01)
        self.log_std = nn.Parameter(torch.full((spec.action.dim,), self.config.initial_log_std))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean (B, H, A) and log standard deviation (A,)."""
        mean = self.mean(self.encoder(batch)).unflatten(-1, (self.config.horizon, self.spec.action.dim))
        return mean, self.log_std

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density of each action of the chunks (B, H, A), and the entropy of each, both (B, H)."""
        mean, log_std = self(batch)
        log_probs = (-0.5 * (((actions - mean) / log_std.exp()) ** 2 + 2.0 * log_std + _LOG_2_PI)).sum(dim=-1)
        return log_probs, (log_std + 0.5 + 0.5 * _LOG_2_PI).sum().expand(log_probs.shape)

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Chunks (B, H, A) as drawn, and their log-densities (B, H)."""
        mean, log_std = self(batch)
        actions = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
        return actions, self.log_probs(batch, actions)[0]

    def act(self, observation: dict[str, np.ndarray], explore: bool, random: np.random.Generator) -> np.ndarray:
        """One observation to a chunk of normalised actions (H, A), clipped to [-1, 1]."""
        batch = {name: torch.as_tensor(np.ascontiguousarray(observation[name]))[None] for name in self.encoder.image_names}
        batch["vectors"] = torch.as_tensor(self.spec.flatten(observation)[None])
        with torch.inference_mode():
            mean, log_std = self(batch)
        noise = log_std.detach().exp().numpy() * random.standard_normal(mean.shape[1:]) if explore else 0.0
        return np.clip(mean[0].numpy() + noise, -1.0, 1.0).astype(np.float32)

    def describe(self) -> dict[str, Any]:
        """What a policy file must say to rebuild this module."""
        return {"spec": self.spec.to_dict(), "config": self.config.model_dump()}


class Value(nn.Module):
    """V(s) (B,), with an encoder of its own."""

    def __init__(self, spec: StationSpec, config: PolicySettings) -> None:
        super().__init__()
        self.encoder = Encoder(spec, config)
        self.head = tanh_mlp(self.encoder.size, config.hidden, 1, gain=1.0)

    def forward(self, batch: Batch) -> Tensor:
        return self.head(self.encoder(batch)).squeeze(-1)


def tanh_mlp(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    """Linear and tanh for every hidden width, then a linear layer initialised with ``gain``."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_orthogonal(nn.Linear(inputs, width), np.sqrt(2.0)), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _orthogonal(nn.Linear(inputs, outputs), gain))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


Policy = GaussianActor
