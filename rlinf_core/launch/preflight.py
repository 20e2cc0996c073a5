"""Fast checks of a machine for its part in a recipe, before any folder or process is created."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from pathlib import Path

from rlinf_core.core import extras
from rlinf_core.core.errors import BridgeError, PolicyFileError, RecipeError, RlinfError
from rlinf_core.deploy.bridge.credentials import make_token
from rlinf_core.deploy.bridge.fleet import Fleet
from rlinf_core.page.access import Web
from rlinf_core.policies.policy_folder import newest_policy
from rlinf_core.policies.torch_device import check_device, gpus
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.bridge_security import fleet_of, token_of
from rlinf_core.recipes.placement import check_placement, check_shards
from rlinf_core.recipes.schema import Bridge
from rlinf_core.recipes.sources import STATIONS, initial_source, source_of
from rlinf_core.trainer.checkpoint import checkpoints
from rlinf_core.trainer.folder import check_same_recipe
from rlinf_core.trainer.sources.recordings import closed_episodes


def check_trainer(recipe: Recipe, run_dir: Path) -> None:
    """Check a trainer on this machine: device, room for its processes, address and inputs.

    Args:
        recipe: recipe to train.
        run_dir: folder of the run. A resumed run needs the same recipe; its recordings are not read
            again.

    Raises:
        RlinfError: something is missing; the text names the recipe's key. A remote Ray cluster is
            not checked here.
    """
    check_same_recipe(recipe, run_dir)
    check_device("device", recipe.device)
    if recipe.placement.on_ray and not recipe.placement.ray:
        check_placement(recipe.placement, {"CPU": os.cpu_count() or 1, "GPU": gpus()})
    _check_batches(recipe)
    if source_of(recipe) == STATIONS:
        if fleet := fleet_of(recipe.bridge):
            Fleet(fleet).check()
        elif recipe.bridge.token_file and (token := token_of(recipe.bridge, run_dir)):
            make_token(token)
        _check_port(recipe.bridge)
    if not checkpoints(run_dir / "checkpoints"):
        for _ in closed_episodes(recipe.collect.recordings):
            pass
    if before := initial_source(recipe):
        _check_policy(before)


def _check_batches(recipe: Recipe) -> None:
    warm = recipe.algorithm.warm_start and not recipe.simulation.initial_policy
    for key, config in (("sft", recipe.sft), ("algorithm", recipe.algorithm))[0 if warm else 1 :]:
        if recipe.placement.learners and config.transitions_per_batch is not None:
            check_shards(
                f"{key}.batch_size",
                config.transitions_per_batch,
                recipe.placement.data_parallel,
                config.half_demonstrations,
            )


def _check_port(bridge: Bridge) -> None:
    """Raise BridgeError if the trainer's port is in use."""
    if reason := listen_failure(bridge.host.strip("[]"), bridge.port):
        raise BridgeError(
            f"bridge: cannot listen on {bridge.address}: {reason}. Stop the other trainer, or "
            "choose another address of this machine with bridge.host, or another bridge.port",
            code="RL-E205",
        )


def check_page(web: Web) -> None:
    """Raise RecipeError if the page's port is in use, for example by another station's page."""
    if web.port and (reason := listen_failure(web.host, web.port)):
        raise RecipeError(
            f"station.web.port: expected a free port on {web.host}, got {web.port}: {reason}. "
            "Another station's page may use it. Stop that program, or take another port: --web "
            "PORT",
            code="RL-E205",
        )


def listen_failure(host: str, port: int) -> str:
    """Return why a server cannot listen on host and port; empty if it can."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return str(error.strerror).partition(" (while")[0]  # Python appends the address
    except ValueError as error:  # such as a..b
        return f"expected a host's name or address, got '{host}' ({error})"
    return ""


def _check_policy(path: Path) -> None:
    try:
        newest_policy(path)
    except PolicyFileError as error:
        raise RecipeError(f"simulation.initial_policy: {error}") from error


def check_policy_device(recipe: Recipe) -> None:
    """Check the device of the station's policy, unless it runs on a server."""
    if recipe.station.policy.backend != "remote":
        check_device("station.device", recipe.station.device)


def check_report(recipe: Recipe, setting: str) -> None:
    """Check now that the packages for the report at the end of a run are installed.

    Raises:
        RlinfError: one is missing; the text names it.
    """
    filming = ["imageio", "torch"] if recipe.evaluate.filmed_episodes else []
    if recipe.collect.no_training or not (
        lacking := [module for module in ("matplotlib", *filming) if find_spec(module) is None]
    ):
        return
    without = (
        "" if "matplotlib" in lacking else ". Or record no film: --set evaluate.filmed_episodes=0"
    )
    raise RlinfError(
        f"{setting}: expected {', '.join(lacking)}, for the report at its end, not installed here. "
        f"Run: {extras.how_to_get('report,policy' if 'torch' in lacking else 'report')}{without}"
    )
