"""Image augmentation: random shifts (DrQ, Kostrikov et al. 2020, arXiv 2004.13649)."""

from __future__ import annotations

from functools import partial

import torch

from rlinf_core.policies.sharding import noise


def shift_images(
    batch: dict[str, torch.Tensor], pixels: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Shift every image (B, H, W, C) of a batch by up to ``pixels`` each way, with repeated edges.

    DrQ, arXiv 2004.13649.
    """
    return batch | {
        name: _shift(values, pixels, generator)
        for name, values in batch.items()
        if pixels and values.ndim == 4
    }


def _shift(images: torch.Tensor, pixels: int, generator: torch.Generator) -> torch.Tensor:
    size, height, width, _ = images.shape
    draw = partial(torch.randint, -pixels, pixels + 1)
    down, right = noise(draw, (2, size, 1), generator, images.device, dim=1)
    rows = (torch.arange(height, device=images.device) + down).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + right).clamp(0, width - 1)
    return images[
        torch.arange(size, device=images.device)[:, None, None],
        rows[:, :, None],
        columns[:, None, :],
    ]
