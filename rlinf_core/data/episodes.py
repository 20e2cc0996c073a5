"""The intact episodes below some folders, one after the other, all with the same specs."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlinf_core.core.errors import EpisodeError, RlinfError, escape_ascii
from rlinf_core.episodes import Episode, read_episode
from rlinf_core.episodes.checksums import SUMS, never_closed, read_sums
from rlinf_core.episodes.messages import NS
from rlinf_core.episodes.spool import SPECS
from rlinf_core.episodes.validate import check_episode
from rlinf_core.recipes import load_recipe
from rlinf_core.recipes.station import station_task
from rlinf_core.reports.recordings import episodes_in
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

# no limit on the time steps of an episode
LONGEST = 10**9
# episodes read at once, because hashes and copies release the interpreter
READERS = 2
Log = Callable[[str], None]


def intact_episodes(paths: list[Path], log: Log = print) -> Iterator[tuple[Path, Episode]]:
    """Yield every intact episode in and below some folders, in the order of their paths.

    Recordings that were never closed are skipped, and reported. An episode that occurs twice, for
    example in a spool and an inbox, is yielded once.

    Raises:
        EpisodeError: an episode is damaged, two different ones share an id, or their specs differ;
            the message names both.
    """
    first: tuple[Path, Episode] | None = None
    folders_by_id: dict[str, Path] = {}
    for folder, reading in _read_ahead(_closed_recordings(episodes_in(paths), log)):
        try:
            episode = reading.result()
        except EpisodeError as error:
            if (folder / SUMS).exists():
                raise EpisodeError(
                    f"{error}. `rlinf data check` lists all damaged recordings, `rlinf data "
                    "repair` keeps their intact part"
                ) from error
            log(
                f"left out: {escape_ascii(folder)}: "
                f"{escape_ascii(error).removeprefix(f'episode {escape_ascii(folder)}: ')}"
            )
            continue
        except OSError as error:
            # a disk that fails during reading names no file
            error.filename = error.filename or str(folder)
            raise
        first = first or (folder, episode)
        _check_same_specs(folder, episode, *first)
        if episode.id in folders_by_id:
            _check_same_content(folder, folders_by_id[episode.id])
            continue
        folders_by_id[episode.id] = folder
        yield folder, episode
    if first is None:
        raise EpisodeError(
            f"{', '.join(map(str, paths))}: expected an intact episode, got none. `rlinf data "
            "check` shows the reason"
        )


def _closed_recordings(folders: list[Path], log: Log) -> Iterator[Path]:
    """Yield the closed recordings.

    Interrupted and aborted recordings are reported, even if they are complete.
    """
    for folder in folders:
        if never_closed(folder):
            log(f"left out: {escape_ascii(folder)}: no {SUMS}: it was interrupted or aborted")
        else:
            yield folder


def _read_ahead(folders: Iterable[Path]) -> Iterator[tuple[Path, Future[Episode]]]:
    """Yield each folder with its episode, in their order, and read the next ones meanwhile.

    The end does not wait for the threads, because one of them may collect an abandoned generator.
    """
    pool = ThreadPoolExecutor(READERS)
    try:
        waiting: deque[tuple[Path, Future[Episode]]] = deque()
        for folder in folders:
            waiting.append((folder, pool.submit(_read_checked, folder)))
            if len(waiting) > READERS:
                yield waiting.popleft()
        yield from waiting
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read_checked(folder: Path) -> Episode:
    episode = read_episode(folder)
    check_values(episode)
    return episode


def check_values(episode: Episode, spec: StationSpec | None = None) -> None:
    """Check an episode's values for training, by a station's specs or those recorded with it."""
    if spec is None:
        spec = recorded_spec(episode)
        episode = replace(episode, spec_hash=spec.hash)
    check_episode(episode, spec, LONGEST)


def recorded_spec(episode: Episode) -> StationSpec:
    """Return the specs that a recording shows: names, shapes and rate.

    Units, scales and names of actions are unknown.
    """
    arrays = tuple(
        ArraySpec(name, values.shape[1:], str(values.dtype))
        for name, values in episode.observations.items()
    )
    count = episode.requested.shape[1]
    action = ActionSpec(
        "", tuple(f"action_{index}" for index in range(count)), (1.0,) * count, ("",) * count
    )
    steps_ns = np.diff(episode.stamps_ns)
    return StationSpec(
        arrays, action, round(NS / max(float(np.median(steps_ns)), 1.0), 1), episode.instruction
    )


def episode_spec(episode: Episode, folder: Path, recipe: str | None) -> StationSpec:
    """Return the station's specs of an episode.

    They come from the recipe, else from the recorder's attachment, else from the run around the
    recording, else from the recording's arrays.

    Raises:
        EpisodeError: the named recipe has other specs.
    """
    if recipe is not None:
        spec = station_task(load_recipe(recipe)).spec
        if spec.hash != episode.spec_hash:
            raise EpisodeError(
                f"{folder}: expected specs {spec.hash}, of recipe '{recipe}', got "
                f"{episode.spec_hash}:\n{spec.difference(recorded_spec(episode))}\nName the recipe "
                "of this recording"
            )
        return spec
    if (attached := _attached_spec(folder)) and attached.hash == episode.spec_hash:
        return attached
    for above in folder.resolve().parents:
        if (above / "recipe.yaml").is_file():
            try:
                spec = station_task(load_recipe(above / "recipe.yaml")).spec
            except RlinfError:  # a robot or a task that is not on this machine
                break
            if spec.hash == episode.spec_hash:
                return spec
    return recorded_spec(episode)


def _attached_spec(folder: Path) -> StationSpec | None:
    """Return the specs that a recorder attached; None if there are none, or they are unreadable."""
    with suppress(RlinfError, ValueError, KeyError, TypeError):
        if data := read_attachment(folder, SPECS):
            return StationSpec.from_dict(json.loads(data))
    return None


def read_attachment(folder: Path, name: str) -> bytes | None:
    """Return a file that the recorder attached to an episode; None if there is none."""
    from mcap.exceptions import McapError
    from mcap.reader import make_reader

    for path in sorted(folder.glob("*.mcap")):
        with suppress(McapError), path.open("rb") as file:
            for attached in make_reader(file).iter_attachments():
                if attached.name == name:
                    return bytes(attached.data)
    return None


def _check_same_specs(folder: Path, episode: Episode, first_folder: Path, first: Episode) -> None:
    if episode.spec_hash != first.spec_hash:
        difference = (
            recorded_spec(first).difference(recorded_spec(episode))
            or "units, bounds, scales or sources differ"
        )
        raise EpisodeError(
            f"expected episodes of the same specs, got {first.spec_hash} in {first_folder} and "
            f"{episode.spec_hash} in {folder}: {difference}. Process them separately"
        )


def _check_same_content(folder: Path, before: Path) -> None:
    sums = [
        read_sums(recording / SUMS) if (recording / SUMS).exists() else str(recording)
        for recording in (folder, before)
    ]
    if sums[0] != sums[1]:
        raise EpisodeError(
            f"expected unique ids, got '{folder.name}' with different content in {before} and in "
            f"{folder}. Leave one of them out"
        )
