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
    if os.path.lexists(path):
        actual = "a folder" if path.is_dir() else "an existing file"
        raise RlinfError(
            f"{option} {path}: expected a new file, got {actual}. Nothing is overwritten. Choose "
            "another path, or remove it"
        )
    return path


def any_folder(path: Path, option: str = "--out") -> Path:
    """Return the path of a folder to write to, which may exist.

    Raises:
        RlinfError: a file is there.
    """
    if os.path.lexists(path) and not path.is_dir():
        raise RlinfError(
            f"{option} {path}: expected a folder, got a file. Nothing is overwritten. Choose "
            "another path"
        )
    return path


def empty_folder(path: Path, option: str = "--out") -> Path:
    """Return the path of a folder that does not exist yet, or that is empty.

    Raises:
        RlinfError: a file is there, or a folder with contents.
    """
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        actual = "a folder with contents" if path.is_dir() else "a file"
        raise RlinfError(
            f"{option} {path}: expected a new or an empty folder, got {actual}. Nothing is "
            "overwritten. Choose another path, or remove it"
        )
    return path
