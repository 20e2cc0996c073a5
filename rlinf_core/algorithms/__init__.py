"""Learning algorithms, one folder each; ``common`` holds their shared parts.

A folder has a ``Config`` (without torch) and a ``Learner`` (with torch). ``algorithm("ppo")`` is
the package of that name. A new algorithm is a new folder, or a custom module with both
(``rlinf_core.core.plugins``). Deleting a folder deletes its algorithm everywhere.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from rlinf_core.core import plugins


def algorithms() -> list[str]:
    """Return the names of all algorithms."""
    return plugins.valid_names("algorithms", _builtin())


def algorithm(name: str) -> ModuleType:
    """Return the package of an algorithm; its ``Learner`` is imported on first access.

    Raises:
        RecipeError: there is no such algorithm; the message suggests the nearest name.
    """
    return plugins.find("algorithms", name, _builtin(), "algorithm")


def _builtin() -> dict[str, str]:
    return {
        path.parent.name: f"{__name__}.{path.parent.name}"
        for path in Path(__file__).parent.glob("*/learner.py")
        if path.parent.name != "common"
    }
