"""ACT: a transformer that maps images and state to a chunk of actions.

Zhao et al. 2023, arXiv 2304.13705, with the names and numbers of LeRobot's class (0.4.4 to 0.6.1).
Training clones it as the decoder of a variational auto-encoder; inference sets the latent to 0.
Temporal ensembling may blend chunks (``station.policy.chunking``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies import sharding
from rlinf_core.policies.base import Batch
from rlinf_core.policies.chunking import DECAY
from rlinf_core.policies.pretrained.act import Config
from rlinf_core.policies.pretrained.dataset_statistics import Kind
from rlinf_core.policies.pretrained.resnet import FEATURES, FrozenBatchNorm, ResNet
from rlinf_core.policies.pretrained.visuomotor import (
    ACTION,
    ENVIRONMENT,
    STATE,
    Visuomotor,
    feature_size,
    image_shapes,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class Layer(nn.Module):
    """Self-attention, a decoder's attention to ``memory``, and two linear layers.

    Sequences are (L, B, D). Positions are added to queries and keys alone.
    """

    def __init__(self, config: Mapping[str, Any], decoder: bool) -> None:
        super().__init__()
        size, width, dropout = config["dim_model"], config["dim_feedforward"], config["dropout"]
        self.self_attn = nn.MultiheadAttention(size, config["n_heads"], dropout=dropout)
        if decoder:
            self.multihead_attn = nn.MultiheadAttention(size, config["n_heads"], dropout=dropout)
        self.linear1, self.linear2 = nn.Linear(size, width), nn.Linear(width, size)
        self.count = 3 if decoder else 2
        for index in range(1, self.count + 1):
            setattr(self, f"norm{index}", nn.LayerNorm(size))
        self.dropout = nn.Dropout(dropout)
        self.activation = ACTIVATIONS[config["feedforward_activation"]]
        self.pre_norm = config["pre_norm"]

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        memory: tuple[Tensor, Tensor] | None = None,
        padded: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            x: (L, B, D).
            positions: positions of ``x``.
            memory: a decoder's attended sequence and its positions.
            padded: (B, L) mask of positions without attention.
        """
        x = self._added(
            x,
            1,
            lambda y: self.self_attn(
                y + positions, y + positions, y, key_padding_mask=padded, need_weights=False
            )[0],
        )
        if memory is not None:
            keys, values = memory[0] + memory[1], memory[0]
            x = self._added(
                x,
                2,
                lambda y: self.multihead_attn(y + positions, keys, values, need_weights=False)[0],
            )
        return self._added(
            x, self.count, lambda y: self.linear2(self.dropout(self.activation(self.linear1(y))))
        )

    def _added(self, x: Tensor, index: int, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x plus a part of it, normalised before or after."""
        norm = getattr(self, f"norm{index}")
        y: Tensor = self.dropout(part(norm(x) if self.pre_norm else x))
        return x + y if self.pre_norm else norm(x + y)


class Stack(nn.Module):
    """Layers, then a normalisation for decoders and for layers that normalise before."""

    def __init__(self, config: Mapping[str, Any], count: int, decoder: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, decoder) for _ in range(count))
        self.norm = (
            nn.LayerNorm(config["dim_model"]) if decoder or config["pre_norm"] else nn.Identity()
        )

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *inputs)
        normalised: Tensor = self.norm(x)
        return normalised


class ACT(nn.Module):
    """Map images, state and a latent to a chunk of actions (B, H, A).

    Args:
        config: LeRobot's config.json.
    """

    vae_encoder_pos_enc: Tensor

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        size, latent, horizon = config["dim_model"], config["latent_dim"], config["chunk_size"]
        state, environment, action = (
            feature_size(config, name) for name in (STATE, ENVIRONMENT, ACTION)
        )
        if config["use_vae"]:
            self.vae_encoder = Stack(config, config["n_vae_encoder_layers"])
            self.vae_encoder_cls_embed = nn.Embedding(1, size)
            self.vae_encoder_robot_state_input_proj = nn.Linear(state, size)
            self.vae_encoder_action_input_proj = nn.Linear(action, size)
            self.vae_encoder_latent_output_proj = nn.Linear(size, 2 * latent)
            self.register_buffer(
                "vae_encoder_pos_enc", sinusoidal_positions(2 + horizon, size).unsqueeze(0)
            )
        images = image_shapes(config)
        if images:
            self.backbone = ResNet(config["vision_backbone"], FrozenBatchNorm)
        self.encoder = Stack(config, config["n_encoder_layers"])
        self.decoder = Stack(config, config["n_decoder_layers"], decoder=True)
        self.encoder_robot_state_input_proj = nn.Linear(state, size)
        if environment:
            self.encoder_env_state_input_proj = nn.Linear(environment, size)
        self.encoder_latent_input_proj = nn.Linear(latent, size)
        if images:
            self.encoder_img_feat_input_proj = nn.Conv2d(FEATURES, size, 1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(2 + bool(environment), size)
        self.decoder_pos_embed = nn.Embedding(horizon, size)
        self.action_head = nn.Linear(size, action)
        for parameter in chain(self.encoder.parameters(), self.decoder.parameters()):
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, state: Tensor, images: list[Tensor], latent: Tensor | None = None) -> Tensor:
        """Return the chunk.

        Args:
            state: (B, V).
            images: (B, 3, H, W) of each camera.
            latent: (B, L); 0 by default.
        """
        if latent is None:
            latent = state.new_zeros(len(state), self.config["latent_dim"])
        tokens = [
            self.encoder_latent_input_proj(latent)[None],
            self.encoder_robot_state_input_proj(state)[None],
        ]
        if feature_size(self.config, ENVIRONMENT):
            tokens.append(self.encoder_env_state_input_proj(state)[None])
        positions = [self.encoder_1d_feature_pos_embed.weight[:, None]]
        for image in images:
            maps = self.backbone(image)
            positions.append(image_positions(maps, self.config["dim_model"]))
            tokens.append(self.encoder_img_feat_input_proj(maps).flatten(2).permute(2, 0, 1))
        all_positions = torch.cat(positions)
        memory = self.encoder(torch.cat(tokens), all_positions)
        queries = memory.new_zeros(self.config["chunk_size"], len(state), self.config["dim_model"])
        decoded = self.decoder(
            queries, self.decoder_pos_embed.weight[:, None], (memory, all_positions)
        )
        actions: Tensor = self.action_head(decoded.transpose(0, 1))
        return actions

    def posterior(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance (B, L) of a demonstrated chunk's latent (B, H, A)."""
        first = self.vae_encoder_cls_embed.weight.expand(len(state), -1)[:, None]
        tokens = torch.cat(
            [
                first,
                self.vae_encoder_robot_state_input_proj(state)[:, None],
                self.vae_encoder_action_input_proj(actions),
            ],
            dim=1,
        )
        encoded = self.vae_encoder(tokens.transpose(0, 1), self.vae_encoder_pos_enc.transpose(0, 1))
        mean, log_variance = self.vae_encoder_latent_output_proj(encoded[0]).chunk(2, dim=1)
        return mean, log_variance


def sinusoidal_positions(count: int, size: int) -> Tensor:
    """Return sines and cosines of positions (count, size), with waves up to 10,000.

    Vaswani et al. 2017.
    """
    waves = 10_000.0 ** (2 * (torch.arange(size, dtype=torch.float64) // 2) / size)
    angles = torch.arange(count, dtype=torch.float64)[:, None] / waves
    return torch.where(torch.arange(size) % 2 == 0, angles.sin(), angles.cos()).float()


def image_positions(maps: Tensor, size: int) -> Tensor:
    """Return positions (H W, 1, size) of feature maps (B, C, H, W), like DETR.

    Rows are in the first half, columns in the second.
    """
    half = size // 2
    waves = 10_000 ** (
        2 * (torch.arange(half, dtype=torch.float32, device=maps.device) // 2) / half
    )

    def sides(count: int) -> Tensor:
        number = torch.arange(1, count + 1, dtype=torch.float32, device=maps.device)
        angles = (number / (number[-1:] + 1e-6) * (2 * math.pi))[:, None] / waves
        return torch.stack((angles[:, 0::2].sin(), angles[:, 1::2].cos()), dim=-1).flatten(1)

    height, width = maps.shape[2:]
    rows = sides(height)[:, None].expand(-1, width, -1)
    columns = sides(width)[None].expand(height, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)[:, None]


class ACTPolicy(Visuomotor):
    """One chunk per observation; cloning minimises the distance, and the latent's information."""

    config: Config
    horizon_key, needed = "chunk_size", ()
    statistics_kind: ClassVar[Kind] = "deviations"
    supported: ClassVar[Mapping[str, Any]] = {"replace_final_stride_with_dilation": False}
    smallest: ClassVar[Mapping[str, Any]] = {
        "vision_backbone": "resnet18",
        "replace_final_stride_with_dilation": False,
        "pre_norm": False,
        "dim_model": 128,
        "n_heads": 4,
        "dim_feedforward": 256,
        "feedforward_activation": "relu",
        "n_encoder_layers": 2,
        "n_decoder_layers": 1,
        "use_vae": True,
        "latent_dim": 16,
        "n_vae_encoder_layers": 2,
        "dropout": 0.1,
        "kl_weight": 10.0,
        "temporal_ensemble_coeff": None,
        "pretrained_backbone_weights": None,
    }

    def keys_of_settings(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Visuomotor``."""
        return {"chunk_size": self.config.horizon}

    @classmethod
    def make(cls, document: Mapping[str, Any]) -> nn.Module:
        """See ``Visuomotor``."""
        return ACT(document)

    @classmethod
    def chunk_length(cls, document: Mapping[str, Any]) -> int:
        """See ``Visuomotor``."""
        return int(document["chunk_size"])

    def check_document(self, folder: Path, document: Mapping[str, Any]) -> None:
        """See ``Visuomotor``: temporal ensembling is the station's."""
        if (got := document["temporal_ensemble_coeff"]) not in (None, DECAY):
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected a temporal_ensemble_coeff of {DECAY:g}, "
                f"which station.policy.chunking=temporal_ensembling has, or none, got {got!r}"
            )

    def decode(self, batch: Batch, draws: bool, generator: torch.Generator | None) -> Tensor:
        """See ``Visuomotor``: the latent is 0, or drawn from its prior."""
        shape, latent = (len(batch["vectors"]), self.network.config["latent_dim"]), None
        if draws:
            latent = sharding.noise(torch.randn, shape, generator, self.device)
        return self.to_actions(self.network(*self.inputs(batch), latent))

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return E |a - demonstrated| plus ``kl_weight`` times the latent's divergence.

        The divergence is that of the latent's distribution from a normal one.
        """
        if not (self.network.config["dropout"] and self.training):
            return self._loss(batch, actions, generator)
        seed = int(torch.randint(2**31, (), generator=generator, device=actions.device))
        devices = [actions.device] if actions.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):  # dropout draws from the global generator
            torch.manual_seed(seed)
            self.network.train()
            try:
                return self._loss(batch, actions, generator)
            finally:
                self.network.eval()

    def _loss(self, batch: Batch, actions: Tensor, generator: torch.Generator | None) -> Tensor:
        state, images = self.inputs(batch)
        goal = self.to_network(actions)
        config = self.network.config
        if not config["use_vae"]:
            return (self.network(state, images) - goal).abs().mean()
        mean, log_variance = self.network.posterior(state, goal)
        noise = sharding.noise(torch.randn, mean.shape, generator, mean.device)
        distance = (
            (self.network(state, images, mean + (0.5 * log_variance).exp() * noise) - goal)
            .abs()
            .mean()
        )
        information = -0.5 * (1.0 + log_variance - mean**2 - log_variance.exp()).sum(dim=-1).mean()
        return distance + config["kl_weight"] * information


Policy = ACTPolicy
