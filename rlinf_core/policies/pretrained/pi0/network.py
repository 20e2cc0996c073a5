"""The network, transformers' PI0ForConditionalGeneration, and its tokenizer.

They are read from a checkpoint or a file, or made from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

# ``from`` would import the package's policy first
import rlinf_core.policies.pretrained.pi0.dexbotic as dexbotic
from rlinf_core.policies.pretrained import lerobot, openpi
from rlinf_core.policies.pretrained.huggingface import (
    complete_document,
    folder_config,
    json_text,
    make_config,
    read_json,
    replace_prefix,
)
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo, NetworkFactory
from rlinf_core.policies.pretrained.tokenization import BEGIN, Tokenizer, read_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

WORDS = "model.dit.embed_tokens.weight"  # the expert's
KEYS = (
    "chunk_size",
    "max_state_dim",
    "max_action_dim",
    "min_period",
    "max_period",
    "time_sampling_beta_alpha",
    "time_sampling_beta_beta",
    "time_sampling_scale",
    "time_sampling_offset",
    "vlm_config",
    "dit_config",
)
# LeRobot's and openpi's prefixes, with or without "model." before them, to transformers' own
NAMES = {
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.": "model.vlm.vision_tower.",
    # of transformers 5.23
    "paligemma_with_expert.paligemma.model.language_model.model.": "model.vlm.language_model.",
    "paligemma_with_expert.paligemma.model.": "model.vlm.",
    "paligemma_with_expert.gemma_expert.model.": "model.dit.",
    # the expert reads no words
    "paligemma_with_expert.gemma_expert.lm_head.": "model.dit.embed_tokens.",
    "paligemma_with_expert.paligemma.lm_head.": "model.vlm.language_model.embed_tokens.",  # tied
    "state_proj.": "embed_action_time.state_proj.",
    "action_in_proj.": "embed_action_time.action_in_proj.",
    "action_time_mlp_in.": "embed_action_time.action_time_mlp_in.",
    "action_time_mlp_out.": "embed_action_time.action_time_mlp_out.",
    "action_out_proj.": "action_out_proj.",
}
HUB = {
    WORDS.removesuffix("weight"): "paligemma_with_expert.gemma_expert.lm_head.",
    "model.vlm.": "paligemma_with_expert.paligemma.model.",
    "model.dit.": "paligemma_with_expert.gemma_expert.model.",
    "embed_action_time.": "",
}
LEROBOT = {
    "model.vlm.vision_tower.": "paligemma_with_expert.paligemma.model.vision_tower.vision_model.",
    **{
        local_name: published_name
        for local_name, published_name in HUB.items()
        if "embed_tokens" not in local_name
    },
}
IMAGE = BEGIN + 1  # an image's place, in a network from scratch
SMALLEST: dict[str, Any] = {
    "vlm_config": {
        "model_type": "paligemma",
        "projection_dim": 128,
        "image_token_id": IMAGE,
        "text_config": {
            "model_type": "gemma",
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "vocab_size": IMAGE + 1,
            "bos_token_id": BEGIN,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 8,
            "image_size": 64,
            "vision_use_head": False,
        },
    },
    "dit_config": {
        "model_type": "gemma",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
    },
}


class Pi0Factory(NetworkFactory):
    """Folders of transformers, LeRobot, openpi's converter and Dexbotic."""

    kind, config_name, horizon_key = "pi0", "transformers' PI0Config", "chunk_size"

    def make(self, config: Mapping[str, Any]) -> Any:
        from transformers import PI0Config, PI0ForConditionalGeneration

        network = PI0ForConditionalGeneration(make_config(PI0Config, config)).float()
        network.embed_action_time.sinusoid_embeds = _times(network.config)
        return network

    def smallest_config(self) -> dict[str, Any]:
        from transformers import PI0Config

        return complete_document(PI0Config.from_dict(SMALLEST))

    def describe(self, network: Any) -> Mapping[str, Any]:
        return complete_document(network.config)

    def read(self, folder: Path) -> CheckpointInfo:
        """See ``NetworkFactory``.

        LeRobot's and openpi's files need PaliGemma's tokenizer.json beside them.
        """
        if openpi.is_converted(folder):
            return openpi.read_config(folder)[1]
        if (
            (folder / "config.json").is_file()
            and "type" in (document := read_json(folder / "config.json"))
            and "model_type" not in document
        ):
            config, training = lerobot.read_config(
                folder,
                self.kind,
                ("chunk_size",),
                {*openpi.SIZES, *KEYS},
                {"time_sampling_beta_beta": 1.0},
            )
            sizes = openpi.sizes(folder, config)
            network = {key: config[key] for key in KEYS if key in config}
            return CheckpointInfo(
                {**sizes, **network, openpi.MAKER: "lerobot"},
                openpi.read_paligemma_tokenizer(folder),
                config["chunk_size"],
                training.state_statistics,
                training.action_statistics,
                training.settings,
            )
        document = folder_config(folder, (self.kind, dexbotic.KIND))
        tokenizer = read_tokenizer(folder / "tokenizer.json")
        if document["model_type"] == dexbotic.KIND:
            sizes = dexbotic.architecture(folder, document)
            return CheckpointInfo(sizes, tokenizer, sizes["chunk_size"])
        steps = (
            {"flow_steps": ("num_inference_steps", document["num_inference_steps"])}
            if "num_inference_steps" in document
            else {}
        )
        return CheckpointInfo(document, tokenizer, document.get("chunk_size", 50), settings=steps)

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """See ``NetworkFactory``; a folder may lack the expert's words, which are not read."""
        if dexbotic.WORDS in weights or any(name.startswith("model.llm.") for name in weights):
            return dexbotic.rename(weights, expected)
        named = {_local_name(name): tensor for name, tensor in weights.items()}
        return {WORDS: expected[WORDS]} | named

    def module_name(self, name: str, network: Any) -> str:
        """See ``NetworkFactory``: LeRobot's names for LeRobot's folders, else transformers'."""
        if getattr(network.config, openpi.MAKER, "") != "lerobot":
            return name
        return f"model.{replace_prefix(name, LEROBOT)}"

    def adapter_name(self, name: str, network: Any) -> str:
        """See ``NetworkFactory``: the file lacks ``embed_action_time.``.

        peft 0.21 adds that prefix by transformers' renaming.
        """
        return self.module_name(name, network).removeprefix("embed_action_time.")

    def folder_files(
        self, network: Any, tokenizer: Tokenizer
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """See ``NetworkFactory``: with the names of the hub's folders.

        Transformers reads them too.
        """
        weights = {
            replace_prefix(name, HUB): tensor for name, tensor in network.state_dict().items()
        }
        document = {**self.describe(network), "model_type": self.kind}
        return weights, {
            "config.json": json_text(document),
            "tokenizer.json": tokenizer.text,
        }


def _times(config: Any) -> Any:
    """Return a module that embeds times in float64, like LeRobot and openpi.

    transformers' float32 is off by up to 1e-4 radians: the shortest period is 0.004, and angles
    reach 1,571 radians.
    """
    from torch import nn

    from rlinf_core.policies.pretrained.action_expert import sines

    class Times(nn.Module):
        """Times (B,) to (B, width)."""

        def forward(self, time: Tensor) -> Tensor:
            return sines(time, config.dit_config.hidden_size, config.min_period, config.max_period)

    return Times()


def _local_name(name: str) -> str:
    """Return transformers' name of a weight for LeRobot's, openpi's, or its own name."""
    plain = name.removeprefix("model.")
    return replace_prefix(plain, NAMES) if plain.startswith(tuple(NAMES)) else name


FACTORY = Pi0Factory()
