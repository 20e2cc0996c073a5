"""Centring and scaling of observed vectors, which a policy carries with its weights."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.embodiment import JointSpec

STD_FLOOR = 1e-4
BOUND = 5.0  # deviations; numbers beyond are clipped


class Normalisation(nn.Module):
    """Mean and deviation of vectors (B, V), set by a learner in every module that has them.

    A policy of R robots (``rlinf_core.specs.embodiment``) normalizes each number by its own robot's
    statistics. The number is 0 in observations of other robots. The first R numbers name the robot
    and are not normalized.
    """

    bound: ClassVar[float] = BOUND
    mean: Tensor
    std: Tensor
    dimension_mask: Tensor | None

    def __init__(self, spec: StationSpec) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(spec.vector_size))
        self.register_buffer("std", torch.ones(spec.vector_size))
        several = torch.from_numpy(spec.dimension_masks[0]) if isinstance(spec, JointSpec) else None
        self.register_buffer("dimension_mask", several, persistent=False)

    def normalised(self, vectors: Tensor) -> Tensor:
        """Return vectors (B, V) as deviations from their mean, clipped."""
        values = ((vectors - self.mean) / self.std).clamp(-self.bound, self.bound)
        return (
            values
            if self.dimension_mask is None
            else values * (vectors[:, : len(self.dimension_mask)] @ self.dimension_mask)
        )

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Set mean and standard deviation from (N, V) vectors, with a floor for constants."""
        if self.dimension_mask is None:
            return self.normalise(*_moments(vectors))
        mean = np.zeros(vectors.shape[1])
        std = np.ones(vectors.shape[1])
        robots = len(self.dimension_mask)
        for number, columns in enumerate(self.dimension_mask.numpy(force=True) > 0):
            columns[:robots] = False
            if (robot_vectors := vectors[vectors[:, number] > 0][:, columns]).size:
                mean[columns], std[columns] = _moments(robot_vectors)
        self.normalise(mean, std)

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,)."""
        self.mean.copy_(torch.from_numpy(np.asarray(mean)))
        self.std.copy_(torch.from_numpy(np.asarray(std + STD_FLOOR)))


def floored(std: np.ndarray, large: np.ndarray) -> np.ndarray:
    """Return deviations (V,), at least a twentieth of each number's magnitude."""
    return np.maximum(std, 0.05 * large)


def _moments(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return vectors.mean(axis=0), floored(vectors.std(axis=0), np.abs(vectors).max(axis=0))
