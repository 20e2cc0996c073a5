"""Policy files: weights, normalisation, network sizes and specs in one safetensors file.

Weights that RL freezes (``NetworkPolicy.is_frozen``) stand in ``base-<hash>.safetensors`` beside
it. This file is written once, so each later version is small.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import (
    PolicyFileError,
    RecipeError,
    RlinfError,
    SpecError,
    escape_ascii,
    harmless_lines,
)
from rlinf_core.core.renames import with_current_keys
from rlinf_core.policies.policy_folder import base_name
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.embodiment import spec_of

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.policies.base import NetworkPolicy
    from rlinf_core.policies.settings import PolicySettings

    Weights = dict[str, Tensor]

FORMAT = "rlinf-policy-1"
PER_FILE_KEYS = ("format", "info", "config", "spec")  # metadata stored in each file
LONG = 10_000  # characters; longer metadata, such as a tokenizer, is stored with the frozen weights


def save_policy(
    actor: NetworkPolicy, path: str | Path, *, durable: bool = True, **info: Any
) -> Path:
    """Write ``actor`` atomically; ``info`` (version, ...) is stored as JSON.

    Args:
        actor: the policy.
        path: path of the file.
        durable: whether to flush the file to the disk before it gets its name.
        info: what to store with it.

    Raises:
        OSError: the file cannot be written; no file is left.

    Example:
        >>> save_policy(policy, folder / "policy-00000007.safetensors", version=7).name
        'policy-00000007.safetensors'
    """
    from safetensors.torch import save_file

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": FORMAT, "info": json.dumps(info)}
    metadata |= {key: json.dumps(value) for key, value in actor.describe().items()}
    weights = {name: tensor.detach().contiguous() for name, tensor in actor.state_dict().items()}
    if frozen := {name: weights.pop(name) for name in [*weights] if actor.is_frozen(name)}:
        base_metadata = {
            key: metadata.pop(key)
            for key in [*metadata]
            if key not in PER_FILE_KEYS and len(metadata[key]) > LONG
        }
        metadata["base"] = _save_base(frozen, base_metadata, path.parent)
    return write_atomically(
        path, lambda temporary: save_file(weights, temporary, metadata), durable
    )


def load_policy(path: str | Path, station: StationSpec | None = None) -> NetworkPolicy:
    """Rebuild the actor of a policy file.

    Args:
        path: path of the file.
        station: specs that it must fit, if given.

    Raises:
        PolicyFileError: the file is invalid; the message names the fault and the remedy.
        SpecError: its specs differ from the station's; the message lists the differences.

    Example:
        >>> path = save_policy(policy, folder / "policy.safetensors")
        >>> load_policy(path, spec).config == policy.config
        True
    """
    try:
        return _load(path, station)
    except (RlinfError, OSError, MemoryError, ImportError):
        raise
    except Exception as error:  # a network built by a file's numbers may raise anything
        if type(error).__name__ == "OutOfMemoryError":
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise PolicyFileError(
            f"policy {path}: {type(error).__name__}: {harmless_lines(str(error))[:500]} "
            f"({frame.filename}, line {frame.lineno}). The file does not describe a valid network. "
            "Use an earlier version"
        ) from error


def _load(path: str | Path, station: StationSpec | None) -> NetworkPolicy:
    """Do the work of ``load_policy``."""
    from rlinf_core.policies import encoder, kinds_from_file, policy_kind
    from rlinf_core.policies.base import SingleRobotPolicy

    weights, metadata = _read_file(path)
    if metadata.get("format") != FORMAT:
        raise PolicyFileError(
            f"policy {path}: expected format {FORMAT}, got {metadata.get('format')!r}"
        )
    if "base" in metadata:
        frozen, base_metadata = _load_base(Path(path), metadata["base"])
        weights, metadata = weights | frozen, metadata | base_metadata
    description, spec = _description(path, metadata)
    with encoder.without_image_weights(), kinds_from_file():
        config = _config(path, metadata.get("config", ""))
        actor = policy_kind(config.kind).Policy.rebuild(spec, config, description)
    _load_weights(path, actor, weights)
    if station is None or actor.spec.hash == station.hash:
        return actor.eval()
    if actor.spec.member(station.hash) is None:
        difference = harmless_lines(actor.spec.difference(station))
        raise SpecError(
            f"policy {path} does not fit this station:\n{difference}\n"
            "Train it with this station's task, or start the station with the policy's task"
        )
    return SingleRobotPolicy(actor, station).eval()


def _read_file(path: str | Path) -> tuple[Weights, dict[str, str]]:
    """Return the weights and the metadata of a policy file; raise PolicyFileError if damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, metadata
    except FileNotFoundError as error:
        raise PolicyFileError(f"policy {path}: no such file") from error
    except (SafetensorError, OSError) as error:
        raise PolicyFileError(
            f"policy {path}: expected an intact safetensors file, got a truncated or damaged one "
            f"({error}). Copy it again, or use an earlier version"
        ) from error


def _load_weights(path: str | Path, actor: NetworkPolicy, weights: Weights) -> None:
    """Load weights; raise PolicyFileError for another shape, and for NaN or infinity."""
    for name, tensor in actor.state_dict().items():
        if name not in weights or weights[name].shape != tensor.shape:
            actual = tuple(weights[name].shape) if name in weights else "nothing"
            raise PolicyFileError(
                f"policy {path}: '{name}': expected shape {tuple(tensor.shape)}, got {actual}; "
                "the weights do not belong to the network the file describes"
            )
    actor.load_state_dict(weights)
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise PolicyFileError(
            f"policy {path}: expected finite weights, got NaN or Inf; the run that wrote it "
            f"diverged"
        )


def _description(path: str | Path, metadata: dict[str, str]) -> tuple[dict[str, Any], StationSpec]:
    """Return the metadata of a policy without its config, and the specs in it."""
    try:
        description = {
            key: json.loads(value)
            for key, value in metadata.items()
            if key not in ("format", "config", "base")
        }
        return description, spec_of(description["spec"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyFileError(
            f"policy {path}: expected metadata as rlinf writes it, got {type(error).__name__}: "
            f"{escape_ascii(error)[:200]}. Copy the file again, or use an earlier version"
        ) from error


def _config(path: str | Path, text: str) -> PolicySettings:
    """Return the network's config in the file."""
    from rlinf_core.policies import policy_config

    try:
        config = json.loads(text)
        kind = config["kind"]
        if not isinstance(kind, str):
            raise TypeError(f"expected a name as its kind, got {type(kind).__name__}")
        return policy_config(kind).model_validate_json(
            json.dumps(with_current_keys(config, ("policy",)))
        )
    except RecipeError as error:
        raise PolicyFileError(f"policy {path}: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's is a ValueError
        raise PolicyFileError(
            f"policy {path}: expected the config of a network of this version, got "
            f"{escape_ascii(error)}. Train it again, or use the version of rlinf that wrote it"
        ) from error


def _save_base(frozen: Weights, metadata: dict[str, str], folder: Path) -> str:
    """Write frozen weights and their metadata, unless the file exists, and return their hash."""
    from safetensors.torch import save_file

    digest = _digest(frozen, metadata)
    path = folder / base_name(digest)
    if not path.exists():
        write_atomically(path, lambda temporary: save_file(frozen, temporary, metadata))
    return digest


def _load_base(policy: Path, digest: str) -> tuple[Weights, dict[str, str]]:
    """Return the frozen weights with this hash, and their metadata.

    Raises:
        PolicyFileError: the file is missing, damaged or changed.
    """
    from safetensors import SafetensorError, safe_open

    path = policy.parent / base_name(digest)
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            names = file.keys()
            weights: Weights = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise PolicyFileError(
            f"policy {policy}: expected its unchanged base weights in {path.name} of the same "
            "folder, found none. Copy them once from the run's policies/, for all versions",
            code="RL-E305",
        ) from error
    except (SafetensorError, OSError) as error:
        raise PolicyFileError(
            f"policy {policy}: {path.name}: expected an intact safetensors file, got a truncated "
            f"or damaged one ({error}). Copy it again, or delete it and restart the station",
            code="RL-E305",
        ) from error
    if (actual := _digest(weights, metadata)) != digest:
        raise PolicyFileError(
            f"policy {policy}: {path.name}: expected weights of hash {digest[:16]}, got "
            f"{actual[:16]}. It was damaged or changed. Copy it again, or delete it and restart "
            "the station",
            code="RL-E305",
        )
    return weights, metadata


def _digest(weights: Weights, metadata: dict[str, str]) -> str:
    """Return the SHA-256 of names, types, shapes, numbers and metadata."""
    hashed = hashlib.sha256()
    for key, text in sorted(metadata.items()):
        hashed.update(f"{key} {len(text)} {text}\n".encode())
    for name, tensor in sorted(weights.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(
            tensor.detach().cpu().contiguous().numpy().data.cast("B") if tensor.numel() else b""
        )
    return hashed.hexdigest()
