"""``rlinf eval``: evaluate policy files in simulation, with Wilson intervals and videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlinf_core.cli.output import write_json
from rlinf_core.config.overrides import combinations
from rlinf_core.recipes import Recipe, check_recipe, load_recipe
from rlinf_core.recipes.station import is_simulated
from rlinf_core.reports.films import HOLD, caption, rollout, write_video
from rlinf_core.reports.throughput import wilson


def evaluate_command(
    checkpoint: Path,
    recipe: str | None,
    overrides: list[str],
    vary: list[str],
    episodes: int,
    first_seed: int,
    video: Path | None,
    json_file: Path | None,
) -> None:
    """Play every scene with every variation, and write the requested films and figures."""
    from rich.markup import escape
    from rich.progress import track

    from rlinf_core.policies.policy_folder import newest_policy

    policy = newest_policy(checkpoint)
    seeds = list(range(first_seed, first_seed + episodes))
    frames = min(4, len(seeds)) if video else 0
    pictures: list[np.ndarray] = []
    result: dict[str, float] = {"episodes": len(seeds), "first_seed": seeds[0]}
    recipes = {
        variation: load_recipe(recipe or recipe_of_policy(policy), [*overrides, *variation])
        for variation in combinations(vary)
    }
    for varied in recipes.values():
        check_recipe(varied)
    for variation, varied in recipes.items():
        name = " ".join(variation)
        won = []
        returns = []
        failed = 0
        played = rollout(varied, policy, seeds, frames)
        for episode, images in track(
            played, total=len(seeds), description=escape(name) or "evaluating"
        ):
            won.append(episode.success)
            returns.append(episode.value)
            failed += episode.failure
            filmed = caption(images, f"{name} seed {seeds[len(won) - 1]}".strip(), episode.outcome)
            pictures += filmed + filmed[-1:] * HOLD
        low, high = wilson(sum(won), len(won))
        print(
            f"{name or policy.name}: {sum(won)} of {len(won)} succeeded: {np.mean(won):.0%} (95 % "
            f"interval {low:.0%} to {high:.0%}), {failed} failed, mean return "
            f"{np.mean(returns):.2f}, seeds {seeds[0]} to {seeds[-1]}"
        )
        ending = f" {name}" if name else ""
        result |= {
            f"success{ending}": float(np.mean(won)),
            f"low{ending}": low,
            f"high{ending}": high,
            f"failure{ending}": failed / len(won),
            f"return{ending}": float(np.mean(returns)),
        }
    write_json(json_file, result)
    if video:
        write_video(video, pictures)
        print(f"video: {video}")


def evaluation_hint(recipe: Recipe, run_dir: Path) -> str:
    """Return the command that evaluates a run's newest policy in simulation.

    It is empty without a simulator.
    """
    if recipe.text_task:
        return f"; rlinf chat {run_dir}"
    if not (recipe.env or is_simulated(recipe)):
        return ""
    filmed = " --video out.mp4" if recipe.gymnasium_id or not recipe.env else ""
    return f"; rlinf eval {run_dir} --episodes 50{filmed}"


def recipe_of_policy(policy: Path) -> Path | str:
    """Return the recipe of the run that contains a policy file."""
    candidates = (parent / "recipe.yaml" for parent in policy.resolve().parents)
    return next(filter(Path.is_file, candidates), "demo")
