"""The actor: encoder, trunk and tanh-Gaussian head, sized from the station's specs, with its own normalisation.

The same module serves state-only policies (no images in the spec) and policies from pixels (an encoder per camera).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.policies.encoder import Batch, Encoder, mlp
from rlinf_core.policies.tanh_gaussian.config import Config
from rlinf_core.specs import StationSpec

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 1.0


class Actor(nn.Module):
    """pi(a | s) = tanh(N(mean(s), std(s))) over normalised actions in [-1, 1] (Haarnoja et al. 2018, appendix C)."""

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__()
        self.spec, self.config = spec, config or Config()
        self.encoder = Encoder(spec, self.config)
        self.trunk = mlp(self.encoder.size, self.config.hidden)
        self.head = nn.Linear(self.config.hidden[-1], 2 * spec.action.dim * self.config.horizon)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the tanh, each (B, A), or (B, H A) of a chunk of H actions."""
        mean, log_std = self.head(self.trunk(self.encoder(batch))).chunk(2, dim=-1)
        return mean, LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (torch.tanh(log_std) + 1.0)

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A reparameterised action (B, A) and its log-probability (B,)."""
        return squashed(*self(batch), generator)

    def act(self, observation: dict[str, np.ndarray], explore: bool, random: np.random.Generator) -> np.ndarray:
        """One observation to a chunk of normalised actions (H, A); explores only if asked."""
        vectors = self.spec.flatten(observation)[None]
        if self.encoder.image_names:
            batch = {name: torch.as_tensor(np.ascontiguousarray(observation[name]))[None]
                     for name in self.encoder.image_names}
            with torch.inference_mode():
                outputs = self.head(self.trunk(self.encoder({**batch, "vectors": torch.as_tensor(vectors)}))).numpy()
        else:
            outputs = self._on_vectors(vectors)
        mean, log_std = np.split(outputs.reshape(2 * self.config.horizon, -1), 2)
        if not explore:
            return np.tanh(mean)
        log_std = LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (np.tanh(log_std) + 1.0)
        return np.tanh(mean + np.exp(log_std) * random.standard_normal(mean.shape))

    def _on_vectors(self, x: np.ndarray) -> np.ndarray:
        """The head's outputs (1, 2 A) for vectors (1, V), in NumPy: for one row, torch takes six times as long."""
        encoder = self.encoder
        x = np.minimum(np.maximum((x - _array(encoder.mean)) / _array(encoder.std), -5.0), 5.0)
        for layer in (*self.trunk, self.head):
            if isinstance(layer, nn.Linear):
                x = x @ _array(layer.weight).T + _array(layer.bias)
            elif isinstance(layer, nn.LayerNorm):
                x = x - x.sum() / x.size
                x = x / math.sqrt((x * x).sum() / x.size + layer.eps) * _array(layer.weight) + _array(layer.bias)
            else:
                x = np.maximum(x, 0.0)
        return x

    def describe(self) -> dict[str, Any]:
        """What a policy file must say to rebuild this module."""
        return {"spec": self.spec.to_dict(), "config": self.config.model_dump()}


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def squashed(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """A reparameterised sample (B, A) of the tanh-Gaussian, and its log-probability (B,)."""
    raw = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
    return torch.tanh(raw), log_prob(raw, mean, log_std)


def log_prob(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density (B,) of tanh(raw) under the tanh-Gaussian, in the numerically stable form."""
    gaussian = -0.5 * (((raw - mean) / log_std.exp()) ** 2 + 2.0 * log_std + np.log(2.0 * np.pi))
    squash = 2.0 * (np.log(2.0) - raw - F.softplus(-2.0 * raw))
    return (gaussian - squash).sum(dim=-1)


Policy = Actor
