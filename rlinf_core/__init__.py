"""Learning side of rlinf: specs, interlock core, episodes, policies, algorithms, bridge, trainer.

Never imports rclpy.

The names in ``PUBLIC`` are imported at their first use, so ``rlinf_core.load_recipe`` needs no
torch. docs/reference/api.md has an example of each.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlinf_core.core.paths import VERSION

if TYPE_CHECKING:  # the names of PUBLIC for type checkers
    from rlinf_core.core.errors import RlinfError as RlinfError
    from rlinf_core.episodes.read import read_episode as read_episode
    from rlinf_core.episodes.types import Episode as Episode
    from rlinf_core.policies import make_policy as make_policy
    from rlinf_core.policies.base import ActionChunk as ActionChunk
    from rlinf_core.policies.base import Observation as Observation
    from rlinf_core.policies.base import Policy as Policy
    from rlinf_core.policies.serialization import load_policy as load_policy
    from rlinf_core.policies.serialization import save_policy as save_policy
    from rlinf_core.recipes.loader import load_recipe as load_recipe
    from rlinf_core.recipes.schema import Recipe as Recipe
    from rlinf_core.recipes.station import station_task as station_task
    from rlinf_core.specs.arrays import StationSpec as StationSpec
    from rlinf_core.tasks.task import Task as Task
    from rlinf_core.tasks.task import load_task as load_task
    from rlinf_core.trainer.train import train as train

__version__ = VERSION
PUBLIC = {  # name: module
    "Recipe": "recipes.schema",
    "load_recipe": "recipes.loader",
    "station_task": "recipes.station",
    "Task": "tasks.task",
    "load_task": "tasks.task",
    "StationSpec": "specs.arrays",
    "Policy": "policies.base",
    "Observation": "policies.base",
    "ActionChunk": "policies.base",
    "make_policy": "policies",
    "save_policy": "policies.serialization",
    "load_policy": "policies.serialization",
    "Episode": "episodes.types",
    "read_episode": "episodes.read",
    "train": "trainer.train",
    "RlinfError": "core.errors",
}
__all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
