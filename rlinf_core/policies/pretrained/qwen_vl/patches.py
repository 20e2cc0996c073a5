"""Patches of pictures, as Qwen's vision towers read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def to_patches(
    pixels: Tensor, vision: Any, mean: Sequence[float], std: Sequence[float]
) -> tuple[Tensor, tuple[int, int]]:
    """Return the patches (B, P, numbers) of pictures (B, 3, H, W) in [0, 1], and their grid.

    The patches of a merged square are adjacent.

    Args:
        pixels: pictures with sides of whole merged squares.
        vision: transformers' config of the vision tower.
        mean, std: normalisation by colour.
    """
    patch, merge = vision.patch_size, vision.spatial_merge_size
    middle, scale = (
        torch.tensor(channels, device=pixels.device).view(3, 1, 1) for channels in (mean, std)
    )
    parts = (
        ((pixels - middle) / scale)
        .unflatten(3, (-1, merge, patch))
        .unflatten(2, (-1, merge, patch))
    )
    # batch, token down, right, patch down, right, color
    parts = parts.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6)
    parts = parts.expand(*[-1] * 6, vision.temporal_patch_size, -1, -1)
    grid = pixels.shape[2] // patch, pixels.shape[3] // patch
    return parts.flatten(5).flatten(1, 4), grid
