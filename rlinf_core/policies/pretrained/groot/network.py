"""The network with GR00T's key names, ``backbone.eagle_model`` and ``action_head``.

NVIDIA 2025, arXiv 2503.14734; N1.5: research.nvidia.com/labs/gear/gr00t-n1_5. In Eagle 2.5 the
vision tower is transformers' own SigLIP, the language model the first ``select_layer`` layers of
its Qwen3. The network is read from a folder or a file, or made from scratch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import PolicyFileError, escape_ascii
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.groot.head import ActionHead, check_widths
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    json_text,
    make_config,
    read_text,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, parse_tokenizer

KIND, EAGLE = "gr00t_n1_5", "eagle_config"
# the published place of Eagle's config.json and tokenizer
ASSETS = "lerobot/eagle2hg-processor-groot-n1p5"
_TOWER = "backbone.eagle_model.vision_model.vision_model.head."
_WORDS = "backbone.eagle_model.language_model.lm_head."
SUPPORTED: dict[str, dict[str, Any]] = {  # keys with one supported value
    EAGLE: {"use_pixel_shuffle": False, "mlp_connector_layers": 1, "select_layer": -1},
    "backbone_cfg": {"project_to_dim": None, "reproject_vision": False},
    "action_head_cfg": {"use_vlln": True, "add_pos_embed": True, "noise_beta_beta": 1.0},
    "diffusion_model_cfg": {
        "norm_type": "ada_norm",
        "positional_embeddings": None,
        "activation_fn": "gelu-approximate",
        "attention_bias": True,
        "norm_elementwise_affine": False,
        "norm_eps": 1e-5,
    },
    "vl_self_attention_cfg": {
        "positional_embeddings": None,
        "activation_fn": "gelu-approximate",
        "attention_bias": True,
    },
}
# defaults of action_head_cfg
DEFAULTS = {
    "max_seq_len": 1024,
    "max_num_embodiments": 32,
    "num_target_vision_tokens": 32,
    "num_timestep_buckets": 1000,
    "noise_beta_alpha": 1.5,
    "noise_s": 0.999,
}
# Keys of training and of the machine. None changes an action.
_TRANSFORMER = (
    *("dropout", "final_dropout", "upcast_attention", "compute_dtype", "num_embeds_ada_norm"),
    "max_num_positional_embeddings",
)
WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "backbone_cfg": (
        *("tune_llm", "tune_visual", "use_flash_attention", "load_bf16", "eagle_path"),
        "tokenizer_assets_repo",
    ),
    "action_head_cfg": (
        *("model_dtype", "tune_projector", "tune_diffusion_model", "action_horizon"),
        *("max_action_dim", "load_pretrained_det_decode_layer_path", "detection_coeff"),
        *("freeze_decode_layer", "expand_batch"),
    ),
    "diffusion_model_cfg": _TRANSFORMER,
    "vl_self_attention_cfg": (*_TRANSFORMER, "output_dim", "interleave_self_attention"),
}
SMALLEST: dict[str, Any] = {
    "model_type": KIND,
    "architectures": ["GR00T_N1_5"],
    "action_horizon": 16,
    "action_dim": 32,
    "backbone_cfg": {"select_layer": 2, **SUPPORTED["backbone_cfg"]},
    "action_head_cfg": {
        "action_dim": 32,
        "max_state_dim": 64,
        "hidden_size": 128,
        "input_embedding_dim": 128,
        "backbone_embedding_dim": 128,
        **DEFAULTS,
        **SUPPORTED["action_head_cfg"],
        "num_target_vision_tokens": 8,
        "diffusion_model_cfg": {
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "num_layers": 4,
            "output_dim": 128,
            "cross_attention_dim": 128,
            "interleave_self_attention": True,
            **SUPPORTED["diffusion_model_cfg"],
        },
        "vl_self_attention_cfg": {
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "num_layers": 1,
            **SUPPORTED["vl_self_attention_cfg"],
        },
    },
    EAGLE: {
        "model_type": "eagle_2_5_vl",
        "image_token_index": BEGIN + 1,
        "force_image_size": 64,
        **SUPPORTED[EAGLE],
        "text_config": {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "head_dim": 32,
            "num_key_value_heads": 2,
            "vocab_size": BEGIN + 2,
            "bos_token_id": BEGIN,
            "eos_token_id": 2,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 8,
            "image_size": 64,
        },
    },
}


class GrootNetwork(nn.Module):
    """Map images and tokens to keys and values; these, state and noisy actions to a velocity.

    Args:
        config: GR00T's config.json, with Eagle's in ``eagle_config``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import Qwen3Config, Qwen3Model, SiglipVisionConfig, SiglipVisionModel

        self.config = dict(config)
        eagle = config[EAGLE]
        layers = config["backbone_cfg"]["select_layer"]
        vision = make_config(
            SiglipVisionConfig, {**eagle["vision_config"], "vision_use_head": False}
        )
        text = make_config(
            Qwen3Config,
            {**eagle["text_config"], "num_hidden_layers": layers, "layer_types": None},
        )
        self.backbone = nn.ModuleDict(
            {
                "eagle_model": nn.ModuleDict(
                    {
                        "vision_model": nn.ModuleDict(
                            {"vision_model": SiglipVisionModel(vision).float()}
                        ),
                        "language_model": nn.ModuleDict({"model": Qwen3Model(text).float()}),
                        "mlp1": nn.Sequential(nn.Linear(vision.hidden_size, text.hidden_size)),
                    }
                )
            }
        )
        self.action_head = ActionHead(config["action_head_cfg"])

    @property
    def head_config(self) -> Mapping[str, Any]:
        """Sizes of the action head."""
        head: Mapping[str, Any] = self.config["action_head_cfg"]
        return head

    @property
    def image_tokens(self) -> int:
        """Number of tokens of an image."""
        vision = self.config[EAGLE]["vision_config"]
        return int(vision["image_size"] // vision["patch_size"]) ** 2

    def prefix(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Prefix:
        """Return the prefix of images (B, cameras, 3, S, S) in [-1, 1] and tokens (B, L)."""
        eagle: Any = self.backbone["eagle_model"]
        patches = eagle["vision_model"]["vision_model"](pixels.flatten(0, 1)).last_hidden_state
        features = eagle["mlp1"](patches).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        model = eagle["language_model"]["model"]
        words = model.get_input_embeddings()(ids)
        image_mask = ids == self.config[EAGLE]["image_token_index"]
        rank = image_mask.cumsum(dim=1) - 1
        images = features.gather(
            1, rank.clamp(0, features.shape[1] - 1)[..., None].expand_as(words)
        )
        words = torch.where(
            (image_mask & (rank < features.shape[1]))[..., None], images.to(words.dtype), words
        )
        # padding comes last and is masked later
        hidden = model(inputs_embeds=words, use_cache=False).last_hidden_state
        return self.action_head.prefix(hidden, mask)


class GrootFactory(NetworkFactory):
    """NVIDIA's folders of N1.5, with Eagle's files in ``eagle``."""

    kind, config_name, horizon_key = "groot", "GR00T's config.json", "action_horizon"

    def make(self, config: Mapping[str, Any]) -> GrootNetwork:
        _check(config)
        return GrootNetwork(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import Qwen3Config, SiglipVisionConfig

        eagle = dict(SMALLEST[EAGLE])
        for name, config_class in (
            ("text_config", Qwen3Config),
            ("vision_config", SiglipVisionConfig),
        ):
            eagle[name] = complete_document(make_config(config_class, eagle[name])) | {
                "layer_types": None
            }
        return {**SMALLEST, EAGLE: eagle}

    def read(self, folder: Path) -> CheckpointInfo:
        config = _config(folder / "config.json", KIND)
        eagle = _config(folder / "eagle/config.json", "eagle_2_5_vl")
        head = {**DEFAULTS, **config.get("action_head_cfg", {})}
        for name, section in {**config, **head}.items():
            if name in WITHOUT_EFFECT:
                refuse_unknown(folder, name, section)
        tokenizer = parse_tokenizer(
            read_eagle_tokenizer(folder / "eagle"), folder / "eagle/tokenizer.json"
        )
        steps = (
            {
                "flow_steps": (
                    "action_head_cfg.num_inference_timesteps",
                    head["num_inference_timesteps"],
                )
            }
            if "num_inference_timesteps" in head
            else {}
        )
        return CheckpointInfo(
            {**config, "action_head_cfg": head, EAGLE: eagle},
            tokenizer,
            config.get("action_horizon", 0),
            settings=steps,
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            name: tensor
            for name, tensor in weights.items()
            if not name.startswith((_TOWER, _WORDS))
        }

    def folder_files(
        self, network: GrootNetwork, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        document = {key: value for key, value in network.config.items() if key != EAGLE}
        return network.state_dict(), {
            "config.json": json_text(document),
            "eagle/config.json": json.dumps(network.config[EAGLE]),
            "eagle/tokenizer.json": tokenizer.text,
        }


def supported_keys(name: str) -> set[str]:
    """Return the keys of a section of config.json that are read, have no effect or are refused."""
    parts = {**SMALLEST, **SMALLEST["action_head_cfg"]}
    read = ("num_inference_timesteps",) if name == "action_head_cfg" else ()
    return {*parts[name], *SUPPORTED[name], *WITHOUT_EFFECT[name], *read}


def refuse_unknown(folder: Path, name: str, section: Any) -> None:
    """Raise PolicyFileError if a section of config.json has a key with an unknown effect."""
    for key, value in section.items() if isinstance(section, Mapping) else ():
        if value and key not in supported_keys(name):
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected keys of GR00T in config.json, got "
                f"'{name}.{escape_ascii(key)}: {escape_ascii(value)[:60]}', whose effect is not "
                "known here. Where it has none, take the line out"
            )


def _check(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a value is unsupported, or parts do not fit each other."""
    head, eagle = config["action_head_cfg"], config[EAGLE]
    for name, expected in SUPPORTED.items():
        section = config[name] if name in config else head[name]
        for key, value in expected.items():
            if section.get(key, value) != value:
                raise ValueError(f"{name}.{key} of {section[key]}, expected {value}")
    if eagle["text_config"]["architectures"] != ["Qwen3ForCausalLM"]:
        raise ValueError(
            f"text_config.architectures of {eagle['text_config']['architectures']}, expected "
            f"Qwen3ForCausalLM"
        )
    layers = config["backbone_cfg"]["select_layer"]
    available = eagle["text_config"]["num_hidden_layers"]
    if not 0 < layers <= available:
        raise ValueError(f"backbone_cfg.select_layer of {layers}, expected 1 to {available}")
    if config["action_horizon"] > head["max_seq_len"]:
        raise ValueError(
            f"action_horizon of {config['action_horizon']}, expected at most max_seq_len of "
            f"{head['max_seq_len']}"
        )
    dit, attention = (head[name] for name in ("diffusion_model_cfg", "vl_self_attention_cfg"))
    widths = {
        "diffusion_model_cfg.num_attention_heads * attention_head_dim": (
            dit["num_attention_heads"] * dit["attention_head_dim"],
            head["input_embedding_dim"],
        ),
        "vl_self_attention_cfg.num_attention_heads * attention_head_dim": (
            attention["num_attention_heads"] * attention["attention_head_dim"],
            eagle["text_config"]["hidden_size"],
        ),
        "backbone_embedding_dim": (
            head["backbone_embedding_dim"],
            eagle["text_config"]["hidden_size"],
        ),
        "diffusion_model_cfg.cross_attention_dim": (
            dit["cross_attention_dim"],
            eagle["text_config"]["hidden_size"],
        ),
        "diffusion_model_cfg.output_dim": (dit["output_dim"], head["hidden_size"]),
    }
    check_widths(widths)


def _config(path: Path, kind: str) -> dict[str, Any]:
    try:
        document = json.loads(read_text(path))
        got = document.get("model_type")
    except (PolicyFileError, ValueError, AttributeError) as error:
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a map of model_type {kind}, got: {error}. Eagle's "
            f"files: hf download {ASSETS} --local-dir CHECKPOINT/eagle"
        ) from error
    if got != kind:
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a model_type of {kind}, got {got!r}"
        )
    return dict(document)


def read_eagle_tokenizer(folder: Path) -> str:
    """Return tokenizer.json, or its equivalent made of vocab.json and merges.txt."""
    from transformers import Qwen2Tokenizer

    if (folder / "tokenizer.json").is_file():
        return read_text(folder / "tokenizer.json")
    try:
        for name in ("vocab.json", "merges.txt"):  # the library makes an empty vocabulary
            read_text(folder / name)
        text: str = Qwen2Tokenizer.from_pretrained(
            str(folder), local_files_only=True
        ).backend_tokenizer.to_str()
        return text
    except Exception as error:  # the library raises many kinds
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected tokenizer.json, or vocab.json, merges.txt and "
            f"tokenizer_config.json, got: {error}"
        ) from error


FACTORY = GrootFactory()
