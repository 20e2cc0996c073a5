"""Result folders that appear complete or not at all, for merged and split recordings.

Recordings are copied as closed, with their seals.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rlinf_core.core.atomic_io import fsync, make_folder, move
from rlinf_core.core.errors import RlinfError, escape_ascii
from rlinf_core.data.episodes import intact_episodes
from rlinf_core.episodes.checksums import SUMS, is_plain, verify
from rlinf_core.reports.recordings import outcome

PARTIAL = ".partial"


def check_unused(out: Path) -> Path:
    """Return the folder that ``new_folder`` will make, as an absolute path.

    A command calls it before a long computation.

    Raises:
        RlinfError: ``out`` or its partial folder exists.
    """
    out = out.resolve()
    for path in (out, _partial(out)):
        if path.exists():
            raise RlinfError(
                f"--out {path}: expected an unused path, got an existing one. Nothing is "
                "overwritten. Choose another path, or remove it"
            )
    return out


def _partial(out: Path) -> Path:
    return out.with_name(out.name + PARTIAL)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write to; it becomes ``out`` on success, and is removed on failure.

    Raises:
        RlinfError: ``out`` exists, or the disk refused. The message names the source if reading it
            failed.
    """
    out = check_unused(out)
    partial = _partial(out)
    try:
        make_folder(partial)
        yield partial
        for path in (*partial.rglob("*"), partial):
            fsync(path)
        move(partial, out)
    except OSError as error:
        if source := _path_outside(error, partial):
            raise RlinfError(
                f"{escape_ascii(source)}: cannot be read: {error.strerror}. --out {out} was "
                "removed again. Correct the named path, or leave it out"
            ) from error
        raise RlinfError(
            f"--out {out}: cannot be written: {error.strerror or error}. Nothing was left there. "
            "Free disk space, or choose another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _path_outside(error: OSError, partial: Path) -> str:
    """Return the only path of an error, if it is neither in ``partial`` nor above it, or ""."""
    if not isinstance(error.filename, str | bytes | os.PathLike) or error.filename2 is not None:
        return ""
    path = Path(os.path.abspath(os.fsdecode(error.filename)))
    if path.is_relative_to(partial) or partial.is_relative_to(path):
        return ""
    return os.fsdecode(error.filename)


def merge(paths: list[Path], out: Path) -> int:
    """Copy every intact episode into ``out``; return their number."""
    with new_folder(out) as folder:
        count = 0
        for source, _ in intact_episodes(paths):
            _copy_recording(source, folder / source.name)
            count += 1
    return count


def split(
    paths: list[Path], out: Path, fractions: dict[str, float] | None = None, seed: int = 0
) -> dict[str, int]:
    """Copy every intact episode into a subfolder of ``out``; return each subfolder's number.

    Args:
        paths: recordings to split.
        out: a new folder.
        fractions: share of all episodes, drawn at random, for each subfolder by its name; without,
            there is one for each outcome.
        seed: seed of that draw; the draw does not depend on the episodes' folders.
    """
    check_unused(out)
    episodes = {
        source: outcome(episode).replace(" ", "_") for source, episode in intact_episodes(paths)
    }
    if fractions:
        episodes = _assign_parts(sorted(episodes, key=lambda source: source.name), fractions, seed)
    counts = dict.fromkeys(fractions or sorted(set(episodes.values())), 0)
    with new_folder(out) as folder:
        for source, part in episodes.items():
            _copy_recording(source, folder / part / source.name)
            counts[part] += 1
    return counts


def parse_fractions(texts: list[str]) -> dict[str, float]:
    """Parse ``["train=0.9", "val=0.1"]`` to {name: fraction}.

    Raises:
        RlinfError: the texts are invalid, or the sum is not 1.
    """
    pairs = [text.partition("=") for text in texts]
    try:
        fractions = {name: float(value) for name, _, value in pairs}
    except ValueError:
        fractions = {}
    wrong = (
        len(fractions) < len(texts)
        or not all(is_plain(name) for name in fractions)
        or min(fractions.values(), default=0) <= 0
    )
    if wrong or abs(sum(fractions.values()) - 1) > 1e-9:
        raise RlinfError(
            "--fractions: expected names with fractions that sum to 1, such as train=0.9 val=0.1, "
            f"got {' '.join(texts)}"
        )
    return fractions


def _assign_parts(sources: list[Path], fractions: dict[str, float], seed: int) -> dict[Path, str]:
    """Draw a part for each source, so that the parts have the given fractions."""
    bounds = np.round(np.cumsum(list(fractions.values())) * len(sources)).astype(int)
    places = np.searchsorted(bounds, np.arange(len(sources)), side="right")
    order = np.random.default_rng(seed).permutation(len(sources))
    names = list(fractions)
    return {sources[index]: names[place] for index, place in zip(order, places, strict=True)}


def _copy_recording(source: Path, target: Path) -> None:
    """Copy a recording and verify its seal."""
    target.parent.mkdir(exist_ok=True)
    try:
        shutil.copytree(source, target, copy_function=_copy_file)
    except _CopyError as stopped:
        raise stopped.reason from None
    if (target / SUMS).exists():
        verify(target)


class _CopyError(Exception):
    """Stops copytree at its first error, because it would collect errors in a list of tuples."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


def _copy_file(source: str, target: str) -> None:
    try:
        shutil.copy2(source, target)
    except OSError as error:
        raise _CopyError(error) from error
