"""Sources of a recipe's experience, and the algorithms that can learn from each.

All checks run without torch, before anything is made.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rlinf_core.agentic.tasks import text_task
from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.algorithms.common.settings import (
    DEMONSTRATIONS,
    EXPERT,
    REPLAY,
    ROLLOUTS,
    AlgorithmSettings,
)
from rlinf_core.core.errors import RecipeError, nearest
from rlinf_core.core.paths import expand_user
from rlinf_core.policies import shipped_kind
from rlinf_core.recipes.placement import Placement
from rlinf_core.recipes.schema import Dynamics, Online, Randomise, Recipe
from sim_bridges.core.interface import batched_simulators

SIMULATORS = "simulators"
STATIONS = "stations"
RECORDINGS = "recordings"
CONVERSATIONS = "conversations"


def source_of(recipe: Recipe) -> str:
    """Return the kind of a recipe's source.

    A text task has CONVERSATIONS, and a recipe with environments SIMULATORS. If recordings are the
    only data it is RECORDINGS, else STATIONS.
    """
    if recipe.text_task:
        return CONVERSATIONS
    if recipe.simulation.environments:
        return SIMULATORS
    offline = recipe.algorithm.learns_from == DEMONSTRATIONS
    return RECORDINGS if offline and recipe.collect.recordings else STATIONS


def initial_source(recipe: Recipe) -> Path | None:
    """Return the initial policy or run; None for a new policy."""
    named = recipe.simulation.initial_policy
    return expand_user(named, "simulation.initial_policy") if named else None


def incompatibility(algorithm: AlgorithmSettings, source: str) -> str:
    """Return the reason why an algorithm cannot learn from a source, or "".

    RECORDINGS may also be an addition to another source.
    """
    name, kind = algorithm.name, algorithm.learns_from
    if source == RECORDINGS and kind == ROLLOUTS:
        return (
            f"{name} learns only from rollouts of its newest policies, not from recordings or "
            "demonstrations. Leave collect.recordings empty"
        )
    if source == STATIONS and kind == ROLLOUTS and not algorithm.accepts_stale:
        return (
            f"{name} learns only from complete rollouts of its newest policy, but stations "
            "continue to play during updates. async_ppo accepts rollouts of slightly older "
            "policies"
        )
    if source == STATIONS and kind == EXPERT and not algorithm.warm_start:
        return (
            f"{name} queries an expert at every time step, which a person cannot answer. With "
            "algorithm.gated=true it learns from the takeovers of a person"
        )
    return ""


def check_source(recipe: Recipe) -> None:
    """Check that policy, algorithm and source go together.

    Raises:
        RecipeError: they do not; the message names both sides.
    """
    algorithm = recipe.algorithm
    policy = recipe.policy
    simulation = recipe.simulation
    if not {policy.kind, shipped_kind(policy)} & set(algorithm.policies):
        raise RecipeError(
            f"policy.kind: {algorithm.name} trains {' or '.join(algorithm.policies)}, got "
            f"'{policy.kind}'. A kind of your own extends Config and Policy of a kind that "
            f"{algorithm.name} trains"
        )
    if algorithm.learns_from == ROLLOUTS and policy.no_density_reason:
        raise RecipeError(
            f"{policy.no_density_reason}. {algorithm.name} learns from log-probabilities of the "
            "sampled actions"
        )
    if getattr(policy, "engine", "") and (
        source_of(recipe) != SIMULATORS or recipe.placement.workers or recipe.placement.auto
    ):
        raise RecipeError(
            "policy.engine: expected rollouts in simulators of the trainer's process "
            "(simulation.environments above 0, placement.workers=0, placement.auto=false), got "
            f"{source_of(recipe)} with {recipe.placement.workers} workers"
        )
    _check_env(recipe)
    _check_embodiments(recipe)
    _check_world(recipe)
    source = source_of(recipe)
    for data_source in (source, *([RECORDINGS] if recipe.collect.recordings else [])):
        if reason := incompatibility(algorithm, data_source):
            raise RecipeError(
                f"algorithm.name: {data_source} cannot feed {algorithm.name}: {reason}"
            )
    if recipe.release.staged and (source != STATIONS or algorithm.learns_from == ROLLOUTS):
        raise RecipeError(
            f"release.staged: expected false for {algorithm.name} on {source}, got true. A trial "
            "plays on one station while the others continue with the old policy, but learners of "
            "rollouts need the newest policy on all"
        )
    if algorithm.learns_from == EXPERT and policy.horizon > 1 and source != STATIONS:
        raise RecipeError(
            f"policy.horizon: in simulators {algorithm.name} queries the expert at every time "
            f"step, expected 1, got {policy.horizon}. On stations a chunk holds the person's "
            "actions after a takeover"
        )
    if algorithm.needs_demonstrations and not (
        recipe.collect.episodes or recipe.collect.recordings
    ):
        raise RecipeError(
            f"collect.episodes: {algorithm.name} begins with demonstrations, expected at least 1 "
            "(or collect.recordings), got 0"
        )
    if (
        source == SIMULATORS
        and simulation.shaping
        and recipe.collect.recordings
        and algorithm.learns_from == REPLAY
    ):
        raise RecipeError(
            f"simulation.shaping: expected 0 beside collect.recordings for {algorithm.name}, which "
            f"learns from recorded rewards without shaping, got {simulation.shaping}"
        )
    workers, environments = recipe.placement.workers, simulation.environments
    if workers and (source != SIMULATORS or algorithm.learns_from == DEMONSTRATIONS):
        raise RecipeError(
            f"placement.workers: expected 0 for {algorithm.name} on {source}, which plays no "
            f"rollouts, got {workers}"
        )
    if recipe.placement.auto and (reason := fixed_layout_reason(recipe)):
        raise RecipeError(f"placement.auto: {reason}")
    if recipe.placement.simulators and source != SIMULATORS:
        raise RecipeError(
            f"placement.simulators: expected 0 on {source}, which steps no environments, got "
            f"{recipe.placement.simulators}"
        )
    if recipe.placement.replay_shards and algorithm.learns_from not in (REPLAY, EXPERT):
        raise RecipeError(
            f"placement.replay_shards: expected 0 for {algorithm.name}, which keeps no replay, got "
            f"{recipe.placement.replay_shards}"
        )
    if (
        recipe.placement.mode == "pipelined"
        and algorithm.learns_from == ROLLOUTS
        and not algorithm.accepts_stale
    ):
        raise RecipeError(
            f"placement.mode: expected collocated or disaggregated for {algorithm.name}, which "
            "learns only from rollouts of the newest policy, got pipelined. async_ppo accepts "
            "older ones"
        )
    if recipe.placement.ingest and source != STATIONS:
        raise RecipeError(
            f"placement.ingest: expected 0 on {source}, to which no station sends anything, got "
            f"{recipe.placement.ingest}"
        )
    if algorithm.learns_from == ROLLOUTS:
        _check_no_replay(recipe)
    if (
        source == STATIONS
        and algorithm.learns_from == ROLLOUTS
        and getattr(policy, "token_log_probs", False)
    ):
        raise RecipeError(
            "policy.token_log_probs: expected false on stations, whose recordings hold "
            "log-probabilities of chunks or actions, not of tokens, got true. It is allowed in "
            "simulators"
        )
    if source != SIMULATORS:
        return
    if recipe.replay.use_executed and not recipe.collect.recordings:
        raise RecipeError(
            "replay.use_executed: expected false in simulators, whose steps hold only requested "
            "actions, got true. It is for episodes of stations and for recordings"
        )
    if workers and environments % workers:
        raise RecipeError(
            f"simulation.environments: expected a multiple of placement.workers = {workers}, got "
            f"{environments}"
        )
    _check_simulators(recipe)
    size, group = environments // max(workers, 1), algorithm.rollout.get("group", 1)
    if size % group:
        raise RecipeError(
            f"simulation.environments: expected a multiple of algorithm.group = {group} for each "
            f"worker, got {size}"
        )


def fixed_layout_reason(recipe: Recipe) -> str:
    """Return the reason why a run cannot choose its layout, or "".

    Only simulators of one robot have measured turns and several layouts.
    """
    unfit = {
        "embodiments": recipe.embodiments,
        "world.run": recipe.world.run,
        "world.share": recipe.world.share,
    }
    if conflict := next((key for key, value in unfit.items() if value), ""):
        return f"expected false with {conflict}, which runs in the trainer's process, got true"
    source = source_of(recipe)
    if source != SIMULATORS or recipe.algorithm.learns_from == DEMONSTRATIONS:
        return (
            f"expected false for {recipe.algorithm.name} on {source}, where alternating rollouts "
            "and updates are not measured, got true. Set placement.learners yourself"
        )
    return ""


def may_choose(recipe: Recipe) -> bool:
    """Return whether a run whose recipe sets no placement may change its layout by itself.

    An engine or environments that exist once in a process cannot be divided among workers.
    """
    divisible = not getattr(recipe.policy, "engine", "")
    divisible = divisible and recipe.env.partition(":")[0] not in batched_simulators()
    installed = find_spec("ray") is not None
    return (
        recipe.placement == Placement()
        and installed
        and divisible
        and not fixed_layout_reason(recipe)
    )


def _check_simulators(recipe: Recipe) -> None:
    """Check environments in separate processes: equal numbers in each, of one robot."""
    count, environments = recipe.placement.simulators, recipe.simulation.environments
    if not count:
        return
    if environments % count:
        raise RecipeError(
            f"simulation.environments: expected a multiple of placement.simulators = {count}, "
            f"got {environments}"
        )
    unfit = {"embodiments": recipe.embodiments, "world.run": recipe.world.run}
    if conflict := next((key for key, value in unfit.items() if value), ""):
        raise RecipeError(
            f"placement.simulators: expected 0 with {conflict}, whose environments stay in the "
            f"trainer's process, got {count}"
        )
    if recipe.env.partition(":")[0] in batched_simulators():
        raise RecipeError(
            f"placement.simulators: expected 0 with env '{recipe.env}', which steps all of its "
            f"environments at once, got {count}"
        )


def _check_world(recipe: Recipe) -> None:
    """Check a learned world, which predicts one station's numbers, or a video model's frames."""
    world = recipe.world
    algorithm = recipe.algorithm
    simulation = recipe.simulation
    name = "world.run" if world.run else "world.share"
    if not (world.share or world.run):
        return
    unfit = {
        "env": recipe.env,
        "embodiments": recipe.embodiments,
        "station.observe_cameras": recipe.station.observe_cameras and not world.video.model,
    }
    if conflict := next((key for key, value in unfit.items() if value), ""):
        raise RecipeError(
            f"{name}: expected no {conflict}: a learned world predicts the observations of one "
            f"station and uses its task. Leave {conflict} out, or {name}"
        )
    if world.share and (algorithm.learns_from != REPLAY or recipe.policy.kind == "latent_noise"):
        raise RecipeError(
            f"world.share: expected 0 for {algorithm.name} with policy.kind {recipe.policy.kind}, "
            f"which has no replay of actions for it, got {world.share:g}. sac, rlpd and crossq "
            "have one; world.run trains only in a learned world"
        )
    shards = {
        "placement.replay_shards": recipe.placement.replay_shards,
        "simulation.shaping": simulation.shaping,
    }
    if world.share and (conflict := next((key for key, value in shards.items() if value), "")):
        raise RecipeError(
            f"world.share: expected {conflict} 0, got {shards[conflict]:g}. A learned world reads "
            f"the replay of the trainer's process, with the stations' rewards. Leave {conflict} "
            "out, or world.share"
        )
    if world.run and (not simulation.environments or recipe.placement.workers):
        raise RecipeError(
            "world.run: expected simulation.environments of at least 1 and placement.workers 0, "
            f"got {simulation.environments} and {recipe.placement.workers}. Branches are played in "
            "this process"
        )


def _check_no_replay(recipe: Recipe) -> None:
    """Check a learner without a replay.

    The learner takes each rollout once, so per-station draws do not apply, and it has a separate
    limit of staleness.
    """
    online = recipe.online
    usual = Online()
    name = recipe.algorithm.name
    for key in (
        "max_samples_per_insert",
        "min_samples_per_insert",
        "max_staleness",
        "max_staleness_of",
    ):
        if (actual := getattr(online, key)) != (expected := getattr(usual, key)):
            remedy = (
                ". There algorithm.max_staleness bounds the age, in updates"
                if "staleness" in key and recipe.algorithm.accepts_stale
                else ""
            )
            raise RecipeError(
                f"online.{key}: expected {expected} for {name}, which keeps no replay, got "
                f"{actual}{remedy}"
            )
    if recipe.replay.balance_stations:
        raise RecipeError(
            f"replay.balance_stations: expected false for {name}, which keeps no replay, got true"
        )


def _check_embodiments(recipe: Recipe) -> None:
    """Check that embodiments are learned in one process, by an algorithm for several robots.

    The algorithm must separate the robots' actions.
    """
    embodiments = recipe.embodiments
    if not embodiments:
        return
    if len(embodiments) < 2 or recipe.env:
        env = f" and env {recipe.env}" if recipe.env else ""
        raise RecipeError(
            f"embodiments: expected two or more, and no env, got {', '.join(embodiments)}{env}. A "
            "recipe of one robot names it in station.robot"
        )
    if not recipe.algorithm.several_robots or recipe.policy.kind != "tanh_gaussian":
        configs = {name: algorithm(name).Config for name in algorithms()}
        able = [
            name
            for name, config in configs.items()
            if config.several_robots and "tanh_gaussian" in config.policies
        ]
        raise RecipeError(
            f"embodiments: expected algorithm.name {', '.join(able)} and policy.kind "
            f"tanh_gaussian, got {recipe.algorithm.name} and {recipe.policy.kind}. Others do not "
            "support several robots yet. Set those, or leave embodiments out"
        )
    for name in ("learners", "workers", "replay_shards"):
        if number := getattr(recipe.placement, name):
            raise RecipeError(
                f"embodiments: expected placement.{name} 0, got {number}. Training on several "
                "robots runs in one process for now"
            )


def _check_text(recipe: Recipe) -> None:
    """Check conversations: they are rollouts, in whole groups.

    Data older than the newest weights need a correction.
    """
    algorithm = recipe.algorithm
    placement = recipe.placement
    size = recipe.simulation.environments
    group = algorithm.rollout.get("group", 1)
    if algorithm.learns_from != ROLLOUTS:
        raise RecipeError(
            f"algorithm.name: expected one that learns from rollouts with env '{recipe.env}', "
            f"such as grpo, got {algorithm.name}"
        )
    if size % group:
        raise RecipeError(
            f"simulation.environments: expected a multiple of algorithm.group = {group}, got {size}"
        )
    if placement.workers:
        raise RecipeError(
            f"placement.workers: expected 0 with env '{recipe.env}', got {placement.workers}. "
            "text.engine samples the tokens"
        )
    if recipe.text.max_tokens <= recipe.text.max_new_tokens:
        raise RecipeError(
            "text.max_tokens: expected more than text.max_new_tokens = "
            f"{recipe.text.max_new_tokens}, got {recipe.text.max_tokens}"
        )
    if not recipe.learns_from_feedback:
        text_task(recipe.text_task, recipe.text.options)
        return
    unfit = {
        "text.engine": recipe.text.engine != "in_process",
        "text.options": bool(recipe.text.options),
        "text.max_staleness": bool(recipe.text.max_staleness),
        "algorithm.baseline": getattr(algorithm, "baseline", False),
    }
    if conflict := next((key for key, is_set in unfit.items() if is_set), ""):
        raise RecipeError(
            f"{conflict}: expected its default with env '{recipe.env}'. The trainer's own network "
            "serves each prompt of the editors once"
        )
    if algorithm.name != "reinforce":
        raise RecipeError(
            f"algorithm.name: expected reinforce with env '{recipe.env}', where no two "
            f"completions have the same prompt and no critic is trained, got {algorithm.name}"
        )
    if recipe.text.warm_start.steps and not recipe.text.feedback.examples:
        raise RecipeError("text.feedback.examples: expected a file for text.warm_start, got none")


def _check_env(recipe: Recipe) -> None:
    """Check an environment: without a script its algorithm must need no demonstrations."""
    algorithm, simulation = recipe.algorithm, recipe.simulation
    if (recipe.policy.kind == "language") != bool(recipe.text_task):
        raise RecipeError(
            "policy.kind: expected language with env text:TASK, and another kind elsewhere; got "
            f"{recipe.policy.kind} with env '{recipe.env}'"
        )
    if recipe.text_task:
        _check_text(recipe)
    if not recipe.env:
        return
    kind, in_batches = recipe.env.partition(":")[0], batched_simulators()
    if kind not in ("gym", "text", *in_batches):
        raise RecipeError(
            f"env: expected gym:, text:, or one of {', '.join(in_batches)} and a colon, got "
            f"'{recipe.env}'{nearest(kind, ['gym', 'text', *in_batches])}"
        )
    for key, is_set in (
        ("shaping", simulation.shaping),
        ("randomise", simulation.randomise != Randomise()),
        ("dynamics", simulation.dynamics != Dynamics()),
    ):
        if is_set:
            raise RecipeError(
                f"simulation.{key}: expected none with env '{recipe.env}', which has a reward and "
                "scenes of its own. It is for a station's task"
            )
    if kind in in_batches and algorithm.learns_from == ROLLOUTS and algorithm.rollout.get("group"):
        raise RecipeError(
            f"env: '{recipe.env}' steps all of its environments at once. Expected an algorithm for "
            f"parts of episodes (ppo, async_ppo) or with a replay, got {algorithm.name}, which "
            "needs groups of complete episodes"
        )
    if kind in in_batches and algorithm.learns_from == ROLLOUTS and recipe.policy.executed > 1:
        raise RecipeError(
            f"policy.n_action_steps: expected 1 with env '{recipe.env}', whose environments are "
            f"stepped at once, got {recipe.policy.executed}"
        )
    if not simulation.environments:
        raise RecipeError(
            f"env: '{recipe.env}' is not a station: expected simulation.environments of at least "
            "1, got 0. rlinf train trains on it"
        )
    if algorithm.needs_demonstrations:
        raise RecipeError(
            f"env: '{recipe.env}' has no script, and {algorithm.name} begins with demonstrations. "
            "Take one that does not, e.g. sac, crossq or ppo"
        )
