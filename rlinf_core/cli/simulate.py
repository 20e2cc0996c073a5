"""``rlinf train`` in simulation alone, and ``rlinf compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlinf_core.errors import RlinfError
from rlinf_core.recipes import Recipe


def train_in_simulation(recipe: Recipe, run_dir: Path) -> None:
    """Train with a progress bar, one line an evaluation."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from rlinf_core.training.simulation import train

    print(f"run: {run_dir}")
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("time steps", total=recipe.simulation.env_steps)

        def tell(steps: int, entry: dict[str, float] | None) -> None:
            bar.update(task, completed=steps)
            if entry:
                spent = ", ".join(f"{name.removeprefix('seconds_')} {value / entry['seconds']:.0%}"
                                  for name, value in entry.items() if name.startswith("seconds_"))
                bar.console.print(f"{steps:9,d} steps  success {entry['success']:4.0%}  return {entry['return']:6.2f}  "
                                  f"{entry['seconds']:6.0f} s  {entry['steps_per_second']:5.0f} steps/s  ({spent})")

        train(recipe, run_dir, tell=tell)
    print(f"policies: {run_dir / 'policies'}; rlinf eval {run_dir} --episodes 50 --video out.mp4")


def compare(runs: list[Path], out: Path) -> None:
    """Draw every run's success over time steps, and say when each first reached 90 %."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    for run in runs:
        entries = read_evaluations(run)
        axis.plot([e["env_steps"] for e in entries], [e["success"] for e in entries], marker=".", label=run.name)
        reached = next((e for e in entries if e["success"] >= 0.9), None)
        words = f"90 % after {reached['env_steps']:,.0f} steps, {reached['seconds']:.0f} s" if reached else "never 90 %"
        print(f"{run.name:<24}  {words}; last {entries[-1]['success']:.0%} at {entries[-1]['env_steps']:,.0f} steps")
    axis.set_xlabel("time steps, over all environments")
    axis.set_ylabel("success, held-out scenes")
    axis.set_ylim(-0.03, 1.03)
    axis.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    print(f"picture: {out}")


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations in a run folder; RlinfError if it holds none."""
    path = run / "progress.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    entries = [entry for line in lines if (entry := json.loads(line)).get("event") == "evaluation"]
    if not entries:
        raise RlinfError(f"{run}: expected the folder of a simulation run, with evaluations in progress.jsonl; found none")
    return entries
