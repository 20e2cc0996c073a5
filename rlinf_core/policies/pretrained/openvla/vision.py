"""OpenVLA's vision towers: ViTs with the key names of the library timm, read before the last layer.

DINOv2 with registers (arXiv 2309.16588) and SigLIP (arXiv 2303.15343), side by side; Prismatic
VLMs, arXiv 2402.07865.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError

# values of the published networks
IMAGENET = {
    "mean": (0.484375, 0.455078125, 0.40625),
    "std": (0.228515625, 0.2236328125, 0.224609375),
}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
TOWERS: dict[str, dict[str, Any]] = {  # timm's names, before the first dot, to its arguments
    "vit_large_patch14_reg4_dinov2": {
        "embed_dim": 1024,
        "depth": 24,
        "num_heads": 16,
        "mlp_ratio": 4.0,
        "patch_size": 14,
        "reg_tokens": 4,
        "class_token": True,
        "layer_scale": True,
        **IMAGENET,
    },
    "vit_so400m_patch14_siglip_224": {
        "embed_dim": 1152,
        "depth": 27,
        "num_heads": 16,
        "mlp_ratio": 3.7362,
        "patch_size": 14,
        "reg_tokens": 0,
        "class_token": False,
        "layer_scale": False,
        **HALF,
    },
}


def tower(name: str, differing: Mapping[str, Any], image_size: int) -> Tower:
    """Return the tower of timm's name, with changes of its arguments.

    Raises:
        PolicyFileError: the name is unsupported.
    """
    defaults = TOWERS.get(name.partition(".")[0])
    if defaults is None:
        raise PolicyFileError(f"timm_model_ids: expected {' or '.join(TOWERS)}, got '{name}'")
    return Tower(image_size, **{**defaults, **differing})


class Tower(nn.Module):
    """Images (B, 3, S, S) in [0, 1] to patches (B, P, D)."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        image_size: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float,
        patch_size: int,
        reg_tokens: int,
        class_token: bool,
        layer_scale: bool,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.size = image_size
        self.patches = (image_size // patch_size) ** 2
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, embed_dim, patch_size, patch_size)})
        self.pos_embed = _random(1, self.patches, embed_dim)
        self.cls_token = _random(1, 1, embed_dim) if class_token else None
        self.reg_token = _random(1, reg_tokens, embed_dim) if reg_tokens else None
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, int(embed_dim * mlp_ratio), layer_scale)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        for unused in (self.blocks[-1], self.norm):  # the checkpoints contain them
            unused.requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        x = (
            self.patch_embed["proj"]((pixels - self.mean) / self.std).flatten(2).transpose(1, 2)
            + self.pos_embed
        )
        before = [
            token.expand(len(x), -1, -1)
            for token in (self.cls_token, self.reg_token)
            if token is not None
        ]
        x = torch.cat([*before, x], dim=1)
        for block in self.blocks[:-1]:
            x = block(x)
        return x[:, -self.patches :]


class Block(nn.Module):
    """Attention and a perceptron, each with a normalisation before and a scale after."""

    def __init__(self, width: int, heads: int, hidden: int, layer_scale: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn, self.mlp = Attention(width, heads), Mlp(width, hidden)
        self.ls1: nn.Module = LayerScale(width) if layer_scale else nn.Identity()
        self.ls2: nn.Module = LayerScale(width) if layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class Attention(nn.Module):
    """Full self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(
            F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        )


class Mlp(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """A factor for each feature; OpenVLA renamed timm's gamma."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


def _random(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.02 * torch.randn(shape))
