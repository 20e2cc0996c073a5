"""Recorded episodes on disk as a source, and the intake that inserts each episode exactly once.

An invalid episode is logged with the reason and quarantined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.algorithms.common.settings import RolloutLength
from rlinf_core.core.atomic_io import quarantine
from rlinf_core.core.errors import (
    EpisodeError,
    IngestError,
    RecipeError,
    RlinfError,
    SpecError,
    StartupError,
    escape_ascii,
    is_transient,
)
from rlinf_core.core.paths import expand_user
from rlinf_core.episodes import Episode
from rlinf_core.episodes.checksums import SUMS, never_closed, read_sums
from rlinf_core.episodes.journal import Journal
from rlinf_core.episodes.storage import kind_of
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.rollouts.episode_conversion import episode_to_trajectory, read_checked_episode
from rlinf_core.rollouts.types import Experience, Source, Trajectory
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.topics import EPISODE

if TYPE_CHECKING:
    from rlinf_core.trainer.distributed.readers import Readers

REFUSED, LATER = "refused", "cannot be read now"


class Intake:
    """Reads recordings, inserts them and writes the result of each to ``journal.jsonl``.

    Args:
        run_dir: folder of the run; refused episodes move to its ``refused/``.
        spec: spec of the stations; episodes with another spec are refused.
        max_transitions: maximum number of transitions of an episode.
        use_executed: train on the executed actions of the interlock, not on the requested ones.
        rollouts_of: policy settings of an on-policy algorithm, which trains on chunks; else None.
    """

    def __init__(
        self,
        run_dir: Path,
        spec: StationSpec,
        max_transitions: int,
        use_executed: bool = False,
        rollouts_of: PolicySettings | None = None,
    ) -> None:
        self.run_dir, self.spec, self.max_transitions = run_dir, spec, max_transitions
        self.use_executed, self.rollouts_of = use_executed, rollouts_of
        self.journal = Journal(run_dir / "journal.jsonl")
        self.readers: Readers | None = None  # processes on Ray
        self.ids: dict[str, str] = {}  # status by episode, including those of the checkpoint
        self._refused = Counter({REFUSED: 0})

    def counts(self) -> dict[str, float]:
        """Return the refused episodes, in total and by station (``<station>/refused``)."""
        return {name: float(count) for name, count in self._refused.items()}

    def take(
        self, folder: Path, insert: Callable[[Trajectory], str], owns_folder: bool = True
    ) -> str:
        """Insert one episode. A second call for the same episode changes nothing.

        Args:
            folder: folder of the recording.
            insert: inserts the trajectory and returns its status.
            owns_folder: the folder belongs to the run, so a refused episode is moved out of it.

        Returns:
            The status. It begins with REFUSED for an invalid episode, and with LATER if the machine
            cannot read it now (memory, open files, disk); it is then not marked as taken.
        """
        status = "duplicate" if folder.name in self.ids else self._insert(folder, insert)
        if status.startswith(LATER):
            return status
        try:
            self.journal.taken(folder.name, status)
        except OSError as error:  # checkpoint and inbox hold the status, too
            print(
                f"episode {folder.name}: {status}, but the journal cannot be written: {error}. "
                "Free disk space",
                flush=True,
            )
        if status.startswith(REFUSED):
            print(status, flush=True)
            if owns_folder:
                self._quarantine(folder, status)
        return status

    def _insert(self, folder: Path, insert: Callable[[Trajectory], str]) -> str:
        try:
            try:
                trajectory = self.trajectory(folder)
            except Exception as error:
                if is_transient(error):
                    return escape_ascii(
                        f"{LATER}: episode {folder.name}: {type(error).__name__}: {error}"
                    )
                raise
            status = insert(trajectory)
        except EpisodeError as error:
            status = f"{REFUSED}: {error}"
        except SpecError as error:
            status = f"{REFUSED}: episode {folder.name}: {error}. It is not used for training"
        except (IngestError, StartupError):
            raise
        except Exception as error:
            if is_transient(error):  # the buffers may hold a part of it; the checkpoint does not
                raise IngestError(
                    f"episode {folder.name}: expected memory to load it, got "
                    f"{type(error).__name__}: {error}. The episode and the last checkpoint are "
                    "unchanged. Reduce replay.capacity; the same command then continues"
                ) from error
            # an invalid recording must not stop the trainer at every restart
            status = (
                f"{REFUSED}: episode {folder.name}: cannot be read: {type(error).__name__}: {error}"
            )
        return self._note_status(folder.name, escape_ascii(status))

    def _note_status(self, name: str, status: str) -> str:
        self.ids[name] = status
        if status.startswith(REFUSED):
            station = self.journal.station(name)
            self._refused.update([REFUSED, *([f"{station}/{REFUSED}"] if station else [])])
        return status

    def read(self, folder: Path) -> Episode:
        """Read and check the episode in ``folder``. Raises EpisodeError if it is invalid."""
        return read_checked_episode(
            folder, self.spec, self.max_transitions, self.journal.station(folder.name)
        )

    def trajectory(self, folder: Path) -> Trajectory:
        """Read an episode as a trajectory, in a reader process if there are any."""
        if self.readers is not None:
            return self.readers.read(folder, self.journal.station(folder.name))
        return episode_to_trajectory(
            self.read(folder), self.spec, self.use_executed, self.rollouts_of
        )

    def prefetch(self, folders: Iterable[Path]) -> None:
        """Let the reader processes start with these folders."""
        if self.readers is not None:
            self.readers.prefetch(
                (folder, self.journal.station(folder.name))
                for folder in folders
                if folder.name not in self.ids
            )

    def _quarantine(self, path: Path, status: str) -> None:
        """Move a refused episode out of the inbox. The journal still holds its arrival."""
        try:
            if path.exists():
                quarantine(path, self.run_dir / REFUSED, status)
        except OSError as error:  # it stays, and is refused again at the next start
            print(f"{path}: cannot be moved: {error}", flush=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the status of all episodes."""
        return {"ids": list(self.ids.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self.ids = {}
        self._refused = Counter({REFUSED: 0})
        for name, status in state["ids"]:
            self._note_status(name, status)


class Recordings(Source):
    """A source whose episodes are all inserted before the run starts."""

    asynchronous = False

    def __init__(self) -> None:
        self.report: dict[str, Any] = {}  # unused

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return no experience."""
        return Experience()

    def close(self) -> None:
        """Do nothing."""


def closed_episodes(folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield every closed episode below the folders, in order.

    Raises:
        RecipeError: a folder holds none.
    """
    for name in folders:
        root = expand_user(name, "collect.recordings")
        folders_below = sorted(path.parent for path in root.glob("**/metadata.yaml"))
        recordings = [
            folder
            for folder in folders_below
            if kind_of(folder) == EPISODE and not never_closed(folder)
        ]
        if not recordings:
            raise RecipeError(
                f"collect.recordings: expected recorded episodes (rosbag2 folders) in {name}, "
                f"found none"
            )
        yield from recordings


def read_recordings(
    folders: tuple[str, ...], intake: Intake, insert: Callable[[Trajectory], str]
) -> None:
    """Insert all episodes below the folders. The files stay where they are.

    Raises:
        RecipeError: all episodes are invalid, or one occurs twice.
        RlinfError: an episode cannot be read now.
    """
    from rich.progress import track

    recordings = list(closed_episodes(folders))
    _check_unique(recordings)
    reading = track(recordings, description="reading recordings", transient=True)
    statuses = [intake.take(folder, insert, owns_folder=False) for folder in reading]
    if waiting := [status for status in statuses if status.startswith(LATER)]:
        raise RlinfError(
            f"collect.recordings: {len(waiting)} {waiting[0]}. Start again, or move it elsewhere "
            "to train without it"
        )
    if all(status.startswith(REFUSED) for status in statuses):
        raise RecipeError(
            f"collect.recordings: expected a usable episode in {', '.join(folders)}; all "
            f"{len(statuses)} were refused, the last one: {statuses[-1]}"
        )


def check_demonstrations(is_sufficient: bool, statuses: Mapping[str, int]) -> None:
    """Check that there are enough demonstrations to start.

    Raises:
        RecipeError: there are not; the text counts the episodes by status.
    """
    if is_sufficient:
        return
    summary = ", ".join(f"{count} {status.partition(':')[0]}" for status, count in statuses.items())
    raise RecipeError(
        "collect.recordings: expected a successful demonstration of each robot, got "
        f"{summary or 'none'}. `rlinf data list` shows the modes of recordings; `rlinf collect` "
        "records demonstrations"
    )


def _check_unique(recordings: list[Path]) -> None:
    """Raise RecipeError if two recordings with different content share an id."""
    by_id: dict[str, Path] = {}
    for folder in recordings:
        before = by_id.setdefault(folder.name, folder)
        if before == folder:
            continue
        sums = {
            read_sums(path / SUMS) if (path / SUMS).is_file() else "" for path in (before, folder)
        }
        if len(sums) > 1:
            raise RecipeError(
                f"collect.recordings: expected unique ids, got '{folder.name}' with different "
                f"content in {before} and in {folder}. Leave one of them out"
            )
