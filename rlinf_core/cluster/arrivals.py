"""From the inbox into the replay, each episode once; what is refused is said, logged and set aside."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from rlinf_core.durable import set_aside

REFUSED = "refused"


class Arrivals:
    """Takes episodes in and keeps ``trained_on.jsonl``.

    Args:
        run_dir: of the trainer; refused episodes go to its ``refused/``.
        insert: folders and the newest policy version to what became of each (``ReplayStore.insert``).
    """

    def __init__(self, run_dir: Path, insert: Callable[[list[Path], int], list[str]]) -> None:
        self.run_dir, self.insert = run_dir, insert

    def take(self, folders: list[str], version: int) -> None:
        """Insert them in this order."""
        paths = [Path(folder) for folder in folders]
        fates = self.insert(paths, version)
        with open(self.run_dir / "trained_on.jsonl", "a") as log:
            for path, fate in zip(paths, fates, strict=True):
                log.write(json.dumps({"id": path.name, "fate": fate, "time": time.time()}) + "\n")
                if fate.startswith(REFUSED):
                    print(fate, flush=True)
                    self._set_aside(path, fate)

    def _set_aside(self, path: Path, fate: str) -> None:
        """Out of the inbox's way; the journal remembers that it arrived."""
        try:
            if path.exists():
                set_aside(path, self.run_dir / REFUSED, fate)
        except OSError as error:  # it stays where it is, and is refused again at the next start
            print(f"{path}: cannot be set aside: {error}", flush=True)
