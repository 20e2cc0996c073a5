"""``rlinf train``: train from simulators, stations or recordings, with progress and a report."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.cli.evaluate import evaluation_hint
from rlinf_core.cli.terminal import LINES_S
from rlinf_core.core import progress
from rlinf_core.core.signals import defer_signals
from rlinf_core.launch.preflight import check_trainer
from rlinf_core.recipes import Recipe, check_recipe, load_recipe
from rlinf_core.recipes.bridge_security import token_of
from rlinf_core.recipes.sources import SIMULATORS, STATIONS, source_of
from rlinf_core.reports.report import TRAINING_REPORT_STEPS, write_training_report

if TYPE_CHECKING:
    from rlinf_core.trainer.run import Run

BEGINNING_STEPS = 2
PHASES = {
    "waiting": "waiting for demonstrations",
    "sft": "supervised fine-tuning",
    "online": "training",
}


def train_command(name: str, overrides: list[str], run_dir: Path, report: bool) -> int:
    """Train; return 130 if the run was stopped before its end."""
    recipe = load_recipe(name, overrides)
    check_recipe(recipe)
    check_trainer(recipe, run_dir)
    endless = source_of(recipe) == STATIONS or recipe.learns_from_feedback
    with ExitStack() as beginning:
        return _train(recipe, run_dir, report, endless, beginning)


def _train(recipe: Recipe, run_dir: Path, report: bool, endless: bool, beginning: ExitStack) -> int:
    """Train, with a line every few seconds until the first turn ends ``beginning``."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    steps = beginning.enter_context(progress.Progress(BEGINNING_STEPS))
    steps.step("loading the trainer")
    with defer_signals():
        from rlinf_core.trainer.train import train

    print(f"run: {run_dir}{_who_feeds(recipe, run_dir) if endless else ''}", flush=True)
    stopped, advice = False, ""
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("time steps", total=None)
        reported_at = time.monotonic()
        shown_text = ""

        def on_progress(run: Run, entry: dict[str, float] | None) -> None:
            nonlocal reported_at, shown_text, stopped, advice
            beginning.close()
            stopped = run.stopping
            if entry and run.layout_controller:
                advice = run.layout_controller.advice()
            if entry:
                bar.console.print(_line(run.steps, entry), soft_wrap=True)
            words = _words(run) if endless else _simulated_words(run)
            bar.update(task, description=words)
            if not endless:
                bar.update(task, completed=run.steps, total=run.total)
            if (
                not sys.stdout.isatty()
                and words != shown_text
                and time.monotonic() - reported_at > LINES_S
            ):
                print(words, flush=True)
                reported_at, shown_text = time.monotonic(), words

        more = ", with demonstrations of the script" if _demonstrates(recipe) else ""
        steps.step(f"starting{more}")
        last = train(recipe, run_dir, on_progress=on_progress, adapts=True)
    if stopped and not endless:
        print(f"stopped before its end; the same command with --out {run_dir} continues")
        return 130
    if last and report:
        with progress.Progress(TRAINING_REPORT_STEPS) as steps:
            print(write_training_report(recipe, run_dir, steps))
    if advice:
        print(advice)
    print(f"policies: {run_dir / 'policies'}{evaluation_hint(recipe, run_dir)}")
    return 0


def _demonstrates(recipe: Recipe) -> bool:
    """Return True if the run begins with the script's demonstrations in simulation."""
    return (
        source_of(recipe) == SIMULATORS
        and recipe.algorithm.needs_demonstrations
        and not recipe.collect.recordings
    )


def _simulated_words(run: Run) -> str:
    """Return the progress of a run in simulation, in words."""
    phase = PHASES.get(run.phase, run.phase)
    return f"{phase}, {run.learner.updates:,} updates, {run.steps:,} time steps"


def _who_feeds(recipe: Recipe, run_dir: Path) -> str:
    """Return the missing source of a run that stations or editors feed, as text."""
    if recipe.learns_from_feedback:
        served = recipe.text.feedback
        return (
            f"; editors call http://{served.host}:{served.port}/v1 with the tokens in "
            f"{run_dir / 'clients'}; Ctrl-C ends it"
        )
    shown = "demonstrations come from recordings; " if recipe.collect.recordings else ""
    token = token_of(recipe.bridge, run_dir)
    by = f" with the token in {token}" if token else ""
    return f"; {shown}stations call {recipe.bridge.address}{by}; Ctrl-C ends it"


def _line(steps: int, entry: dict[str, float]) -> str:
    # it is before the run's clock begins
    total = entry["seconds"] + entry.get("seconds_warm_start", 0.0)
    spent = ", ".join(
        f"{name.removeprefix('seconds_')} {value / total:.0%}"
        for name, value in entry.items()
        if name.startswith("seconds_")
    )
    return (
        f"{steps:9,d} steps  success {entry['success']:4.0%}  return {entry['return']:6.2f}  "
        f"{entry['seconds']:6.0f} s  {entry['steps_per_second']:5.0f} steps/s  ({spent})"
    )


def _helped(run: Run, station: str) -> str:
    """Return a station's intervention rate as text; empty before its first training episode."""
    rate = run.data.intervention_rate(station)
    return "" if rate is None else f", taken over in {rate:.0%} of the last time steps"


def _words(run: Run) -> str:
    """Return the progress of a run that stations or editors feed, in words."""
    if run.recipe.learns_from_feedback:
        counts = run.source.counts()
        return (
            f"{counts.get('feedback_served', 0):,.0f} completions, "
            f"{counts.get('feedback_accepted', 0):,.0f} with feedback, newest reward "
            f"{counts.get('feedback_reward', 0.0):.0%}, {run.updates:,} updates, policy version "
            f"{run.version}"
        )
    stations = (
        "; ".join(
            f"{name}: {counts['episodes']} episodes, {counts['steps']:,} steps{_helped(run, name)}"
            for name, counts in run.data.by_station().items()
        )
        or "no station yet"
    )
    return (
        f"{run.phase}, {run.data.demonstrations.episodes} demonstrations, {run.updates:,} "
        f"updates, policy version {run.version}; {stations}"
    )
