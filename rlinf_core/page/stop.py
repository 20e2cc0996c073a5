"""The page's e-stop: pressed until it is released, also where its process dies in between (S14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Stop:
    """Pressed or not.

    Args:
        file: stands while it is pressed, for the process after this one; None: it is forgotten with this one.
        log: a line for people.
    """

    def __init__(self, file: Path | None, log: Callable[[str], object]) -> None:
        self.file, self.log = file, log
        self.pressed = file is not None and file.exists()

    def press(self) -> None:
        """Until it is released."""
        self.pressed = True
        self._remember()

    def release(self) -> None:
        """By a person."""
        self.pressed = False
        self._remember()

    def _remember(self) -> None:
        try:
            if self.file is not None:
                self.file.touch() if self.pressed else self.file.unlink(missing_ok=True)
        except OSError as error:
            self.log(f"the page's stop is {'pressed' if self.pressed else 'released'}, which will not be remembered beyond "
                     f"this process: {error}. Free the disk")
