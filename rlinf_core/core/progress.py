"""Progress of a command in steps: number, total and duration, reported at least every EVERY_S."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

EVERY_S = 4.0


def to_stderr(text: str) -> None:
    """Print a line beside the command's output."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Prints a line for each step, and another one every EVERY_S seconds while it lasts.

    Args:
        total: number of steps.
        say: takes a line for people.
    """

    def __init__(self, total: int, say: Callable[[str], object] = to_stderr) -> None:
        self.total, self.log = total, say
        self._number, self._what, self._begun_at = 0, "", 0.0
        self._over, self._lock = threading.Event(), threading.Lock()

    def step(self, what: str) -> None:
        """Begin the next step."""
        with self._lock:
            self._number, self._what, self._begun_at = self._number + 1, what, time.monotonic()
            self.log(f"[{self._number} of {self.total}] {what}")

    def __enter__(self) -> Progress:
        threading.Thread(target=self._repeat, name="progress", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _repeat(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._lock:
                spent_s = time.monotonic() - self._begun_at
                if self._what and spent_s >= EVERY_S / 2 and not self._over.is_set():
                    self.log(
                        f"[{self._number} of {self.total}] {self._what}: {spent_s:.0f} s so far"
                    )


class Silent(Progress):
    """Prints nothing."""

    def __init__(self) -> None:
        super().__init__(0, lambda text: None)
