"""GR00T's action head, by its published key names: a diffusion transformer (DiT).

The transformer attends to the prefix (NVIDIA 2025, arXiv 2503.14734). Each embodiment has separate
layers for state and actions. Its training's dropout is left out, to learn from exactly the drawn
actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.policies.pretrained.action_expert import Prefix


@dataclass(frozen=True)
class MixedPrefix(Prefix):
    """A prefix with a mask of images. Its other positions are text.

    Attributes:
        image_mask: mask of the positions that are images, (B, L).
    """

    image_mask: Tensor

    def repeat(self, times: int) -> MixedPrefix:
        """See ``Prefix``."""
        plain = super().repeat(times)
        image_mask = self.image_mask.repeat_interleave(times, dim=0)
        return MixedPrefix(plain.keys, plain.values, plain.valid, image_mask)


class ActionHead(nn.Module):
    """GR00T's layers from features to a prefix, and from a prefix and noisy actions to a velocity.

    Args:
        config: ``action_head_cfg`` of a config.json. Without ``num_target_vision_tokens`` it has no
            future tokens, without layers in ``vl_self_attention_cfg`` no attention before the
            transformer. With ``attend_text_every_n_blocks`` blocks attend to text or images.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        embodiments = config["max_num_embodiments"]
        hidden = config["hidden_size"]
        width = config["input_embedding_dim"]
        self.buckets = config["num_timestep_buckets"]
        self.model = DiT(config["diffusion_model_cfg"], config.get("attend_text_every_n_blocks", 0))
        self.state_encoder = EmbodimentMLP(embodiments, config["max_state_dim"], hidden, width)
        self.action_encoder = ActionEncoder(embodiments, config["action_dim"], width)
        self.action_decoder = EmbodimentMLP(embodiments, hidden, hidden, config["action_dim"])
        future = config["num_target_vision_tokens"]
        self.future_tokens = nn.Embedding(future, width) if future else None
        self.position_embedding = nn.Embedding(config["max_seq_len"], width)
        for table in filter(None, (self.future_tokens, self.position_embedding)):
            nn.init.normal_(table.weight, std=0.02)
        self.vlln = nn.LayerNorm(config["backbone_embedding_dim"])
        attention = config["vl_self_attention_cfg"]
        self.vl_self_attention = nn.ModuleDict()
        if attention["num_layers"]:
            heads, size = attention["num_attention_heads"], attention["attention_head_dim"]
            blocks = (Block(heads, size, heads * size) for _ in range(attention["num_layers"]))
            self.vl_self_attention["transformer_blocks"] = nn.ModuleList(blocks)

    def prefix(self, features: Tensor, valid: Tensor, image_mask: Tensor | None = None) -> Prefix:
        """Return keys and values of features (B, L, D) with the mask ``valid`` (B, L).

        Args:
            features: the vision-language model's features.
            valid: mask of the positions in use.
            image_mask: mask (B, L) of images, if blocks attend to images and text in turn.
        """
        before: Any = (
            self.vl_self_attention["transformer_blocks"] if len(self.vl_self_attention) else ()
        )
        blocks: Any = self.model.transformer_blocks
        x = self.vlln(features)
        for block in before:
            x = block(x, mask=valid[:, None, None, :])
        both = [block.attn1.keys_values(x) for block in blocks if block.cross]
        keys, values = [keys for keys, _ in both], [values for _, values in both]
        if image_mask is None:
            return Prefix(keys, values, valid)
        return MixedPrefix(keys, values, valid, image_mask)

    def velocity(
        self, prefix: Prefix, state: Tensor, point: Tensor, time: Tensor, embodiment: int
    ) -> Tensor:
        """Return the velocity (B, H, M) at a point (B, H, M) and time (B,).

        Time 1 is noise, 0 an action; GR00T counts the other way round.
        """
        bucket = ((1.0 - time) * self.buckets + 1e-3).trunc()
        actions = (
            self.action_encoder(point, bucket, embodiment)
            + self.position_embedding.weight[: point.shape[1]]
        )
        tokens = [self.state_encoder(state.unsqueeze(1), embodiment)]
        if self.future_tokens is not None:
            tokens.append(self.future_tokens.weight.expand(len(point), -1, -1))
        x = torch.cat([*tokens, actions], dim=1)
        return -self.action_decoder(self.model(x, prefix, bucket)[:, -point.shape[1] :], embodiment)


class EmbodimentLinear(nn.Module):
    """A linear layer with separate weights for each embodiment."""

    def __init__(self, embodiments: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(0.02 * torch.randn(embodiments, inputs, outputs))
        self.b = nn.Parameter(torch.zeros(embodiments, outputs))

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        return x @ self.W[embodiment] + self.b[embodiment]


class EmbodimentMLP(nn.Module):
    """Two linear layers with separate weights for each embodiment."""

    def __init__(self, embodiments: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer1, self.layer2 = (
            EmbodimentLinear(embodiments, inputs, hidden),
            EmbodimentLinear(embodiments, hidden, outputs),
        )

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        y: Tensor = self.layer2(F.relu(self.layer1(x, embodiment)), embodiment)
        return y


class ActionEncoder(nn.Module):
    """Actions (B, H, M) and time (B,) to (B, H, W)."""

    def __init__(self, embodiments: int, inputs: int, width: int) -> None:
        super().__init__()
        self.W1, self.W2, self.W3 = (
            EmbodimentLinear(embodiments, size, width) for size in (inputs, 2 * width, width)
        )

    def forward(self, actions: Tensor, time: Tensor, embodiment: int) -> Tensor:
        x = self.W1(actions, embodiment)
        waves = torch.cat(_sinusoids(time, x.shape[-1] // 2, x.shape[-1] // 2), dim=-1)
        x = torch.cat([x, waves.to(x.dtype).unsqueeze(1).expand_as(x)], dim=-1)
        y: Tensor = self.W3(F.silu(self.W2(x, embodiment)), embodiment)
        return y


class DiT(nn.Module):
    """Blocks that attend to the prefix.

    With ``interleave_self_attention`` every other block attends to the sequence itself.

    Args:
        config: ``diffusion_model_cfg`` of a config.json.
        text_interval: blocks with this interval among those that attend to the prefix attend to
            text alone, the others to images alone. 0: each attends to both.
    """

    def __init__(self, config: Mapping[str, Any], text_interval: int = 0) -> None:
        super().__init__()
        self.text_interval = text_interval
        heads = config["num_attention_heads"]
        size = config["attention_head_dim"]
        other = config["cross_attention_dim"]
        width, mixed = heads * size, config["interleave_self_attention"]
        self.timestep_encoder = nn.ModuleDict(
            {
                "timestep_embedder": nn.ModuleDict(
                    {"linear_1": nn.Linear(256, width), "linear_2": nn.Linear(width, width)}
                )
            }
        )
        self.transformer_blocks = nn.ModuleList(
            Block(
                heads,
                size,
                width if mixed and number % 2 else other,
                time_conditioned=True,
                cross=not (mixed and number % 2),
            )
            for number in range(config["num_layers"])
        )
        self.norm_out = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, config["output_dim"])

    def forward(self, x: Tensor, prefix: Prefix, time: Tensor) -> Tensor:
        sin, cos = _sinusoids(time, 128, 127)
        layers: Any = self.timestep_encoder["timestep_embedder"]
        time = layers["linear_2"](
            F.silu(layers["linear_1"](torch.cat([cos, sin], dim=-1).to(x.dtype)))
        )
        keys_values = iter(zip(prefix.keys, prefix.values, strict=True))
        text_positions = image_positions = prefix.valid[:, None, None, :]
        if isinstance(prefix, MixedPrefix):
            image_mask = prefix.image_mask[:, None, None, :]
            text_positions = text_positions & ~image_mask
            image_positions = image_positions & image_mask
        interval = 2 * self.text_interval
        for number, block in enumerate(self.transformer_blocks):
            if block.cross:
                reads_text = not interval or number % interval == 0
                mask = text_positions if reads_text else image_positions
                x = block(x, next(keys_values), mask, time)
            else:
                x = block(x, time=time)
        shift, scale = self.proj_out_1(F.silu(time)).unsqueeze(1).chunk(2, dim=-1)
        y: Tensor = self.proj_out_2(self.norm_out(x) * (1.0 + scale) + shift)
        return y


class Block(nn.Module):
    """Attention and a perceptron, each with a normalisation before; a time modulates the first."""

    def __init__(
        self,
        heads: int,
        size: int,
        key_width: int,
        time_conditioned: bool = False,
        cross: bool = False,
    ) -> None:
        super().__init__()
        width = heads * size
        self.cross = cross
        self.norm1 = TimeConditionedNorm(width) if time_conditioned else nn.LayerNorm(width)
        self.attn1 = Attention(heads, size, key_width)
        self.norm3 = nn.LayerNorm(width, elementwise_affine=not time_conditioned)
        self.ff = nn.ModuleDict(
            {
                "net": nn.ModuleList(
                    [
                        nn.ModuleDict({"proj": nn.Linear(width, 4 * width)}),
                        nn.Identity(),
                        nn.Linear(4 * width, width),
                    ]
                )
            }
        )

    def forward(
        self,
        x: Tensor,
        keys_values: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        time: Tensor | None = None,
    ) -> Tensor:
        normed = self.norm1(x) if time is None else self.norm1(x, time)
        x = x + self.attn1(normed, keys_values or self.attn1.keys_values(normed), mask)
        layers: Any = self.ff["net"]
        return x + layers[2](F.gelu(layers[0]["proj"](self.norm3(x)), approximate="tanh"))


class TimeConditionedNorm(nn.Module):
    """Layer normalisation, then scale and shift by the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.linear(F.silu(time)).unsqueeze(1).chunk(2, dim=-1)
        return F.layer_norm(x, x.shape[-1:]) * (1.0 + scale) + shift


class Attention(nn.Module):
    """Attention to keys and values of a sequence of another width."""

    def __init__(self, heads: int, size: int, key_width: int) -> None:
        super().__init__()
        self.size = size
        width = heads * size
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(key_width, width)
        self.to_v = nn.Linear(key_width, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, heads, L, D)."""
        x = x.to(self.to_k.weight.dtype)  # called from outside the layer, in another precision
        return self._heads(self.to_k(x)), self._heads(self.to_v(x))

    def forward(self, x: Tensor, keys_values: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        attended = F.scaled_dot_product_attention(
            self._heads(self.to_q(x)), *keys_values, attn_mask=mask
        )
        y: Tensor = self.to_out[0](attended.transpose(1, 2).flatten(2))
        return y

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)


def check_widths(widths: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError if the width of a layer, by its key, differs from its neighbour's."""
    for name, (width, neighbour) in widths.items():
        if width != neighbour:
            raise ValueError(f"{name} of {width}, expected {neighbour}, as wide as its neighbour")


def _sinusoids(time: Tensor, count: int, last: int) -> tuple[Tensor, Tensor]:
    """Return sines and cosines (B, count) of times (B,).

    The longest period is 10,000 times the shortest at ``last``.
    """
    order = torch.arange(count, dtype=torch.float32, device=time.device)
    angle = time[:, None].float() * torch.exp(-math.log(10_000.0) * order / last)
    return angle.sin(), angle.cos()
