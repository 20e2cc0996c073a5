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
    """The vision-language model's keys and values for pictures, sentence and state.

    Attributes:
        keys, values: one tensor per layer, (B, heads, L, D).
        valid: mask of the L positions in use, (B, L).
    """

    keys: list[Tensor]
    values: list[Tensor]
    valid: Tensor

    def repeated(self, times: int) -> Prefix:
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
        queries, others = text.num_attention_heads * self.size, text.num_key_value_heads * self.size
        self.q_proj = nn.Linear(width, queries, bias=text.attention_bias)
        self.k_proj = nn.Linear(others if cross else width, others, bias=text.attention_bias)
        self.v_proj = nn.Linear(others if cross else width, others, bias=text.attention_bias)
        self.o_proj = nn.Linear(queries, width, bias=text.attention_bias)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, places: tuple[Tensor, Tensor]
    ) -> Tensor:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        query = self._heads(self.q_proj(x))
        if self.cross:
            query, _ = apply_rotary_pos_emb(query, query, *places)
            key, value = (
                self._heads(project(old.transpose(1, 2).flatten(2)))
                for project, old in ((self.k_proj, keys), (self.v_proj, values))
            )
        else:
            query, key = apply_rotary_pos_emb(query, self._heads(self.k_proj(x)), *places)
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
