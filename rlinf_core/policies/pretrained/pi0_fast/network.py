"""The network, transformers' PaliGemma, and LeRobot's key names for it.

LeRobot (0.4.4 to 0.6.1) has two tensors for words: of the input and of the logits. They may differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained import lerobot, openpi
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    json_text,
    make_config,
    replace_prefix,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.pi0.network import SMALLEST as PI0
from rlinf_core.policies.pretrained.pi0_fast.fast import (
    ActionTokenizer,
    letter_tokenizer,
    read_action_tokenizer,
)
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer

KIND, WORDS, HEAD = "pi0_fast", "vlm.language_model.embed_tokens.weight", "lm_head.weight"
NAMES = {
    "paligemma_with_expert.paligemma.lm_head.": "lm_head.",
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.": "vlm.vision_tower.",
    "paligemma_with_expert.paligemma.model.": "vlm.",
}
PUBLISHED_NAMES = {local_name: published_name for published_name, local_name in NAMES.items()}
PREFIX = "model."
SETTINGS = {"tokenizer_max_length": "tokens", "max_decoding_steps": "max_decoding_steps"}
# Training alone cuts at max_action_tokens. LeRobot draws by temperature; here exploration does.
WITHOUT_EFFECT = (
    "text_tokenizer_name",
    "action_tokenizer_name",
    "use_kv_cache",
    "max_state_dim",
    "max_action_dim",
    "max_action_tokens",
    "action_expert_variant",
    "temperature",
    "n_action_steps",
)
SMALLEST: dict[str, Any] = {
    "type": KIND,
    "chunk_size": 50,
    "fast_skip_tokens": 0,
    "validate_action_token_prefix": False,
    "vlm_config": PI0["vlm_config"]
    | {
        "image_token_id": BEGIN + 1,
        "text_config": PI0["vlm_config"]["text_config"] | {"vocab_size": BEGIN + 2 + 256},
    },
}


class Pi0FastNetwork(nn.Module):
    """Images and tokens to logits of tokens.

    Args:
        config: LeRobot's config.json, with PaliGemma's in ``vlm_config`` and FAST's in
            ``action_tokenizer``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import PaliGemmaConfig, PaliGemmaModel

        self.config = dict(config)
        self.vlm: Any = PaliGemmaModel(make_config(PaliGemmaConfig, config["vlm_config"])).float()
        text = self.vlm.config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.lm_head.weight = nn.Parameter(self.vlm.get_input_embeddings().weight.detach().clone())
        self.action_tokenizer = ActionTokenizer(**config.get("action_tokenizer", {}))

    @property
    def image_size(self) -> int:
        """Side of an image [pixels]."""
        size: int = self.vlm.config.vision_config.image_size
        return size

    @property
    def decoder(self) -> Any:
        """The language model."""
        return self.vlm.language_model

    def embed(self, pixels: Tensor, ids: Tensor) -> Tensor:
        """Return vectors (B, L, D) of images (B, cameras, 3, S, S) in [-1, 1], then of tokens."""
        patches = self.vlm.get_image_features(pixels.flatten(0, 1)).pooler_output
        features = patches.unflatten(0, pixels.shape[:2]).flatten(1, 2)
        return torch.cat([features, self.decoder.get_input_embeddings()(ids)], dim=1)


class Pi0FastFactory(NetworkFactory):
    """LeRobot's folders, with PaliGemma's tokenizer.json, and FAST's files in ``fast``."""

    kind, config_name, horizon_key, metadata = KIND, "pi0-FAST's config.json", "chunk_size", None

    def make(self, config: Mapping[str, Any]) -> Pi0FastNetwork:
        return Pi0FastNetwork(config)

    def smallest_config(self) -> dict[str, Any]:
        from transformers import PI0Config

        defaults = complete_document(PI0Config.from_dict({"vlm_config": SMALLEST["vlm_config"]}))
        return {
            **SMALLEST,
            "vlm_config": defaults["vlm_config"],
            "action_tokenizer": ActionTokenizer().describe(),
        }

    def read(self, folder: Path) -> CheckpointInfo:
        """See ``NetworkFactory``.

        With the tokenizers of words and of actions, which LeRobot's folder lacks.
        """
        allowed = {*openpi.SIZES, *SMALLEST, *WITHOUT_EFFECT}
        config, training = lerobot.read_config(
            folder, KIND, ("chunk_size", "fast_skip_tokens"), allowed, settings=SETTINGS
        )
        if config.get("n_action_steps", config["chunk_size"]) != config["chunk_size"]:
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected n_action_steps of {config['chunk_size']} "
                f"in config.json, as chunk_size, got {config['n_action_steps']}: LeRobot decodes "
                "tokens of another length than it was trained on"
            )
        config = {key: value for key, value in config.items() if key not in WITHOUT_EFFECT}
        sizes = {
            key: value for key, value in openpi.sizes(folder, config).items() if key == "vlm_config"
        }
        network = {
            "validate_action_token_prefix": True,
            **sizes,
            **config,
            "action_tokenizer": read_action_tokenizer(folder / "fast").describe(),
        }
        return CheckpointInfo(
            network,
            openpi.read_paligemma_tokenizer(folder),
            config["chunk_size"],
            state_statistics=training.state_statistics,
            action_statistics=training.action_statistics,
            settings=training.settings,
        )

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """See ``NetworkFactory``; a file with one of the two tensors for words means both."""
        renamed = {
            replace_prefix(name.removeprefix(PREFIX), NAMES): tensor
            for name, tensor in weights.items()
        }
        for name, other in ((HEAD, WORDS), (WORDS, HEAD)):
            if name not in renamed and other in renamed:
                renamed[name] = renamed[other]
        return renamed

    def module_name(self, name: str, network: Any) -> str:
        """See ``NetworkFactory``: LeRobot's."""
        return PREFIX + replace_prefix(name, PUBLISHED_NAMES)

    def folder_files(
        self, network: Pi0FastNetwork, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """See ``NetworkFactory``.

        The file config.json holds the sizes of a tiny network, which has no variant.
        """
        weights = {
            self.module_name(name, network): tensor for name, tensor in network.state_dict().items()
        }
        mapping = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
        document = {
            key: value for key, value in network.config.items() if key != "action_tokenizer"
        } | {"normalization_mapping": mapping, "use_relative_actions": False}
        actions = network.action_tokenizer
        numbers = {"scale": actions.scale, "min_token": actions.least, "vocab_size": actions.size}
        return weights, {
            "config.json": json_text(document),
            "tokenizer.json": tokenizer.text,
            "fast/tokenizer.json": actions.text or letter_tokenizer(actions.size),
            "fast/processor_config.json": json.dumps(numbers),
        }


FACTORY = Pi0FastFactory()
