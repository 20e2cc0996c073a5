"""openpi's names of network sizes, and the folders of its converter.

The converter is convert_jax_model_to_pytorch.py (openpi 15a9616). Such a folder has
``model.safetensors``, ``assets`` and a config.json of five keys. It has no tokenizer and does not
distinguish a pi0 from a pi0.5; the weights' names do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.huggingface import read_json
from rlinf_core.policies.pretrained.network_factory import CheckpointInfo
from rlinf_core.policies.pretrained.tokenization import FileTokenizer, read_tokenizer

_LAYERS = {
    "model_type": "gemma",
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gemma_2b": {"hidden_size": 2048, "intermediate_size": 16384, **_LAYERS},
    "gemma_300m": {"hidden_size": 1024, "intermediate_size": 4096, **_LAYERS},
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 224,
    "vision_use_head": False,
}
# keys that name the sizes
SIZES = ("paligemma_variant", "action_expert_variant", "image_resolution")
CONVERTED = {
    "action_dim",
    "action_horizon",
    "paligemma_variant",
    "action_expert_variant",
    "precision",
}
# a key of a network's config; lerobot prepares sentences and images differently from openpi
MAKER = "maker"
TOKENIZER = "google/paligemma-3b-pt-224"


def is_converted(folder: Path) -> bool:
    """Return True if openpi's converter wrote the folder."""
    path = folder / "config.json"
    return (
        path.is_file()
        and "action_horizon" in (document := read_json(path))
        and not document.keys() & {"type", "model_type"}
    )


def read_config(folder: Path) -> tuple[dict[str, Any], CheckpointInfo]:
    """Return the network's keys of such a folder, by LeRobot's names, and the folder's contents.

    Raises:
        PolicyFileError: a key of its config.json is missing or unknown.
    """
    document = read_json(folder / "config.json")
    parts: dict[str, Any] = {
        key: document.pop(key) for key in ("vlm_config", "dit_config") if key in document
    }
    if wrong := sorted(document.keys() ^ CONVERTED):
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected {', '.join(sorted(CONVERTED))} in config.json, "
            f"as openpi's converter writes it, got another set: {', '.join(wrong[:5])}"
        )
    size, horizon = document["action_dim"], document["action_horizon"]
    if type(size) is not int or type(horizon) is not int:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected action_dim and action_horizon as whole numbers "
            f"in config.json, got {size!r} and {horizon!r}"
        )
    config = {
        "chunk_size": horizon,
        "max_state_dim": size,
        "max_action_dim": size,
        **sizes(folder, document),
        **parts,
    }
    return config, CheckpointInfo(config, read_paligemma_tokenizer(folder), horizon)


def sizes(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configs of both parts, from their names in a config.json."""
    names = [
        document.get(f"{part}_variant", default)
        for part, default in (("paligemma", "gemma_2b"), ("action_expert", "gemma_300m"))
    ]
    for name in names:
        if name not in VARIANTS:
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected a variant of {' or '.join(VARIANTS)} in "
                f"config.json, got {name!r}"
            )
    resolution = document.get("image_resolution", [224, 224])
    if (
        not isinstance(resolution, list | tuple)
        or len(resolution) != 2
        or resolution[0] != resolution[1]
        or type(resolution[0]) is not int
        or not 0 < resolution[0] <= 4096
    ):
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected an image_resolution of two equal numbers of "
            f"pixels in config.json, got {resolution!r}"
        )
    text = {**VARIANTS[names[0]], "vocab_size": 257152, "bos_token_id": 2}
    vlm = {
        "model_type": "paligemma",
        "projection_dim": 2048,
        "image_token_id": 257152,
        "text_config": text,
        "vision_config": {**VISION, "image_size": resolution[0]},
    }
    return {"vlm_config": vlm, "dit_config": VARIANTS[names[1]]}


def read_paligemma_tokenizer(folder: Path) -> FileTokenizer:
    """Return PaliGemma's tokenizer, which a person copies into the folder.

    Raises:
        PolicyFileError: the file is missing; the message names its source.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected tokenizer.json, which LeRobot's and openpi's "
            f"folders lack, found none. Copy that of {TOKENIZER} there"
        )
    return read_tokenizer(path)
