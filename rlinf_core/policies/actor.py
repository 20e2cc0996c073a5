"""The actor: encoder, trunk and tanh-Gaussian head, sized from the station's specs, with its own normalisation.

The same module serves state-only policies (no images in the spec) and policies from pixels (an encoder per camera).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.errors import RecipeError
from rlinf_core.policies.images import image_encoder
from rlinf_core.policies.policy import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.specs import StationSpec

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 1.0


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Sizes of the policy network.

    Attributes:
        hidden: widths of the trunk's layers.
        image_features: features kept of each camera image; 0 for a policy that does not look at images, though they
            are observed and recorded.
        image_encoder: cnn, a small one, or resnet, a ResNet-10 (``rlinf_core.policies.images``).
        channels: output channels of a cnn's convolutions, each with stride 2.
        image_weights: of a resnet, which are then frozen; empty to train it from scratch.
        kind: tanh_gaussian (SAC and its kin, SFT), gaussian (PPO and its kin), flow (flow matching) or
            steered (a flow whose noise a small policy chooses: DSRL).
        horizon: actions of a chunk that are decided together.
        execute: how many of them are played before the next decision, 1 to ``horizon``; 0 for all.
        flow_steps: of a flow policy, from noise to action.
        steering: widths of the layers that choose a steered policy's noise.
        noise_bound: largest noise that may be chosen, in standard deviations.
        initial_log_std: of a gaussian policy.
    """

    hidden: tuple[int, ...] = (256, 256)
    image_features: int = 64
    image_encoder: str = "cnn"
    channels: tuple[int, ...] = (16, 32, 32)
    image_weights: str = ""
    kind: str = "tanh_gaussian"
    horizon: int = 1
    execute: int = 0
    flow_steps: int = 4
    steering: tuple[int, ...] = (128, 128)
    noise_bound: float = 1.5
    initial_log_std: float = -0.5

    def __post_init__(self) -> None:
        if not 0 <= self.execute <= self.horizon:
            raise RecipeError(f"policy.execute: expected 1 to policy.horizon = {self.horizon}, got {self.execute}")
        object.__setattr__(self, "execute", self.execute or self.horizon)


class Encoder(nn.Module):
    """Vectors (B, V) and images {name: (B, H, W, 3) uint8} to features (B, F); vectors are normalised and clipped."""

    def __init__(self, spec: StationSpec, config: PolicyConfig) -> None:
        super().__init__()
        looked_at = spec.images if config.image_features else ()
        self.image_names = [image.name for image in looked_at]
        self.register_buffer("mean", torch.zeros(spec.vector_size))
        self.register_buffer("std", torch.ones(spec.vector_size))
        self.cnns = nn.ModuleDict({image.name: image_encoder(image.shape, config) for image in looked_at})
        self.size = spec.vector_size + len(self.image_names) * config.image_features

    def forward(self, batch: Batch) -> Tensor:
        vectors = ((batch["vectors"] - self.mean) / self.std).clamp(-5.0, 5.0)
        images = [self.cnns[name](batch[name].permute(0, 3, 1, 2).float() / 255.0) for name in self.image_names]
        return torch.cat([vectors, *images], dim=-1)

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Take mean and standard deviation from (N, V) vectors; a floor keeps constants from exploding."""
        self.normalise(vectors.mean(axis=0), np.maximum(vectors.std(axis=0), 0.05 * np.abs(vectors).max(axis=0)))

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,)."""
        self.mean.copy_(torch.as_tensor(mean))
        self.std.copy_(torch.as_tensor(std + 1e-4))


class Actor(NetworkPolicy):
    """pi(a | s) = tanh(N(mean(s), std(s))) over normalised actions in [-1, 1] (Haarnoja et al. 2018, appendix C)."""

    def __init__(self, spec: StationSpec, config: PolicyConfig | None = None) -> None:
        super().__init__(spec, config or PolicyConfig())
        self.encoder = Encoder(spec, self.config)
        self.trunk = mlp(self.encoder.size, self.config.hidden)
        self.head = nn.Linear(self.config.hidden[-1], 2 * self.action_size)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the tanh, each (B, A), or (B, H A) of a chunk of H actions."""
        mean, log_std = self.head(self.trunk(self.encoder(batch))).chunk(2, dim=-1)
        return mean, LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (torch.tanh(log_std) + 1.0)

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A reparameterised action (B, H A), and the log-probability (B,) of what is played of it."""
        return squashed(*self(batch), generator, self.judged_size)

    @torch.no_grad()
    def act(self, observation: Observation, explore: bool, generator: torch.Generator | None = None) -> ActionChunk:
        """Chunks of actions, the most likely ones unless it explores."""
        if not explore:
            return self.chunk(torch.tanh(self(observation.batch)[0]))
        action, log_probs = self.sample(observation.batch, generator)
        return self.chunk(action, log_probs=log_probs)

    def imitation_loss(self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """-E log pi(a | s) of demonstrated actions (B, H A), clipped just inside the tanh's range."""
        return -log_prob(torch.atanh(actions.clamp(-0.97, 0.97)), *self(batch)).mean()


def squashed(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None,
             judged: int | None = None) -> tuple[Tensor, Tensor]:
    """A reparameterised sample (B, A) of the tanh-Gaussian, and the log-probability (B,) of the first ``judged``."""
    raw = mean + log_std.exp() * torch.randn(mean.shape, generator=generator, device=mean.device)
    return torch.tanh(raw), log_prob(raw[:, :judged], mean[:, :judged], log_std[:, :judged])


def log_prob(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density (B,) of tanh(raw) under the tanh-Gaussian, in the numerically stable form."""
    gaussian = -0.5 * (((raw - mean) / log_std.exp()) ** 2 + 2.0 * log_std + np.log(2.0 * np.pi))
    squash = 2.0 * (np.log(2.0) - raw - F.softplus(-2.0 * raw))
    return (gaussian - squash).sum(dim=-1)


def mlp(inputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Linear, LayerNorm, ReLU for every hidden width."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers)
