"""Reading a run's progress.jsonl, and drawing its learning curves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlinf_core.core.errors import RlinfError
from rlinf_core.reports.throughput import wilson

SHOWN = 60  # maximum length of a name in a picture


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run. Raises RlinfError if the folder holds none."""
    entries = [event for event in read_events(run) if event.get("event") == "evaluation"]
    if not entries:
        raise RlinfError(
            f"{run}: expected the folder of a run, with evaluations in progress.jsonl; found none"
        )
    return entries


def read_events(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's progress.jsonl, without truncated lines; empty if there is no
    file.
    """
    path = run / "progress.jsonl"
    events = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return events


def measure_of(curves: Iterable[list[dict[str, Any]]]) -> str:
    """Return the measure of a comparison: ``success``, or ``return`` if no run ever succeeded."""
    return (
        "success" if any(entry["success"] for entries in curves for entry in entries) else "return"
    )


def shortened(text: str) -> str:
    """Return a text shortened to SHOWN characters."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def draw(curves: dict[str, list[dict[str, Any]]], out: Path, measure: str = "success") -> None:
    """Draw success over time steps with 95 % intervals, or ``return`` without intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for name, entries in curves.items():
        steps = [entry["env_steps"] for entry in entries]
        (line,) = axis.plot(
            steps, [entry[measure] for entry in entries], marker=".", label=shortened(name)
        )
        if measure == "success":
            bounds = [
                wilson(round(entry["success"] * entry["episodes"]), int(entry["episodes"]))
                for entry in entries
            ]
            low, high = zip(*bounds, strict=True)
            axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.15)
            axis.set_ylim(-0.03, 1.03)
    axis.set(xlabel="time steps, over all environments", ylabel=f"{measure}, held-out scenes")
    axis.legend()
    figure.savefig(out, dpi=110)
