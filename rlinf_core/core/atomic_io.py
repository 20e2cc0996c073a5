"""Files and folders that appear complete or not at all, even after a power cut."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

REASON = ".reason.txt"


def fsync(path: Path) -> None:
    """Flush a file's or folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> Path:
    """Make a folder, and those above it, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        fsync(folder.parent)
    return path


def publish_file(temporary: Path, path: Path) -> Path:
    """Flush ``temporary`` and rename it to ``path``, durably; both lie in one folder."""
    fsync(temporary)
    os.replace(temporary, path)
    fsync(path.parent)
    return path


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text without a flush, for frequent writes and slow disks.

    Readers get the old text or the new one. A power cut may lose both.

    Raises:
        OSError: the disk refuses; the old text stays.
    """
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_atomically(path: Path, write: Callable[[Path], object], durable: bool = True) -> Path:
    """Write a file beside ``path``, then rename it to ``path``.

    The old file stays until the new one is on the disk; without ``durable``, until it is complete.

    Raises:
        OSError: the write failed, safetensors' own errors included; no part of it is left.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.unlink(missing_ok=True)
        write_with_usual_mode(temporary, write)
        if durable:
            return publish_file(temporary, path)
        os.replace(temporary, path)
        return path
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno is not None and error.filename is None:
            error.filename = str(path)  # a write error names no file
        raise


def write_with_usual_mode(path: Path, write: Callable[[Path], object]) -> None:
    """Write a new file with the permissions that ``open`` would give it.

    safetensors makes files readable only by their owner. Its errors become the usual OSError.
    """
    path.touch()
    # from the umask, which cannot be read without changing it
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        write(path)
    except Exception as error:
        # the class exists only if safetensors is installed
        if type(error).__name__ != "SafetensorError":
            raise
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise OSError(f"{error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    if stat.S_IMODE(path.stat().st_mode) != mode:  # not every file system can change it
        path.chmod(mode)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, or begin it; a line cut by a power cut stays separate."""
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut = file.read() not in (b"", b"\n")
        file.write((b"\n" if cut else b"") + line.encode() + b"\n")


def flush_folder(folder: Path) -> None:
    """Flush the files of a folder, then the folder, which stores their names."""
    for path in (*folder.iterdir(), folder):
        fsync(path)


def move(path: Path, target: Path) -> Path:
    """Rename durably; the caller has flushed the content before."""
    os.rename(path, target)
    for folder in {target.parent, path.parent}:
        fsync(folder)
    return target


def unused_name(path: Path) -> Path:
    """Return ``path``, or ``path`` with the first number that makes it new."""
    names = itertools.chain(
        [path], (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    )
    return next(name for name in names if not os.path.lexists(name))


def quarantine(path: Path, into: Path, reason: str) -> Path:
    """Move an unusable file to the folder ``into``, with the reason in a text file beside it."""
    target = unused_name(make_folder(into) / path.name)
    note = target.with_name(target.name[:200] + REASON)
    note.write_text(reason + "\n", "utf-8", "backslashreplace")  # file names need not be UTF-8
    fsync(note)
    return move(path, target)
