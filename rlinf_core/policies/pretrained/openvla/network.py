"""The network with OpenVLA's key names, ``vision_backbone``, ``projector``, ``language_model``.

Kim et al. 2024, arXiv 2406.09246. The language model is transformers' own Llama. The network is
read from a folder, or made from scratch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.action_tokens import BINS
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    folder_config,
    json_text,
    read_text,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.openvla.vision import TOWERS, tower
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, read_tokenizer

KIND = "openvla"
UNUSED = "vision_backbone.fused_featurizer.attn_pool."  # SigLIP's, unused parts of the checkpoints
SUPPORTED = {"image_resize_strategy": "resize-naive", "output_projector_states": False}
# by the language model, from OpenVLA's vla-scripts/deploy.py; the second is openvla-v01-7b's
PROMPTS = {
    "llama2": "In: What action should the robot take to {}?\nOut:",
    "vicuna": "A chat between a curious user and an artificial intelligence assistant. The "
    "assistant gives helpful, "
    "detailed, and polite answers to the user's questions. USER: What action should the robot take "
    "to {}? "
    "ASSISTANT:",
}
_TOWER = {"embed_dim": 64, "depth": 3, "num_heads": 2, "mlp_ratio": 2.0, "patch_size": 16}
SMALLEST: dict[str, Any] = {
    "model_type": KIND,
    "architectures": ["OpenVLAForActionPrediction"],
    "use_fused_vision_backbone": True,
    "timm_model_ids": list(TOWERS),
    "timm_model_args": [_TOWER, _TOWER],
    "image_sizes": [64, 64],
    "n_action_bins": BINS,
    "pad_to_multiple_of": 64,
    "norm_stats": {},
    "text_config": {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "vocab_size": BEGIN + 1 + BINS + 64,
        "bos_token_id": BEGIN,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
}


def prompt_of(config: Mapping[str, Any]) -> str:
    """Return the question with a place for the instruction.

    Raises:
        PolicyFileError: the language model is unsupported.
    """
    backbone = config.get("llm_backbone_id", "llama2-7b-pure")
    for name, prompt in PROMPTS.items():
        if backbone.startswith(name):
            return prompt
    raise PolicyFileError(
        f"policy.checkpoint: expected an llm_backbone_id of {' or '.join(PROMPTS)} in "
        f"config.json, got {backbone!r}, whose prompt is not known here"
    )


class OpenVLANetwork(nn.Module):
    """Images and tokens to logits of tokens.

    Args:
        config: a complete config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.config = dict(config)
        text = LlamaConfig.from_dict({"model_type": "llama", **config["text_config"]})
        args = config.get("timm_model_args") or [{}] * len(config["timm_model_ids"])
        towers = [
            tower(*arguments)
            for arguments in zip(config["timm_model_ids"], args, config["image_sizes"], strict=True)
        ]
        fused = {"fused_featurizer": towers[1]} if config["use_fused_vision_backbone"] else {}
        self.vision_backbone = nn.ModuleDict({"featurizer": towers[0], **fused})
        self.projector = Projector(
            sum(backbone.pos_embed.shape[-1] for backbone in self._towers),
            text.hidden_size,
            bool(fused),
        )
        self.language_model: Any = LlamaForCausalLM(text)
        # the last 256 tokens are actions
        self.vocabulary_size = text.vocab_size - config["pad_to_multiple_of"]

    @property
    def _towers(self) -> list[Any]:
        return list(self.vision_backbone.values())

    @property
    def image_sizes(self) -> tuple[int, ...]:
        """Side of each tower's square image [pixels]."""
        return tuple(backbone.size for backbone in self._towers)

    def patches(self, images: list[Tensor]) -> Tensor:
        """Return patches (B, P, D) of an image (B, 3, S, S) in [0, 1], in each tower's size."""
        features = [backbone(image) for backbone, image in zip(self._towers, images, strict=True)]
        return self.projector(torch.cat(features, dim=-1))

    def embed(self, ids: Tensor) -> Tensor:
        """Return tokens (B, L) as vectors (B, L, D)."""
        return self.language_model.get_input_embeddings()(ids)


class Projector(nn.Module):
    """The towers' features to the language model's."""

    def __init__(self, inputs: int, outputs: int, fused: bool) -> None:
        super().__init__()
        widths = [inputs, *([4 * inputs] if fused else []), outputs, outputs]
        for number, (before, after) in enumerate(zip(widths, widths[1:], strict=False), start=1):
            self.add_module(f"fc{number}", nn.Linear(before, after))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.children()
        x = first(x)
        for layer in rest:
            x = layer(F.gelu(x))
        return x


class OpenVLAFactory(NetworkFactory):
    """Hugging Face's folders of OpenVLA and OpenVLA-OFT."""

    kind, config_name, free_keys = KIND, "OpenVLA's config.json", ("norm_stats",)

    def make(self, config: Mapping[str, Any]) -> OpenVLANetwork:
        if config["n_action_bins"] != BINS:
            raise ValueError(f"n_action_bins of {config['n_action_bins']}, expected {BINS}")
        return OpenVLANetwork(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import LlamaConfig

        text = complete_document(LlamaConfig.from_dict(SMALLEST["text_config"]))
        return {**SMALLEST, "text_config": {**text, **SMALLEST["text_config"], "head_dim": None}}

    def read(self, folder: Path) -> CheckpointInfo:
        config = _with_statistics(folder, folder_config(folder, (KIND,)))
        for key, value in SUPPORTED.items():
            if config.get(key, value) != value and config[key]:
                raise PolicyFileError(
                    f"policy.checkpoint {folder}: expected {key} of {value} in config.json, got "
                    f"{config[key]!r}, which is not known here"
                )
        if any(layers := config.get("timm_override_act_layers") or []):
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected timm_override_act_layers of null in "
                f"config.json, got {layers!r}: CLIP's towers are not known here"
            )
        prompt_of(config)
        return CheckpointInfo(config, read_tokenizer(folder / "tokenizer.json"))

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in weights.items() if not name.startswith(UNUSED)}

    def folder_files(
        self, network: OpenVLANetwork, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        return network.state_dict(), {
            "config.json": json_text(network.config),
            "tokenizer.json": tokenizer.text,
        }


def _with_statistics(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Add the statistics of a checkpoint's fine-tuning data sets, from the file beside it."""
    file = folder / "dataset_statistics.json"
    if not file.is_file():
        return config
    try:
        return config | {"norm_stats": {**config["norm_stats"], **json.loads(read_text(file))}}
    except (ValueError, TypeError, KeyError) as error:
        raise PolicyFileError(
            f"policy.checkpoint {file}: expected a map of data sets, got: {error}"
        ) from error


FACTORY = OpenVLAFactory()
