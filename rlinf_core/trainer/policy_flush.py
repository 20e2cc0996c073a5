"""Policies that stations get before they are on the trainer's disk.

A flush of 80 MB takes 0.2 s, in which nobody could fetch the policy. So the trainer renames the
file first and flushes it in a thread. A process that dies loses nothing, since the kernel has the
file. A power cut may leave a damaged file: a note beside the policies says which version was
flushed last, and when the machine booted. After another boot newer versions get another name; no
station is given them.
"""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from rlinf_core.core.atomic_io import fsync, write_atomically
from rlinf_core.policies.policy_folder import UNFLUSHED, named_files, policy_name, policy_version

NOTE = "flushed.json"
BOOT = Path("/proc/sys/kernel/random/boot_id")


class PolicyFlush:
    """Flushes one policy at a time in a thread.

    Args:
        folder: folder of the policies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, "policy-flush")
        self._pending: Future[None] | None = None
        self._noted = False

    def prepare(self) -> None:
        """Wait for the last flush; call it before a policy is written without a flush.

        Raises:
            OSError: the last flush failed, or the disk refuses the note.
        """
        self.wait()
        if not self._noted:  # an earlier process may have flushed policies
            self.folder.mkdir(parents=True, exist_ok=True)
            newest = max(map(policy_version, named_files(self.folder)), default=-1)
            self._flush(newest)
            self._noted = True

    def begin(self, version: int) -> None:
        """Begin to flush a version that ``prepare`` preceded."""
        self._pending = self._thread.submit(self._flush, version)

    def wait(self) -> None:
        """Wait until the last version is on the disk.

        Raises:
            OSError: it is not.
        """
        if self._pending is not None:
            pending = self._pending
            self._pending = None
            pending.result()

    def _flush(self, version: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            fsync(self.folder / policy_name(version))
        fsync(self.folder)
        note = json.dumps({"version": version, "boot": boot_id()})
        write_atomically(self.folder / NOTE, lambda temporary: temporary.write_text(note))


def boot_id() -> str:
    """Return the kernel's name for the time since the last boot; empty if it has none."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def discard_unflushed(folder: Path) -> list[Path]:
    """Rename the policies that a power cut may have damaged; return their new paths."""
    try:
        note = json.loads((folder / NOTE).read_text())
        version, boot = int(note["version"]), str(note["boot"])
    except (OSError, ValueError, KeyError, TypeError):  # all were flushed before they had a name
        return []
    if boot and boot == boot_id():
        return []
    lost = []
    for path in named_files(folder):
        if policy_version(path) > version:
            os.replace(path, renamed := path.with_name(path.name + UNFLUSHED))
            lost.append(renamed)
    return lost
