"""SmolVLA's action expert: a narrow Llama, every other layer of which attends to the vision-language model's alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Prefix:
    """What the vision-language model has made of pictures, sentence and state.

    Attributes:
        keys, values: of each layer, (B, heads, L, D).
        valid: which of the L are there, (B, L).
    """

    keys: list[Tensor]
    values: list[Tensor]
    valid: Tensor

    def repeated(self, times: int) -> Prefix:
        """Each of the batch so many times, one after the other."""
        keys, values = ([part.repeat_interleave(times, dim=0) for part in parts] for parts in (self.keys, self.values))
        return Prefix(keys, values, self.valid.repeat_interleave(times, dim=0))


class Expert(nn.Module):
    """Embedded actions (B, H, W) to features (B, H, W); each may attend to those before it, and to all of the prefix.

    Args:
        text: LlamaConfig of the language model.
        width, layers: of the expert.
        self_every: each so many layers, from the first on, attends to actions, too; 0 for none.
    """

    def __init__(self, text: Any, width: int, layers: int, self_every: int) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

        self.cross = [not self_every or number % self_every > 0 for number in range(layers)]
        self.layers = nn.ModuleList(Layer(text, width, each) for each in self.cross)
        self.norm = LlamaRMSNorm(width, eps=text.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(text)

    def forward(self, x: Tensor, prefix: Prefix) -> Tensor:
        size, horizon = x.shape[:2]
        order = torch.arange(horizon, device=x.device).expand(size, -1)
        seen = prefix.valid[:, None, None, :].expand(-1, 1, horizon, -1)
        both = torch.cat([seen, (order[:, None, :] <= order[:, :, None])[:, None]], dim=-1)
        alone, behind = self.rotary(x, order), self.rotary(x, order + prefix.valid.sum(dim=1, keepdim=True))
        for cross, layer, keys, values in zip(self.cross, self.layers, prefix.keys, prefix.values, strict=True):
            x = layer(x, keys, values, *((seen, alone) if cross else (both, behind)))
        return self.norm(x)


class Layer(nn.Module):
    """Attention and a perceptron, each normalised before."""

    def __init__(self, text: Any, width: int, cross: bool) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

        config = type(text).from_dict({**text.to_dict(), "hidden_size": width, "intermediate_size": intermediate(width)})
        self.self_attn, self.mlp = Attention(text, width, cross), LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(width, eps=text.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps=text.rms_norm_eps)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), keys, values, mask, places)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    """To the prefix alone, whose keys and values it projects once more (``cross``), or to the prefix and to actions."""

    def __init__(self, text: Any, width: int, cross: bool) -> None:
        super().__init__()
        self.cross, self.size = cross, text.head_dim
        queries, others = text.num_attention_heads * self.size, text.num_key_value_heads * self.size
        self.q_proj = nn.Linear(width, queries, bias=text.attention_bias)
        self.k_proj = nn.Linear(others if cross else width, others, bias=text.attention_bias)
        self.v_proj = nn.Linear(others if cross else width, others, bias=text.attention_bias)
        self.o_proj = nn.Linear(queries, width, bias=text.attention_bias)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        query = self._heads(self.q_proj(x))
        if self.cross:
            query, _ = apply_rotary_pos_emb(query, query, *places)
            key, value = (self._heads(project(old.transpose(1, 2).flatten(2)))
                          for project, old in ((self.k_proj, keys), (self.v_proj, values)))
        else:
            query, key = apply_rotary_pos_emb(query, self._heads(self.k_proj(x)), *places)
            key, value = torch.cat([keys, key], dim=2), torch.cat([values, self._heads(self.v_proj(x))], dim=2)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        return self.o_proj(seen.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, L, heads D) to (B, heads, L, D)."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)


def intermediate(width: int) -> int:
    """Width of the perceptron between its layers: 8/3 of it, up to a multiple of 256."""
    return 256 * -(-int(4 * int(2 * width / 3)) // 256)
