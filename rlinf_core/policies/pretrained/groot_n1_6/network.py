"""The network with the key names of GR00T N1.6, ``backbone.model`` and ``action_head``.

NVIDIA 2025, huggingface.co/nvidia/GR00T-N1.6-3B. After NVIDIA/Isaac-GR00T, commit ead5283, the last
with N1.6: ``gr00t/model/gr00t_n1d6`` and ``gr00t/model/modules``. Beside its neighbours:

* The vision-language model is Eagle 3 (Eagle-Block2A-2B-v2). N1.5 has Eagle 2.5, N1.7 Qwen3-VL.
* The vision tower is SigLIP 2 for images of any shape in patches of 14 pixels. Four neighbours
  become one token, after a normalisation and two layers. In N1.5 each patch becomes a token.
* The features come after the language model's last normalisation, as in N1.5. N1.7 takes those
  before it.
* The action head is that of N1.7 without attention before the transformer, with 32 layers in place
  of 16. Its blocks attend to text and images in turn. N1.5 has future tokens and neither.
* The published sizes are 50 actions of 128 numbers, and states of 128 numbers. N1.7 has 40 and 132.
* A learned token replaces the state in a share of the training (``state_dropout_prob``). It is kept
  for export, and no action here depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError, escape_ascii
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.groot import network as n1_5
from rlinf_core.policies.pretrained.groot.head import ActionHead
from rlinf_core.policies.pretrained.groot.network import EAGLE, read_eagle_tokenizer
from rlinf_core.policies.pretrained.groot_n1_7 import network as n1_7
from rlinf_core.policies.pretrained.groot_n1_7.network import (
    PROCESSOR,
    PROCESSOR_FILE,
    action_head_config,
    check_head,
    read_groot_config,
    read_processor,
)
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    json_text,
    make_config,
    read_json,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, parse_tokenizer

KIND, EAGLE_FOLDER = "Gr00tN1d6", "eagle"
# NVIDIA's place of Eagle's files, in its repository Isaac-GR00T
ASSETS = "gr00t/model/modules/nvidia/Eagle-Block2A-2B-v2"
PATCH, MERGED = 14, 2  # pixels of a patch, and patches along a side of a token
UNUSED = (  # a pooling head and a language model's output, which N1.6 does not use
    "backbone.model.vision_model.vision_model.head.",
    "backbone.model.language_model.lm_head.",
)
_WITHOUT_N1_7 = ("vl_self_attention_cfg",)
DEFAULTS: dict[str, Any] = {  # NVIDIA's values of missing keys
    **{key: value for key, value in n1_7.DEFAULTS.items() if key not in _WITHOUT_N1_7},
    "model_name": "nvidia/Eagle-Block2A-2B-v2",
    "select_layer": 16,
    "max_state_dim": 29,
    "max_action_dim": 29,
    "action_horizon": 16,
    "diffusion_model_cfg": n1_7.DEFAULTS["diffusion_model_cfg"] | {"num_layers": 32},
    "state_dropout_prob": 0.0,
}
# other values are unsupported
SUPPORTED: dict[str, Any] = {
    "backbone_model_type": "eagle",
    "reproject_vision": False,
    "add_pos_embed": True,
    "use_vlln": True,
    "noise_beta_beta": 1.0,
}
# Keys of training and of the machine. processor_config.json has the processor's values, which
# count.
WITHOUT_EFFECT = {
    *(n1_7.WITHOUT_EFFECT - {"state_dropout_prob"}),
    *("eagle_collator", "gemma_collator", "state_additive_noise_scale"),
    *("attn_implementation", "apply_sincos_state_encoding"),
}
SUPPORTED_EAGLE: dict[str, Any] = {
    "model_type": "eagle_3_vl",
    "select_layer": -1,
    "downsample_ratio": 1 / MERGED,
    "use_backbone_lora": 0,
    "use_llm_lora": 0,
}
READ_EAGLE = {"image_token_index", "text_config", "vision_config"}
EAGLE_WITHOUT_EFFECT = {  # Eagle's own training, and its tiles of large images
    *("dynamic_image_size", "min_dynamic_tiles", "max_dynamic_tiles", "use_thumbnail"),
    *("loss_version", "mlp_checkpoint", "mlp_connector_layers", "use_pixel_shuffle", "pad2square"),
    *("template", "tie_word_embeddings", "initializer_range", "architectures", "auto_map"),
    *("torch_dtype", "dtype", "transformers_version"),
}
SUPPORTED_VISION: dict[str, Any] = {
    "model_type": "siglip2_vision_model",
    "patch_size": PATCH,
    "num_channels": 3,
    "use_rope": False,
    "use_windows_attn": False,
}
READ_VISION = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_patches", "hidden_act", "layer_norm_eps"),
}
VISION_WITHOUT_EFFECT = {  # windows are not used, and the tower is not trained with dropout
    *("window_size", "full_attention_indexes", "attention_dropout", "vision_use_head"),
    *("torch_dtype", "dtype"),
}
# NVIDIA's values, also of a folder without processor_config.json
PROCESSOR_DEFAULTS: dict[str, Any] = {
    "image_target_size": None,
    "image_crop_size": None,
    "shortest_image_edge": 256,
    "crop_fraction": 0.95,
    "use_albumentations": True,
    "letter_box_transform": False,
    "formalize_language": True,
    "clip_outliers": True,
}
SMALLEST: dict[str, Any] = {
    **DEFAULTS,
    "model_type": KIND,
    "architectures": [KIND],
    "backbone_model_type": "eagle",
    "backbone_embedding_dim": 128,
    "select_layer": 2,
    "max_state_dim": 64,
    "max_action_dim": 32,
    "hidden_size": 128,
    "input_embedding_dim": 128,
    "diffusion_model_cfg": n1_7.SMALLEST["diffusion_model_cfg"],
    PROCESSOR: PROCESSOR_DEFAULTS | {"shortest_image_edge": 56},
    EAGLE: {
        **SUPPORTED_EAGLE,
        "image_token_index": BEGIN + 1,
        "text_config": n1_5.SMALLEST[EAGLE]["text_config"],
        "vision_config": {
            **SUPPORTED_VISION,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_patches": 16,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
    },
}


class GrootN16Network(nn.Module):
    """Map images and tokens to keys and values; these, state and noisy actions to a velocity.

    Args:
        config: GR00T's config.json, with Eagle's in ``eagle_config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import Qwen3Config, Qwen3Model, Siglip2VisionConfig, Siglip2VisionModel

        self.config = dict(config)
        eagle = config[EAGLE]
        layers = {"num_hidden_layers": config["select_layer"], "layer_types": None}
        text = make_config(Qwen3Config, {**eagle["text_config"], **layers})
        vision = make_config(
            Siglip2VisionConfig, {**eagle["vision_config"], "vision_use_head": False}
        )
        width, features = vision.hidden_size * MERGED**2, text.hidden_size
        model = {
            "vision_model": nn.ModuleDict({"vision_model": Siglip2VisionModel(vision).float()}),
            "language_model": nn.ModuleDict({"model": Qwen3Model(text).float()}),
            "mlp1": nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, features),
                nn.GELU(),
                nn.Linear(features, features),
            ),
        }
        self.backbone = nn.ModuleDict({"model": nn.ModuleDict(model)})
        self.action_head = ActionHead(self.head_config)
        if config["state_dropout_prob"]:
            token = 0.02 * torch.randn(1, 1, config["input_embedding_dim"])
            self.action_head.register_buffer("mask_token", token)

    @property
    def head_config(self) -> Mapping[str, Any]:
        """Sizes of the action head, by the keys of N1.5."""
        return action_head_config(self.config)

    def prefix(self, pixels: Tensor, grid: Tensor, ids: Tensor, mask: Tensor) -> Prefix:
        """Return the prefix of images' patches (B, P, numbers) and masked tokens (B, L).

        Args:
            pixels: patches of each observation's images, row by row.
            grid: rows and columns of patches of each camera's images, (B, cameras, 2).
            ids: tokens, with one for each square of merged patches.
            mask: mask of the tokens in use.
        """
        eagle: Any = self.backbone["model"]
        features, start = [], 0
        for number, (down, right) in enumerate(grid[0].tolist()):
            patches = eagle["vision_model"]["vision_model"](
                pixel_values=pixels[:, start : start + down * right],
                pixel_attention_mask=None,
                spatial_shapes=grid[:, number],
            ).last_hidden_state
            start += down * right
            square = patches.transpose(1, 2).unflatten(2, (down, right))
            merged = F.pixel_unshuffle(square, MERGED).flatten(2).transpose(1, 2)
            features.append(eagle["mlp1"](merged))
        model = eagle["language_model"]["model"]
        words = model.get_input_embeddings()(ids)
        image_mask = ids == self.config[EAGLE]["image_token_index"]
        images = torch.cat(features, dim=1).to(words.dtype)
        # padding comes last and is masked later
        hidden = model(
            inputs_embeds=words.masked_scatter(image_mask.unsqueeze(-1), images), use_cache=False
        ).last_hidden_state
        alternates = self.config["use_alternate_vl_dit"]
        return self.action_head.prefix(hidden, mask, image_mask if alternates else None)


class GrootN16Factory(NetworkFactory):
    """NVIDIA's folders of N1.6, with Eagle's files in ``eagle``."""

    kind, config_name, horizon_key = "groot_n1_6", "GR00T N1.6's config.json", "action_horizon"

    def make(self, config: Mapping[str, Any]) -> GrootN16Network:
        _check(config)
        return GrootN16Network(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import Qwen3Config

        eagle = dict(SMALLEST[EAGLE])
        text = complete_document(make_config(Qwen3Config, eagle["text_config"]))
        return {**SMALLEST, EAGLE: eagle | {"text_config": text | {"layer_types": None}}}

    def read(self, folder: Path) -> CheckpointInfo:
        document = read_groot_config(folder, KIND, DEFAULTS, SUPPORTED, WITHOUT_EFFECT)
        config, eagle = DEFAULTS | document, _eagle(folder)
        processor, _ = read_processor(folder, PROCESSOR_DEFAULTS, {"model_type": "eagle"})
        tokenizer_file = folder / EAGLE_FOLDER / "tokenizer.json"
        return CheckpointInfo(
            {**config, PROCESSOR: processor, EAGLE: eagle},
            parse_tokenizer(read_eagle_tokenizer(folder / EAGLE_FOLDER), tokenizer_file),
            config["action_horizon"],
            settings={"flow_steps": ("num_inference_timesteps", config["num_inference_timesteps"])},
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in weights.items() if not name.startswith(UNUSED)}

    def folder_files(
        self, network: GrootN16Network, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        added = (EAGLE, PROCESSOR)
        document = {key: value for key, value in network.config.items() if key not in added}
        processor = {"processor_kwargs": network.config[PROCESSOR]}
        return network.state_dict(), {
            "config.json": json_text(document),
            PROCESSOR_FILE: json_text(processor),
            f"{EAGLE_FOLDER}/config.json": json_text(network.config[EAGLE]),
            f"{EAGLE_FOLDER}/tokenizer.json": tokenizer.text,
        }


def _eagle(folder: Path) -> dict[str, Any]:
    """Return Eagle's config; raise PolicyFileError for an unknown or unsupported key."""
    path = folder / EAGLE_FOLDER / "config.json"
    if not path.is_file():
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected Eagle's config.json, found none. Copy the folder "
            f"{ASSETS} of NVIDIA's repository Isaac-GR00T (tag n1.6-release) to "
            f"CHECKPOINT/{EAGLE_FOLDER}"
        )
    document = read_json(path)
    vision = document.get("vision_config") or {}
    parts = (
        ("", document, SUPPORTED_EAGLE, READ_EAGLE | EAGLE_WITHOUT_EFFECT),
        ("vision_config.", vision, SUPPORTED_VISION, READ_VISION | VISION_WITHOUT_EFFECT),
    )
    for where, section, supported, others in parts:
        for key, value in supported.items():
            if (got := section.get(key, _MISSING.get(where + key, value))) != value:
                raise PolicyFileError(
                    f"policy.checkpoint {path}: expected {where}{key} of {value}, got {got!r}"
                )
        for key, value in section.items():
            if value and not key.startswith("_") and key not in {*supported, *others}:
                raise PolicyFileError(
                    f"policy.checkpoint {path}: expected keys of Eagle 3, got "
                    f"'{where}{escape_ascii(key)}: {escape_ascii(value)[:60]}', whose effect is "
                    "not known here. Where it has none, take the line out"
                )
    return document


# NVIDIA's values of missing keys where these differ from the supported ones
_MISSING: dict[str, Any] = {
    "model_type": None,
    "select_layer": -4,
    "vision_config.model_type": None,
    "vision_config.use_rope": True,
    "vision_config.use_windows_attn": True,
}


def _check(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a value is unsupported, or parts do not fit each other."""
    eagle, processor = config[EAGLE], config[PROCESSOR]
    text, vision = eagle["text_config"], eagle["vision_config"]
    if text["architectures"] != ["Qwen3ForCausalLM"]:
        raise ValueError(
            f"text_config.architectures of {text['architectures']}, expected Qwen3ForCausalLM"
        )
    layers, available = config["select_layer"], text["num_hidden_layers"]
    if not 0 < layers <= available:
        raise ValueError(f"select_layer of {layers}, expected 1 to {available}")
    sizes = [processor[key] for key in ("image_target_size", "image_crop_size")]
    missing = processor["shortest_image_edge"] is None or processor["crop_fraction"] is None
    if None in sizes and (missing or not processor["use_albumentations"]):
        raise ValueError(
            "image_target_size or image_crop_size of None, expected two sides in pixels by "
            "use_albumentations of False, or without shortest_image_edge and crop_fraction"
        )
    if vision["num_patches"] != int(vision["num_patches"] ** 0.5) ** 2:
        raise ValueError(f"num_patches of {vision['num_patches']}, expected a square")
    check_head(config, "eagle_config.text_config.hidden_size", text["hidden_size"])


FACTORY = GrootN16Factory()
