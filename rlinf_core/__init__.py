"""Learning side of rlinf: specs, interlock core, episodes, policies, algorithms, bridge, trainer. Never imports rclpy.

What stands here is public, and imported when it is asked for: ``rlinf_core.load_recipe`` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same once more, for type checkers
    from rlinf_core.episodes.reading import read_episode as read_episode
    from rlinf_core.episodes.types import Episode as Episode
    from rlinf_core.errors import RlinfError as RlinfError
    from rlinf_core.policies import make_policy as make_policy
    from rlinf_core.policies.files import load_policy as load_policy
    from rlinf_core.policies.files import save_policy as save_policy
    from rlinf_core.policies.policy import ActionChunk as ActionChunk
    from rlinf_core.policies.policy import Observation as Observation
    from rlinf_core.policies.policy import Policy as Policy
    from rlinf_core.recipes.loading import load_recipe as load_recipe
    from rlinf_core.recipes.schema import Recipe as Recipe
    from rlinf_core.recipes.station import station_task as station_task
    from rlinf_core.specs import StationSpec as StationSpec
    from rlinf_core.task import Task as Task
    from rlinf_core.task import load_task as load_task
    from rlinf_core.trainer.train import train as train

__version__ = "0.1.0"
PUBLIC = {  # name: module
    "Recipe": "recipes.schema", "load_recipe": "recipes.loading", "station_task": "recipes.station",
    "Task": "task", "load_task": "task", "StationSpec": "specs",
    "Policy": "policies.policy", "Observation": "policies.policy", "ActionChunk": "policies.policy",
    "make_policy": "policies", "save_policy": "policies.files", "load_policy": "policies.files",
    "Episode": "episodes.types", "read_episode": "episodes.reading",
    "train": "trainer.train", "RlinfError": "errors",
}
__all__ = ["PUBLIC", "__version__", *PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
