"""``train``: build the source, the evaluations and the run of a recipe, and run its loop."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from rlinf_core.agentic.coder import OnlineCoder
from rlinf_core.agentic.source import Conversations
from rlinf_core.agentic.tasks import text_task
from rlinf_core.core import metrics
from rlinf_core.core.signals import defer_signals, on_signal
from rlinf_core.plan.choose import with_layout
from rlinf_core.plan.layout_controller import LayoutController
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.bridge_security import fleet_of, token_of
from rlinf_core.recipes.placement import check_placement
from rlinf_core.recipes.sources import (
    CONVERSATIONS,
    SIMULATORS,
    STATIONS,
    check_source,
    source_of,
)
from rlinf_core.rollouts.evaluate import evaluate
from rlinf_core.rollouts.types import Source
from rlinf_core.trainer.checkpoint import checkpoints
from rlinf_core.trainer.distributed.ray_cluster import (
    connect,
    connected,
    disconnect,
    gpus_of_machines,
    resources,
)
from rlinf_core.trainer.distributed.remote_envs import MakeEnvs
from rlinf_core.trainer.environments import RunEnvironments, make_run_environments
from rlinf_core.trainer.folder import check_same_recipe, lock_folder, write_recipe
from rlinf_core.trainer.run import OnProgress, Run
from rlinf_core.trainer.sources.imagined import with_world
from rlinf_core.trainer.sources.recordings import Intake, Recordings
from rlinf_core.trainer.sources.robots import Robots
from rlinf_core.trainer.sources.simulators import Simulators
from rlinf_core.trainer.sources.stations import Stations
from sim_bridges.core.environments import make_environments

if TYPE_CHECKING:
    from rlinf_core.trainer.distributed.readers import Readers


def train(
    recipe: Recipe,
    run_dir: Path,
    make: MakeEnvs = make_environments,
    on_progress: OnProgress = lambda run, entry: None,
    adapts: bool = False,
) -> dict[str, float]:
    """Train a recipe in ``run_dir``, and resume from a checkpoint there.

    Args:
        recipe: recipe; it sets the source (``recipes.sources``). Stations are served until a
            signal.
        run_dir: folder of the run.
        make: builds a number of simulated environments.
        on_progress: called after every turn, and with the figures of each evaluation.
        adapts: whether a run whose recipe sets no placement may move to workers
            (``LayoutController``). Such a run may not repeat to the last bit.

    Returns:
        The figures of the last evaluation.

    Raises:
        RecipeError: settings contradict each other, or the run in ``run_dir`` has another recipe.
        RlinfError: another trainer uses the folder, or training failed. The last checkpoint is
            valid.
        RestartLimitError: processes died too often, or found no room. The same command resumes.

    Example:
        >>> short = ["env_steps=8", "start_steps=4", "evaluate_every=8", "evaluate_episodes=1"]
        >>> recipe = load_recipe("sim_sac", [f"simulation.{setting}" for setting in short])
        >>> figures = train(recipe, folder / "run")
        >>> figures["env_steps"], figures["episodes"]
        (8, 1)
    """
    check_source(recipe)
    torch.set_num_threads(1)
    with ExitStack() as ending:
        ending.enter_context(lock_folder(run_dir))
        check_same_recipe(recipe, run_dir, is_locked=True)
        with defer_signals():
            run = _start_run(recipe, run_dir, make, on_progress, ending, adapts)
        with on_signal(lambda _: setattr(run, "stopping", True)):  # finish with a checkpoint
            return run.loop()


def _start_run(
    recipe: Recipe,
    run_dir: Path,
    make: MakeEnvs,
    on_progress: OnProgress,
    ending: ExitStack,
    adapts: bool,
) -> Run:
    """Return a started run with its source and evaluations. ``ending`` closes them."""
    fleet = fleet_of(recipe.bridge) if source_of(recipe) == STATIONS else None
    original, decisions = recipe, list[dict[str, Any]]()
    controller = None
    if _has_layouts(recipe):
        controller = LayoutController(recipe, run_dir, decisions.append, adapts=adapts)
        if recipe.placement.auto:
            recipe = with_layout(recipe, controller.first_layout())
    _join_cluster(recipe, ending)
    envs = make_run_environments(recipe, make, ending)
    run = Run(recipe, run_dir, envs.spec(recipe), on_progress)
    ending.callback(run.progress.close)
    source = _make_source(run, envs, make, fleet, ending)
    source = with_world(recipe, source, run.data, run.policy, run.clock)
    ending.callback(source.close)
    write_recipe(original, run_dir, is_locked=True)
    run.start(source)
    if controller is not None:
        for decision in decisions:
            run.progress.write_placement(decision)
        controller.note = run.progress.write_placement
        run.layout_controller = controller
    ending.callback(lambda: run.learner.close())
    return run


def _has_layouts(recipe: Recipe) -> bool:
    """Return whether a run has several layouts: in simulators of one robot, without a world."""
    world = recipe.world
    return source_of(recipe) == SIMULATORS and not (recipe.embodiments or world.share or world.run)


def _join_cluster(recipe: Recipe, ending: ExitStack) -> None:
    """Connect to Ray if the recipe needs it. ``ending`` leaves a cluster that the run joined."""
    if not connected():  # keep a cluster that the caller had connected
        ending.callback(lambda: disconnect() if connected() else None)
    if recipe.placement.on_ray:
        connect(recipe.placement.ray)
        check_placement(recipe.placement, resources(), gpus_of_machines())


def _make_source(
    run: Run, envs: RunEnvironments, make: MakeEnvs, fleet: Path | None, ending: ExitStack
) -> Source:
    """Return the source of a run, and set the run's evaluator."""
    recipe, source_kind = run.recipe, source_of(run.recipe)
    simulation = recipe.simulation
    first = recipe.evaluate.first_seed
    scenes = range(first, first + simulation.evaluate_episodes)
    if source_kind == STATIONS:
        return _stations(run, fleet, ending)
    if recipe.learns_from_feedback:
        coder = _online_coder(run)
        run.evaluator, run.next_evaluation = coder.evaluate, simulation.evaluate_every
        return coder
    if source_kind == CONVERSATIONS:
        text = _conversations(run)
        language: Any = run.shipped
        run.evaluator = partial(text.evaluate, language, scenes)
        return text
    if envs.robots:
        robots = Robots(recipe, envs.robots, envs.held_out_robots, run.policy, make, run.clock)
        run.evaluator = partial(robots.evaluate, run.shipped, scenes)
        return robots
    if envs.held_out:
        run.evaluator = partial(evaluate, envs.held_out, run.shipped, scenes)
    if envs.training and source_kind == SIMULATORS:
        return Simulators(recipe, envs.training, run.policy, make, run.clock)
    return Recordings()


def _stations(run: Run, fleet: Path | None, ending: ExitStack) -> Stations:
    """Return the source of stations, with reader processes and metrics if the recipe has them."""
    bridge = run.recipe.bridge
    run.intake.readers = _readers(run.recipe, run.intake)
    source = Stations(
        bridge.address,
        run.run_dir,
        run.intake,
        run.insert,
        fleet,
        run.recipe.release,
        bridge.policies_gb,
        token_of(bridge, run.run_dir),
        bridge.stations,
    )
    if bridge.metrics_port:
        ending.callback(metrics.serve(source.families, bridge.metrics_port))
    return source


def _online_coder(run: Run) -> OnlineCoder:
    """Return the source of completions with feedback. Its server listens from the first turn on."""
    recipe, policy = run.recipe, cast(Any, run.policy)
    coder = OnlineCoder(recipe.text, policy, recipe.simulation.environments, run.run_dir)
    if recipe.text.warm_start.steps and _is_new(run):
        with run.clock("warm_start"):
            coder.warm_start(recipe.seed)
    return coder


def _conversations(run: Run) -> Conversations:
    """Return the source of a text task.

    A new run does its warm start here, before the learner exists.
    """
    recipe, policy = run.recipe, cast(Any, run.policy)
    source = Conversations(
        recipe.text,
        text_task(recipe.text_task, recipe.text.options),
        policy,
        recipe.simulation.environments,
        recipe.scene(0),
        run.run_dir,
    )
    if recipe.text.warm_start.steps and _is_new(run):
        with run.clock("warm_start"):
            source.warm_start(recipe.text.warm_start, recipe.seed)
    return source


def _is_new(run: Run) -> bool:
    """Return whether a run has neither a policy of another run nor a checkpoint."""
    return not run.initial and not checkpoints(run.run_dir / "checkpoints")


def _readers(recipe: Recipe, intake: Intake) -> Readers | None:
    """Return the reader processes on Ray; None if the trainer reads episodes itself."""
    placement = recipe.placement
    if not placement.ingest:
        return None
    from rlinf_core.trainer.distributed.readers import Readers

    return Readers(
        placement.ingest,
        placement.ray,
        intake.spec,
        intake.max_transitions,
        intake.use_executed,
        intake.rollouts_of,
    )
