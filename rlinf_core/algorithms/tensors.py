"""Batches of arrays as batches of tensors."""

from __future__ import annotations

import numpy as np
import torch


def to_tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Share memory where possible (arrays from Ray's store are read-only and are copied); names are kept."""
    return {name: torch.from_numpy(np.require(values, requirements=["C", "W"])) for name, values in batch.items()}


def following(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The next observations of a batch, under the names of observations."""
    return {name.removeprefix("next/"): values for name, values in batch.items() if name.startswith("next/")}
