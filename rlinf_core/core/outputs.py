"""Paths that a command is about to write: refused before the work if something is there."""

from __future__ import annotations

import os
from pathlib import Path

from rlinf_core.core.errors import RlinfError


def new_file(path: Path, option: str = "--out") -> Path:
    """Return the path of a file that does not exist yet.

    Raises:
        RlinfError: something exists there.
    """
    return _free(path, option, "a new file", not os.path.lexists(path))


def any_folder(path: Path, option: str = "--out") -> Path:
    """Return the path of a folder to write to, which may exist.

    Raises:
        RlinfError: a file is there.
    """
    return _free(path, option, "a folder", path.is_dir() or not os.path.lexists(path))


def empty_folder(path: Path, option: str = "--out") -> Path:
    """Return the path of a folder that does not exist yet, or that is empty.

    Raises:
        RlinfError: a file is there, or a folder with contents.
    """
    is_free = not any(path.iterdir()) if path.is_dir() else not os.path.lexists(path)
    return _free(path, option, "a new or an empty folder", is_free)


def _free(path: Path, option: str, expected: str, is_free: bool) -> Path:
    if not is_free:
        actual = "an existing folder" if path.is_dir() else "an existing file"
        raise RlinfError(
            f"{option} {path}: expected {expected}, got {actual}. Nothing is overwritten. Choose "
            "another path, or remove it"
        )
    return path
