"""What a machine lacks for its part in a recipe: said at once, without torch and Ray, before a folder or a process."""

from __future__ import annotations

import os
from pathlib import Path

from rlinf_core.bridge.fleet import Fleet
from rlinf_core.devices import check_device, gpus
from rlinf_core.errors import PolicyFileError, RecipeError
from rlinf_core.policies.files import newest_policy
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.exposure import fleet_of
from rlinf_core.recipes.placement import check_placement
from rlinf_core.recipes.sources import STATIONS, source_of
from rlinf_core.trainer.checkpoint import checkpoints
from rlinf_core.trainer.sources.recordings import recorded


def check_trainer(recipe: Recipe, run_dir: Path) -> None:
    """Of a trainer that is started here: its device, room for its processes, and what it reads.

    Args:
        recipe: what it trains.
        run_dir: one that goes on there has read its recordings.

    Raises:
        RlinfError: what is missing, by the recipe's key. What a Ray cluster elsewhere has, the trainer will find out.
    """
    check_device("device", recipe.device)
    if recipe.placement.on_ray and not recipe.placement.ray:
        check_placement(recipe.placement, {"CPU": os.cpu_count() or 1, "GPU": gpus()})
    if source_of(recipe) == STATIONS and (fleet := fleet_of(recipe.bridge)):
        Fleet(fleet).check()
    if not checkpoints(run_dir / "checkpoints"):
        for _ in recorded(recipe.collect.recordings):
            pass
    if before := recipe.simulation.initial_policy:
        _check_policy(Path(before))


def _check_policy(path: Path) -> None:
    try:
        newest_policy(path)
    except PolicyFileError as error:
        raise RecipeError(f"simulation.initial_policy: {error}") from error


def check_policy_device(recipe: Recipe) -> None:
    """Of a station whose policy is started here, unless a server answers for it."""
    if recipe.station.policy.backend == "local":
        check_device("station.device", recipe.station.device)
