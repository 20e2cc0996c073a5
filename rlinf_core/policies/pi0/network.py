"""The network, transformers' PI0ForConditionalGeneration, and its tokenizer: of a checkpoint, of a file, from scratch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rlinf_core.errors import PolicyFileError, nearest
from rlinf_core.extras import require

BEGIN, IMAGE = 256, 257  # tokens of a network from scratch beside bytes: a sentence begins, a picture's place
SMALLEST: dict[str, Any] = {
    "vlm_config": {
        "model_type": "paligemma", "projection_dim": 128, "image_token_id": IMAGE,
        "text_config": {"model_type": "gemma", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
                        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": IMAGE + 1,
                        "bos_token_id": BEGIN},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 128, "intermediate_size": 256,
                          "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8, "image_size": 64,
                          "vision_use_head": False}},
    "dit_config": {"model_type": "gemma", "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
                   "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32},
}


class Tokenizer(Protocol):
    """From a sentence to tokens."""

    text: str

    def ids(self, sentence: str) -> list[int]:
        """Without any that mark beginning or end."""
        ...


class ByteTokenizer:
    """A token a byte: what networks from scratch read."""

    text = ""

    def ids(self, sentence: str) -> list[int]:
        """UTF-8."""
        return list(sentence.encode())


class FileTokenizer:
    """That of a checkpoint, by the library tokenizers."""

    def __init__(self, text: str) -> None:
        import tokenizers

        self.text = text
        self._tokenizer = tokenizers.Tokenizer.from_str(text)

    def ids(self, sentence: str) -> list[int]:
        """As in training."""
        return list(self._tokenizer.encode(sentence, add_special_tokens=False).ids)


def tokenizer_of(text: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json; of bytes, where there is none."""
    return FileTokenizer(text) if text else ByteTokenizer()


def from_scratch(differing: Mapping[str, Any], horizon: int) -> Any:
    """A network with random weights; PolicyFileError names a key that it does not have."""
    require("vla", "policy.kind: pi0")
    from transformers import PI0Config

    known = json.loads(PI0Config.from_dict(SMALLEST).to_json_string(use_diff=False))
    return built(_over(known, {**differing, "chunk_size": horizon}, "policy.network"))


def built(architecture: Mapping[str, Any]) -> Any:
    """A network of this PI0Config; PolicyFileError where it is none."""
    require("vla", "policy.kind: pi0")
    from transformers import PI0Config, PI0ForConditionalGeneration

    try:
        return PI0ForConditionalGeneration(PI0Config.from_dict(json.loads(json.dumps(architecture))))
    except Exception as error:  # the library raises many kinds
        raise PolicyFileError("policy.network: expected keys and values of transformers' PI0Config, got: "
                              f"{error}") from error


def from_checkpoint(folder: Path, horizon: int) -> tuple[Any, Tokenizer]:
    """Network and tokenizer of a Hugging Face folder.

    Raises:
        PolicyFileError: the folder, or which of its files or tensors, is not what it should be.
    """
    require("vla", "policy.kind: pi0")
    from transformers import PI0Config, PI0ForConditionalGeneration

    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise PolicyFileError(f"policy.checkpoint {folder}: expected a folder with config.json, tokenizer.json and "
                                  f"model.safetensors, found no {name}")
    kind = json.loads((folder / "config.json").read_text()).get("model_type")
    if kind != "pi0":
        raise PolicyFileError(f"policy.checkpoint {folder}: expected a model_type of pi0, got {kind!r}")
    try:
        config = PI0Config.from_pretrained(folder, local_files_only=True)
        loaded: Any = PI0ForConditionalGeneration.from_pretrained(
            folder, config=config, local_files_only=True, ignore_mismatched_sizes=True,
            output_loading_info=True)  # all of which is said below
    except Exception as error:
        raise PolicyFileError(f"policy.checkpoint {folder}: expected a pi0 that transformers can load, got: "
                              f"{error}") from error
    network, said = loaded
    if config.chunk_size != horizon:
        raise PolicyFileError(f"policy.horizon: expected {config.chunk_size}, as the checkpoint {folder} was trained with, "
                              f"got {horizon}. How many of them are played says policy.execute")
    for what, names in (("lacks", said["missing_keys"]), ("has beside what it should", said["unexpected_keys"]),
                        ("has in other shapes", said["mismatched_keys"])):
        if names:
            listed = ", ".join(sorted(str(name) for name in names)[:5])
            raise PolicyFileError(f"policy.checkpoint {folder}: expected the tensors of the network of its config.json; it "
                                  f"{what} {len(names)}, among them {listed}")
    return network, FileTokenizer((folder / "tokenizer.json").read_text())


def _over(base: Mapping[str, Any], said: Mapping[str, Any], where: str) -> dict[str, Any]:
    merged = dict(base)
    for key, value in said.items():
        if key not in base:
            raise PolicyFileError(f"{where}: expected keys of transformers' PI0Config, got '{key}'{nearest(key, base)}")
        below = base[key]
        merged[key] = _over(below, value, f"{where}.{key}") if isinstance(value, Mapping) and isinstance(
            below, Mapping) else value
    return merged
