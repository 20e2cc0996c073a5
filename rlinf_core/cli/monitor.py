"""``rlinf monitor fit``: a failure monitor from episodes that a policy played alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlinf_core.cli.output import write_json
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.outputs import new_file
from rlinf_core.policies.monitor import Monitor, Steps
from rlinf_core.policies.monitor import fit as fit_monitor
from rlinf_core.recipes import Recipe, check_recipe, load_recipe
from rlinf_core.recipes.station import learned_spec

HELD_OUT = 0.3  # fraction of the episodes for the printed figures


def fit(
    run_dir: Path, out: Path | None, alpha: float, episodes: int, seed: int, json_file: Path | None
) -> None:
    """Fit a monitor, print what it finds in episodes held out, and write a fit to all."""
    if out:
        new_file(out)
    recipe = load_recipe(run_dir / "recipe.yaml")
    played = (
        simulated_steps(recipe, run_dir, episodes, seed)
        if episodes
        else recorded_steps(recipe, run_dir)
    )
    order = np.random.default_rng(seed).permutation(len(played))
    count, spec_hash = round(HELD_OUT * len(played)), learned_spec(recipe).hash
    held_out, others = (
        [played[index] for index in part] for part in (order[:count], order[count:])
    )
    figures = judge(fit_monitor(others, alpha, spec_hash, seed), held_out)
    path = out or run_dir / "monitor.safetensors"
    fit_monitor(played, alpha, spec_hash, seed).save(path)
    print(
        f"{path}: of {len(held_out)} episodes held out, {figures['false_alarms']:.1%} of "
        f"{figures['successes']} successful ones raised an alarm (bound {alpha:.1%}); "
        f"{figures['found_early']:.0%} of {figures['failures']} failures were found before half "
        f"time, {figures['found']:.0%} at all"
    )
    write_json(json_file, figures)


def judge(monitor: Monitor, episodes: list[Steps]) -> dict[str, float]:
    """Count false alarms, and failures that are found, also before half of the episode is over."""
    alarms = [(episode, monitor.alarm(episode)) for episode in episodes]
    good = [alarm >= 0 for episode, alarm in alarms if episode.success]
    bad = [(alarm, len(episode.actions)) for episode, alarm in alarms if not episode.success]
    return {
        "successes": len(good),
        "failures": len(bad),
        "false_alarms": float(np.mean(good)) if good else 0.0,
        "found": float(np.mean([alarm >= 0 for alarm, _ in bad])) if bad else 0.0,
        "found_early": float(np.mean([0 <= alarm < length / 2 for alarm, length in bad]))
        if bad
        else 0.0,
    }


def simulated_steps(recipe: Recipe, run_dir: Path, episodes: int, seed: int) -> list[Steps]:
    """Play a run's newest policy in simulation."""
    from rlinf_core.policies.policy_folder import newest_policy
    from rlinf_core.policies.serialization import load_policy
    from rlinf_core.rollouts.evaluate import record
    from sim_bridges.core.environments import make_environments

    check_recipe(recipe)
    env = make_environments(recipe, 4)
    played = record(
        env, load_policy(newest_policy(run_dir), env.spec), episodes, 3_000_000 + 100_000 * seed
    )
    env.close()
    return [Steps(one.observations["vectors"][:-1], one.actions, one.success) for one in played]


def recorded_steps(recipe: Recipe, run_dir: Path) -> list[Steps]:
    """Return the recordings of a run in which only its policy commanded."""
    from rlinf_core.data.episodes import intact_episodes
    from rlinf_core.rollouts.episode_conversion import episode_to_trajectory
    from rlinf_core.rollouts.types import DEMONSTRATION

    inbox = run_dir / "inbox"
    if not inbox.is_dir():
        raise RlinfError(
            f"{inbox}: expected recordings of the run's stations, found none. Play some in "
            "simulation: --episodes 300"
        )
    spec, steps = learned_spec(recipe), list[Steps]()
    for _, episode in intact_episodes([inbox]):
        if episode.mode == DEMONSTRATION or "operator" in episode.sources:
            continue
        one = episode_to_trajectory(episode, spec)
        steps.append(Steps(one.observations["vectors"][:-1], one.actions, one.success))
    return steps
