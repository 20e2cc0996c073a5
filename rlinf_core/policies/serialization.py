"""Policy files: weights, normalisation, network sizes and specs in one safetensors file."""

from __future__ import annotations

import functools
import json
import logging
import re
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
from rlinf_core.policies import lora
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.embodiment import spec_of

if TYPE_CHECKING:
    from rlinf_core.policies.base import NetworkPolicy
    from rlinf_core.policies.settings import PolicySettings

FORMAT = "rlinf-policy-1"
PER_FILE_KEYS = ("format", "info", "config", "spec")  # metadata stored in each file
LONG = 10_000  # characters; longer metadata, such as a tokenizer, is stored with the frozen weights
# names of policy_name, below 2**63
NAMED = re.compile(r"policy-(?:[0-9]{8}|[1-9][0-9]{8,17})\.safetensors")
NUMBERED = re.compile(r"policy-[0-9]+\.safetensors")
UNFLUSHED = ".unflushed"  # ends the name of a file that a power cut may have damaged
MAX_LEAP = 1_000_000  # largest step between the versions of files that do not store their own


def policy_name(version: int) -> str:
    """Return the file name of a version; names sort by version."""
    return f"policy-{version:08d}.safetensors"


def policy_version(path: Path) -> int:
    """Return the version in a policy file's name."""
    return int(path.stem.removeprefix("policy-"))


def named_files(folder: Path) -> list[Path]:
    """Return a folder's files with the name of a version, oldest first, whatever they hold."""
    return sorted(
        (path for path in folder.glob("policy-*") if NAMED.fullmatch(path.name)), key=policy_version
    )


def policy_files(folder: Path) -> list[Path]:
    """Return the trainer's policies in a folder, oldest version first.

    A copy under a person's name does not count: its name has no version, or another version than
    the file stores, such as a date. A file without a stored version (it is damaged) counts by its
    name, unless the version leaps by more than MAX_LEAP. Each ignored file with a version's name
    causes one warning.
    """
    for path in folder.glob("policy-*"):
        if NUMBERED.fullmatch(path.name) and not NAMED.fullmatch(path.name):
            _warn(path, "expected a version of 8 to 18 digits")
    return _of_trainer(named_files(folder))


def _of_trainer(files: list[Path]) -> list[Path]:
    """Return the files that the trainer has named, in their order."""
    result, highest = [], 0
    for path in files:
        version, recorded_version = policy_version(path), stored_version(path)
        if recorded_version is not None and recorded_version != version:
            _warn(path, f"expected version {version}, as its name says, got {recorded_version}")
        elif recorded_version is None and version - highest > MAX_LEAP:
            _warn(path, f"expected a version near {highest}, got a file without one")
        else:
            result.append(path)
            highest = version
    return result


def stored_version(path: Path) -> int | None:
    """Return the version stored in a file; None if there is none, or the file is unreadable."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _stored_version(path, state.st_mtime_ns, state.st_size, state.st_ino)


def version_of(path: Path) -> int:
    """Return the version of a file: the stored one, else the one in its name, else 0."""
    recorded_version = stored_version(path)
    if recorded_version is not None:
        return recorded_version
    return policy_version(path) if NAMED.fullmatch(path.name) else 0


@functools.lru_cache(100_000)
def _stored_version(path: Path, mtime_ns: int, size: int, inode: int) -> int | None:
    """Return the version stored in a file, cached by the file's present state."""
    from safetensors import SafetensorError

    try:
        version = read_info(path).get("version")
    except (SafetensorError, OSError, ValueError, AttributeError, RecursionError):
        return None
    return version if type(version) is int and 0 <= version < 1 << 63 else None


@functools.lru_cache(10_000)
def _warn(path: Path, reason: str) -> None:
    """Log a warning about an ignored file, once per file."""
    logging.getLogger(__name__).warning(
        "policy %s: %s. It is ignored. Give a copy another name, such as my-policy.safetensors",
        escape_ascii(path),
        reason,
    )


def newest_version(folder: Path) -> int:
    """Return the newest version in a folder; -1 without any."""
    return max(map(policy_version, policy_files(folder)), default=-1)


def free_version(folder: Path, version: int) -> int:
    """Return the first version after ``version`` with a free file name, to overwrite no file.

    The version of a file that a power cut may have damaged is not free: a station may have played
    it.
    """
    version += 1
    while any((folder / f"{policy_name(version)}{end}").exists() for end in ("", UNFLUSHED)):
        version += 1
    return version


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
        metadata["base"] = lora.save_base(frozen, base_metadata, path.parent)
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
    import torch
    from safetensors import SafetensorError, safe_open

    from rlinf_core.policies import encoder, kinds_from_file, policy_kind
    from rlinf_core.policies.base import SingleRobotPolicy

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise PolicyFileError(f"policy {path}: no such file") from error
    except (SafetensorError, OSError) as error:
        raise PolicyFileError(
            f"policy {path}: expected an intact safetensors file, got a truncated or damaged one "
            f"({error}). Copy it again, or use an earlier version"
        ) from error
    if metadata.get("format") != FORMAT:
        raise PolicyFileError(
            f"policy {path}: expected format {FORMAT}, got {metadata.get('format')!r}"
        )
    if "base" in metadata:
        frozen, base_metadata = lora.load_base(Path(path), metadata["base"])
        weights, metadata = weights | frozen, metadata | base_metadata
    described, spec = _described(path, metadata)
    with encoder.without_image_weights(), kinds_from_file():
        config = _config(path, metadata.get("config", ""))
        actor = policy_kind(config.kind).Policy.rebuild(spec, config, described)
    wrong = {
        name: tuple(tensor.shape)
        for name, tensor in actor.state_dict().items()
        if name not in weights or weights[name].shape != tensor.shape
    }
    if wrong:
        name, shape = next(iter(wrong.items()))
        actual = tuple(weights[name].shape) if name in weights else "nothing"
        raise PolicyFileError(
            f"policy {path}: '{name}': expected shape {shape}, got {actual}; "
            "the weights do not belong to the network the file describes"
        )
    actor.load_state_dict(weights)
    if not all(torch.isfinite(tensor).all() for tensor in weights.values()):
        raise PolicyFileError(
            f"policy {path}: expected finite weights, got NaN or Inf; the run that wrote it "
            f"diverged"
        )
    if station is None or actor.spec.hash == station.hash:
        return actor.eval()
    if actor.spec.member(station.hash) is None:
        difference = harmless_lines(actor.spec.difference(station))
        raise SpecError(
            f"policy {path} does not fit this station:\n{difference}\n"
            "Train it with this station's task, or start the station with the policy's task"
        )
    return SingleRobotPolicy(actor, station).eval()


def _described(path: str | Path, metadata: dict[str, str]) -> tuple[dict[str, Any], StationSpec]:
    """Return the metadata of a policy without its config, and the specs in it."""
    try:
        described = {
            key: json.loads(value)
            for key, value in metadata.items()
            if key not in ("format", "config", "base")
        }
        return described, spec_of(described["spec"])
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


def read_info(path: str | Path) -> dict[str, Any]:
    """Return the ``info`` of a saved policy, without loading its weights."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return json.loads((file.metadata() or {}).get("info", "{}"))


def newest_policy(path: Path) -> Path:
    """Return a policy file, or the newest version in a folder.

    A file under a person's own name counts if there is no other. In a run's folder only
    ``policies/`` is searched: ``rlinf serve`` looks each second and must not scan all episodes.
    """
    if path.is_file():
        return path
    if run_policies := policy_files(path / "policies"):
        return run_policies[-1]
    files = sorted(path.glob("**/policy-*.safetensors"))
    if not files:
        raise PolicyFileError(
            f"{path}: expected a policy-*.safetensors or a folder with some, found none"
        )
    named = sorted((file for file in files if NAMED.fullmatch(file.name)), key=policy_version)
    if versions := _of_trainer(named):
        return versions[-1]
    return files[-1]
