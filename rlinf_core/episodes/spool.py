"""A station's spool of episodes; one durable rename moves an episode from stage to stage.

    open/<id>/     being recorded
    closed/<id>/   complete, sealed and fsync'ed, waiting for the uplink; survives any crash
    sent/<id>/     acknowledged by the trainer; the oldest are removed when there are too many
    broken/<id>/   interrupted or aborted; kept for a person to look at, never trained on
    refused/<id>/  refused by the trainer, or no episode; the reason is in refused/<id>.reason.txt

The spool is bounded. Episodes in sent/ are removed first, oldest first, because the trainer has
them. No other file is removed. A spool that is full of other episodes opens no further one, and
its station plays none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlinf_core.core.atomic_io import flush_folder, make_folder, move, quarantine, unused_name
from rlinf_core.core.errors import SpoolError
from rlinf_core.episodes.checksums import MAX_BYTES, is_plain, seal
from rlinf_core.episodes.messages import offered_qos, typestore
from rlinf_core.episodes.names import order_of
from rlinf_core.specs.topics import EPISODE

MAX_MESSAGE_BYTES = 64 << 20
MAX_GB = 20.0
SPECS = "specs.json"  # a recorder's name for the station's specs, an attachment
COUNTED_FOLDERS = ("open", "closed", "broken", "refused")  # folders that count against the limit


class Spool:
    """Folders of one station's episodes.

    Args:
        root: the spool's folder, made if absent.
        min_free_mb: refuse to open an episode with less free disk than this.
        keep_sent: number of sent episodes to keep.
        max_gb: size of all episodes; the last recorded one may exceed it.
        kind: kind of the recordings.
    """

    def __init__(
        self,
        root: str | Path,
        min_free_mb: float = 200.0,
        keep_sent: int = 10_000,
        max_gb: float = MAX_GB,
        kind: str = EPISODE,
    ) -> None:
        self.root = Path(root)
        self.min_free_mb = min_free_mb
        self.keep_sent = keep_sent
        self.max_gb = max_gb
        self.kind = kind
        # returns the attachments of each new episode, by name
        self.attachments: Callable[[], dict[str, bytes]] = dict
        # bytes by folder; an episode's size changes only while it is open
        self._sizes: dict[str, dict[Path, int]] = {}
        try:
            for name in (*COUNTED_FOLDERS, "sent"):
                make_folder(self.root / name)
        except OSError as error:
            raise SpoolError(
                f"spool {self.root}: cannot be created: {error}. Choose another folder"
            ) from error

    def recover(self) -> list[str]:
        """Set aside the open episodes of an earlier recorder; return their ids.

        Call this once, when the recorder starts.
        """
        left = [path.name for path in (self.root / "open").iterdir()]
        for name in left:
            self._move("open", "broken", name)
        return left

    def open_episode(self, episode_id: str) -> EpisodeWriter:
        """Begin to record.

        Raises:
            SpoolError: the disk is nearly full, or the id is invalid or taken.
        """
        if not is_plain(episode_id):
            raise SpoolError(
                f"spool {self.root}: episode id: expected up to 128 of the characters A-Z a-z 0-9 "
                f"_ . + = -, no dot first, got {episode_id[:200]!r}. Give the station a plain name"
            )
        with _disk_errors(self.root):
            self._make_room(episode_id)
        return EpisodeWriter(self, episode_id)

    def _make_room(self, episode_id: str) -> None:
        taken = [
            name
            for name in ("open", "closed", "sent")
            if os.path.lexists(self.root / name / episode_id)
        ]
        if taken:
            raise SpoolError(
                f"spool {self.root}: expected a new episode, got {episode_id}, which is in "
                f"{taken[0]}/ already. Ids must be unique"
            )
        if (used_gb := self.full() * self.max_gb) >= self.max_gb:
            raise SpoolError(
                f"spool {self.root}: expected episodes of less than {self.max_gb:g} GB, got "
                f"{used_gb:.3g} GB. Nothing is recorded until some are sent. Check the connection "
                "to the trainer (rlinf status). Otherwise look in refused/ and broken/, or raise "
                "station.spool_gb. Closed episodes are safe"
            )
        self.forget("sent", keep=self.keep_sent)
        for old in sorted((self.root / "sent").iterdir(), key=order_of):
            if self._free_mb() >= self.min_free_mb:
                break
            shutil.rmtree(old, ignore_errors=True)
        if (free_mb := self._free_mb()) < self.min_free_mb:
            raise SpoolError(
                f"spool {self.root}: expected at least {self.min_free_mb:.0f} MB free, got "
                f"{free_mb:.0f} MB, and no sent episode is left to remove. Free disk space. Closed "
                "episodes are safe"
            )

    def closed(self) -> list[Path]:
        """Return everything in ``closed/``, oldest first: episodes that have not been sent."""
        return sorted((self.root / "closed").iterdir(), key=order_of)

    def mark_sent(self, episode_id: str) -> None:
        """Note that the trainer has acknowledged an episode."""
        self._move("closed", "sent", episode_id)
        self.forget("sent", keep=self.keep_sent)

    def forget(self, *folders: str, keep: int = 1 << 62, needed: int = 0) -> None:
        """Remove the oldest episodes of some folders, until the spool is small enough.

        Args:
            folders: folders to remove from.
            keep: number of episodes that these folders may keep.
            needed: bytes to keep free in the spool.
        """
        room = self.max_gb * 1e9 - needed - self._bytes(*COUNTED_FOLDERS, "sent")
        sizes = {path: size for name in folders for path, size in self._sizes[name].items()}
        excess = len(sizes) - keep
        if room >= 0 and excess <= 0:
            return
        for number, old in enumerate(sorted(sizes, key=order_of)):
            if room >= 0 and number >= excess:
                break
            room += sizes[old]
            shutil.rmtree(old, ignore_errors=True)

    def full(self) -> float:
        """Return the used fraction of the spool, without sent episodes.

        Nothing is recorded from 1 on.
        """
        return self._bytes(*COUNTED_FOLDERS) / (self.max_gb * 1e9)

    def set_aside(self) -> int:
        """Return the number of refused episodes.

        Those that a person has removed no longer count.
        """
        return sum(1 for path in (self.root / "refused").iterdir() if path.is_dir())

    def refuse(self, name: str, reason: str) -> Path:
        """Move an episode out of ``closed/`` for good, and keep it with the reason."""
        return quarantine(self.root / "closed" / name, self.root / "refused", reason)

    def _free_mb(self) -> float:
        return shutil.disk_usage(self.root).free / 1e6

    def _bytes(self, *folders: str) -> int:
        for name in folders:
            sizes = self._sizes.get(name, {}) if name != "open" else {}
            self._sizes[name] = {
                path: sizes.get(path) or _size(path) for path in (self.root / name).iterdir()
            }
        return sum(sum(self._sizes[name].values()) for name in folders)

    def _move(self, source: str, target: str, name: str) -> Path:
        return move(self.root / source / name, unused_name(self.root / target / name))


class EpisodeWriter:
    """One open recording: raw CDR messages into a rosbag2 folder (MCAP, readable by
    ``ros2 bag``).
    """

    def __init__(self, spool: Spool, episode_id: str) -> None:
        from rlinf_core.episodes.storage import CheckedWriter

        self.spool = spool
        self.episode_id = episode_id
        self.bytes = 0
        self._connections: dict[str, Any] = {}
        self._bag = CheckedWriter(spool.root / "open" / episode_id, spool.kind)
        with _disk_errors(spool.root):
            self._bag.open()
            storage: Any = self._bag.storage
            for name, data in spool.attachments().items():
                storage.attach(name, data, time.time_ns())

    def write(self, topic: str, message_type: str, stamp_ns: int, raw: bytes) -> None:
        """Append one serialised message; ``message_type`` like "rlinf_msgs/msg/TimeStep"."""
        self.bytes += len(raw)
        if len(raw) > MAX_MESSAGE_BYTES or self.bytes > 0.9 * MAX_BYTES:
            raise SpoolError(
                f"episode {self.episode_id}: expected messages of at most "
                f"{MAX_MESSAGE_BYTES >> 20} MiB and {int(0.9 * MAX_BYTES) >> 20} MiB in total, got "
                f"{len(raw) >> 20} MiB on '{topic}', {self.bytes >> 20} MiB in total. Record "
                "smaller images or shorter episodes"
            )
        with _disk_errors(self.spool.root):
            if topic not in self._connections:
                self._connections[topic] = self._bag.add_topic(
                    topic, message_type, typestore(), offered_qos(topic)
                )
            self._bag.write(self._connections[topic], stamp_ns, raw)

    def note(self, metadata: dict[str, str]) -> None:
        """Add entries to the metadata that closing writes (``custom_data`` of rosbag2's)."""
        for name, value in metadata.items():
            self._bag.set_custom_data(name, value)

    def close(self) -> Path:
        """Finish, seal, fsync and move to ``closed/``.

        The episode then survives the death of anything.
        """
        folder = self.spool.root / "open" / self.episode_id
        with _disk_errors(self.spool.root):
            self._bag.close()
            seal(folder)
            flush_folder(folder)
            return self.spool._move("open", "closed", self.episode_id)

    def abort(self) -> None:
        """Set the episode aside in ``broken/``.

        Raises:
            SpoolError: even that fails.
        """
        with contextlib.suppress(Exception):  # with an index if the disk still takes one
            self._bag.close()
        with contextlib.suppress(Exception):
            self._bag.abort()
        with _disk_errors(self.spool.root):
            self.spool._move("open", "broken", self.episode_id)


def _size(path: Path) -> int:
    """Return the bytes of a file or a folder's content, as far as it still exists."""
    size = 0
    with contextlib.suppress(OSError):  # it was moved on in between
        for path_below in (path, *path.rglob("*")):
            size += path_below.lstat().st_size
    return size


@contextlib.contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    """Turn errors of the operating system into a SpoolError with a remedy."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        fix = (
            f"Free the disk, e.g. delete {root / 'sent'}"
            if full
            else "Check the folder and its permissions"
        )
        raise SpoolError(
            f"spool {root}: {error.strerror or error}. {fix}. Closed episodes are safe"
        ) from error
