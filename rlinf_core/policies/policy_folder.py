"""Names and versions of the policy files in a folder."""

from __future__ import annotations

import functools
import json
import logging
import re
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import PolicyFileError, escape_ascii

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


def read_info(path: str | Path) -> dict[str, Any]:
    """Return the ``info`` of a saved policy, without loading its weights."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return json.loads((file.metadata() or {}).get("info", "{}"))


def base_name(digest: str) -> str:
    """Return the name of the file with the weights of this hash, beside policy files."""
    return f"base-{digest[:16]}.safetensors"
