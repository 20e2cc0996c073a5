"""ResNet-18 and ResNet-34 (He et al. 2015, arXiv 1512.03385).

The names are torchvision's, which LeRobot's policies use.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

LAYERS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
WIDTHS = (64, 128, 256, 512)
FEATURES = WIDTHS[-1]
Norm = Callable[[int], nn.Module]


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with fixed statistics (torchvision's FrozenBatchNorm2d)."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (
            ("weight", 1.0),
            ("bias", 0.0),
            ("running_mean", 0.0),
            ("running_var", 1.0),
        ):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


def group_norm(channels: int) -> nn.Module:
    """Return Diffusion Policy's substitute for batch normalisation: groups of 16 channels.

    Chi et al. 2023, arXiv 2303.04137.
    """
    return nn.GroupNorm(channels // 16, channels)


class ResNet(nn.Module):
    """Images (B, 3, H, W) to feature maps (B, 512, H / 32, W / 32).

    Args:
        name: one of ``LAYERS``.
        norm: makes the normalisation of a number of channels.
    """

    def __init__(self, name: str, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, WIDTHS[0], 7, 2, 3, bias=False), norm(WIDTHS[0])
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        inputs = WIDTHS[0]
        for index, (width, count) in enumerate(zip(WIDTHS, LAYERS[name], strict=True)):
            blocks = [
                _Block(
                    inputs if not number else width, width, 2 if index and not number else 1, norm
                )
                for number in range(count)
            ]
            setattr(self, f"layer{index + 1}", nn.Sequential(*blocks))
            inputs = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels
        for part in self.children():
            x = part(x)
        return x


class _Block(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.downsample = (
            None
            if stride == 1 and inputs == width
            else nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), norm(width))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))
