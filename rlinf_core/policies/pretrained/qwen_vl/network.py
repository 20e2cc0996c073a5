"""The network, transformers' own Qwen2.5-VL, and Hugging Face's key names for it.

Bai et al. 2025, arXiv 2502.13923. Published folders have names from before transformers 4.52; it
saves others today. Both are read. The network comes from a folder or a file, or is made from
scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.policies.pretrained.action_tokens import BINS
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    folder_config,
    json_text,
    make_config,
    replace_prefix,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, read_tokenizer

KIND, HEAD = "qwen2_5_vl", "lm_head.weight"
# prefixes of published folders to transformers' own
NAMES = {"visual.": "model.visual.", "model.": "model.language_model."}
PUBLISHED_NAMES = {local_name: published_name for published_name, local_name in NAMES.items()}
TURN = "<|im_start|>"  # a token of Qwen's tokenizer; networks from scratch lack it
MIN_TOKENS, MAX_TOKENS = 4, 16_384  # tokens of an image, as published
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's
CHAT_TEMPLATE = (  # the published one, for images and texts
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in "
    "message['content'] %}{% if part['type'] in ('image', 'image_url') "
    "%}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% "
    "endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)
SMALLEST: dict[str, Any] = {
    "model_type": KIND,
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "tie_word_embeddings": True,
    "image_token_id": BEGIN + 1,
    "vision_start_token_id": BEGIN + 2,
    "vision_end_token_id": BEGIN + 3,
    "video_token_id": BEGIN + 4,
    "text_config": {
        "model_type": "qwen2_5_vl_text",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": BEGIN + 5 + BINS,
        "bos_token_id": BEGIN,
        "eos_token_id": 2,
    },
    "vision_config": {
        "model_type": "qwen2_5_vl_vision",
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 4,
        "patch_size": 8,
        "window_size": 64,
        "fullatt_block_indexes": [1],
    },
}


class QwenVLNetwork(nn.Module):
    """Images and tokens to logits of tokens; the embeddings of words and logits may be tied.

    Args:
        config: a complete config.json.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

        model_config = make_config(Qwen2_5_VLConfig, config)
        text = model_config.text_config
        if text.vocab_size < model_config.image_token_id + 1 + BINS:
            raise ValueError(
                f"a vocab_size of {text.vocab_size}, expected {BINS} tokens for actions behind "
                f"image_token_id"
            )
        self.config: Mapping[str, Any] = complete_document(model_config)
        self.model: Any = Qwen2_5_VLModel(model_config).float()
        tied = model_config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(text.hidden_size, text.vocab_size, bias=False)

    @property
    def decoder(self) -> Any:
        """The language model."""
        return self.model.language_model

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits (..., vocabulary)."""
        return (
            F.linear(hidden, self.decoder.embed_tokens.weight)
            if self.lm_head is None
            else self.lm_head(hidden)
        )

    def embed(
        self, ids: Tensor, mask: Tensor, pixels: Tensor, grid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return vectors (B, L, D) and positions (3, B, L) of masked tokens (B, L) and images."""
        image_mask = ids == self.model.config.image_token_id
        position_ids, _ = self.model.get_rope_index(
            ids, image_mask.int(), image_grid_thw=grid, attention_mask=mask
        )
        features = torch.cat(self.model.get_image_features(pixels, grid).pooler_output)
        words = self.decoder.embed_tokens(ids)
        return words.masked_scatter(
            image_mask.unsqueeze(-1), features.to(words.dtype)
        ), position_ids


class QwenVLFactory(NetworkFactory):
    """Hugging Face's folders of Qwen2.5-VL."""

    kind, config_name = "qwen_vl", "Qwen2.5-VL's config.json"

    def make(self, config: Mapping[str, Any]) -> QwenVLNetwork:
        return QwenVLNetwork(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import Qwen2_5_VLConfig

        defaults = complete_document(make_config(Qwen2_5_VLConfig, SMALLEST))
        defaults["text_config"]["rope_parameters"] = None
        return defaults

    def add_derived_values(self, config: dict[str, Any]) -> dict[str, Any]:
        text, vision = config["text_config"], config["vision_config"]
        if text["rope_parameters"] is None:  # time, height and width, in the published proportions
            half = text["hidden_size"] // text["num_attention_heads"] // 2
            parts = [half // 4, (half - half // 4) // 2, half - half // 4 - (half - half // 4) // 2]
            text["rope_parameters"] = {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": parts,
            }
        text["layer_types"], vision["out_hidden_size"] = None, text["hidden_size"]
        return config

    def read(self, folder: Path) -> CheckpointInfo:
        return CheckpointInfo(
            folder_config(folder, (KIND,)), read_tokenizer(folder / "tokenizer.json")
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        named = {_local_name(name): tensor for name, tensor in weights.items()}
        if HEAD not in expected:  # tied
            named.pop(HEAD, None)
        return named

    def folder_files(
        self, network: QwenVLNetwork, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        weights = {
            replace_prefix(name, PUBLISHED_NAMES): tensor
            for name, tensor in network.state_dict().items()
        }
        texts = {
            "config.json": json_text(network.config),
            "tokenizer.json": tokenizer.text,
        }
        return weights, texts | (
            _engine_files(network) if tokenizer.token_id(TURN) is not None else {}
        )


def _engine_files(network: QwenVLNetwork) -> dict[str, str]:
    """Return the files that an engine reads in addition to config.json, by name."""
    vision = network.model.config.vision_config
    pixels = (vision.patch_size * vision.spatial_merge_size) ** 2
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "min_pixels": MIN_TOKENS * pixels,
        "max_pixels": MAX_TOKENS * pixels,
        "image_mean": MEAN,
        "image_std": STD,
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "preprocessor_config.json": json_text(processor),
        "tokenizer_config.json": json_text(tokenizer),
    }


def _local_name(name: str) -> str:
    if name.startswith(tuple(NAMES.values())):
        return name
    return replace_prefix(name, NAMES)


FACTORY = QwenVLFactory()
