"""SmolVLA's action expert: a narrow Llama; every other layer attends to the prefix alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.policies.pretrained.action_expert import Attention, Prefix


class Expert(nn.Module):
    """Embedded actions (B, H, W) to features (B, H, W).

    Each action attends to earlier actions, and to all of the prefix.

    Args:
        text: LlamaConfig of the language model.
        width, layers: sizes of the expert.
        self_every: distance of the layers that also attend to actions, from the first on; 0 for
            none.
    """

    def __init__(self, text: Any, width: int, layers: int, self_every: int) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

        self.cross = [not self_every or number % self_every > 0 for number in range(layers)]
        self.layers = nn.ModuleList(Layer(text, width, cross) for cross in self.cross)
        self.norm = LlamaRMSNorm(width, eps=text.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(text)

    def forward(self, x: Tensor, prefix: Prefix) -> Tensor:
        size, horizon = x.shape[:2]
        order = torch.arange(horizon, device=x.device).expand(size, -1)
        prefix_mask = prefix.valid[:, None, None, :].expand(-1, 1, horizon, -1)
        both = torch.cat([prefix_mask, (order[:, None, :] <= order[:, :, None])[:, None]], dim=-1)
        first = self.rotary(x, order)
        behind = self.rotary(x, order + prefix.valid.sum(dim=1, keepdim=True))
        for cross, layer, keys, values in zip(
            self.cross, self.layers, prefix.keys, prefix.values, strict=True
        ):
            x = layer(x, keys, values, *((prefix_mask, first) if cross else (both, behind)))
        return self.norm(x)


class Layer(nn.Module):
    """Attention and a perceptron, each with a normalisation before."""

    def __init__(self, text: Any, width: int, cross: bool) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

        config = type(text).from_dict(
            {**text.to_dict(), "hidden_size": width, "intermediate_size": intermediate(width)}
        )
        self.self_attn, self.mlp = Attention(text, width, cross), LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(width, eps=text.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps=text.rms_norm_eps)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), keys, values, mask, rotary)
        return x + self.mlp(self.post_attention_layernorm(x))


def intermediate(width: int) -> int:
    """Return the perceptron's inner width: 8/3 of ``width``, up to a multiple of 256."""
    return 256 * -(-int(4 * int(2 * width / 3)) // 256)
