"""Preparation of images for published networks: resizing like their makers, and patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def letterbox(images: Tensor, size: int, antialias: bool = True) -> Tensor:
    """Fit images (B, H, W, 3) uint8 into a black square (B, 3, S, S) in [-1, 1].

    Their shape is kept, and they are centred. openpi shrinks with Pillow's bilinear filter, which
    antialiases; LeRobot does not antialias.
    """
    pixels, ratio = images.permute(0, 3, 1, 2).float() / 127.5 - 1.0, max(images.shape[1:3]) / size
    if ratio != 1.0:
        # truncated, like in openpi and LeRobot
        shape = [max(1, int(side / ratio)) for side in images.shape[1:3]]
        pixels = F.interpolate(pixels, shape, mode="bilinear", antialias=antialias)
    down, right = size - pixels.shape[2], size - pixels.shape[3]
    return F.pad(pixels, (right // 2, right - right // 2, down // 2, down - down // 2), value=-1.0)


def resize(pixels: Tensor, shape: tuple[int, int], mode: str = "bicubic") -> Tensor:
    """Resize images (B, 3, H, W) of whole grey levels, with antialiasing.

    On a CPU torch resizes bytes as torchvision does, to the last level.
    """
    if tuple(pixels.shape[2:]) == tuple(shape):
        return pixels
    source = pixels.to(torch.uint8) if pixels.device.type == "cpu" else pixels
    result = F.interpolate(source, list(shape), mode=mode, antialias=True)
    return result.float().round().clamp(0.0, 255.0)


def resize_like_pillow(pixels: Tensor, shape: tuple[int, int]) -> Tensor:
    """Resize images (B, 3, H, W) of whole grey levels as Pillow's bicubic filter does with bytes.

    Pillow's weights are whole numbers, so the result is exact on any device. Rows are resized
    first, as by Pillow until 12.1, which NVIDIA locks. Pillow 13 resizes columns first where an
    image becomes lower and wider.
    """
    for axis, size in ((3, shape[1]), (2, shape[0])):
        if pixels.shape[axis] == size:
            continue
        weights = _pillow_weights(pixels.shape[axis], size, pixels.device)
        source = pixels.double()
        total = source @ weights.T if axis == 3 else weights @ source
        levels = ((total + 2.0 ** (_PILLOW_BITS - 1)) / 2.0**_PILLOW_BITS).floor()
        pixels = levels.clamp(0.0, 255.0).float()
    return pixels


_PILLOW_BITS = 22  # bits after the point of Pillow's weights of bytes


def _pillow_weights(size: int, result: int, device: torch.device) -> Tensor:
    """Return the weights (result, size) of Pillow's bicubic filter, in parts of 1 / 2 ** 22."""
    step = size / result
    spread = max(step, 1.0)
    centre = (torch.arange(result, dtype=torch.float64)[:, None] + 0.5) * step
    pixel = torch.arange(size, dtype=torch.float64)
    first = (centre - 2.0 * spread + 0.5).trunc().clamp(min=0.0)
    last = (centre + 2.0 * spread + 0.5).trunc().clamp(max=size)
    x = ((pixel - centre + 0.5) / spread).abs()
    near, far = (1.5 * x - 2.5) * x * x + 1.0, (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    weights = torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))
    weights = torch.where((pixel >= first) & (pixel < last), weights, 0.0)
    weights = weights / weights.sum(dim=1, keepdim=True) * 2.0**_PILLOW_BITS
    return (weights + 0.5 * weights.sign()).trunc().to(device)


def pad_to_square(pixels: Tensor) -> Tensor:
    """Pad images (B, 3, H, W) with black to squares."""
    height, width = pixels.shape[2:]
    down, right = max(width - height, 0), max(height - width, 0)
    return F.pad(pixels, (right // 2, right - right // 2, down // 2, down - down // 2))


def resize_by_area(pixels: Tensor, edge: int) -> Tensor:
    """Resize the shorter side of images (B, 3, H, W), as OpenCV's INTER_AREA does with bytes."""
    height, width = pixels.shape[2:]
    if min(height, width) == edge:
        return pixels
    scale = edge / min(height, width)
    down, right = (max(1, round(size * scale)) for size in (height, width))
    if height < down or width < right:
        rows = _interpolated(pixels.int(), right) >> 4
        first, second, weight = _neighbours(height, down, pixels.device)
        upper = rows[:, :, first] * (2048 - weight)[:, None] >> 16
        lower = rows[:, :, second] * weight[:, None] >> 16
        return ((upper + lower + 2) >> 2).float().clamp(0.0, 255.0)
    weights = [
        _shares(size, result, pixels.device) for size, result in ((height, down), (width, right))
    ]
    means = weights[0] @ pixels @ weights[1].T
    halves = height == 2 * down and width == 2 * right  # there OpenCV rounds a half up
    return ((means + 0.5).floor() if halves else means.round()).clamp(0.0, 255.0)


def _shares(size: int, result: int, device: torch.device) -> Tensor:
    """Return the share (result, size) of each pixel of a side in a larger pixel."""
    step = size / result
    place = torch.arange(result, device=device, dtype=torch.float64)[:, None]
    pixel = torch.arange(size, device=device, dtype=torch.float64)
    low, high = place * step, (place + 1.0) * step
    shares = (torch.minimum(high, pixel + 1.0) - torch.maximum(low, pixel)).clamp(min=0.0)
    return (shares / step).float()


def _interpolated(pixels: Tensor, result: int) -> Tensor:
    """Return rows of more pixels, in parts of 1 / 2048."""
    first, second, weight = _neighbours(pixels.shape[-1], result, pixels.device)
    return pixels[..., first] * (2048 - weight) + pixels[..., second] * weight


def _neighbours(size: int, result: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return two pixels for each of a longer side, and the second's weight [1 / 2048].

    The order of the operations is OpenCV's, which decides at whole pixels.
    """
    ratio = result / size
    place = torch.arange(result, device=device, dtype=torch.float64)
    first = (place * (1.0 / ratio)).floor()
    part = ((place + 1.0) - (first + 1.0) * ratio).float()
    part = torch.where((part <= 0.0) | (first >= size - 1), 0.0, part - part.floor())
    before = first.long().clamp(max=size - 1)
    return before, (before + 1).clamp(max=size - 1), (part * 2048.0).round().int()


def cut_patches(
    pixels: Tensor, vision: Any, mean: Sequence[float], std: Sequence[float]
) -> tuple[Tensor, tuple[int, int]]:
    """Return the patches (B, P, numbers) of images (B, 3, H, W) in [0, 1], and their grid.

    The patches of a merged square are adjacent.

    Args:
        pixels: images with sides of whole merged squares.
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
