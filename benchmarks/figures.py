"""Where a benchmark's figures go, and their medians; and a folder that stays where it failed, as its messages point to
the logs in it.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """One flat JSON object; null for what has no number, as of what never came."""
    row = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in figures.items()
    }
    path.write_text(json.dumps(row, indent=1, allow_nan=False) + "\n")


def summary(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Median, lowest and highest of the figures of several runs."""
    result: dict[str, float] = {}
    for key, values in measured.items():
        result |= {
            key: statistics.median(values),
            f"{key}_lowest": min(values),
            f"{key}_highest": max(values),
        }
    return result


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """A temporary one; it is kept where what is done in it fails."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    except BaseException:
        print(f"kept for a closer look: {path}", flush=True)
        raise
    shutil.rmtree(path, ignore_errors=True)
