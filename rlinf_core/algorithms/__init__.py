"""Learning algorithms: one readable file each, with a ``Config`` and a ``Learner``; ``parts`` is what they share.

``algorithm("ppo")`` is the module of that name. A new algorithm is a new file; deleting one deletes it everywhere.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from rlinf_core.errors import RecipeError, nearest


def algorithms() -> list[str]:
    """Names of all algorithms."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")


def algorithm(name: str) -> ModuleType:
    """The module of an algorithm; RecipeError names the nearest known one."""
    known = algorithms()
    if name not in known:
        raise RecipeError(f"algorithm: expected one of {', '.join(known)}; got '{name}'{nearest(name, known)}")
    return importlib.import_module(f"rlinf_core.algorithms.{name}")
