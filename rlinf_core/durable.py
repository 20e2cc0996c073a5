"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Flush a file's or folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish_file(aside: Path, path: Path) -> Path:
    """Flush ``aside`` and rename it to ``path``, durably; both lie in one folder."""
    fsync(aside)
    os.replace(aside, path)
    fsync(path.parent)
    return path
