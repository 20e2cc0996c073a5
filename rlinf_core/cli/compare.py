"""``rlinf compare``: the curves of several runs in one picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlinf_core.cli.evaluate import wilson
from rlinf_core.errors import RlinfError


def compare(runs: list[Path], out: Path) -> None:
    """Draw every run's success over time steps, and say when each first reached 90 %."""
    curves = {run.name: read_evaluations(run) for run in runs}
    for name, entries in curves.items():
        reached = next((e for e in entries if e["success"] >= 0.9), None)
        words = f"90 % after {reached['env_steps']:,.0f} steps, {reached['seconds']:.0f} s" if reached else "never 90 %"
        print(f"{name:<24}  {words}; last {entries[-1]['success']:.0%} at {entries[-1]['env_steps']:,.0f} steps")
    draw(curves, out)
    print(f"picture: {out}")


def draw(curves: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """Success over time steps, with the 95 % interval of each evaluation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for name, entries in curves.items():
        steps = [entry["env_steps"] for entry in entries]
        bounds = [wilson(round(entry["success"] * entry["episodes"]), int(entry["episodes"])) for entry in entries]
        line, = axis.plot(steps, [entry["success"] for entry in entries], marker=".", label=name)
        low, high = zip(*bounds, strict=True)
        axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.15)
    axis.set(xlabel="time steps, over all environments", ylabel="success, held-out scenes", ylim=(-0.03, 1.03))
    axis.legend()
    figure.savefig(out, dpi=110)


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations in a run folder; RlinfError if it holds none."""
    entries = [event for event in read_events(run) if event.get("event") == "evaluation"]
    if not entries:
        raise RlinfError(f"{run}: expected the folder of a run, with evaluations in progress.jsonl; found none")
    return entries


def read_events(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's progress.jsonl; none where it has not begun."""
    path = run / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
