"""Reader processes on Ray, which read and check arrived episodes while the trainer updates.

The trainer's bridge acknowledges an episode once it is on disk and in the journal. The readers then
parse the recording and check its values. The trainer inserts episodes in their order of arrival.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import EpisodeError, IngestError, SpecError, is_transient
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.rollouts.episode_conversion import episode_to_trajectory, read_checked_episode
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.trainer.distributed.ray_cluster import (
    check_started,
    connect,
    is_ray_error,
    lost_errors,
)

RESTARTS = 10  # maximum restarts of readers in a run
PREFETCHED_EPISODES = 2  # prefetched episodes of each reader


class Reader:
    """Ray actor of one reader. The arguments are those of ``Intake``."""

    def __init__(
        self,
        spec: StationSpec,
        max_transitions: int,
        use_executed: bool,
        rollouts_of: PolicySettings | None,
    ) -> None:
        self.spec = spec
        self.max_transitions = max_transitions
        self.options = (use_executed, rollouts_of)

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def read(self, name: str, files: dict[str, bytes], sender: str) -> Trajectory:
        """Read the episode in ``files``.

        Raises EpisodeError if it is invalid or not of ``sender``.
        """
        with tempfile.TemporaryDirectory(prefix="rlinf-reader-") as folder:
            episode = Path(folder) / name
            episode.mkdir()
            for file, data in files.items():
                (episode / file).write_bytes(data)
            return episode_to_trajectory(
                read_checked_episode(episode, self.spec, self.max_transitions, sender),
                self.spec,
                *self.options,
            )


class Readers:
    """Prefetches episodes in reader processes. A dead reader is replaced and its work repeated.

    Args:
        count: number of processes.
        address: address of the cluster; empty for a local one.
        reader_arguments: arguments of ``Reader``.
    """

    def __init__(self, count: int, address: str, *reader_arguments: Any) -> None:
        self.ray = connect(address)
        self.reader_arguments = reader_arguments
        self.died = 0
        self._next = 0
        self._actors = [self._spawn() for _ in range(count)]
        self._pending: dict[Path, tuple[int, Any]] = {}

    def prefetch(self, waiting: Iterable[tuple[Path, str]]) -> None:
        """Start reading the first of the ``waiting`` (folder, sender)."""
        for _, (folder, sender) in zip(
            range(PREFETCHED_EPISODES * len(self._actors)), waiting, strict=False
        ):
            if folder not in self._pending:
                # ``read`` reports it
                with contextlib.suppress(OSError, self.ray.exceptions.RayError):
                    self._begin(folder, sender)

    def read(self, folder: Path, sender: str) -> Trajectory:
        """Return the episode of a folder. Raises EpisodeError if it is invalid."""
        while True:
            try:
                if folder not in self._pending:
                    self._begin(folder, sender)
            except self.ray.exceptions.RayError as error:  # such as a full store
                raise _no_answer(error) from error
            number, answer = self._pending.pop(folder)
            try:
                read: Trajectory = self.ray.get(answer)
                return read
            except self.ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, EpisodeError | SpecError) or is_transient(error.cause):
                    raise error.cause from None
                if is_ray_error(error.cause):  # the arguments were lost
                    raise _no_answer(error) from error
                raise
            except lost_errors() as error:
                self._replace(number, error)
            except self.ray.exceptions.RayError as error:
                raise _no_answer(error) from error

    def _begin(self, folder: Path, sender: str) -> None:
        number = self._next = (self._next + 1) % len(self._actors)
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._pending[folder] = number, self._actors[number].read.remote(folder.name, files, sender)

    def _replace(self, number: int, error: Exception) -> None:
        check_started("ingest", error)
        self.died += 1
        if self.died > RESTARTS:
            raise IngestError(
                f"ingest processes died {self.died} times, the last by: {error}. Nothing is lost: "
                "episodes wait in the inbox. Longer episodes or larger images need more memory"
            ) from error
        print(
            f"ingest process {number} died and is replaced ({self.died} of {RESTARTS})", flush=True
        )
        self._actors[number] = self._spawn()
        self._pending = {
            folder: pending for folder, pending in self._pending.items() if pending[0] != number
        }

    def _spawn(self) -> Any:
        return self.ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Reader).remote(
            *self.reader_arguments
        )

    def close(self) -> None:
        """End the processes."""
        for actor in self._actors:
            self.ray.kill(actor)


def _no_answer(error: Exception) -> IngestError:
    """Return the error for a reader that does not answer; the episode stays in the inbox."""
    return IngestError(
        f"a process of the ingest does not answer: {error}. Nothing is lost: episodes wait in the "
        "inbox, and the same command continues"
    )
