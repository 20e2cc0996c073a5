"""Shared parts of action experts: their prefix, attention and time embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Prefix:
    """The vision-language model's keys and values for images, sentence and state.

    Attributes:
        keys, values: one tensor per layer, (B, heads, L, D).
        valid: mask of the L positions in use, (B, L).
    """

    keys: list[Tensor]
    values: list[Tensor]
    valid: Tensor

    @classmethod
    def from_cache(cls, cache: Any, valid: Tensor) -> Prefix:
        """Return the prefix in a cache of transformers."""
        keys, values = zip(*((layer.keys, layer.values) for layer in cache.layers), strict=True)
        return cls([*keys], [*values], valid)

    def repeat(self, times: int) -> Prefix:
        """Repeat each element of the batch ``times`` times, one after the other."""
        keys, values = (
            [part.repeat_interleave(times, dim=0) for part in parts]
            for parts in (self.keys, self.values)
        )
        return Prefix(keys, values, self.valid.repeat_interleave(times, dim=0))


class Attention(nn.Module):
    """Attention to prefix and actions, or to the prefix alone (``cross``).

    With ``cross`` the layer projects the prefix's keys and values once more.
    """

    def __init__(self, text: Any, width: int, cross: bool) -> None:
        super().__init__()
        self.cross = cross
        self.size = text.head_dim
        query_width = text.num_attention_heads * self.size
        key_width = text.num_key_value_heads * self.size
        inputs = key_width if cross else width
        self.q_proj = nn.Linear(width, query_width, bias=text.attention_bias)
        self.k_proj = nn.Linear(inputs, key_width, bias=text.attention_bias)
        self.v_proj = nn.Linear(inputs, key_width, bias=text.attention_bias)
        self.o_proj = nn.Linear(query_width, width, bias=text.attention_bias)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return (B, L, width) for ``x``; ``rotary`` holds cosines and sines of its positions."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        query = self._heads(self.q_proj(x))
        if self.cross:
            query, _ = apply_rotary_pos_emb(query, query, *rotary)
            key = self._heads(self.k_proj(keys.transpose(1, 2).flatten(2)))
            value = self._heads(self.v_proj(values.transpose(1, 2).flatten(2)))
        else:
            query, key = apply_rotary_pos_emb(query, self._heads(self.k_proj(x)), *rotary)
            key = torch.cat([keys, key], dim=2)
            value = torch.cat([values, self._heads(self.v_proj(x))], dim=2)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=True
        )
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape (B, L, heads D) to (B, heads, L, D)."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)


def sines(time: Tensor, width: int, low: float, high: float) -> Tensor:
    """Return sines and cosines (B, width) of times (B,), with periods from ``low`` to ``high``."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    angle = 2.0 * math.pi / (low * (high / low) ** fraction) * time[:, None]
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()
