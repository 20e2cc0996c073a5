"""The trainer's one record of episodes, journal.jsonl: arrival, sender, content and outcome."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from io import FileIO
from pathlib import Path
from typing import Any

from rlinf_core.core.atomic_io import fsync, make_folder
from rlinf_core.core.errors import EpisodeError

ARRIVED = "arrived"
OLDER = Path("inbox/journal.sqlite")


class Journal:
    """An append-only file with one line per event.

    An arrival is on disk before anybody hears of it.

    Args:
        path: path of the file, made with its first line. A last line cut short by a crash is
            removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        # content and station of each arrived episode, in order of arrival
        self._contents: dict[str, tuple[str, str]] = {}
        self._file: FileIO | None = None
        self._end = 0
        older = path.parent / OLDER
        if older.exists():
            raise EpisodeError(
                f"journal {path}: expected a run of this release, got {older}, written by an "
                "earlier release. Continue with that release, or begin another run (--out) that "
                f"trains on these episodes: collect.recordings=[{older.parent}]"
            )
        if path.exists():
            self._file = FileIO(path, "a+")
            self._end = self._read(self._file)
            self._file.truncate(self._end)

    def content(self, episode_id: str) -> str | None:
        """Return the SHA-256 that an episode arrived with, or None if it never did."""
        arrival = self._contents.get(episode_id)
        return arrival[0] if arrival else None

    def station(self, episode_id: str) -> str:
        """Return the station that sent an episode; empty if there is none."""
        arrival = self._contents.get(episode_id)
        return arrival[1] if arrival else ""

    def ids(self) -> list[str]:
        """Return the ids of all arrived episodes, in order of arrival."""
        with self._lock:
            return list(self._contents)

    def arrived(self, episode_id: str, station: str, sha256: str) -> None:
        """Note that an episode is durable in the inbox. A second call changes nothing."""
        with self._lock:
            if episode_id not in self._contents:
                os.fsync(
                    self._append(
                        {"id": episode_id, "status": ARRIVED, "station": station, "sha256": sha256}
                    )
                )
                self._contents[episode_id] = sha256, station

    def taken(self, episode_id: str, status: str) -> None:
        """Note the outcome of an episode in training.

        The line follows from checkpoint and inbox. It need not survive a power cut.
        """
        with self._lock:
            self._append({"id": episode_id, "status": status})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _append(self, row: dict[str, Any]) -> int:
        """Write a whole line or nothing; return the file descriptor, for fsync."""
        line = (json.dumps(row | {"time": time.time()}) + "\n").encode()
        if self._file is None:
            self._file = FileIO(make_folder(self.path.parent) / self.path.name, "a+")
            fsync(self.path.parent)
        try:
            if self._file.write(line) != len(line):
                raise OSError(f"{self.path}: the disk is full")
            self._end += len(line)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)  # remove half a line before the next one
            raise
        return self._file.fileno()

    def _read(self, file: FileIO) -> int:
        """Load the arrivals; return the end of the last whole line."""
        file.seek(0)
        data = file.read()
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                row = json.loads(line)
                if row["status"] == ARRIVED:
                    self._contents.setdefault(row["id"], (row["sha256"], row["station"]))
            except (ValueError, KeyError, TypeError) as error:
                raise EpisodeError(
                    f"journal {self.path}: line {number}: expected a JSON object with id and "
                    f"status, got {line[:80]!r}. Correct that line, or delete it and move its "
                    "episode out of the inbox"
                ) from error
        return end
