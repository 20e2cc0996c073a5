"""Films of policies in simulation: episodes, captions, scenes side by side, and a poster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.core.errors import RlinfError
from rlinf_core.recipes import Recipe

if TYPE_CHECKING:
    from rlinf_core.rollouts.evaluate import EpisodeResult

FPS = 10
HOLD = 8  # repeated frames at the end of an episode
CAPTION = 30  # height of the caption [pixels]
FILMS = ("before_after.mp4", "before_after.png")


def rollout(
    recipe: Recipe, policy: Path, seeds: list[int], frames: int = 0
) -> Iterator[tuple[EpisodeResult, list[np.ndarray]]]:
    """Play an episode of each seed.

    Yields:
        The result, and the pictures of the episode for the first ``frames`` seeds.
    """
    from rlinf_core.policies.serialization import load_policy
    from rlinf_core.policies.torch_device import device_of
    from rlinf_core.rollouts.evaluate import evaluate
    from sim_bridges.core.environments import make_environments

    if frames and recipe.env and not recipe.gymnasium_id:
        raise RlinfError(
            f"env '{recipe.env}' is a batch of environments, which is not filmed", code="RL-E711"
        )
    env = make_environments(recipe, 1)
    env.auto_reset = False
    actor = load_policy(policy, env.spec).to(device_of(recipe.device))
    for index, seed in enumerate(seeds):
        pictures: list[np.ndarray] = []
        if index < frames:
            take_picture = partial(_append_picture, env, pictures)
            (episode,) = evaluate(env, actor, [seed], take_picture)
            take_picture()
        else:
            (episode,) = evaluate(env, actor, [seed])
        yield episode, pictures
    env.close()


def _append_picture(env: Any, pictures: list[np.ndarray]) -> None:
    pictures.append(env.render())


def caption(pictures: list[np.ndarray], text: str, outcome: str = "") -> list[np.ndarray]:
    """Write a line of text on the pictures; the last one also gets the outcome."""
    import cv2

    for number, picture in enumerate(pictures, 1):
        line = f"{text}: {outcome}" if outcome and number == len(pictures) else text
        cv2.rectangle(picture, (0, 0), (picture.shape[1], CAPTION), (255, 255, 255), -1)
        cv2.putText(
            picture, line, (10, 21), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (30, 30, 30), 1, cv2.LINE_AA
        )
    return pictures


def write_video(path: Path, pictures: list[Any]) -> None:
    """Write pictures (height, width, 3) uint8 as an H.264 MP4 video."""
    import imageio

    imageio.mimwrite(path, pictures, fps=FPS, codec="libx264", quality=7, macro_block_size=8)


def attempt_part(name: str, write: Callable[..., None], *arguments: Any) -> str:
    """Write one part of a report, and return a line on its failure; empty on success."""
    try:
        write(*arguments)
    except RlinfError as error:
        return f"No {name}: {error}"
    except Exception as error:  # noqa: BLE001 - a part must not lose the report
        return f"No {name}: {type(error).__name__}: {error}"
    return ""


def film_policies(
    recipe: Recipe,
    run_dir: Path,
    sides: dict[str, Path],
    words: str,
    first: list[int] | None = None,
) -> str:
    """Film policies side by side on held-out scenes, and return text for the report.

    Args:
        recipe: recipe with the scenes.
        run_dir: folder for the film.
        sides: policy file by its caption, from left to right.
        words: meaning of the sides, for the report.
        first: scenes to film before the others.
    """
    if not recipe.evaluate.filmed_episodes:
        return "No video: evaluate.filmed_episodes is 0."
    results: list[str] = []
    failure = attempt_part(
        "video", lambda: results.append(_film(recipe, run_dir, sides, words, first or []))
    )
    for name in FILMS if failure else ():  # an incomplete film may have filled the disk
        with contextlib.suppress(OSError):
            (run_dir / name).unlink(missing_ok=True)
    return failure or results[0]


def _film(
    recipe: Recipe, run_dir: Path, sides: dict[str, Path], words: str, first: list[int]
) -> str:
    """Make the film. Simulator, renderer and encoder may raise any exception."""
    others = range(
        recipe.evaluate.first_seed, recipe.evaluate.first_seed + recipe.evaluate.filmed_episodes
    )
    seeds = list(dict.fromkeys([*first, *others]))[: recipe.evaluate.filmed_episodes]
    scenes = _side_by_side(recipe, sides, seeds)
    write_video(run_dir / FILMS[0], [frame for frames, _ in scenes for frame in frames])
    import imageio

    candidates = [frames[-1] for frames, learned in scenes if learned] or [
        frame for frames, _ in scenes for frame in frames
    ]
    imageio.imwrite(run_dir / FILMS[1], max(candidates, key=_difference))
    return (
        f"[before_after.mp4](before_after.mp4): the same scenes {words}.\n\n"
        "![the same scene, at its end](before_after.png)"
    )


def _side_by_side(
    recipe: Recipe, sides: dict[str, Path], seeds: list[int]
) -> list[tuple[list[np.ndarray], bool]]:
    """Return the film of each scene, and whether only the last policy succeeded in it.

    The shorter episode shows its last picture until the other one ends.
    """
    columns = [
        [
            (episode.success, caption(pictures, text, episode.outcome))
            for episode, pictures in rollout(recipe, policy, seeds, frames=len(seeds))
        ]
        for text, policy in sides.items()
    ]
    films = []
    for scene in zip(*columns, strict=True):
        successes, pictures = zip(*scene, strict=True)
        length = max(map(len, pictures)) + HOLD
        frames = [
            np.hstack([side[min(index, len(side) - 1)] for side in pictures])
            for index in range(length)
        ]
        films.append((frames, successes[-1] and not any(successes[:-1])))
    return films


def write_poster(run_dir: Path) -> None:
    """Write ``learned.png``: the largest difference by RL above the learning curve."""
    import cv2

    parts = []
    frame = cv2.imread(str(run_dir / "before_after.png"))
    if frame is not None:
        parts.append(_enlarge_difference(frame))
    curve = cv2.imread(str(run_dir / "learning_curve.png"))
    if curve is not None:
        parts.append(curve)
    if not parts:
        raise RlinfError("there is neither a film nor a curve for it", code="RL-E711")
    width = min(part.shape[1] for part in parts)
    sizes = [(width, round(part.shape[0] * width / part.shape[1])) for part in parts]
    resized = [
        cv2.resize(part, size, interpolation=cv2.INTER_AREA)
        for part, size in zip(parts, sizes, strict=True)
    ]
    cv2.imwrite(str(run_dir / "learned.png"), np.vstack(resized))


def _enlarge_difference(frame: np.ndarray) -> np.ndarray:
    """Crop both sides to the half-size region with the largest difference, and enlarge it.

    Lower pixels weigh more, because the arm's shoulder may differ more than its tool.
    """
    import cv2

    sides = np.hsplit(frame[CAPTION:], 2)
    height, width = sides[0].shape[:2]
    weights = np.linspace(0.0, 1.0, height, dtype=np.float32)[:, None]
    difference = weights * np.abs(sides[0].astype(np.float32) - sides[1]).sum(axis=2)
    blurred = cv2.blur(difference, (width // 8, width // 8))
    row, column = np.unravel_index(blurred.argmax(), blurred.shape)
    top = int(np.clip(row - height // 6, 0, height - height // 2))
    left = int(np.clip(column - width // 4, 0, width - width // 2))
    parts = [side[top : top + height // 2, left : left + width // 2] for side in sides]
    enlarged = [cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC) for part in parts]
    return np.vstack([frame[:CAPTION], np.hstack(enlarged)])


def _difference(frame: np.ndarray) -> float:
    """Return the mean difference between the two sides of a frame, without captions."""
    half = frame.shape[1] // 2
    return float(np.abs(frame[CAPTION:, :half].astype(int) - frame[CAPTION:, half:]).mean())
