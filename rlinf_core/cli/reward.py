"""``rlinf reward train``: train a reward on the frames of recordings, and draw its errors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.cli.output import write_json
from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import EpisodeError, RlinfError

if TYPE_CHECKING:
    from rlinf_core.tasks.rewards.training import Frames, ProgressScores


def train(
    paths: list[Path],
    out: Path,
    cameras: list[str],
    steps: int,
    held_out: float,
    seed: int,
    json_file: Path | None,
    failed: list[str],
    late: float,
    learns_progress: bool,
) -> None:
    """Train a success classifier; write the model, its held-out scores and a picture of errors."""
    from rich.progress import Progress

    from rlinf_core.core.extras import require
    from rlinf_core.data.episodes import intact_episodes

    require("trainer", "rlinf reward train")
    from rlinf_core.tasks.rewards import training

    if out.exists():
        raise EpisodeError(
            f"--out {out}: expected a new file; nothing is overwritten",
            code="RL-E207",
        )
    picture = (
        out.with_suffix(".png")
        if out.suffix == ".safetensors"
        else out.with_name(f"{out.name}.png")
    )
    if picture.exists():
        raise EpisodeError(
            f"--out {out}: expected a name whose picture {picture.name} does not exist yet; "
            "nothing is overwritten. Choose another name",
            code="RL-E207",
        )
    read = {episode.id: episode for _, episode in intact_episodes(paths)}
    if unknown := set(failed) - read.keys():
        raise EpisodeError(
            f"--failed: expected ids of episodes in these recordings, got "
            f"{', '.join(sorted(unknown))}"
        )
    frames = (
        training.progress_of(read.values(), cameras, failed)
        if learns_progress
        else training.frames_of(read.values(), cameras, failed, late)
    )
    learned, judged = training.split(frames, held_out, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with Progress(transient=True) as progress:
        task = progress.add_task("training the success classifier", total=steps)
        network = training.train(learned, steps, seed, lambda _: progress.advance(task))
    try:
        write_atomically(out, network.save)
    except OSError as error:
        raise RlinfError(
            f"--out {out}: cannot be written: {error.strerror or error}. Nothing was left there. "
            "Free disk space or choose another folder, then train again",
            code="RL-E207",
        ) from error
    if learns_progress:
        _print_progress_scores(out, training.judge_progress(network, judged), json_file)
        return
    scores, verdicts = training.judge(network, judged)
    write_atomically(picture, lambda temporary: _picture(judged, verdicts, temporary))
    print(
        f"{out}: {scores.accuracy:.1%} of {scores.positives + scores.negatives} frames of held-out "
        f"episodes; missed {scores.missed} of {scores.positives} that show success, took "
        f"{scores.invented} of {scores.negatives} others for it\nexamples of its decisions: "
        f"{picture}\nin a task's file: reward: {{kind: classifier, model: {out.name}}}, and "
        "success_steps: 2 against single frames"
    )
    write_json(json_file, asdict(scores) | {"accuracy": scores.accuracy})


def _print_progress_scores(out: Path, scores: ProgressScores, json_file: Path | None) -> None:
    """Print the scores of a progress network."""
    print(
        f"{out}: rank correlation with time {scores.order:.2f} on {scores.successes} held-out "
        f"successful episodes; {scores.fooled:.0%} of {scores.failures} failed ones show progress "
        "above 0.5 in their second half\nin a task's file: reward: {kind: progress, "
        f"model: {out.name}, classifier: FILE}}"
    )
    write_json(json_file, asdict(scores))


def _picture(frames: Frames, verdicts: np.ndarray, path: Path, columns: int = 6) -> None:
    """Write a picture with frames of each kind of result, the least certain ones first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    kinds = {
        "success, seen": (True, True),
        "success, missed": (True, False),
        "no success, recognised as none": (False, False),
        "no success, classified as success": (False, True),
    }
    shape, axes = plt.subplots(
        len(kinds), columns, figsize=(1.4 * columns, 1.6 * len(kinds)), constrained_layout=True
    )
    for row, (title, (is_success, is_high)) in zip(axes, kinds.items(), strict=True):
        indices = np.flatnonzero((frames.success == is_success) & ((verdicts > 0.5) == is_high))
        doubtful = indices[np.argsort(np.abs(verdicts[indices] - 0.5))]
        row[0].set_title(f"{title}: {len(indices)}", loc="left", fontsize=9)
        for place, axis in enumerate(row):
            axis.axis("off")
            if place < len(doubtful):
                axis.imshow(frames.images[doubtful[place]][:3].transpose(1, 2, 0))
                axis.text(
                    0, -1, "" if place == 0 else f"{verdicts[doubtful[place]]:.2f}", fontsize=7
                )
    shape.savefig(path, dpi=110, format="png")
    plt.close(shape)
