"""Reading a run's progress.jsonl, and drawing its learning curves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlinf_core.core.errors import RlinfError
from rlinf_core.reports.throughput import wilson

SHOWN = 60  # maximum length of a name in a picture
LEVEL = 0.95  # confidence level of the interval of a mean


class CurvePoint(NamedTuple):
    """A point of a learning curve: a value at a time step, and its 95 % interval (NaN: unknown)."""

    env_steps: float
    value: float
    low: float
    high: float


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run. Raises RlinfError if the folder holds none."""
    entries = [event for event in read_events(run) if event.get("event") == "evaluation"]
    if not entries:
        raise RlinfError(
            f"{run}: expected the folder of a run, with evaluations in progress.jsonl; found none"
        )
    return entries


def read_events(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's progress.jsonl, without truncated lines.

    It is empty if there is no file.
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


def curve_of(runs: Sequence[Sequence[dict[str, Any]]], measure: str) -> list[CurvePoint]:
    """Return a learning curve: that of one run, or the mean of several.

    One run has Wilson's interval over its episodes for ``success``, and none for another measure.
    Several runs have Student's interval of the mean over runs. Their points are the time steps of
    all evaluations that lie in the range of each run. A run without an evaluation at a point counts
    with the linear interpolation of its neighbours.

    Args:
        runs: evaluations of each run.
        measure: ``success`` or ``return``.
    """
    if len(runs) == 1:
        return [
            CurvePoint(entry["env_steps"], entry[measure], *_interval(entry, measure))
            for entry in runs[0]
        ]
    from scipy.special import stdtrit

    curves = [dict(sorted((entry["env_steps"], entry[measure]) for entry in run)) for run in runs]
    first, last = max(map(min, curves)), min(map(max, curves))
    steps = sorted({step for curve in curves for step in curve if first <= step <= last})
    values = np.array([np.interp(steps, [*curve], [*curve.values()]) for curve in curves])
    mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(curves))
    half = float(stdtrit(len(curves) - 1, (1 + LEVEL) / 2)) * error
    low, high = mean - half, mean + half
    if measure == "success":
        low, high = low.clip(0, 1), high.clip(0, 1)
    return [CurvePoint(*map(float, point)) for point in zip(steps, mean, low, high, strict=True)]


def _interval(entry: dict[str, Any], measure: str) -> tuple[float, float]:
    if measure != "success":
        return np.nan, np.nan
    return wilson(round(entry["success"] * entry["episodes"]), int(entry["episodes"]))


def shortened(text: str) -> str:
    """Return a text shortened to SHOWN characters."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def draw(
    curves: dict[str, Sequence[Sequence[dict[str, Any]]]], out: Path, measure: str = "success"
) -> None:
    """Draw learning curves over time steps with 95 % intervals (``curve_of``).

    Args:
        curves: evaluations of one or several runs by the name of their curve. Several runs are thin
            lines, and their mean is a thick one.
        out: the picture.
        measure: ``success`` or ``return``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for name, runs in curves.items():
        points = curve_of(runs, measure)
        steps = [point.env_steps for point in points]
        label = shortened(name) if len(runs) == 1 else f"{shortened(name)}, mean of {len(runs)}"
        (line,) = axis.plot(steps, [point.value for point in points], marker=".", label=label)
        bounds = [point.low for point in points], [point.high for point in points]
        axis.fill_between(steps, *bounds, color=line.get_color(), alpha=0.15, linewidth=0)
        for run in runs if len(runs) > 1 else ():
            single = [entry["env_steps"] for entry in run], [entry[measure] for entry in run]
            axis.plot(*single, color=line.get_color(), alpha=0.35, linewidth=0.8)
    if measure == "success":
        axis.set_ylim(-0.03, 1.03)
    else:  # the interval of two or three runs may be far wider than their values
        values = [entry[measure] for runs in curves.values() for run in runs for entry in run]
        least, most = min(values), max(values)
        bottom, top = axis.get_ylim()
        margin = most - least or top - bottom
        axis.set_ylim(max(bottom, least - margin), min(top, most + margin))
    axis.set(xlabel="time steps, over all environments", ylabel=f"{measure}, held-out scenes")
    axis.legend()
    figure.savefig(out, dpi=110)
