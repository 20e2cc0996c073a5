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
        log: receives log lines.
    """

    def __init__(self, total: int, log: Callable[[str], object] = to_stderr) -> None:
        self.total, self.log = total, log
        self._number = 0
        self._step_name = ""
        self._started_at = 0.0
        self._finished, self._lock = threading.Event(), threading.Lock()

    def step(self, step_name: str) -> None:
        """Begin the next step."""
        with self._lock:
            self._number += 1
            self._step_name = step_name
            self._started_at = time.monotonic()
            self.log(f"[{self._number} of {self.total}] {step_name}")

    def __enter__(self) -> Progress:
        threading.Thread(target=self._repeat, name="progress", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finished.set()

    def _repeat(self) -> None:
        while not self._finished.wait(EVERY_S):
            with self._lock:
                spent_s = time.monotonic() - self._started_at
                if self._step_name and spent_s >= EVERY_S / 2 and not self._finished.is_set():
                    self.log(
                        f"[{self._number} of {self.total}] {self._step_name}: {spent_s:.0f} s so "
                        f"far"
                    )


class SilentProgress(Progress):
    """Prints nothing."""

    def __init__(self) -> None:
        super().__init__(0, lambda text: None)
