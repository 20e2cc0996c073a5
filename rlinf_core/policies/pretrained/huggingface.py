"""Published networks in Hugging Face folders: weights, config.json, settings over defaults.

Errors name the missing or damaged file, and its remedy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf_core.core.errors import PolicyFileError, escape_ascii, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

POINTER = b"version https://git-lfs"  # first bytes of Git LFS's stand-in for a large file
INDEX = "model.safetensors.index.json"
# the file names of the library peft
ADAPTERS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def refuse_pointer(path: Path) -> None:
    """Raise PolicyFileError if the file is a pointer of Git LFS, or OSError if it is unreadable."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise PolicyFileError(
                f"policy.checkpoint {path}: expected the file itself, got a pointer "
                "of Git LFS. Fetch it: git lfs pull"
            )


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        PolicyFileError: the file is missing, a pointer, or not text.
    """
    try:
        refuse_pointer(path)
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a text file, got: {error}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the map in a JSON file; raise PolicyFileError if there is none."""
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a map in {path.name}, got: {error}. Copy it again"
        ) from error
    if not isinstance(document, dict):
        raise PolicyFileError(
            f"policy.checkpoint {path}: expected a map in {path.name}, got a "
            f"{type(document).__name__}"
        )
    return document


def json_text(document: Mapping[str, Any]) -> str:
    """Return a map as the text of a JSON file, with one key in a line."""
    return json.dumps(document, indent=1)


def make_config(config_class: Any, document: Mapping[str, Any]) -> Any:
    """Return transformers' config of a document; transformers gets a copy, which it may change."""
    return config_class.from_dict(json.loads(json.dumps(document)))


def complete_document(config: Any) -> dict[str, Any]:
    """Return transformers' config as a document with all keys, also those of default value."""
    document: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return document


def replace_prefix(name: str, prefixes: Mapping[str, str]) -> str:
    """Return the name with its first matching prefix replaced; the name itself without a match."""
    for prefix, replacement in prefixes.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Return all weights of a folder, in float32.

    Raises:
        PolicyFileError: a file is missing, damaged or a pointer, files of several sets lie there
            without an index, or a weight is not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            refuse_pointer(file)
            more = load_file(file)
            if twice := sorted(weights.keys() & more.keys()):
                raise PolicyFileError(
                    f"policy.checkpoint {file}: expected each weight in one file, got "
                    f"'{twice[0]}' in two. Leave the files of one set, or copy the {INDEX} there"
                )
            weights |= more
        except (SafetensorError, OSError) as error:
            raise PolicyFileError(
                f"policy.checkpoint {file}: expected a whole safetensors file, got: "
                f"{error}. Copy it again"
            ) from error
    weights = {name: tensor.float() for name, tensor in weights.items()}
    check_finite(weights, folder)
    return weights


def check_finite(weights: Mapping[str, Tensor], where: Path) -> None:
    """Raise PolicyFileError with the name of a weight that is NaN or infinite."""
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise PolicyFileError(
                f"policy.checkpoint {where}: expected finite weights, got NaN or "
                f"Inf in '{name}'. Take another checkpoint"
            )


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's weight files: those in the index, else the only set in the folder."""
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names or not all(map(_is_name, names.values())):
            raise PolicyFileError(
                f"policy.checkpoint {folder / INDEX}: expected a weight_map of "
                f"tensors to file names, got {escape_ascii(names)[:80]}"
            )
        files = [folder / name for name in sorted(set(names.values()))]
        if missing := [file.name for file in files if not file.is_file()]:
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected the files that {INDEX} names, "
                f"found no {', '.join(missing[:5])}"
            )
        return files
    files = sorted(folder.glob("model*.safetensors"))
    sets = {
        file.stem.rpartition("-of-")[2] if "-of-" in file.stem else file.stem.rstrip("0123456789")
        for file in files
    }
    if len(sets) > 1:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected one set of weights, found "
            f"{', '.join(file.name for file in files[:5])} and no {INDEX}. Leave the "
            "files of one set, or copy the index there"
        )
    if not files and (folder / ADAPTERS).is_file():
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected model*.safetensors, found {ADAPTERS}: adapters "
            "alone. Set policy.adapters to this folder, and policy.checkpoint to that of the "
            f"model that {ADAPTER_CONFIG} names (base_model_name_or_path)"
        )
    if not files:
        others = (
            ", ".join(file.name for file in sorted(folder.glob("pytorch_model*"))[:3]) or "none"
        )
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected model*.safetensors, found {others}. "
            "Save the model with safe_serialization=True, or download that file"
        )
    count = next(iter(sets))
    if count.isdigit() and len(files) != int(count):
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected {int(count)} files of weights, as "
            f"their names say, found {len(files)}. Copy the others there"
        )
    return files


def _is_name(name: Any) -> bool:
    """Return True if ``name`` is a file in the folder itself."""
    return isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")


Network = TypeVar("Network", bound="torch.nn.Module")


def merge_settings(
    base: Mapping[str, Any],
    changes: Mapping[str, Any],
    where: str,
    config_name: str,
    free: Collection[str] = (),
) -> dict[str, Any]:
    """Return ``base`` with the values of ``changes``, merged recursively.

    Args:
        base: the defaults.
        changes: values to replace.
        where: place of the changes, for messages.
        config_name: document with the expected keys, for messages.
        free: keys with arbitrary content.

    Raises:
        PolicyFileError: ``base`` does not have a key.
    """
    merged = dict(base)
    for key, value in changes.items():
        if key not in base:
            raise PolicyFileError(
                f"{where}: expected keys of {config_name}, got '{key}'{nearest(key, base)}"
            )
        below = base[key]
        nested = isinstance(value, Mapping) and isinstance(below, Mapping) and key not in free
        merged[key] = (
            merge_settings(below, value, f"{where}.{key}", config_name) if nested else value
        )
    return merged


def folder_config(folder: Path, kinds: Collection[str]) -> dict[str, Any]:
    """Return the config.json of a Hugging Face folder of one of these ``model_type``.

    Raises:
        PolicyFileError: a file is missing, or the model has another type.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected a folder with config.json, tokenizer.json "
                f"and model.safetensors, found no {name}"
            )
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind not in kinds:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected a model_type of {' or '.join(kinds)}, got "
            f"{kind!r}"
        )
    return config


def check_horizon(folder: Path, trained: int, horizon: int) -> None:
    """Raise PolicyFileError if a checkpoint's chunks are not as long as the policy's."""
    if trained != horizon:
        raise PolicyFileError(
            f"policy.horizon: expected {trained}, as the checkpoint {folder} was trained with, got "
            f"{horizon}. How many of them are played says policy.n_action_steps"
        )


def load_into(network: Network, weights: dict[str, Tensor], where: Path) -> Network:
    """Load these weights into a network or a part of one.

    Raises:
        PolicyFileError: names or shapes differ from the network's.
    """
    expected = network.state_dict()
    check_same_tensors(
        where,
        expected.keys() - weights.keys(),
        weights.keys() - expected.keys(),
        [
            name
            for name in expected.keys() & weights.keys()
            if expected[name].shape != weights[name].shape
        ],
    )
    network.load_state_dict(weights)
    return network


def check_same_tensors(
    folder: Path, missing: Collection[Any], unexpected: Collection[Any], reshaped: Collection[Any]
) -> None:
    """Raise PolicyFileError with tensors of a checkpoint that differ from its network's."""
    for remark, names in (
        ("lacks", missing),
        ("has beside what it should", unexpected),
        ("has in other shapes", reshaped),
    ):
        if names:
            listed = ", ".join(sorted(str(name) for name in names)[:5])
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected the tensors of the network of its "
                f"config.json; it {remark} {len(names)}, among them {listed}"
            )
