"""pi0.5's action expert: a Gemma with time-dependent normalisations (adaRMSNorm)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.policies.pretrained.action_expert import Attention, Prefix


class Expert(nn.Module):
    """Embedded actions (B, H, W) and time (B, W) to features (B, H, W).

    All actions attend to each other and to the prefix.

    Args:
        config: GemmaConfig.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers.models.gemma.modeling_gemma import GemmaRotaryEmbedding

        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm, self.rotary = AdaptiveNorm(config), GemmaRotaryEmbedding(config)

    def forward(self, x: Tensor, time: Tensor, prefix: Prefix) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device) + prefix.valid.sum(
            dim=1, keepdim=True
        )
        valid = torch.cat([prefix.valid, prefix.valid.new_ones(x.shape[:2])], dim=1)[
            :, None, None, :
        ]
        mask, rotary = valid.expand(-1, 1, x.shape[1], -1), self.rotary(x, positions)
        for layer, keys, values in zip(self.layers, prefix.keys, prefix.values, strict=True):
            x = layer(x, time, keys, values, mask, rotary)
        return self.norm(x, time)[0]


class Layer(nn.Module):
    """Attention and a perceptron, with time-dependent normalisations and gates."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers.models.gemma.modeling_gemma import GemmaMLP

        self.self_attn, self.mlp = Attention(config, config.hidden_size, False), GemmaMLP(config)
        self.input_layernorm = AdaptiveNorm(config)
        self.post_attention_layernorm = AdaptiveNorm(config)

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        rotary: tuple[Tensor, Tensor],
    ) -> Tensor:
        normed, gate = self.input_layernorm(x, time)
        x = x + gate * self.self_attn(normed, keys, values, mask, rotary)
        normed, gate = self.post_attention_layernorm(x, time)
        return x + gate * self.mlp(normed)


class AdaptiveNorm(nn.Module):
    """Root-mean-square normalisation, scaled and shifted by the time, and a gate for its branch."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.dense = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        nn.init.zeros_(self.dense.weight)

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        normed = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        scale, shift, gate = self.dense(time).unsqueeze(1).chunk(3, dim=-1)
        return normed * (1.0 + scale) + shift, gate
