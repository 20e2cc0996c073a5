"""The record of policy updates at a station: the refused ones, and the last one played.

The uplink's announcement is latched, so a restarted policy node hears of the same update again. The
record, a small JSON file beside the station's policies, keeps it from trying a bad update a second
time, and names the last good policy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.core.atomic_io import replace_text
from rlinf_core.core.paths import VERSION
from rlinf_core.episodes.checksums import file_sha256

FILE = "updates.json"
MAX_REFUSED = 100  # newest ones; an older one is tried again
MAX_ATTEMPTS = 2  # loads during which the process ended; a third one is refused
MAX_TEXT = 2000  # characters of a reason


@dataclass(frozen=True)
class Update:
    """A policy file of a version."""

    version: int
    path: str
    sha256: str


class UpdateRecord:
    """The outcome of the updates in one folder.

    Args:
        folder: folder of the station's policies.
        conditions: further conditions of a refusal beside the file, such as specs. Under other
            conditions a station drops its refusals, because the cause may have been fixed.
    """

    def __init__(self, folder: Path, conditions: Sequence[str]) -> None:
        self.file = folder / FILE
        self.conditions = hashlib.sha256("\n".join([VERSION, *conditions]).encode()).hexdigest()
        self.refused: dict[str, str] = {}  # reason by SHA-256
        self.attempts: dict[str, int] = {}  # unfinished loads by SHA-256
        self.last: Update | None = None  # the last one loaded
        with contextlib.suppress(
            OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError
        ):
            self._read(json.loads(self.file.read_text()))

    def _read(self, document: dict[str, Any]) -> None:
        last = document["last"]
        if last is not None:
            self.last = Update(int(last["version"]), str(last["path"]), str(last["sha256"]))
        if document["conditions"] == self.conditions:
            self.refused = {
                str(sha256): str(reason) for sha256, reason in document["refused"].items()
            }
            self.attempts = {
                str(sha256): int(number) for sha256, number in document["attempts"].items()
            }

    def refusal(self, update: Update) -> str:
        """Return the reason not to load an update, or an empty string."""
        if (
            update.sha256 not in self.refused
            and self.attempts.get(update.sha256, 0) >= MAX_ATTEMPTS
        ):
            self.refuse(
                update,
                f"policy {update.path}: the policy node ended {MAX_ATTEMPTS} times while it "
                "loaded this file. It will not load it again. See the node's log, and publish "
                "another version",
            )
        return self.refused.get(update.sha256, "")

    def begin(self, update: Update) -> None:
        """Note that the load of an update begins."""
        self.attempts[update.sha256] = self.attempts.get(update.sha256, 0) + 1
        self._write()

    def end(self, update: Update, *, loaded: bool) -> None:
        """Note that the load of an update has ended, and the process lives."""
        self.attempts.pop(update.sha256, None)
        self.last = update if loaded else self.last
        self._write()

    def refuse(self, update: Update, reason: str) -> None:
        """Refuse an update for good."""
        self.attempts.pop(update.sha256, None)
        self.refused[update.sha256] = reason[:MAX_TEXT]
        self.refused = dict([*self.refused.items()][-MAX_REFUSED:])
        self._write()

    def last_good(self) -> Update | None:
        """Return the last loaded policy, if its file is unchanged and not refused since."""
        last = self.last
        if last is None or last.sha256 in self.refused:
            return None
        return last if is_unchanged(last) else None

    def _write(self) -> None:
        last = self.last and vars(self.last)
        text = json.dumps(
            {
                "conditions": self.conditions,
                "last": last,
                "refused": self.refused,
                "attempts": self.attempts,
            }
        )
        with contextlib.suppress(OSError):  # on a full disk, the process itself remembers
            # without a flush, because a slow disk must not delay the policy
            replace_text(self.file, text)


def is_unchanged(update: Update) -> bool:
    """Return True if the file is there, unchanged since the trainer sent it."""
    try:
        return file_sha256(Path(update.path)) == update.sha256
    except OSError:
        return False


def is_permanent(error: BaseException) -> bool:
    """Return True if the same file would fail again: not a lack of memory, disk or another file."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError | MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return False
        cause = cause.__cause__
    return True
