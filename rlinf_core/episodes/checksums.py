"""The seal of a closed episode: SHA256SUMS beside its files, in the format of ``sha256sum``.

The seal is made when an episode is closed. It is checked before the episode is sent, when it
arrives and whenever it is read. The check finds a flipped bit in any file, the seal included, and a
missing or extra file.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from rlinf_core.core.errors import EpisodeError

SUMS = "SHA256SUMS"
NEVER_CLOSED = ("open", "broken")  # folders of a spool with interrupted or aborted episodes
MAX_FILES = 16
MAX_BYTES = 2 << 30  # all files of an episode together
MAX_SUMS_BYTES = 1 << 14
READ_BYTES = 1 << 20  # bytes of a file in memory at a time
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,127}", re.ASCII)


def is_plain(name: str) -> bool:
    """Return True if a name is safe and short enough for a file on every file system."""
    return PLAIN.fullmatch(name) is not None


def seal(folder: Path) -> None:
    """Write the SHA256SUMS of the files that are there now."""
    (folder / SUMS).write_text(listing({file.name: file_sha256(file) for file in _files(folder)}))


def verify(folder: Path) -> dict[str, str]:
    """Compare an episode with its seal.

    Returns:
        {file name: SHA-256}.

    Raises:
        EpisodeError: the files differ from the seal; the message names them.
    """
    sums = {file.name: file_sha256(file) for file in _files(folder)}
    check_listing(f"episode {folder}", sums, _sums_text(folder))
    return sums


def check_listing(recording: str, sums: dict[str, str], listed: str) -> None:
    """Compare {file name: SHA-256} with the lines of a SHA256SUMS, in any order."""
    expected = set(listing(sums).split("\n"))
    wrong = expected.symmetric_difference(listed.split("\n"))
    if wrong or len(listed.split("\n")) != len(expected):
        names = sorted(
            {name for name in sums if any(line.endswith(f"  {name}") for line in wrong)} or {SUMS}
        )
        raise EpisodeError(
            f"{recording}: expected an intact rosbag2 recording, got changed files: "
            f"{', '.join(names)} does not fit {SUMS}. The recording was damaged or changed and is "
            "not used for training"
        )


def listing(sums: dict[str, str]) -> str:
    """Return the text that ``sha256sum *`` prints."""
    return "".join(f"{sha}  {name}\n" for name, sha in sorted(sums.items()))


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    sha = hashlib.sha256()
    with open(file, "rb") as source:
        while data := source.read(READ_BYTES):
            sha.update(data)
    return sha.hexdigest()


def file_state(state: os.stat_result) -> str:
    """Return which file it is, and since when it has its content: another text after a change."""
    return f"{state.st_dev}:{state.st_ino}:{state.st_size}:{state.st_mtime_ns}"


def unchanged_sha256(path: Path) -> tuple[str, str]:
    """Return a file's SHA-256 and its ``file_state``, which is empty if it changed meanwhile."""
    before = file_state(path.stat())
    sha256 = file_sha256(path)
    return sha256, before if file_state(path.stat()) == before else ""


def episode_files(folder: Path) -> list[Path]:
    """Return the files of an episode, by name.

    Raises:
        EpisodeError: the folder holds something that an episode does not have.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise EpisodeError(
            f"episode {folder}: expected an intact rosbag2 recording (a folder), got "
            f"{'something else' if folder.exists() else 'nothing'}. It is not used for training"
        )
    files = sorted(folder.iterdir())
    odd = [
        file.name
        for file in files
        if file.is_symlink() or not file.is_file() or not is_plain(file.name)
    ]
    size = sum(file.lstat().st_size for file in files)
    if odd or len(files) > MAX_FILES or size > MAX_BYTES:
        raise EpisodeError(
            f"episode {folder}: expected at most {MAX_FILES} plain files of {MAX_BYTES >> 20} MiB "
            f"in total, got {len(files)} of {size >> 20} "
            f"MiB{f', {odd[0]!r} among them' if odd else ''}. It is not used for training"
        )
    return files


def read_sums(path: Path) -> str:
    """Read the text of a SHA256SUMS, at most MAX_SUMS_BYTES, and replace invalid bytes."""
    with open(path, "rb") as source:
        return source.read(MAX_SUMS_BYTES).decode(errors="replace")


def never_closed(folder: Path) -> bool:
    """Return True if a recording was interrupted or aborted: it lies in such a folder, unsealed."""
    return folder.absolute().parent.name in NEVER_CLOSED and not (folder / SUMS).exists()


def _files(folder: Path) -> list[Path]:
    return [file for file in episode_files(folder) if file.name != SUMS]


def _sums_text(folder: Path) -> str:
    path = folder / SUMS
    if not path.exists():
        raise EpisodeError(
            f"episode {folder}: expected a {SUMS}, which the recorder writes at the end, got none. "
            f"For an old recording that you trust: (cd {folder} && sha256sum * > {SUMS})"
        )
    return read_sums(path)
