"""Files and medians of a benchmark's figures, and a temporary folder that stays after a failure."""

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
    """Write the figures as one flat JSON object; a figure that is not finite becomes null."""
    row = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in figures.items()
    }
    path.write_text(json.dumps(row, indent=1, allow_nan=False) + "\n")


def summary(values_by_name: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return median, lowest and highest value of each figure over several runs."""
    result: dict[str, float] = {}
    for key, values in values_by_name.items():
        result |= {
            key: statistics.median(values),
            f"{key}_lowest": min(values),
            f"{key}_highest": max(values),
        }
    return result


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Yield a temporary folder, which stays if the block fails, because errors name its logs."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    except BaseException:
        print(f"files of this run: {path}", flush=True)
        raise
    shutil.rmtree(path, ignore_errors=True)
