"""Centring and scaling of observed vectors, which a policy carries with its weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class Normalisation(nn.Module):
    """Mean and deviation of vectors (B, V); what a learner sets in every module that has them."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def normalised(self, vectors: Tensor) -> Tensor:
        """Vectors (B, V) as deviations from their mean, clipped."""
        return ((vectors - self.mean) / self.std).clamp(-5.0, 5.0)

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Take mean and standard deviation from (N, V) vectors; a floor keeps constants from exploding."""
        self.normalise(vectors.mean(axis=0), np.maximum(vectors.std(axis=0), 0.05 * np.abs(vectors).max(axis=0)))

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,)."""
        self.mean.copy_(torch.from_numpy(np.asarray(mean)))
        self.std.copy_(torch.from_numpy(np.asarray(std + 1e-4)))
