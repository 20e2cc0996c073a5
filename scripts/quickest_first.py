"""pytest plugin for scripts/mutants.py: the quickest tests of mutmut's first run come first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Sort the tests by duration, because a quick test catches most mutants."""
    stats = Path("mutmut-stats.json")
    if stats.exists():
        took = json.loads(stats.read_text())["duration_by_test"]
        items.sort(key=lambda item: took.get(item.nodeid, 0.0))
