"""The report of a run: learning curve, report.md and report.json; ``films`` makes the films."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import RlinfError
from rlinf_core.core.progress import Progress, SilentProgress
from rlinf_core.policies.policy_folder import policy_name
from rlinf_core.recipes import Recipe, station_task
from rlinf_core.reports.curves import draw, measure_of, read_evaluations, read_events, shortened
from rlinf_core.reports.films import attempt_part, film_policies, write_poster
from rlinf_core.reports.throughput import wilson

if TYPE_CHECKING:
    pass


WINDOW = 40  # episodes of a running mean
NO_FILM_YET = "No video: the films were not finished."


REPORT_STEPS = 3  # of the progress bar


def write_report(
    recipe: Recipe, run_dir: Path, since: int = 0, progress: Progress | None = None
) -> str:
    """Write the report of a run with a station.

    Args:
        recipe: recipe of the run.
        run_dir: folder of the run.
        since: number of events of earlier attempts, which are ignored.
        progress: progress bar; it gets REPORT_STEPS steps.

    Returns:
        Text to print.
    """
    progress = progress or SilentProgress()
    events = read_events(run_dir)[since:]
    exported = run_dir / "policy"
    result = next((event for event in reversed(events) if event["event"] == "result"), None)
    if result is None:
        raise RlinfError(
            f"{run_dir}: expected the result of the run in progress.jsonl, got none. Was the disk "
            f"full?"
        )
    summary = _summary(recipe, result, since)
    words = (
        f"success before RL {summary['success_before']:.0%} (policy version "
        f"{summary['version_before']}), after RL {summary['success_after']:.0%} (version "
        f"{summary['version_after']}; {summary['eval_episodes']} held-out episodes each); "
        f"{summary['env_steps']} env steps, {_updates(summary)}, {summary['minutes']:.1f} "
        f"minutes; training ended because {summary['ended']}"
    )

    def write(*more: str) -> None:
        _replace(
            run_dir / "report.md",
            _markdown(recipe, run_dir, summary, events, "\n\n".join(filter(None, more))),
        )

    task = station_task(recipe).spec.instruction or recipe.station.task
    progress.step("drawing the learning curve")
    curve = attempt_part(
        "learning_curve.png",
        _curve,
        events,
        summary,
        f"{shortened(task)}: learned online",
        run_dir / "learning_curve.png",
    )
    sides = {
        "before RL": exported / "policy_before.safetensors",
        "after RL": exported / "policy.safetensors",
    }
    versions = {
        policy: result[side.removesuffix(" RL")]["policy_version"] for side, policy in sides.items()
    }
    policies = [
        attempt_part(
            f"policy/{policy.name}",
            _keep_policy,
            run_dir / "policies_at_station" / policy_name(version),
            policy,
        )
        for policy, version in versions.items()
    ]
    with _report_failures(words, run_dir):
        _replace(run_dir / "report.json", json.dumps(summary, indent=2))
        write(curve, *policies, NO_FILM_YET)  # a renderer may end the process
    progress.step("filming the policies before and after")
    video = (
        "No video: a policy is missing."
        if any(policies)
        else film_policies(
            recipe, run_dir, sides, "before RL (left) and after (right)", _scenes_learned(events)
        )
    )
    progress.step("making the poster")
    poster = attempt_part("learned.png", write_poster, run_dir)
    unfilmed = attempt_part("films in report.md", write, curve, *policies, video, poster)
    return "\n".join(
        filter(None, (words, curve, *policies, unfilmed, f"report: {run_dir / 'report.md'}"))
    )


def _replace(path: Path, text: str) -> None:
    """Write a file atomically; if the disk refuses it, the old file stays."""
    write_atomically(path, lambda part: part.write_text(text))


@contextlib.contextmanager
def _report_failures(words: str, run_dir: Path) -> Iterator[None]:
    """Turn an OSError of the report into an RlinfError that holds the run's result."""
    try:
        yield
    except OSError as error:
        raise RlinfError(
            f"the run is complete, but its report cannot be written: {error}. Its result: "
            f"{words}. Everything else is in {run_dir}, its events in progress.jsonl",
            code="RL-E711",
        ) from error


def _keep_policy(source: Path, policy: Path) -> None:
    """Copy an evaluated policy to ``policy/``."""
    if not source.exists():
        raise RlinfError(f"expected {source}. Give the station and the director the same --out")
    policy.parent.mkdir(exist_ok=True)
    shutil.copy(source, policy)


TRAINING_REPORT_STEPS = 2


def write_training_report(recipe: Recipe, run_dir: Path, progress: Progress | None = None) -> str:
    """Write the report of a run without a station: curve, table and, if possible, a film.

    Args:
        recipe: recipe of the run.
        run_dir: folder of the run.
        progress: progress bar; it gets TRAINING_REPORT_STEPS steps.

    Returns:
        Text to print.
    """
    progress = progress or SilentProgress()
    progress.step("drawing the learning curve")
    evaluations = read_evaluations(run_dir)
    measure = measure_of([evaluations]) if recipe.env else "success"
    rows = [_row(entry) for entry in evaluations if entry["episodes"]]
    files = [
        run_dir / "policies" / policy_name(int(entry["policy_version"])) for entry in evaluations
    ]
    sides = {f"after {evaluations[i]['env_steps']:,.0f} steps": files[i] for i in (0, -1)}
    first, last = evaluations[0], evaluations[-1]
    measures = [
        f"{entry[measure]:.0%}" if measure == "success" else f"{entry[measure]:.1f}"
        for entry in (first, last)
    ]
    words = (
        f"{measure} {measures[0]} at first, {measures[1]} after {last['env_steps']:,.0f} steps "
        f"({int(last['episodes'])} held-out episodes each), {last['seconds'] / 60:.1f} minutes"
    )

    def write(*more: str) -> None:
        _replace(
            run_dir / "report.md",
            "\n".join(
                [
                    f"# {recipe.name}{f', {recipe.env}' if recipe.env else ''}, "
                    f"{recipe.algorithm.name}, seed {recipe.seed}",
                    "",
                    f"{words[0].upper()}{words[1:]}.",
                    "",
                    "![learning curve](learning_curve.png)",
                    "",
                    *(f"{line}\n" for line in more if line),
                    "| steps | updates | return | success | 95 % interval | held-out episodes | "
                    "robot-minutes trained | successes an hour | median seconds to success | "
                    "successes in a row | minutes |",
                    "|" + "---|" * 11,
                    *rows,
                    "",
                    f"Repeat: `rlinf train {run_dir / 'recipe.yaml'} --out NEW_FOLDER`. "
                    "TensorBoard: `tensorboard --logdir tensorboard`. Policies: `policies/`. All "
                    "settings: `recipe.yaml`.",
                    "",
                ]
            ),
        )

    curve = attempt_part(
        "learning_curve.png",
        draw,
        {recipe.name: [evaluations]},
        run_dir / "learning_curve.png",
        measure,
    )
    with _report_failures(words, run_dir):
        write(curve, NO_FILM_YET)  # a renderer may end the process
    progress.step("filming the first and the last policy")
    video = (
        film_policies(recipe, run_dir, sides, "before training (left) and after (right)")
        if len(sides) > 1
        else ("No video: the run has only one evaluation so far.")
    )
    unfilmed = attempt_part("films in report.md", write, curve, video)
    return "\n".join(filter(None, (words, curve, unfilmed, f"report: {run_dir / 'report.md'}")))


def _row(entry: dict[str, Any]) -> str:
    """Return a row of the table of evaluations."""
    episodes = int(entry["episodes"])
    interval = " to ".join(
        f"{bound:.0%}" for bound in wilson(round(entry["success"] * episodes), episodes)
    )
    return (
        f"| {entry['env_steps']:,.0f} | {entry['updates']:,.0f} | {entry['return']:.2f} | "
        f"{entry['success']:.0%} | {interval} | {episodes} | {_robot_time(entry)} | "
        f"{entry['seconds'] / 60:.1f} |"
    )


def _robot_time(entry: dict[str, Any]) -> str:
    """Return four cells of an evaluation; empty cells if an earlier version wrote it."""
    names = {
        "robot_minutes": ".1f",
        "successes_per_hour": ".0f",
        "time_to_success_s": ".1f",
        "longest_run": "d",
    }
    return " | ".join(
        f"{entry[name]:{form}}" if name in entry else "" for name, form in names.items()
    )


def _summary(recipe: Recipe, result: dict[str, Any], since: int = 0) -> dict[str, Any]:
    sides = {side: result[side] for side in ("before", "after")}
    return {
        "seed": recipe.seed,
        **{
            f"success_{side}": evaluation["successes"] / max(1, evaluation["episodes"])
            for side, evaluation in sides.items()
        },
        **{f"version_{side}": evaluation["policy_version"] for side, evaluation in sides.items()},
        "eval_episodes": result["after"]["episodes"],
        "env_steps": result["env_steps"],
        "updates": result["updates"],
        "ended": result["ended"],
        "minutes": round(result["minutes"], 2),
        "earlier_attempts": since > 0,
    }


def _updates(summary: dict[str, Any]) -> str:
    """Return the number of updates in words; it includes earlier attempts in the same folder."""
    return (
        f"{summary['updates']} gradient "
        f"updates{', earlier attempts included' * summary['earlier_attempts']}"
    )


def _curve(events: list[dict[str, Any]], summary: dict[str, Any], title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    episodes = [
        event for event in events if event["event"] == "episode" and event["mode"] == "train"
    ]
    steps = [event["env_steps"] for event in episodes]
    success = np.array([event["success"] for event in episodes], dtype=float)
    smooth = [success[max(0, i - WINDOW + 1) : i + 1].mean() for i in range(len(success))]
    first = WINDOW - 1 if len(success) >= WINDOW else 0  # a mean of few episodes is 0 or 1
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        steps[first:],
        smooth[first:],
        color="#2b6ca3",
        label=f"training episodes, mean of {WINDOW} (exploring)",
    )
    for name, x, colour in (("before", 0, "#c2571a"), ("after", max(steps, default=0), "#2e7d32")):
        rate = summary[f"success_{name}"]
        low, high = wilson(round(rate * summary["eval_episodes"]), summary["eval_episodes"])
        axes.errorbar(
            [x],
            [rate],
            [[rate - low], [high - rate]],
            fmt="o",
            color=colour,
            capsize=4,
            label=f"{name} RL: {rate:.0%} of {summary['eval_episodes']} held-out episodes",
        )
    axes.set(xlabel="environment steps", ylabel="success", ylim=(-0.03, 1.05), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def _scenes_learned(events: list[dict[str, Any]]) -> list[int]:
    """Return the held-out scenes that the policy solved after RL and not before, without help."""
    solved: dict[int, list[bool]] = {}
    for event in events:
        if event["event"] == "episode" and event["mode"] == "evaluate":
            solved.setdefault(event["seed"], []).append(
                event["success"] and not event["intervened"]
            )
    return [seed for seed, outcomes in solved.items() if outcomes[-1] and not outcomes[0]]


def _markdown(
    recipe: Recipe, run_dir: Path, summary: dict[str, Any], events: list[dict[str, Any]], video: str
) -> str:
    rows = []
    for name in ("before", "after"):
        rate, episodes = summary[f"success_{name}"], summary["eval_episodes"]
        low, high = wilson(round(rate * episodes), episodes)
        rows.append(
            f"| {name} RL | {summary[f'version_{name}']} | {rate:.0%} | {low:.0%} to {high:.0%} | "
            f"{episodes} |"
        )
    phases = [event for event in events if event["event"] in ("phase", "result")]
    times = [
        f"| {a['name']} | {(b['time'] - a['time']) / 60:.1f} |"
        for a, b in zip(phases, phases[1:], strict=False)
        if a["event"] == "phase"
    ]
    return "\n".join(
        [
            f"# {recipe.name}, seed {recipe.seed}",
            "",
            "| | policy version | success | 95 % interval | held-out episodes |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"{summary['env_steps']} online environment steps, {_updates(summary)}, "
            f"{summary['minutes']:.1f} minutes. Training ended because {summary['ended']}.",
            "",
            "![learning curve](learning_curve.png)",
            "",
            video,
            "",
            "| phase | minutes |",
            "|---|---|",
            *times,
            "",
            f"Repeat: `rlinf demo {shlex.quote(str(run_dir / 'recipe.yaml'))} --out NEW_FOLDER`. "
            "Recordings: `inbox/` (rosbag2, MCAP). TensorBoard: `tensorboard --logdir "
            "tensorboard`. Policy: `policy/policy.safetensors`. All settings: `recipe.yaml`.",
            "",
        ]
    )
