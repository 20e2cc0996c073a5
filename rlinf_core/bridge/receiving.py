"""One upload on its way in: parts become files, within bounds, and the files an episode with its seal."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from rlinf_core.bridge import bridge_pb2 as pb
from rlinf_core.episodes.checksums import MAX_BYTES, MAX_FILES, SUMS, check_listing, is_plain, told
from rlinf_core.errors import BridgeError, RefusedError

MAX_PARTS = 8192
RESERVED = "journal.sqlite"  # lies in the inbox, and SQLite names more files after it


class Receiving:
    """Writes the parts of one episode into ``aside``.

    Raises RefusedError where the same upload can never succeed, and BridgeError where the next try may.
    """

    def __init__(self, aside: Path) -> None:
        self.aside, self.station, self.episode_id = aside, "", ""
        self.files: dict[str, str] = {}  # name to SHA-256, of those that have arrived whole
        self._parts = self._bytes = 0
        self._name, self._sha = "", hashlib.sha256()
        self._out: BinaryIO | None = None

    def take(self, part: pb.EpisodePart) -> None:
        """The next part."""
        self._count(part)
        if self._parts == 1:
            self.station, self.episode_id = _plain(part.station, "station"), _plain(part.episode_id, "episode id")
            if self.episode_id.casefold().startswith(RESERVED):
                raise RefusedError(f"upload: expected a plain episode id other than {RESERVED}*, got {self.episode_id!r}")
        elif part.station or part.episode_id:
            raise RefusedError(f"upload of {self.episode_id}: expected its id in the first part alone")
        if part.file:
            self._begin(_plain(part.file, "file name"))
        self._write(part)

    def finish(self) -> tuple[str, str, dict[str, str]]:
        """Station, episode id and {file name: SHA-256}, once all parts are there and the seal fits."""
        if self._out is not None or not self.files:
            raise BridgeError(f"upload of '{self.episode_id}': expected whole files, got {len(self.files)}; "
                              "it is sent again")
        if SUMS not in self.files:
            raise RefusedError(f"upload of {self.episode_id}: expected a {SUMS} among its files, got "
                               f"{', '.join(sorted(self.files))}. Only closed episodes are taken")
        sums = {name: sha for name, sha in self.files.items() if name != SUMS}
        check_listing(f"upload of {self.episode_id}", sums, told(self.aside / SUMS))
        return self.station, self.episode_id, self.files

    def close(self) -> None:
        """Let go of a file that did not arrive whole."""
        if self._out is not None:
            self._out.close()

    def _count(self, part: pb.EpisodePart) -> None:
        self._parts += 1
        self._bytes += len(part.data)
        if self._parts > MAX_PARTS or self._bytes > MAX_BYTES or len(self.files) + bool(part.file) > MAX_FILES:
            raise RefusedError(f"upload of {self.episode_id}: expected at most {MAX_FILES} files, {MAX_BYTES >> 20} MiB "
                               f"in all and {MAX_PARTS} parts, got more. Record smaller images, or shorter episodes")

    def _begin(self, name: str) -> None:
        if self._out is not None or name in self.files:
            raise RefusedError(f"upload of {self.episode_id}: expected each file once and with its SHA-256, got '{name}' "
                               f"{'again' if name in self.files else f'before the end of {self._name!r}'}")
        self._name, self._sha = name, hashlib.sha256()
        self._out = open(self.aside / name, "xb")  # noqa: SIM115 (closed at the file's last part)

    def _write(self, part: pb.EpisodePart) -> None:
        if self._out is None:
            raise RefusedError(f"upload of {self.episode_id}: expected a part that names its file first")
        self._out.write(part.data)
        self._sha.update(part.data)
        if part.sha256:
            self._out.close()
            self._out = None
            if self._sha.hexdigest() != part.sha256:
                raise BridgeError(f"upload of {self.episode_id}: '{self._name}' was damaged on the way; it is sent again")
            self.files[self._name] = part.sha256


def _plain(name: str, what: str) -> str:
    """A name that stays inside its folder."""
    if not is_plain(name):
        raise RefusedError(f"upload: expected a plain {what} (up to 128 of A-Z a-z 0-9 _ . + = -, no dot first), "
                           f"got {name[:200]!r}")
    return name
