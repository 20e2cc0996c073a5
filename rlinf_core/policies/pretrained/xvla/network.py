"""The network with LeRobot's key names, without their first ``model.``.

Zheng et al. 2025, arXiv 2510.10274. The vision-language model is transformers' own Florence-2,
without its text decoder. Images, sentence and noisy actions attend to each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError, SpecError
from rlinf_core.policies.pretrained import lerobot
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.huggingface import json_text, read_json
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, read_tokenizer

KIND, PREFIX, FLORENCE = "xvla", "model.", "florence_config"
SHARED, EMBEDDED = (
    f"vlm.language_model.{name}.weight" for name in ("shared", "encoder.embed_tokens")
)
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
DOMAIN, TURNED = "xvla_add_domain_id", "xvla_rotation_6d_to_axis_angle"
MAPPING = dict.fromkeys(("VISUAL", "STATE", "ACTION"), "IDENTITY")
SETTINGS = {
    "num_denoising_steps": "flow_steps",
    "tokenizer_max_length": "tokens",
    "n_action_steps": "n_action_steps",
}
# Other values are unsupported. Padding tokens are attended to, so their number counts.
SUPPORTED = {
    "pad_language_to": "max_length",
    "tokenizer_padding_side": "right",
    "domain_feature_key": None,
}
# They freeze parts in training. policy.frozen does it here.
WITHOUT_EFFECT = {
    "freeze_language_encoder": False,
    "train_policy_transformer": True,
    "train_soft_prompts": True,
    "tokenizer_name": "facebook/bart-large",
}
# LeRobot's values of missing keys
DEFAULTS: dict[str, Any] = {
    "type": KIND,
    "chunk_size": 32,
    "hidden_size": 1024,
    "depth": 24,
    "num_heads": 16,
    "mlp_ratio": 4.0,
    "num_domains": 30,
    "len_soft_prompts": 32,
    "dim_time": 32,
    "max_len_seq": 512,
    "use_hetero_proj": False,
    "action_mode": "ee6d",
    "use_proprio": True,
    "max_state_dim": 32,
    "max_action_dim": 20,
    "resize_imgs_with_padding": None,
    "num_image_views": None,
    **WITHOUT_EFFECT,
}
SMALLEST: dict[str, Any] = {
    **DEFAULTS,
    "hidden_size": 64,
    "depth": 2,
    "num_heads": 4,
    "len_soft_prompts": 4,
    "action_mode": "auto",
    "resize_imgs_with_padding": [64, 64],
    FLORENCE: {
        "text_config": {
            "model_type": "bart",
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_layers": 1,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 16,
            "max_position_embeddings": 512,
            "vocab_size": BEGIN,
            "bos_token_id": None,
            "pad_token_id": 0,
            "eos_token_id": None,
            "init_std": 0.1,
        },
        "vision_config": {
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [32, 64],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 4,
            "projection_dim": 64,
            "initializer_range": 0.1,
        },
    },
}


@dataclass(frozen=True)
class ActionSpace:
    """Numbers of an action, by LeRobot's ``action_mode``.

    Attributes:
        size: numbers of the network.
        used: the first numbers, which can be played.
        grippers: numbers that are hidden from the network, and whose output is a logit.
        squares: numbers and weight of each mean squared error in the loss.
        entropy: weight of the grippers' cross-entropies in the loss.
    """

    size: int
    used: int
    grippers: tuple[int, ...] = ()
    squares: tuple[tuple[tuple[int, ...], float], ...] = ()
    entropy: float = 0.0

    def hide(self, numbers: Tensor) -> Tensor:
        """Set the grippers' numbers of (..., M) to zero."""
        if not self.grippers:
            return numbers
        shown = torch.ones(numbers.shape[-1], device=numbers.device)
        shown[list(self.grippers)] = 0.0
        return numbers * shown

    def loss(self, predicted: Tensor, goal: Tensor, used: int) -> Tensor:
        """Return LeRobot's loss of (B, H, M). Mode ``auto`` counts the first ``used`` numbers."""
        squares = self.squares or ((tuple(range(used)), 1.0),)
        total = torch.zeros((), device=predicted.device)
        for numbers, weight in squares:
            at = list(numbers)
            total = total + weight * F.mse_loss(predicted[..., at], goal[..., at])
        if self.entropy:
            at = list(self.grippers)
            total = total + self.entropy * F.binary_cross_entropy_with_logits(
                predicted[..., at], goal[..., at]
            )
        return total

    def output(self, point: Tensor) -> Tensor:
        """Map the end of the flow (..., M) to actions: logits of grippers to [0, 1]."""
        return self._grippers(point, torch.sigmoid)

    def input(self, actions: Tensor) -> Tensor:
        """Map actions (..., M) to the end of a flow; the inverse of ``output``."""
        return self._grippers(actions, lambda share: torch.logit(share, eps=1e-4))

    def _grippers(self, numbers: Tensor, change: Any) -> Tensor:
        at = [number for number in self.grippers if number < numbers.shape[-1]]
        if not at:
            return numbers
        changed = numbers.clone()
        changed[..., at] = change(numbers[..., at])
        return changed


_ARMS = (((0, 1, 2), 500.0), ((10, 11, 12), 500.0))
_ROTATIONS = ((tuple(range(3, 9)), 10.0), (tuple(range(13, 19)), 10.0))
_JOINTS = tuple(number for number in range(14) if number not in (6, 13))
ACTION_SPACES = {
    "ee6d": ActionSpace(20, 20, (9, 19), (*_ARMS, *_ROTATIONS), 1.0),
    "joint": ActionSpace(14, 14, (6, 13), ((_JOINTS, 1.0),), 0.1),
    "agibot_ee6d": ActionSpace(20, 20, (), (*_ARMS, *_ROTATIONS, ((9, 19), 10.0))),
    "franka_joint7": ActionSpace(20, 7, (), ((tuple(range(7)), 1.0),)),
    "so101_bimanual": ActionSpace(
        20,
        12,
        (5, 11),
        (
            (tuple(range(12)), 1.0),
            ((5, 11), 1.0),
            (tuple(range(6)), 1.0),
            (tuple(range(6, 12)), 1.0),
        ),
    ),
}


class XVLANetwork(nn.Module):
    """Images and tokens to a context; context, state and noisy actions to clean actions.

    Training has no dropout.

    Args:
        config: LeRobot's config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import Florence2Model

        self.config = dict(config)
        florence = florence_config(config[FLORENCE])
        self.vlm = Florence2Model(florence).float()
        # the encoder has the same embeddings
        del self.vlm.language_model.decoder, self.vlm.language_model.shared
        self.space = action_space(config)
        state = config["max_state_dim"] if config["use_proprio"] else 0
        if self.space.grippers and state <= max(self.space.grippers):
            raise ValueError(
                f"max_state_dim of {state}, expected more than {max(self.space.grippers)} in the "
                f"action_mode {config['action_mode']}"
            )
        self.transformer = SoftPromptedTransformer(
            config, florence.vision_config.projection_dim, self.space.size, state
        )

    def prefix(self, pixels: Tensor, ids: Tensor, domain: int, horizon: int) -> Prefix:
        """Return the context of images (B, cameras, 3, H, W) and tokens (B, L)."""
        features = self.vlm.get_image_features(pixels.flatten(0, 1)).pooler_output
        features = features.unflatten(0, pixels.shape[:2])
        more = max((self.config["num_image_views"] or 0) - pixels.shape[1], 0)
        features = F.pad(features, (0, 0, 0, 0, 0, more))
        encoder = self.vlm.language_model.encoder
        embeds = torch.cat([features[:, 0], encoder.embed_tokens(ids)], dim=1)
        encoded = encoder(inputs_embeds=embeds)[0]
        context = self.transformer.context(encoded, features[:, 1:].flatten(1, 2), domain, horizon)
        return Prefix([context], [], torch.ones(context.shape[:2], device=context.device).bool())

    def predicted(
        self, prefix: Prefix, state: Tensor, point: Tensor, time: Tensor, domain: int
    ) -> Tensor:
        """Return the clean actions at a point (B, H, M) and time (B,)."""
        state = self.space.hide(state) if state.shape[-1] else state
        predicted: Tensor = self.transformer(
            prefix.keys[0], state, self.space.hide(point), time, domain
        )
        return predicted


class SoftPromptedTransformer(nn.Module):
    """Actions, context and a robot's soft prompts attend to each other."""

    def __init__(self, config: Mapping[str, Any], features: int, action: int, state: int) -> None:
        super().__init__()
        width, domains = config["hidden_size"], config["num_domains"]
        self.times = config["dim_time"]
        self.blocks = nn.ModuleList(
            Block(width, config["num_heads"], int(width * config["mlp_ratio"]))
            for _ in range(config["depth"])
        )
        if config["use_hetero_proj"]:
            self.vlm_proj: nn.Module = DomainLinear(features, width, domains)
            self.aux_visual_proj: nn.Module = DomainLinear(features, width, domains)
        else:
            self.vlm_proj = nn.Linear(features, width)
            self.aux_visual_proj = nn.Linear(features, width)
        self.pos_emb = nn.Parameter(0.02 * torch.randn(1, config["max_len_seq"], width))
        self.norm = nn.LayerNorm(width)
        self.action_encoder = DomainLinear(action + self.times + state, width, domains)
        self.action_decoder = DomainLinear(width, action, domains)
        self.prompts = config["len_soft_prompts"]
        if self.prompts:
            self.soft_prompt_hub = nn.Embedding(domains, self.prompts * width)
            nn.init.normal_(self.soft_prompt_hub.weight, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def context(self, encoded: Tensor, views: Tensor, domain: int, horizon: int) -> Tensor:
        """Return the tokens (B, L, W) behind the actions: features with their places, prompts."""
        projected = [
            layer(x, domain) if isinstance(layer, DomainLinear) else layer(x)
            for layer, x in ((self.vlm_proj, encoded), (self.aux_visual_proj, views))
        ]
        x = torch.cat(projected, dim=1)
        if (length := horizon + x.shape[1]) > self.pos_emb.shape[1]:
            raise SpecError(
                f"policy.kind: expected at most {self.pos_emb.shape[1]} tokens (max_len_seq), got "
                f"{length} of images, sentence and actions. Take fewer or smaller images"
            )
        x = x + self.pos_emb[:, horizon:length]
        if self.prompts:
            prompts = self.soft_prompt_hub.weight[domain].view(1, self.prompts, -1)
            x = torch.cat([x, prompts.expand(len(x), -1, -1)], dim=1)
        return x

    def forward(
        self, context: Tensor, state: Tensor, point: Tensor, time: Tensor, domain: int
    ) -> Tensor:
        horizon, half = point.shape[1], self.times // 2
        place = torch.arange(half, dtype=time.dtype, device=time.device)
        angle = time[:, None] * torch.exp(-math.log(100) * place / half)
        sines = F.pad(torch.cat([angle.cos(), angle.sin()], dim=-1), (0, self.times % 2))
        same = torch.cat([state, sines], dim=-1)[:, None].expand(-1, horizon, -1)
        x = self.action_encoder(torch.cat([point, same], dim=-1), domain)
        x = torch.cat([x + self.pos_emb[:, :horizon], context], dim=1)
        for block in self.blocks:
            x = block(x)
        actions: Tensor = self.action_decoder(self.norm(x[:, :horizon]), domain)
        return actions


class Block(nn.Module):
    """Attention and a perceptron, each with a normalisation before."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)}
        )
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, width)})
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.attn["qkv"](self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attn["proj"](attended.transpose(1, 2).flatten(2))
        inner = F.gelu(self.mlp["fc1"](self.norm2(x)), approximate="tanh")
        outer: Tensor = self.mlp["fc2"](inner)
        return x + outer


class DomainLinear(nn.Module):
    """A linear layer with weights of its own for each kind of robot."""

    def __init__(self, inputs: int, outputs: int, domains: int) -> None:
        super().__init__()
        self.fc, self.bias = nn.Embedding(domains, outputs * inputs), nn.Embedding(domains, outputs)
        nn.init.normal_(self.fc.weight, std=inputs**-0.5)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x: Tensor, domain: int) -> Tensor:
        bias = self.bias.weight[domain]
        return x @ self.fc.weight[domain].view(x.shape[-1], len(bias)) + bias


def action_space(config: Mapping[str, Any]) -> ActionSpace:
    """Return the numbers of an action by ``action_mode``; raise ValueError if it is unknown."""
    mode, size = str(config["action_mode"]).lower(), config["max_action_dim"]
    spaces = ACTION_SPACES | {"auto": ActionSpace(size, size)}
    if mode not in spaces:
        raise ValueError(f"action_mode of {mode!r}, expected one of {', '.join(sorted(spaces))}")
    return spaces[mode]


def florence_config(document: Mapping[str, Any]) -> Any:
    """Return transformers' config of a ``florence_config``, in its format or in Microsoft's.

    Raises:
        ValueError: the config has an unsupported value.
    """
    from transformers import Florence2Config

    vision, text = (dict(document[key]) for key in ("vision_config", "text_config"))
    place, time = (
        vision.pop(key, None) for key in ("image_pos_embed", "visual_temporal_embedding")
    )
    vision.pop("enable_checkpoint", None)
    expected = (
        ("model_type", vision.pop("model_type", None), (None, "davit", "florence_vision")),
        ("image_pos_embed", place and place.get("type"), (None, "learned_abs_2d")),
        ("visual_temporal_embedding", time and time.get("type"), (None, "COSINE")),
        (
            "image_feature_source",
            vision.pop("image_feature_source", None),
            (None, ["spatial_avg_pool", "temporal_avg_pool"]),
        ),
    )
    for key, value, supported in expected:
        if value not in supported:
            raise ValueError(f"vision_config.{key} of {value!r}, expected {supported[1]!r}")
    if place:
        vision["max_position_embeddings"] = place["max_pos_embeddings"]
    if time:
        vision["max_temporal_embeddings"] = time["max_temporal_embeddings"]
    if "dim_embed" in vision:
        vision["embed_dim"] = vision.pop("dim_embed")
    if text.get("model_type", "florence2_language") == "florence2_language":
        text["model_type"] = "bart"
    dropout = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop")
    text |= dict.fromkeys(dropout, 0.0)
    return Florence2Config(vision_config=vision | {"drop_path_rate": 0.0}, text_config=text)


class XVLAFactory(NetworkFactory):
    """LeRobot's folders, with the tokenizer.json of facebook/bart-large."""

    kind, config_name, horizon_key, metadata = KIND, "X-VLA's config.json", "chunk_size", None

    def make(self, config: Mapping[str, Any]) -> XVLANetwork:
        return XVLANetwork(config)

    def smallest_config(self) -> dict[str, Any]:
        return SMALLEST

    def read(self, folder: Path) -> CheckpointInfo:
        needed, features = ("chunk_size", FLORENCE), "input_features"
        config, training = lerobot.read_config(
            folder,
            KIND,
            needed,
            (*DEFAULTS, features, "empty_cameras"),
            SUPPORTED,
            settings=SETTINGS,
        )
        shown = config.pop(features, None) or {}
        cameras = [name for name, feature in shown.items() if feature.get("type") == "VISUAL"]
        # LeRobot counts so where it loads a folder
        counted = len(cameras) + config.pop("empty_cameras", 0)
        views = max(config.get("num_image_views") or 0, counted)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected tokenizer.json, found none. Copy that of "
                f"{config.get('tokenizer_name', DEFAULTS['tokenizer_name'])} there"
            )
        return CheckpointInfo(
            {**DEFAULTS, **config, "num_image_views": views},
            read_tokenizer(path),
            config["chunk_size"],
            training.state_statistics,
            training.action_statistics,
            {**training.settings, "domain": ("domain_id", read_domain(folder))},
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        plain = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
        if any(name.startswith("vlm.language_model.model.") for name in plain):
            plain = dict(from_microsoft(name, tensor) for name, tensor in plain.items())
            plain.pop("vlm.language_model.final_logits_bias", None)
        decoder = "vlm.language_model.decoder."
        plain = {name: x for name, x in plain.items() if not name.startswith(decoder)}
        if SHARED in plain:
            plain.setdefault(EMBEDDED, plain[SHARED])
            del plain[SHARED]
        return plain

    def module_name(self, name: str, network: Any) -> str:
        """See ``NetworkFactory``: LeRobot's."""
        return PREFIX + name

    def folder_files(
        self, network: XVLANetwork, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """See ``NetworkFactory``."""
        document = {**network.config, "normalization_mapping": MAPPING}
        weights = network.state_dict()
        return (
            {PREFIX + name: tensor for name, tensor in weights.items()},
            {"config.json": json_text(document), "tokenizer.json": tokenizer.text},
        )


def read_domain(folder: Path) -> int:
    """Return the domain_id of a folder's processors; LeRobot's default is 0.

    Raises:
        PolicyFileError: the processors change actions in a way that is not done here.
    """
    domain = 0
    for file in (PREPROCESSOR, POSTPROCESSOR):
        steps = read_json(folder / file).get("steps", []) if (folder / file).is_file() else []
        for step in steps:
            if step.get("registry_name") == TURNED:
                raise PolicyFileError(
                    f"policy.checkpoint {folder / file}: expected processors that scale alone, got "
                    f"{TURNED}: it turns poses of ten numbers into seven. Play this folder by "
                    "policy.kind: lerobot"
                )
            if step.get("registry_name") == DOMAIN:
                domain = int(step.get("config", {}).get("domain_id", 0))
    return domain


# Microsoft's names of Florence-2, as LeRobot 0.4 and 0.5 write them, and transformers' names
_BLOCK = r"^vlm\.vision_tower\.blocks\.(\d+)\.(\d+)\.(spatial_block|channel_block)\."
_NAMED = r"vlm.vision_tower.blocks.\1.\2.\3."
_RENAMED = [
    (r"^vlm\.vision_tower\.convs\.(\d+)\.proj\.", r"vlm.vision_tower.convs.\1.conv."),
    (_BLOCK + r"(conv[12])\.fn\.dw\.", _NAMED + r"\4."),
    (_BLOCK + r"(?:window_attn|channel_attn)\.norm\.", _NAMED + "norm1."),
    (_BLOCK + r"(window_attn|channel_attn)\.fn\.", _NAMED + r"\4."),
    (_BLOCK + r"ffn\.norm\.", _NAMED + "norm2."),
    (_BLOCK + r"ffn\.fn\.net\.", _NAMED + "ffn."),
    (r"^vlm\.image_proj_norm\.", "vlm.multi_modal_projector.image_proj_norm."),
    (r"^vlm\.image_pos_embed\.", "vlm.multi_modal_projector.image_position_embed."),
    (r"^vlm\.visual_temporal_embed\.", "vlm.multi_modal_projector.visual_temporal_embed."),
    (r"^vlm\.language_model\.model\.", "vlm.language_model."),
]


def from_microsoft(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Return transformers' name and weight for one of Microsoft's."""
    if name == "vlm.image_projection":
        return "vlm.multi_modal_projector.image_projection.weight", tensor.T.contiguous()
    for pattern, replacement in _RENAMED:
        changed, count = re.subn(pattern, replacement, name, count=1)
        if count:
            return changed, tensor
    return name, tensor


FACTORY = XVLAFactory()
