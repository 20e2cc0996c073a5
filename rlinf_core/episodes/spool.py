"""The spool of a station: episodes being written, closed, sent, and broken; one durable rename between each.

    open/<id>/    being recorded
    closed/<id>/  complete and fsync'ed, waiting for the uplink: survives the death of anything
    sent/<id>/    acknowledged by the trainer; the oldest are removed when there are too many
    broken/<id>/  interrupted or aborted; kept for a person to look at, never trained on
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

from rlinf_core.durable import fsync
from rlinf_core.episodes.messages import typestore
from rlinf_core.errors import SpoolError


class Spool:
    """Folders of one station's episodes.

    Args:
        root: the spool's folder, made if absent.
        min_free_mb: refuse to open an episode with less free disk than this.
        keep_sent: how many sent episodes to keep.
    """

    def __init__(self, root: str | Path, min_free_mb: float = 200.0, keep_sent: int = 10_000) -> None:
        self.root, self.min_free_mb, self.keep_sent = Path(root), min_free_mb, keep_sent
        try:
            for name in ("open", "closed", "sent", "broken"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpoolError(f"spool {self.root}: cannot be created: {error}. Choose another folder") from error

    def recover(self) -> list[str]:
        """Set aside what an earlier recorder left open; returns the ids. Call once, when the recorder starts."""
        left = [path.name for path in (self.root / "open").iterdir()]
        for name in left:
            self._move("open", "broken", name)
        return left

    def open_episode(self, episode_id: str) -> EpisodeWriter:
        """Begin to record; SpoolError if the disk is nearly full."""
        free_mb = shutil.disk_usage(self.root).free / 1e6
        if free_mb < self.min_free_mb:
            raise SpoolError(f"spool {self.root}: expected at least {self.min_free_mb:.0f} MB free, got {free_mb:.0f} MB. "
                             f"Free the disk, e.g. delete {self.root / 'sent'}; closed episodes are safe")
        return EpisodeWriter(self, episode_id)

    def closed(self) -> list[Path]:
        """Closed episodes that have not been sent, oldest first."""
        return sorted((self.root / "closed").iterdir(), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def mark_sent(self, episode_id: str) -> None:
        """The trainer has acknowledged it."""
        self._move("closed", "sent", episode_id)
        sent = sorted((self.root / "sent").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in sent[: max(0, len(sent) - self.keep_sent)]:
            shutil.rmtree(old)

    def _move(self, source: str, target: str, name: str) -> None:
        destination = self.root / target / name
        if destination.exists():
            destination = destination.with_name(f"{name}.{os.getpid()}")
        (self.root / source / name).rename(destination)
        for folder in (source, target):
            fsync(self.root / folder)


class EpisodeWriter:
    """One episode being recorded: raw CDR messages into a rosbag2 folder (MCAP, readable by ``ros2 bag``)."""

    def __init__(self, spool: Spool, episode_id: str) -> None:
        from rosbags.rosbag2 import StoragePlugin, Writer

        self.spool, self.episode_id = spool, episode_id
        self._connections: dict[str, Any] = {}
        self._bag = Writer(spool.root / "open" / episode_id, version=8, storage_plugin=StoragePlugin.MCAP)
        with _disk_errors(spool.root):
            self._bag.open()

    def write(self, topic: str, message_type: str, stamp_ns: int, raw: bytes) -> None:
        """Append one serialised message; ``message_type`` like "rlinf_msgs/msg/TimeStep"."""
        with _disk_errors(self.spool.root):
            if topic not in self._connections:
                self._connections[topic] = self._bag.add_connection(topic, message_type, typestore=typestore())
            self._bag.write(self._connections[topic], stamp_ns, raw)

    def close(self) -> Path:
        """Finish, fsync and move to ``closed/``; after this the episode survives the death of anything."""
        folder = self.spool.root / "open" / self.episode_id
        with _disk_errors(self.spool.root):
            self._bag.close()
            for file in (*folder.iterdir(), folder):
                fsync(file)
            self.spool._move("open", "closed", self.episode_id)
        return self.spool.root / "closed" / self.episode_id

    def abort(self) -> None:
        """Set the episode aside in ``broken/``."""
        try:
            self._bag.close()
        finally:
            self.spool._move("open", "broken", self.episode_id)


class _disk_errors:
    """Turns the operating system's refusals into SpoolError with what to do."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            fix = f"Free the disk, e.g. delete {self.root / 'sent'}" if full else "Check the folder and its rights"
            raise SpoolError(f"spool {self.root}: {error.strerror or error}. {fix}; closed episodes are safe") from error
