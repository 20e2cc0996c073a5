"""Normalisation of observed vectors, which a policy stores with its weights."""

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
    """Mean and standard deviation of vectors (B, V). A learner sets them before training.

    A policy of R robots (``rlinf_core.specs.embodiment``) normalises each number by its own robot's
    statistics. The number is 0 in observations of other robots. The first R numbers name the robot
    and are not normalised.
    """

    bound: ClassVar[float] = BOUND
    mean: Tensor
    std: Tensor
    dimension_mask: Tensor | None

    def __init__(self, spec: StationSpec) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(spec.vector_size))
        self.register_buffer("std", torch.ones(spec.vector_size))
        mask = torch.from_numpy(spec.dimension_masks[0]) if isinstance(spec, JointSpec) else None
        self.register_buffer("dimension_mask", mask, persistent=False)

    def normalize(self, vectors: Tensor) -> Tensor:
        """Return vectors (B, V) as deviations from their mean, clipped to ``bound``."""
        values = ((vectors - self.mean) / self.std).clamp(-self.bound, self.bound)
        if self.dimension_mask is None:
            return values
        return values * (vectors[:, : len(self.dimension_mask)] @ self.dimension_mask)

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Set the statistics from vectors (N, V), with a floor for the deviation of constants."""
        if self.dimension_mask is None:
            return self.set_statistics(*_moments(vectors))
        mean = np.zeros(vectors.shape[1])
        std = np.ones(vectors.shape[1])
        robot_count = len(self.dimension_mask)
        for robot, columns in enumerate(self.dimension_mask.numpy(force=True) > 0):
            columns[:robot_count] = False
            is_robot = vectors[:, robot] > 0
            if (robot_vectors := vectors[is_robot][:, columns]).size:
                mean[columns], std[columns] = _moments(robot_vectors)
        self.set_statistics(mean, std)

    def set_statistics(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and standard deviation, both (V,)."""
        self.mean.copy_(torch.from_numpy(np.asarray(mean)))
        self.std.copy_(torch.from_numpy(np.asarray(std + STD_FLOOR)))


def floor_std(std: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """Return standard deviations (V,), at least a twentieth of each number's magnitude (V,)."""
    return np.maximum(std, 0.05 * magnitude)


def _moments(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation, both (V,), of vectors (N, V)."""
    return vectors.mean(axis=0), floor_std(vectors.std(axis=0), np.abs(vectors).max(axis=0))
