"""The network with the key names of GR00T N1.7, ``backbone.model`` and ``action_head``.

NVIDIA 2026, huggingface.co/nvidia/GR00T-N1.7-3B. The vision-language model is transformers' own
Qwen3-VL (Cosmos-Reason2-2B), with the first ``select_layer`` layers of its language model. The
action head is that of N1.5 without future tokens. Its blocks attend to text and images in turn.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import PolicyFileError, escape_ascii
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.groot import network as n1_5
from rlinf_core.policies.pretrained.groot.head import ActionHead, check_widths
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    json_text,
    make_config,
    read_json,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, read_tokenizer

KIND, COSMOS, PROCESSOR = "Gr00tN1d7", "cosmos_config", "processor"
ASSETS = "nvidia/Cosmos-Reason2-2B"  # the published place of the backbone's files
COSMOS_FOLDER = "cosmos"  # their folder in a checkpoint's folder
HEAD, NORM = "backbone.model.lm_head.weight", "backbone.model.model.language_model.norm.weight"
PROCESSOR_FILE = "processor_config.json"
PIXELS = (65_536, 16_777_216)  # smallest and largest image of Qwen3-VL's processor
DEFAULTS: dict[str, Any] = {  # NVIDIA's values of missing keys
    "model_name": ASSETS,
    "backbone_embedding_dim": 2048,
    "select_layer": 12,
    "max_state_dim": 132,
    "max_action_dim": 132,
    "action_horizon": 40,
    "hidden_size": 1024,
    "input_embedding_dim": 1536,
    "max_seq_len": 1024,
    "use_alternate_vl_dit": True,
    "attend_text_every_n_blocks": 2,
    "diffusion_model_cfg": {
        "positional_embeddings": None,
        "num_layers": 16,
        "num_attention_heads": 32,
        "attention_head_dim": 48,
        "norm_type": "ada_norm",
        "output_dim": 1024,
        "interleave_self_attention": True,
    },
    "vl_self_attention_cfg": {"num_layers": 0},
    "num_inference_timesteps": 4,
    "noise_beta_alpha": 1.5,
    "noise_s": 0.999,
    "num_timestep_buckets": 1000,
    "max_num_embodiments": 32,
}
# other values are unsupported
SUPPORTED: dict[str, Any] = {
    "backbone_model_type": "qwen",
    "reproject_vision": False,
    "state_history_length": 1,
    "add_pos_embed": True,
    "use_vlln": True,
    "noise_beta_beta": 1.0,
    "apply_sincos_state_encoding": False,
    "exclude_state": False,
    "use_mean_std": False,
    "use_tactile": False,
}
SUPPORTED_PARTS: dict[str, dict[str, Any]] = {
    name: n1_5.SUPPORTED[name] for name in ("diffusion_model_cfg", "vl_self_attention_cfg")
}
# Keys of training, of the machine and of a processor. processor_config.json has the processor's
# values, which count.
WITHOUT_EFFECT = {
    *("model_dtype", "dtype", "torch_dtype", "model_revision", "use_flash_attention", "load_bf16"),
    *("tune_llm", "tune_visual", "tune_projector", "tune_diffusion_model", "tune_vlln"),
    *("tune_top_llm_layers", "backbone_trainable_params_fp32", "attn_dropout"),
    *("state_dropout_prob", "strict_action_padding_mask", "rtc_ramp_rate"),
    *("image_crop_size", "image_target_size", "shortest_image_edge", "crop_fraction"),
    *("random_rotation_angle", "color_jitter_params", "extra_augmentation_config"),
    *("use_albumentations_transforms", "letter_box_transform", "formalize_language"),
    *("use_percentiles", "use_relative_action", "collator_overwrite_image_inputs"),
    *("architectures", "auto_map", "transformers_version", "_name_or_path", "model_type"),
    *("output_attentions", "output_hidden_states", "return_dict", "is_encoder_decoder"),
    *("id2label", "label2id", "problem_type", "chunk_size_feed_forward"),
}
# NVIDIA's values, also of a folder without processor_config.json
PROCESSOR_DEFAULTS: dict[str, Any] = {
    "image_target_size": [256, 256],
    "image_crop_size": [230, 230],
    "shortest_image_edge": None,
    "crop_fraction": None,
    "use_albumentations": False,
    "letter_box_transform": False,
    "formalize_language": True,
    "clip_outliers": True,
    "pixels": list(PIXELS),
}
SMALLEST: dict[str, Any] = {
    **DEFAULTS,
    "model_type": KIND,
    "architectures": [KIND],
    "model_name": COSMOS_FOLDER,
    "backbone_model_type": "qwen",
    "backbone_embedding_dim": 128,
    "select_layer": 2,
    "max_state_dim": 64,
    "max_action_dim": 32,
    "hidden_size": 128,
    "input_embedding_dim": 128,
    "diffusion_model_cfg": {
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "num_layers": 4,
        "output_dim": 128,
        "interleave_self_attention": True,
        **SUPPORTED_PARTS["diffusion_model_cfg"],
    },
    "vl_self_attention_cfg": {
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "num_layers": 1,
        **SUPPORTED_PARTS["vl_self_attention_cfg"],
    },
    PROCESSOR: PROCESSOR_DEFAULTS
    | {"image_target_size": [64, 64], "image_crop_size": [58, 58], "pixels": [4096, 65_536]},
    COSMOS: {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "image_token_id": BEGIN + 1,
        "vision_start_token_id": BEGIN + 2,
        "vision_end_token_id": BEGIN + 3,
        "video_token_id": BEGIN + 4,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "head_dim": 32,
            "num_key_value_heads": 2,
            "vocab_size": BEGIN + 5,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 2,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_heads": 4,
            "patch_size": 16,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
    },
}


class GrootN17Network(nn.Module):
    """Map images and tokens to keys and values; these, state and noisy actions to a velocity.

    Args:
        config: GR00T's config.json, with Cosmos' in ``cosmos_config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import Qwen3VLConfig, Qwen3VLModel

        text = {**config[COSMOS]["text_config"], "num_hidden_layers": config["select_layer"]}
        cosmos = make_config(Qwen3VLConfig, {**config[COSMOS], "text_config": text})
        model: Any = Qwen3VLModel(cosmos).float()
        # The features are those before the language model's last normalisation.
        self.register_buffer("final_norm", model.language_model.norm.weight.detach().clone())
        model.language_model.norm = nn.Identity()
        self.config = dict(config)
        self.backbone = nn.ModuleDict({"model": nn.ModuleDict({"model": model})})
        self.action_head = ActionHead(self.head_config)

    @property
    def vlm(self) -> Any:
        """The vision-language model, transformers' Qwen3-VL."""
        wrapped: Any = self.backbone["model"]
        return wrapped["model"]

    @property
    def head_config(self) -> Mapping[str, Any]:
        """Sizes of the action head, by the keys of N1.5."""
        return action_head_config(self.config)

    def prefix(self, pixels: Tensor, grid: Tensor, ids: Tensor, mask: Tensor) -> Prefix:
        """Return the prefix of images' patches (B, P, numbers) and masked tokens (B, L).

        Args:
            pixels: patches of each observation's images.
            grid: patches per time, column and row of each image (B cameras, 3).
            ids: tokens, with one for each merged square of patches.
            mask: mask of the tokens in use.
        """
        model, image_mask = self.vlm, ids == self.config[COSMOS]["image_token_id"]
        position_ids, _ = model.get_rope_index(
            ids, image_mask.int(), image_grid_thw=grid, attention_mask=mask
        )
        vision = model.get_image_features(pixels.flatten(0, 1), grid)
        words = model.get_input_embeddings()(ids)
        features = torch.cat(vision.pooler_output).to(words.dtype)
        hidden = model.language_model(
            inputs_embeds=words.masked_scatter(image_mask.unsqueeze(-1), features),
            attention_mask=mask,
            position_ids=position_ids,
            visual_pos_masks=image_mask,
            deepstack_visual_embeds=[torch.cat(x) for x in vision.deepstack_features],
            use_cache=False,
        ).last_hidden_state
        alternates = self.config["use_alternate_vl_dit"]
        return self.action_head.prefix(hidden, mask, image_mask if alternates else None)


def action_head_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of an action head by the keys of N1.5, from those of N1.6 or N1.7."""
    width, alternates = config["backbone_embedding_dim"], config["use_alternate_vl_dit"]
    return {
        "vl_self_attention_cfg": {"num_layers": 0},
        **config,
        "action_dim": config["max_action_dim"],
        "num_target_vision_tokens": 0,
        "attend_text_every_n_blocks": config["attend_text_every_n_blocks"] * bool(alternates),
        "diffusion_model_cfg": config["diffusion_model_cfg"] | {"cross_attention_dim": width},
    }


class GrootN17Factory(NetworkFactory):
    """NVIDIA's folders of N1.7, with Cosmos-Reason2's files in ``cosmos``."""

    kind, config_name, horizon_key = "groot_n1_7", "GR00T N1.7's config.json", "action_horizon"

    def make(self, config: Mapping[str, Any]) -> GrootN17Network:
        _check(config)
        return GrootN17Network(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import Qwen3VLConfig

        document = complete_document(make_config(Qwen3VLConfig, SMALLEST[COSMOS]))
        document["text_config"]["rope_parameters"] = None
        return {**SMALLEST, COSMOS: document}

    def add_derived_values(self, config: dict[str, Any]) -> dict[str, Any]:
        text, vision = (config[COSMOS][name] for name in ("text_config", "vision_config"))
        if text["rope_parameters"] is None:  # time, height and width, in the published proportions
            half = text["head_dim"] // 2
            space = half * 5 // 16
            text["rope_parameters"] = {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_interleaved": True,
                "mrope_section": [half - 2 * space, space, space],
            }
        vision["out_hidden_size"] = text["hidden_size"]
        return config

    def read(self, folder: Path) -> CheckpointInfo:
        document = read_groot_config(folder, KIND, DEFAULTS)
        processor, cosmos = _read_image_processor(folder), _cosmos(folder)
        config = DEFAULTS | document
        config["vl_self_attention_cfg"] = {"num_layers": 0} | (
            config["vl_self_attention_cfg"] or {}
        )
        return CheckpointInfo(
            {**config, PROCESSOR: processor, COSMOS: cosmos},
            read_tokenizer(folder / COSMOS_FOLDER / "tokenizer.json"),
            config["action_horizon"],
            settings={"flow_steps": ("num_inference_timesteps", config["num_inference_timesteps"])},
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        named = {name: tensor for name, tensor in weights.items() if name != HEAD}
        if NORM in named:
            named["final_norm"] = named.pop(NORM)
        return named

    def folder_files(
        self, network: GrootN17Network, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        weights = network.state_dict()
        weights[NORM] = weights.pop("final_norm")
        added = (COSMOS, PROCESSOR)
        document = {key: value for key, value in network.config.items() if key not in added}
        processor = dict(network.config[PROCESSOR])
        least, most = processor.pop("pixels")
        image_sizes = {"size": {"shortest_edge": least, "longest_edge": most}}
        return weights, {
            "config.json": json_text(document),
            PROCESSOR_FILE: json_text({"processor_kwargs": processor}),
            f"{COSMOS_FOLDER}/config.json": json_text(network.config[COSMOS]),
            f"{COSMOS_FOLDER}/preprocessor_config.json": json.dumps(image_sizes),
            f"{COSMOS_FOLDER}/tokenizer.json": tokenizer.text,
        }


def read_groot_config(
    folder: Path,
    kind: str,
    read: Collection[str],
    supported: Mapping[str, Any] = SUPPORTED,
    without_effect: Collection[str] = WITHOUT_EFFECT,
) -> dict[str, Any]:
    """Return config.json; raise PolicyFileError for an unknown or unsupported key.

    Args:
        folder: NVIDIA's folder.
        kind: its ``model_type``.
        read: the keys that are read.
        supported: keys with one supported value.
        without_effect: keys that change no action.
    """
    where = f"policy.checkpoint {folder}"
    document = read_json(folder / "config.json")
    if (got := document.get("model_type")) != kind:
        raise PolicyFileError(
            f"{where}: expected a config.json of model_type {kind}, got {got!r}. A folder that "
            "LeRobot saved (type: groot) plays by policy.kind: lerobot"
        )
    for key, value in document.items():
        if key in supported and value != supported[key]:
            raise PolicyFileError(
                f"{where}: expected {key} of {supported[key]} in config.json, got {value!r}"
            )
        if value and key not in {*read, *supported, *without_effect}:
            raise PolicyFileError(
                f"{where}: expected keys of {kind} in config.json, got '{escape_ascii(key)}: "
                f"{escape_ascii(value)[:60]}', whose effect is not known here. Where it has none, "
                "take the line out"
            )
    for name in SUPPORTED_PARTS:
        n1_5.refuse_unknown(folder, name, document.get(name))
    return document


def read_processor(
    folder: Path, defaults: Mapping[str, Any], supported: Mapping[str, Any] = SUPPORTED
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the processor's values, which travel with the policy, and all of its arguments.

    Args:
        folder: NVIDIA's folder.
        defaults: the values that count, as in a folder without processor_config.json.
        supported: keys with one supported value.
    """
    path = folder / PROCESSOR_FILE
    kwargs = read_json(path).get("processor_kwargs", {}) if path.is_file() else {}
    for key, value in supported.items():
        if kwargs.get(key, value) != value:
            raise PolicyFileError(
                f"policy.checkpoint {path}: expected {key} of {value}, got {kwargs[key]!r}"
            )
    return dict(defaults) | {key: kwargs[key] for key in defaults if key in kwargs}, kwargs


def _read_image_processor(folder: Path) -> dict[str, Any]:
    """Return the processor's values, with the sizes of images."""
    values, kwargs = read_processor(folder, PROCESSOR_DEFAULTS)
    if kwargs.get("image_target_size") is None:  # LeRobot and NVIDIA take the default sizes
        sizes = ("image_target_size", "image_crop_size", "shortest_image_edge", "crop_fraction")
        values |= {key: PROCESSOR_DEFAULTS[key] for key in sizes}
    path = folder / COSMOS_FOLDER / "preprocessor_config.json"
    document = read_json(path) if path.is_file() else {}
    size = document.get("size") or {}
    least = size.get("shortest_edge", document.get("min_pixels", PIXELS[0]))
    most = size.get("longest_edge", document.get("max_pixels", PIXELS[1]))
    return values | {"pixels": [least, most]}


def _cosmos(folder: Path) -> dict[str, Any]:
    """Return the complete config of the vision-language model."""
    from transformers import Qwen3VLConfig

    path = folder / COSMOS_FOLDER / "config.json"
    if not path.is_file():
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected the config.json of {ASSETS}, found none. hf "
            f"download {ASSETS} config.json tokenizer.json preprocessor_config.json --local-dir "
            f"CHECKPOINT/{COSMOS_FOLDER}"
        )
    document = read_json(path)
    if (got := document.get("model_type")) != "qwen3_vl":
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a model_type of qwen3_vl, got {got!r}"
        )
    return complete_document(make_config(Qwen3VLConfig, document))


def _check(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a value is unsupported, or parts do not fit each other."""
    cosmos = config[COSMOS]
    text, vision = cosmos["text_config"], cosmos["vision_config"]
    layers, available = config["select_layer"], text["num_hidden_layers"]
    merged = len(vision["deepstack_visual_indexes"])
    if not merged < layers <= available:
        raise ValueError(f"select_layer of {layers}, expected {merged + 1} to {available}")
    check_head(config, "cosmos_config.text_config.hidden_size", text["hidden_size"])


def check_head(config: Mapping[str, Any], name: str, features: int) -> None:
    """Raise ValueError if a value is unsupported, or parts do not fit each other.

    Args:
        config: GR00T's config.json.
        name: key of the width of the vision-language model's features.
        features: that width.
    """
    dit, attention = config["diffusion_model_cfg"], config.get("vl_self_attention_cfg", {})
    for section, part in (("diffusion_model_cfg", dit), ("vl_self_attention_cfg", attention)):
        for key, value in SUPPORTED_PARTS[section].items():
            missing = "sinusoidal" if key == "positional_embeddings" else value
            if part.get("num_layers") and part.get(key, missing) != value:
                raise ValueError(f"{section}.{key} of {part.get(key)}, expected {value}")
    if config["action_horizon"] > config["max_seq_len"]:
        raise ValueError(
            f"action_horizon of {config['action_horizon']}, expected at most max_seq_len of "
            f"{config['max_seq_len']}"
        )
    if config["use_alternate_vl_dit"] and not dit["interleave_self_attention"]:
        raise ValueError(
            "interleave_self_attention of False, expected True by use_alternate_vl_dit"
        )
    width = config["backbone_embedding_dim"]
    widths = {
        "diffusion_model_cfg.num_attention_heads * attention_head_dim": (
            dit["num_attention_heads"] * dit["attention_head_dim"],
            config["input_embedding_dim"],
        ),
        "diffusion_model_cfg.output_dim": (dit["output_dim"], config["hidden_size"]),
        name: (features, width),
    }
    if attention.get("num_layers"):
        widths["vl_self_attention_cfg.num_attention_heads * attention_head_dim"] = (
            attention["num_attention_heads"] * attention["attention_head_dim"],
            width,
        )
    check_widths(widths)


FACTORY = GrootN17Factory()
