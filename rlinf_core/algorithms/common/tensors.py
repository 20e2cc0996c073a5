"""Batches of arrays as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rlinf_core.policies.sharding import shard


def to_tensors(
    batch: Mapping[str, np.ndarray | torch.Tensor], device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Return this process's shard of a batch, of arrays or of tensors, on the device.

    On the CPU memory is shared if possible (arrays from Ray's store are read-only and are copied).
    """
    return {name: _tensor(values).to(device) for name, values in batch.items()}


def _tensor(values: np.ndarray | torch.Tensor) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return shard(values)
    return torch.from_numpy(np.require(shard(values), requirements=["C", "W"]))


def next_observations(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the next observations of a batch, under the names of observations."""
    return {
        name.removeprefix("next/"): values
        for name, values in batch.items()
        if name.startswith("next/")
    }
