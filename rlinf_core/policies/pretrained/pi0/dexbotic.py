"""DB-pi0, Dexbotic's pi0 (arXiv 2510.23511): its config.json and key names.

The network computes the same as transformers'; only the names of its parts differ. Folders are
converted in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.huggingface import complete_document, json_text, replace_prefix
from rlinf_core.policies.pretrained.tokenization import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

KIND = "dexbotic_pi0"
TOWER, WORDS = "model.mm_vision_tower.vision_tower.", "model.action_expert.embed_tokens.weight"
NAMES = {  # their prefixes to transformers'; the first match counts
    f"{TOWER}vision_model.": "model.vlm.vision_tower.",
    TOWER: "model.vlm.vision_tower.",
    "model.llm.": "model.vlm.language_model.",
    "model.mm_projector.": "model.vlm.multi_modal_projector.linear.",
    "model.action_expert.": "model.dit.",
    "model.action_out_proj.": "action_out_proj.",
    "model.": "embed_action_time.",
}
# SigLIP's, and word embeddings that the expert never reads
UNUSED = (f"{TOWER}vision_model.head.", f"{TOWER}head.", WORDS)
PARTS = {"llm_config": "gemma", "vision_config": "siglip_vision_model", "action_config": "gemma"}


def architecture(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return transformers' PI0Config for such a config.json.

    Raises:
        PolicyFileError: a part is unsupported.
    """
    for part, kind in PARTS.items():
        got = document.get(part)
        if not isinstance(got, Mapping) or got.get("model_type") != kind:
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected in config.json {part}, a map of model_type "
                f"{kind}, got {str(got)[:80]!r}. A folder that Dexbotic has saved says it"
            )
    if (projector := document.get("mm_projector_type")) != "linear":
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected mm_projector_type linear in config.json, as "
            f"pi0's is, got {projector!r}"
        )
    text = dict(document["llm_config"])
    vision = {**document["vision_config"], "vision_use_head": False}
    # the token is the placeholder of an image, not a word
    vlm = {
        "model_type": "paligemma",
        "text_config": text,
        "vision_config": vision,
        "projection_dim": text["hidden_size"],
        "image_token_id": text["vocab_size"],
    }
    size = document.get("action_dim", 32)
    return {
        "vlm_config": vlm,
        "dit_config": dict(document["action_config"]),
        "chunk_size": document.get("chunk_size", 50),
        "max_state_dim": size,
        "max_action_dim": size,
    }


def rename(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights to transformers' names.

    The expert never reads words; their weights stay the network's own.
    """
    named = {
        replace_prefix(name, NAMES): tensor
        for name, tensor in weights.items()
        if not name.startswith(UNUSED)
    }
    return named | {(words := replace_prefix(WORDS, NAMES)): expected[words]}


def save_folder(network: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write transformers' network in Dexbotic's format."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    published_names = {
        local_name: published_name
        for published_name, local_name in NAMES.items()
        if published_name != TOWER
    }
    save_file(
        {
            replace_prefix(name, published_names): tensor.contiguous()
            for name, tensor in network.state_dict().items()
        },
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config = complete_document(network.config)
    vlm = config["vlm_config"]
    document = {
        "model_type": KIND,
        "architectures": ["Pi0ForCausalLM"],
        "mm_projector_type": "linear",
        "action_dim": config["max_action_dim"],
        "chunk_size": config["chunk_size"],
        "llm_config": vlm["text_config"],
        "vision_config": vlm["vision_config"],
        "action_config": config["dit_config"],
        "hidden_size": vlm["text_config"]["hidden_size"],
        "mm_hidden_size": vlm["vision_config"]["hidden_size"],
        "vocab_size": vlm["text_config"]["vocab_size"],
    }
    (folder / "config.json").write_text(json_text(document))
    (folder / "tokenizer.json").write_text(tokenizer.text)
