"""``rlinf sweep``: train every combination of overrides."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.cli.compare import compare
from rlinf_core.config.overrides import combinations
from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.renames import with_current_keys
from rlinf_core.core.signals import end_with_parent
from rlinf_core.launch.preflight import check_trainer
from rlinf_core.recipes import Recipe, check_recipe, load_recipe, recipe_yaml
from rlinf_core.recipes.placement import Placement
from rlinf_core.recipes.sources import RECORDINGS, STATIONS, source_of
from rlinf_core.recipes.station import is_simulated
from rlinf_core.reports.curves import read_evaluations
from rlinf_core.reports.seeds import leaves
from rlinf_core.trainer.checkpoint import checkpoints

GOAL, LOOK_S = 0.9, 0.1
MAY_CHANGE = (
    "device",
    "learner.",
    "placement.",  # keys that a resumed run may change
    "simulation.env_steps",
    "algorithm.steps",
    "online.max_",
    "online.stop_",
)


def sweep_command(name: str, overrides: list[str], run_dir: Path, jobs: int) -> int:
    """Train all combinations that are not finished. Returns 1 if one failed."""
    from rich.progress import Progress

    every = combinations(overrides)
    varied = {
        override
        for chosen in every
        for override in chosen
        if any(override not in other for other in every)
    }
    runs = {
        run_dir / run_name(number, chosen, varied): chosen for number, chosen in enumerate(every)
    }
    trained: dict[Path, tuple[str, ...]] = {}
    for run, chosen in runs.items():  # report all errors before the first run
        _check(recipe := load_recipe(name, list(chosen)), run)
        # compared runs must have one layout, whatever the machine does meanwhile
        is_free = recipe.placement == Placement()
        trained[run] = (*chosen, "placement.auto=false") if is_free else chosen
    print(f"{len(runs)} runs in {run_dir}, {jobs} at a time")
    failed = []
    with Progress(transient=True) as bar, closing(_trained(name, trained, jobs)) as ended:
        task = bar.add_task("runs", total=len(runs))
        for run, code in ended:
            if code:
                failed.append(run)
                outcome = f"failed; see the end of {run / 'log.txt'}"
            else:
                last = read_evaluations(run)[-1]
                outcome = (
                    f"success {last['success']:.0%}, return {last['return']:.2f} at "
                    f"{last['env_steps']:,.0f} steps"
                )
            bar.console.print(f"{run.name}: {outcome}", markup=False)
            bar.advance(task)
    done = {run: chosen for run, chosen in runs.items() if run not in failed}
    if not done:
        raise RlinfError(f"sweep {run_dir}: no run succeeded; read one of their log.txt")
    evaluations = {
        run: ([override for override in chosen if override in varied], read_evaluations(run))
        for run, chosen in done.items()
    }
    print(table(evaluations, run_dir / "sweep.csv"))
    compare(list(done), run_dir / "sweep.png")
    return 1 if failed else 0


def _check(recipe: Recipe, run: Path) -> None:
    check_recipe(recipe)
    if source_of(recipe) == STATIONS:
        raise RecipeError(
            f"recipe {recipe.name}: expected a recipe for simulators or recordings, got one for "
            "stations, whose training waits for them until Ctrl-C. Run each by `rlinf demo`, then "
            "`rlinf compare`. Or set --set simulation.environments=8"
        )
    if source_of(recipe) == RECORDINGS and not is_simulated(recipe):
        raise RecipeError(
            f"recipe {recipe.name}: expected runs with an evaluation in simulation, got recordings "
            f"of robot '{recipe.station.robot}', which is not simulated. Train each by `rlinf "
            "train`, and evaluate it on the robot"
        )
    check_trainer(recipe, run)
    if checkpoints(run / "checkpoints"):  # resumes, or is finished
        was = dict(leaves(with_current_keys(load_plain((run / "recipe.yaml").read_text()))))
        now = dict(leaves(load_plain(recipe_yaml(recipe))))
        for key in (
            key
            for key in was
            if key in now and was[key] != now[key] and not key.startswith(MAY_CHANGE)
        ):
            raise RecipeError(
                f"{key}: expected {was[key]}, the value of {run}, got {now[key]}. One table holds "
                "runs of one recipe. Choose another --out",
                code="RL-E109",
            )


def run_name(number: int, chosen: tuple[str, ...], varied: set[str]) -> str:
    """Return a run folder's name: its number and its overrides."""
    return (
        f"{number:03d} "
        + ",".join(override for override in chosen if override in varied)
        .replace("/", "_")
        .replace(" ", "")[:120]
    )


def _trained(
    recipe: str, runs: dict[Path, tuple[str, ...]], jobs: int
) -> Generator[tuple[Path, int], None, None]:
    """Yield each run and its exit code as it ends, with ``jobs`` in parallel.

    Closing it ends all runs.
    """
    waiting, training = iter(runs.items()), dict[Path, subprocess.Popen[bytes]]()
    try:
        while True:
            for run, chosen in islice(waiting, jobs - len(training)):
                training[run] = _train(recipe, chosen, run)
            if not training:
                return
            time.sleep(LOOK_S)
            for run in [run for run, process in training.items() if process.poll() is not None]:
                yield run, training.pop(run).returncode
    finally:
        for process in training.values():  # the terminal's Ctrl-C has reached them already
            process.send_signal(signal.SIGINT)
        try:
            for process in training.values():
                process.wait()
        finally:
            for process in training.values():
                process.kill()


def _train(recipe: str, chosen: tuple[str, ...], run: Path) -> subprocess.Popen[bytes]:
    run.mkdir(parents=True, exist_ok=True)
    with (run / "log.txt").open("w") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rlinf_core.cli.main",
                "train",
                recipe,
                "--no-report",
                "--out",
                str(run),
                "--set",
                *chosen,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )


def table(runs: dict[Path, tuple[list[str], list[dict[str, Any]]]], file: Path) -> str:
    """Return a table with a line per combination without seeds, the best first.

    ``file`` gets a line per run.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    with file.open("w", newline="") as sheet:
        writer = csv.writer(sheet)
        writer.writerow(
            ["run", "varied", "success", "return", "env_steps", "seconds", "steps_to_90"]
        )
        for run, (chosen, entries) in runs.items():
            last = entries[-1]
            reached = next(
                (entry["env_steps"] for entry in entries if entry["success"] >= GOAL), ""
            )
            writer.writerow(
                [
                    run.name,
                    " ".join(chosen),
                    last["success"],
                    last["return"],
                    last["env_steps"],
                    f"{last['seconds']:.0f}",
                    reached,
                ]
            )
            key = (
                " ".join(override for override in chosen if not override.startswith("seed="))
                or "as it is"
            )
            groups.setdefault(key, []).append((last["success"], last["return"]))
    lines = [f"{'success':>16}{'return':>18}   runs"]
    for key, results in sorted(groups.items(), key=lambda item: tuple(-np.mean(item[1], axis=0))):
        (success, value) = np.mean(results, axis=0)
        (spread, wide) = np.std(results, axis=0, ddof=len(results) > 1)  # deviation of the sample
        lines.append(
            f"{success:8.0%} +- {spread:4.0%}{value:10.2f} +- {wide:4.2f}   {len(results):4d}  "
            f"{key}"
        )
    return "\n".join([*lines, f"table: {file}"])
