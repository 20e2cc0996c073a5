"""What every policy sees with: vectors, normalised, and an encoder per camera; and the layers behind it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.policies.images import image_encoder
from rlinf_core.policies.policy import Batch
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.specs import StationSpec


class Encoder(nn.Module):
    """Vectors (B, V) and images {name: (B, H, W, 3) uint8} to features (B, F); vectors are normalised and clipped.

    With ``fine`` they come a second time, as asinh(fine x / deviation), scaled to 1 where x is one deviation: linear about
    zero and logarithmic beyond, as the symlog of DreamerV3 (Hafner et al. 2023, arXiv 2301.04104).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: StationSpec, config: PolicySettings) -> None:
        super().__init__()
        self.fine = config.fine
        looked_at = spec.images if config.image_features else ()
        self.image_names = [image.name for image in looked_at]
        self.register_buffer("mean", torch.zeros(spec.vector_size))
        self.register_buffer("std", torch.ones(spec.vector_size))
        self.cnns = nn.ModuleDict({image.name: image_encoder(image.shape, config) for image in looked_at})
        self.size = spec.vector_size * (2 if self.fine else 1) + len(self.image_names) * config.image_features

    def forward(self, batch: Batch) -> Tensor:
        vectors = [((batch["vectors"] - self.mean) / self.std).clamp(-5.0, 5.0)]
        if self.fine:
            vectors.append(torch.asinh(self.fine * batch["vectors"] / self.std) / math.asinh(self.fine))
        images = [self.cnns[name](batch[name].permute(0, 3, 1, 2).float() / 255.0) for name in self.image_names]
        return torch.cat([*vectors, *images], dim=-1)

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Take mean and standard deviation from (N, V) vectors; a floor keeps constants from exploding."""
        self.normalise(vectors.mean(axis=0), np.maximum(vectors.std(axis=0), 0.05 * np.abs(vectors).max(axis=0)))

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,)."""
        self.mean.copy_(torch.from_numpy(np.asarray(mean)))
        self.std.copy_(torch.from_numpy(np.asarray(std + 1e-4)))


class Head(nn.Linear):
    """A last layer (B, inputs) to (B, outputs), as precise as its weights though those before it may be in bfloat16.

    What it answers is a value or the middle of a density; bfloat16 would round it to eight bits.
    """

    def forward(self, x: Tensor) -> Tensor:
        with unreduced(x):
            return super().forward(x.to(self.weight.dtype))


def unreduced(x: Tensor) -> AbstractContextManager[object]:
    """Within, nothing on the tensor's device is computed in bfloat16; what comes from outside must be cast there."""
    kind = x.device.type
    reduced = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if reduced else nullcontext()


def mlp(inputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Linear, LayerNorm, ReLU for every hidden width."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers)
