"""Checkpoints of a whole run: folders of safetensors and JSON that are written atomically."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.core.atomic_io import (
    flush_folder,
    make_folder,
    move,
    quarantine,
    write_with_usual_mode,
)
from rlinf_core.core.errors import RlinfError, escape_ascii, is_transient
from rlinf_core.episodes.checksums import SUMS, file_sha256, listing, read_sums

DIGITS = 8
ARRAYS, REST = "arrays.safetensors", "state.json"
DAMAGED = "damaged"  # folder for damaged checkpoints, beside ``checkpoints``
State = dict[str, Any]  # nested dicts of arrays, tensors and JSON values


class DamagedCheckpointError(RlinfError):
    """A checkpoint whose files are missing or changed."""


def flatten(state: State, prefix: str = "") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Flatten a nested state into named arrays (for safetensors) and the rest (for JSON)."""
    arrays: dict[str, np.ndarray] = {}
    rest: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict) and value:
            nested, other = flatten(value, f"{prefix}{key}/")
            arrays |= nested
            rest |= other
        elif hasattr(value, "detach") or isinstance(value, np.ndarray | np.generic):
            arrays[f"{prefix}{key}"] = np.array(
                value.numpy(force=True) if hasattr(value, "detach") else value, order="C"
            )
        else:
            rest[f"{prefix}{key}"] = value
    return arrays, rest


def unflatten(arrays: dict[str, np.ndarray], rest: dict[str, Any]) -> State:
    """Invert ``flatten``; tensors become arrays."""
    state: State = {}
    for name, value in [*arrays.items(), *rest.items()]:
        node = state
        *path, last = name.split("/")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return state


def save(root: Path, name: str, state: State, keep: int = 2) -> Path:
    """Write the checkpoint ``root/<number>-name`` durably and keep only the newest ``keep``.

    The files are written to a temporary folder, flushed and renamed. The number counts up.

    Raises:
        OSError: the disk refuses it. No part of it stays, and older checkpoints stay.
    """
    from safetensors.numpy import save_file

    number = 1 + max((int(path.name[:DIGITS]) for path in _folders(root)), default=0)
    folder, temporary = root / f"{number:0{DIGITS}d}-{name}", make_folder(root) / f".{name}.part"
    for left in root.glob(".*"):  # left by a crash; files such as .DS_Store belong to others
        if left.is_dir():
            shutil.rmtree(left)
    temporary.mkdir()
    arrays, rest = flatten(state)
    try:
        write_with_usual_mode(temporary / ARRAYS, lambda file: save_file(arrays, file))
        (temporary / REST).write_text(json.dumps(rest))
        (temporary / SUMS).write_text(
            listing({name: file_sha256(temporary / name) for name in (ARRAYS, REST)})
        )
        flush_folder(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # frees a full disk
        raise
    move(temporary, folder)
    for old in checkpoints(root)[:-keep]:
        # the folder is renamed first, so that a crash leaves no partial checkpoint
        shutil.rmtree(move(old, root / f".{old.name}.old"))
    return folder


def load(folder: Path, parts: tuple[str, ...] = ()) -> State:
    """Read a checkpoint that must hold at least ``parts``.

    Raises:
        DamagedCheckpointError: a file is missing, truncated or changed.
        RlinfError: it cannot be read now, or lacks a part since an earlier version wrote it.
    """
    from safetensors.numpy import load_file

    try:
        _verify(folder)
        state = unflatten(load_file(folder / ARRAYS), json.loads((folder / REST).read_text()))
    except Exception as error:  # the libraries raise many kinds
        reason = escape_ascii(error)
        if is_transient(error) or (
            isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        ):
            raise RlinfError(
                f"checkpoint {folder}: cannot be read now: {reason}. Nothing was changed. Correct "
                "the cause and start again, or move this folder away to continue from the "
                "previous checkpoint"
            ) from error
        raise DamagedCheckpointError(
            f"checkpoint {folder}: expected {ARRAYS} and {REST}, intact, got: {reason}"
        ) from error
    if missing := [part for part in parts if part not in state]:
        raise RlinfError(
            f"checkpoint {folder}: expected {', '.join(parts)}, got none of {', '.join(missing)}. "
            "An earlier version wrote it. Begin another run; simulation.initial_policy accepts "
            "this run's policy"
        )
    return state


def load_newest(
    root: Path, parts: tuple[str, ...] = (), damaged_root: Path | None = None
) -> State | None:
    """Read the newest valid checkpoint below ``root``; None if there is no checkpoint.

    Args:
        root: folder of the checkpoints.
        parts: parts that it must hold.
        damaged_root: folder that damaged checkpoints are moved to, with the reason in a file.

    Raises:
        RlinfError: all checkpoints are damaged, or one cannot be read now.
    """
    damaged: dict[Path, str] = {}
    state: State | None = None
    for folder in reversed(_folders(root)):
        try:
            state = load(folder, parts)
        except DamagedCheckpointError as error:
            damaged[folder] = str(error)
            continue
        if damaged:
            notice = f"checkpoint {folder}: the run continues from this intact checkpoint"
            print(*damaged.values(), notice, sep="\n", flush=True)
        break
    if damaged and state is None:
        raise RlinfError(
            "\n".join(damaged.values())
            + f"\n{root}: expected an intact checkpoint, got none. Nothing was changed. Restore "
            "one from a backup, or begin another run with this run's policy as "
            "simulation.initial_policy"
        )
    for folder, reason in damaged.items():
        if damaged_root is not None:
            path = quarantine(folder, damaged_root, reason)
            print(f"checkpoint {folder}: kept as {path}", flush=True)
    return state


def checkpoints(root: Path) -> list[Path]:
    """Return the complete checkpoints below ``root``, oldest first."""
    return [path for path in _folders(root) if (path / REST).is_file()]


def _folders(root: Path) -> list[Path]:
    """Return the folders that are named like a checkpoint, oldest first."""
    paths = root.glob(f"{'[0-9]' * DIGITS}-*") if root.is_dir() else ()
    return sorted(path for path in paths if path.is_dir())


def _verify(folder: Path) -> None:
    """Raise ValueError if a file does not match its checksum. Old checkpoints have no checksums."""
    if not (folder / SUMS).exists():
        return
    expected = read_sums(folder / SUMS)
    if listing({name: file_sha256(folder / name) for name in (ARRAYS, REST)}) != expected:
        changed = [
            name
            for name in (ARRAYS, REST)
            if f"{file_sha256(folder / name)}  {name}" not in expected.split("\n")
        ]
        raise ValueError(f"{', '.join(changed) or SUMS} does not fit {SUMS}")
