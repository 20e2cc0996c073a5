"""Evaluation of policy files in simulation, with Wilson intervals and videos."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.recipes import Recipe, check_recipe, load_recipe
from rlinf_core.settings.overrides import combinations

if TYPE_CHECKING:
    from rlinf_core.rollouts.evaluation import EpisodeResult

FPS = 10


def wilson(successes: int, episodes: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a success rate (Wilson 1927); right at 0 and 1 too."""
    if episodes == 0:
        return 0.0, 1.0
    rate, square = successes / episodes, z * z / episodes
    centre = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / episodes + square / (4 * episodes)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def rollout(recipe: Recipe, policy: Path, seeds: list[int], frames: int = 0
            ) -> Iterator[tuple[EpisodeResult, list[np.ndarray]]]:
    """What came of each seed's episode, and pictures of the first ``frames`` episodes."""
    from rlinf_core.devices import device_of
    from rlinf_core.policies.files import load_policy
    from rlinf_core.rollouts.evaluation import evaluate
    from rlinf_core.rollouts.simulated import stations

    env = stations(recipe, 1)
    actor = load_policy(policy, env.spec).to(device_of(recipe.device))
    for index, seed in enumerate(seeds):
        pictures: list[np.ndarray] = []
        episode, = evaluate(env, actor, [seed], lambda: pictures.append(env.render()) if index < frames else None)  # noqa: B023
        yield episode, pictures
    env.close()


def evaluate_command(checkpoint: Path, recipe: str | None, overrides: list[str], vary: list[str], episodes: int,
                     first_seed: int, video: Path | None, json_file: Path | None) -> None:
    """``rlinf eval``."""
    from rich.progress import track

    from rlinf_core.policies.files import newest_policy

    policy = newest_policy(checkpoint)
    seeds = list(range(first_seed, first_seed + episodes))
    frames = min(4, len(seeds)) if video else 0
    pictures: list[np.ndarray] = []
    result: dict[str, float] = {"episodes": len(seeds), "first_seed": seeds[0]}
    recipes = {variation: load_recipe(recipe or _recipe_of(policy), [*overrides, *variation])
               for variation in combinations(vary)}
    for varied in recipes.values():
        check_recipe(varied)
    for variation, varied in recipes.items():
        name, won, failed = " ".join(variation), [], 0
        played = rollout(varied, policy, seeds, frames)
        for episode, images in track(played, total=len(seeds), description=name or "evaluating"):
            won.append(episode.success)
            failed += episode.failure
            words = f"{name} seed {seeds[len(won) - 1]}: {episode.outcome}"
            pictures += caption(images, words.strip())
        low, high = wilson(sum(won), len(won))
        print(f"{name or policy.name}: {sum(won)} of {len(won)} succeeded: {np.mean(won):.0%} "
              f"(95 % interval {low:.0%} to {high:.0%}), {failed} failed, seeds {seeds[0]} to {seeds[-1]}")
        ending = f" {name}" if name else ""
        result |= {f"success{ending}": float(np.mean(won)), f"low{ending}": low, f"high{ending}": high,
                   f"failure{ending}": failed / len(won)}
    if video:
        write_video(video, pictures)
        print(f"video: {video}")
    if json_file:
        json_file.write_text(json.dumps(result))


def _recipe_of(policy: Path) -> Path | str:
    """The recipe of the run that a policy lies in."""
    found = (parent / "recipe.yaml" for parent in policy.resolve().parents)
    return next(filter(Path.is_file, found), "demo")


def caption(pictures: list[np.ndarray], text: str) -> list[np.ndarray]:
    """The pictures with a line of text at the top."""
    import cv2

    for picture in pictures:
        cv2.rectangle(picture, (0, 0), (picture.shape[1], 30), (255, 255, 255), -1)
        cv2.putText(picture, text, (10, 21), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (30, 30, 30), 1, cv2.LINE_AA)
    return pictures


def write_video(path: Path, pictures: list[Any]) -> None:
    """H.264 MP4 of arrays (height, width, 3), uint8."""
    import imageio

    imageio.mimwrite(path, pictures, fps=FPS, codec="libx264", quality=7, macro_block_size=8)
