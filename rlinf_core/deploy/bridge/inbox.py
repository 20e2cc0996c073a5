"""The trainer's inbox: it stores each episode once and acknowledges it only when it is durable.

``PartialUpload`` is an upload in progress. It writes chunks to files within the offered sizes, and
compares the complete files with the episode's list of hashes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from rlinf_core.core.atomic_io import flush_folder, make_folder, move
from rlinf_core.core.errors import BridgeError, EpisodeError, RefusedError
from rlinf_core.deploy.bridge import bridge_pb2 as pb
from rlinf_core.deploy.bridge.fleet import STATION_NAME
from rlinf_core.episodes.checksums import (
    MAX_BYTES,
    MAX_FILES,
    MAX_SUMS_BYTES,
    SUMS,
    check_listing,
    file_sha256,
    is_plain,
    read_sums,
)
from rlinf_core.episodes.journal import Journal

SHA256 = re.compile(r"[0-9a-f]{64}")


def check_offer(station: str, episode: pb.Episode) -> None:
    """Check the offer of an episode before its first byte.

    Raises:
        RefusedError: a name, size or hash is invalid; the text names station, field and bound.
    """
    subject, files = f"station '{station}': offered episode {episode.id[:200]!r}", episode.files
    for field, name in (
        ("id", episode.id),
        *((f"files[{n}].name", file.name) for n, file in enumerate(files)),
    ):
        if not is_plain(name):
            raise RefusedError(
                f"{subject}: {field}: expected a plain name (up to 128 of A-Z a-z 0-9 _ . + = -, "
                f"no dot first), got {name[:200]!r}"
            )
    size, names = sum(file.size for file in files), {file.name for file in files}
    owner = episode.id.partition("-")[0] if "-" in episode.id else ""
    if STATION_NAME.fullmatch(owner) and owner != station:
        raise RefusedError(
            f"{subject}: id: expected one that begins with '{station}-', got an id of station "
            f"'{owner}'. If this station was renamed, send its old episodes with "
            f"station.name={owner}"
        )
    if len(files) > MAX_FILES or size > MAX_BYTES:
        raise RefusedError(
            f"{subject}: files: expected at most {MAX_FILES} files of {MAX_BYTES >> 20} MiB in "
            f"total, got {len(files)} of {size >> 20} MiB. Record smaller images, or shorter "
            "episodes"
        )
    if len(names) < len(files) or not all(SHA256.fullmatch(file.sha256) for file in files):
        raise RefusedError(
            f"{subject}: files: expected each once and with its SHA-256 in hex, got "
            f"{', '.join(f'{file.name} {file.sha256[:70]}' for file in files)}"
        )
    if not any(file.name == SUMS and file.size <= MAX_SUMS_BYTES for file in files):
        raise RefusedError(
            f"{subject}: files: expected {SUMS} among the files, got "
            f"{', '.join(sorted(names)) or 'none'}. The trainer accepts only closed episodes"
        )


class PartialUpload:
    """An upload in progress: it writes the chunks of an offered episode to a folder of its own.

    It continues a partial upload. Its methods raise RefusedError if the upload can never succeed,
    and BridgeError if a retry may.

    Attributes:
        byte_at: monotonic time [s] of the last bytes, or of the start.
    """

    def __init__(self, folder: Path, station: str, episode: pb.Episode) -> None:
        self.folder = folder
        self.station = station
        self.episode = episode
        self._subject = f"station '{station}': upload of {episode.id}"
        self._at = -1
        self.byte_at = time.monotonic()
        self._out: BinaryIO | None = None

    @property
    def sums(self) -> dict[str, str]:
        """The offered SHA-256 by file name."""
        return {file.name: file.sha256 for file in self.episode.files}

    def have(self) -> list[int]:
        """Return the stored bytes of each file; 0 for a file longer than its offer."""
        paths = [self.folder / file.name for file in self.episode.files]
        sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
        return [
            size if size <= file.size else 0
            for size, file in zip(sizes, self.episode.files, strict=True)
        ]

    def take(self, chunk: pb.Chunk) -> None:
        """Append a chunk to its file."""
        if not self._at <= chunk.file < len(self.episode.files):
            raise RefusedError(
                f"{self._subject}: chunk.file: expected file by file, from {max(self._at, 0)} to "
                f"{len(self.episode.files) - 1}, got {chunk.file}"
            )
        name = self.episode.files[chunk.file].name
        if zlib.crc32(chunk.data) != chunk.crc32:
            raise BridgeError(
                f"{self._subject}: '{name}' was damaged in transit at byte {chunk.offset}: "
                f"chunk.crc32: expected {zlib.crc32(chunk.data)}, got {chunk.crc32}; the station "
                "sends it again from there"
            )
        out = self._out if chunk.file == self._at and self._out else self._open(chunk.file)
        if (
            chunk.offset != out.tell()
            or chunk.offset + len(chunk.data) > self.episode.files[chunk.file].size
        ):
            raise BridgeError(
                f"{self._subject}: '{name}': chunk.offset: expected {out.tell()}, and at most "
                f"{self.episode.files[chunk.file].size} bytes in total, got {len(chunk.data)} from "
                f"{chunk.offset} on; the station offers it again"
            )
        out.write(chunk.data)
        self.byte_at = time.monotonic()

    def finish(self) -> None:
        """Flush all files, and compare the bytes on disk with the offer and the hashes.

        The flush waits for the disk, so a thread flushes while this one hashes.
        """
        self.close()
        for file, have in zip(self.episode.files, self.have(), strict=True):
            path = self.folder / file.name
            path.touch()  # an empty file has no chunk
            if have < file.size:
                raise BridgeError(
                    f"{self._subject}: expected {file.size} bytes of '{file.name}', got {have}; "
                    "the station sends the rest again"
                )
        with ThreadPoolExecutor(1, "flush") as flusher:
            flush = flusher.submit(flush_folder, self.folder)
            stored = [file_sha256(self.folder / file.name) for file in self.episode.files]
            flush.result()
        for file, sha256 in zip(self.episode.files, stored, strict=True):
            path = self.folder / file.name
            if sha256 != file.sha256:
                path.unlink()
                raise BridgeError(
                    f"{self._subject}: '{file.name}' was damaged in transit; the station sends it "
                    "again"
                )
        sums = self.sums
        del sums[SUMS]
        check_listing(self._subject, sums, read_sums(self.folder / SUMS))

    def close(self) -> None:
        """Close the open file; its bytes stay."""
        if self._out is not None:
            self._out.close()
            self._out = None

    def _open(self, number: int) -> BinaryIO:
        """Open a file to append to; ``finish`` hashes all of it."""
        self.close()
        path = self.folder / self.episode.files[number].name
        self._at = number
        self._out = open(path, "ab" if self.have()[number] else "wb")  # noqa: SIM115 (closed by close())
        return self._out


PART_PREFIX = ".part-"  # prefix of folders of partial uploads; no episode's name begins with a dot
MAX_PARTS = 4  # partial uploads kept for each station
# a partial upload without a byte for so long is removed; counts while the trainer runs
PART_S = 86_400.0
MIN_FREE_MB = 200.0


class Inbox:
    """The folder of received episodes, one subfolder each.

    Args:
        folder: folder on one disk; created if it is absent.
        journal: journal of arrivals.
        on_episode: receives the folder of each new episode, after it is durable.
        min_free_mb: disk space [MB] that must stay free beside an episode; else it is refused for
            now.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        on_episode: Callable[[Path], None],
        min_free_mb: float = MIN_FREE_MB,
    ) -> None:
        self.folder = make_folder(folder)
        self.journal = journal
        self.on_episode = on_episode
        self.min_free_mb = min_free_mb
        self._storing = threading.Lock()
        self._start_s = time.monotonic()  # not the system's clock, whose steps must remove nothing
        parts = sorted(folder.glob(f"{PART_PREFIX}*"), key=lambda path: path.stat().st_mtime)
        # None: from an earlier run
        self._parts: dict[Path, PartialUpload | None] = dict.fromkeys(parts)
        self._removing = threading.Lock()

    def offer(self, station: str, episode: pb.Episode) -> pb.EpisodeReply:
        """Answer an offer with the bytes that are stored already.

        Raises:
            RefusedError: the episode is refused for good.
            BridgeError: the disk has too little space.
        """
        check_offer(station, episode)
        upload = self._partial_upload(station, episode)
        if self._has_arrived(upload):
            return pb.EpisodeReply(stored=True, duplicate=True)
        self._remove_old_parts(upload)
        have = upload.have()
        free_mb = shutil.disk_usage(self.folder).free / 1e6
        needed_mb = self.min_free_mb + (sum(file.size for file in episode.files) - sum(have)) / 1e6
        if free_mb < needed_mb:
            self._remove_old_parts(upload, is_disk_short=True)
            free_mb = shutil.disk_usage(self.folder).free / 1e6
        if free_mb < needed_mb:
            raise BridgeError(
                f"inbox {self.folder}: expected at least {needed_mb:.0f} MB free, got "
                f"{free_mb:.0f} MB. Free the trainer's disk"
            )
        return pb.EpisodeReply(have=have)

    def _remove_old_parts(self, offered: PartialUpload, is_disk_short: bool = False) -> None:
        """Remove partial uploads without a byte for PART_S. Their stations still have the episodes.

        Args:
            offered: upload that stays.
            is_disk_short: remove also all partial uploads from earlier runs of the trainer.
        """
        now = time.monotonic()
        with self._removing:
            for path, upload in list(self._parts.items()):
                is_old = now - self._byte_at(path) > PART_S or (is_disk_short and upload is None)
                if is_old and path != offered.folder:
                    self._remove(path)

    def _byte_at(self, part: Path) -> float:
        """Return the monotonic time [s] of the last byte.

        For a byte of an earlier run it is the time of this start.
        """
        upload = self._parts.get(part)
        return self._start_s if upload is None else upload.byte_at

    def _remove(self, part: Path) -> None:
        shutil.rmtree(part, ignore_errors=True)
        self._parts.pop(part, None)

    def receive(self, station: str, episode: pb.Episode) -> PartialUpload | None:
        """Start or continue an upload; None if the episode is stored already."""
        if self.offer(station, episode).stored:
            return None
        upload = self._partial_upload(station, episode)
        with self._removing:
            self._parts[upload.folder] = upload
            upload.folder.mkdir(exist_ok=True)
            others = [
                path
                for path in self._parts
                if path != upload.folder and path.name.startswith(f"{PART_PREFIX}{station}-")
            ]
            for path in sorted(others, key=self._byte_at)[: -(MAX_PARTS - 1)]:
                self._remove(path)
        return upload

    def store(self, upload: PartialUpload) -> bool:
        """Store a complete upload: flush, check, rename, journal.

        Returns:
            Whether the episode was stored already.
        """
        try:
            upload.finish()
        except (RefusedError, EpisodeError):
            self._remove(upload.folder)
            raise
        episode_id, folder = upload.episode.id, self.folder / upload.episode.id
        with self._storing:
            if self._has_arrived(upload):
                self._remove(upload.folder)
                return True
            shutil.rmtree(folder, ignore_errors=True)  # a crash between rename and journal left it
            move(upload.folder, folder)
            self._parts.pop(upload.folder, None)
            self.journal.arrived(episode_id, upload.station, digest(upload.sums))
        self.on_episode(folder)
        return False

    def _partial_upload(self, station: str, episode: pb.Episode) -> PartialUpload:
        """Return the upload.

        Its folder is named by content, so that two episodes of one id do not mix.
        """
        content = digest({file.name: file.sha256 for file in episode.files})
        return PartialUpload(
            self.folder / f"{PART_PREFIX}{station}-{content[:32]}", station, episode
        )

    def _has_arrived(self, upload: PartialUpload) -> bool:
        content = self.journal.content(upload.episode.id)
        if content not in (None, digest(upload.sums)):
            raise RefusedError(
                f"episode {upload.episode.id} from {upload.station}: another recording with this "
                "id has already arrived. Give every station its own name"
            )
        return content is not None


def digest(files: dict[str, str]) -> str:
    """Return one SHA-256 over an episode's file names and hashes: the identity of its content."""
    return hashlib.sha256(
        "\n".join(f"{name} {sha}" for name, sha in sorted(files.items())).encode()
    ).hexdigest()
