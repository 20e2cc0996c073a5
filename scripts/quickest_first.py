"""pytest plugin for scripts/mutants.py: tests in the order of the time they took when mutmut first
ran them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """A mutant is most often caught by a quick test, and the first that fails is enough."""
    stats = Path("mutmut-stats.json")
    if stats.exists():
        took = json.loads(stats.read_text())["duration_by_test"]
        items.sort(key=lambda item: took.get(item.nodeid, 0.0))
