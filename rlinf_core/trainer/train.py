"""``train``: build the source, the evaluations and the run of a recipe, and run its loop."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.agentic.coder import OnlineCoder
from rlinf_core.agentic.source import Conversations
from rlinf_core.agentic.tasks import text_task
from rlinf_core.algorithms.common.settings import ROLLOUTS, is_offline
from rlinf_core.core import metrics
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.signals import defer_signals, on_signal
from rlinf_core.plan.choose import with_layout
from rlinf_core.plan.layout_controller import LayoutController
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.bridge_security import fleet_of, token_of
from rlinf_core.recipes.placement import check_placement
from rlinf_core.recipes.sources import (
    CONVERSATIONS,
    RECORDINGS,
    SIMULATORS,
    STATIONS,
    check_source,
    source_of,
)
from rlinf_core.recipes.station import learned_spec, simulated
from rlinf_core.rollouts.array_env import ArrayEnv
from rlinf_core.rollouts.envs import VectorEnv
from rlinf_core.rollouts.evaluate import evaluate
from rlinf_core.rollouts.types import Source
from rlinf_core.specs.arrays import TextSpec
from rlinf_core.specs.embodiment import joined
from rlinf_core.trainer.checkpoint import checkpoints
from rlinf_core.trainer.distributed.ray_cluster import (
    connect,
    connected,
    disconnect,
    gpus_of_machines,
    resources,
)
from rlinf_core.trainer.distributed.remote_envs import MakeEnvs, rollout_envs
from rlinf_core.trainer.folder import check_same_recipe, lock_folder, write_recipe
from rlinf_core.trainer.run import OnProgress, Run
from rlinf_core.trainer.sources.imagined import with_world
from rlinf_core.trainer.sources.recordings import Intake, Recordings
from rlinf_core.trainer.sources.simulators import AT_ONCE, Robots, Simulators, environments
from rlinf_core.trainer.sources.stations import Stations
from rlinf_core.trainer.worlds import imagined_envs
from sim_bridges.core.environments import stations

if TYPE_CHECKING:
    from rlinf_core.trainer.distributed.readers import Readers


def train(
    recipe: Recipe,
    run_dir: Path,
    make: MakeEnvs = stations,
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
    source_kind, simulation = source_of(recipe), recipe.simulation
    fleet = fleet_of(recipe.bridge) if source_kind == STATIONS else None
    original, decisions, controller = recipe, list[dict[str, Any]](), None
    if source_kind == SIMULATORS and not (
        recipe.embodiments or recipe.world.share or recipe.world.run
    ):
        controller = LayoutController(recipe, run_dir, decisions.append, adapts=adapts)
        recipe = with_layout(recipe, controller.first_layout()) if recipe.placement.auto else recipe
    if not connected():  # keep a cluster that the caller had connected
        ending.callback(lambda: disconnect() if connected() else None)
    if recipe.placement.on_ray:
        connect(recipe.placement.ray)
        check_placement(recipe.placement, resources(), gpus_of_machines())
    at_once = simulation.environments or 1
    robots = dict[str, VectorEnv]()
    robots_held_out = dict[str, VectorEnv]()
    if source_kind not in (STATIONS, CONVERSATIONS) and recipe.embodiments and simulated(recipe):
        robots = robots_held_out = environments(recipe, make, ending, at_once)
        if not is_offline(recipe.algorithm):  # training episodes must not be interrupted
            robots_held_out = environments(recipe, make, ending, min(at_once, AT_ONCE))
    arrays = not recipe.embodiments and source_kind != CONVERSATIONS
    env, held_out = (None, None) if not arrays else _environments(recipe, source_kind, make, ending)
    spec = (
        joined({name: robot_env.spec for name, robot_env in robots.items()})
        if robots
        else env.spec
        if env
        else None
    )
    if source_kind == CONVERSATIONS:
        spec = TextSpec()
    run = Run(recipe, run_dir, spec or learned_spec(recipe), on_progress)
    ending.callback(run.progress.close)
    scenes = range(
        recipe.evaluate.first_seed, recipe.evaluate.first_seed + simulation.evaluate_episodes
    )
    if held_out:
        run.evaluator = partial(evaluate, held_out, run.shipped, scenes)
    source: Source = Recordings()
    if env and source_kind == SIMULATORS:
        source = Simulators(recipe, env, run.policy, make, run.clock)
    elif source_kind == STATIONS:
        run.intake.readers = _readers(recipe, run.intake)
        source = Stations(
            recipe.bridge.address,
            run_dir,
            run.intake,
            run.insert,
            fleet,
            recipe.release,
            recipe.bridge.policies_gb,
            token_of(recipe.bridge, run_dir),
            recipe.bridge.stations,
        )
        if recipe.bridge.metrics_port:
            ending.callback(metrics.serve(source.families, recipe.bridge.metrics_port))
    elif recipe.learns_from_feedback:
        source = coder = _online_coder(recipe, run)
        run.evaluator, run.next_evaluation = coder.evaluate, simulation.evaluate_every
    elif source_kind == CONVERSATIONS:
        source = text = _conversations(recipe, run)
        language: Any = run.shipped
        run.evaluator = partial(text.evaluate, language, scenes)
    elif robots:
        source = several = Robots(recipe, robots, robots_held_out, run.policy, make, run.clock)
        run.evaluator = partial(several.evaluate, run.shipped, scenes)
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


def _online_coder(recipe: Recipe, run: Run) -> OnlineCoder:
    """Return the source of completions with feedback. Its server listens from the first turn on."""
    policy: Any = run.policy
    coder = OnlineCoder(recipe.text, policy, recipe.simulation.environments, run.run_dir)
    if (
        recipe.text.warm_start.steps
        and not run.before
        and not checkpoints(run.run_dir / "checkpoints")
    ):
        with run.clock("warm_start"):
            coder.warm_start(recipe.seed)
    return coder


def _conversations(recipe: Recipe, run: Run) -> Conversations:
    """Return the source of a text task.

    A new run does its warm start here, before the learner exists.
    """
    policy: Any = run.policy
    source = Conversations(
        recipe.text,
        text_task(recipe.text_task, recipe.text.options),
        policy,
        recipe.simulation.environments,
        recipe.scene(0),
        run.run_dir,
    )
    warm = recipe.text.warm_start
    if warm.steps and not run.before and not checkpoints(run.run_dir / "checkpoints"):
        with run.clock("warm_start"):
            source.warm_start(warm, recipe.seed)
    return source


def _environments(
    recipe: Recipe, source_kind: str, make: MakeEnvs, ending: ExitStack
) -> tuple[VectorEnv | None, VectorEnv | None]:
    """Return the environments for training and those for evaluation; None where there are none."""
    env: VectorEnv | None = None
    held_out: VectorEnv | None = None
    simulation = recipe.simulation
    if recipe.world.run:
        if simulated(recipe):
            held_out = make(recipe, min(simulation.environments, 8))
            ending.callback(held_out.close)
        return imagined_envs(recipe), held_out
    placement = recipe.placement
    may_play = placement.auto and "workers" not in placement.fixed  # this process may play later
    if simulation.environments and (may_play or not placement.workers):
        env = (
            rollout_envs(recipe, make, simulation.environments)
            if not placement.workers
            else make(recipe, simulation.environments)
        )
        held_out = env
        ending.callback(env.close)
    if isinstance(env, ArrayEnv) and env.tensors.exclusive:
        check_single_process(recipe)
    elif source_kind == SIMULATORS or (source_kind == RECORDINGS and simulated(recipe)):
        held_out = make(recipe, min(simulation.environments or 1, 8))
        ending.callback(held_out.close)
        env = env or held_out
    return env, held_out


def check_single_process(recipe: Recipe) -> None:
    """Raise RecipeError if evaluations in the only environment of a process would lose episodes."""
    if recipe.algorithm.learns_from != ROLLOUTS:
        raise RecipeError(
            f"env: '{recipe.env}' exists once in a process, and evaluations interrupt its "
            "episodes. Expected an algorithm that continues with new episodes (ppo, async_ppo), "
            f"got {recipe.algorithm.name}"
        )


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
