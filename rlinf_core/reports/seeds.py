"""Runs that differ only by their seed: their groups, the mean of their curves, and a CSV table."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.renames import with_current_keys
from rlinf_core.reports.curves import CurvePoint, curve_of, read_evaluations

COLUMNS = ("curve", "run", "seed", "runs", "env_steps", "updates", "seconds", "robot_minutes")
MEASURES = ("success", "return")


class Run(NamedTuple):
    """A run folder.

    Attributes:
        name: its name in a comparison.
        settings: values of its recipe by their full keys; empty without a recipe.
        evaluations: records of progress.jsonl, one or more.
    """

    name: str
    settings: dict[str, Any]
    evaluations: list[dict[str, Any]]


def read_run(name: str, folder: Path) -> Run:
    """Return a run. Raises RlinfError if the folder holds no evaluations."""
    evaluations = read_evaluations(folder)
    recipe = folder / "recipe.yaml"
    settings = None
    with suppress(yaml.YAMLError, UnicodeDecodeError):  # the curve needs no recipe
        settings = load_plain(recipe.read_text()) if recipe.is_file() else None
    if not isinstance(settings, dict):
        return Run(name, {}, evaluations)
    return Run(name, dict(leaves(with_current_keys(settings))), evaluations)


def leaves(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a recipe with its full key."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def group_by_seed(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each curve: runs whose recipes differ only in ``seed`` share one.

    A second run with the same seed is no further sample, so it has a curve of its own.

    The name of a curve with one run is the name of the run. Other names hold the recipe's name, and
    the values that tell it from curves with the same one.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        others = {key: value for key, value in run.settings.items() if key != "seed"}
        key = repr(sorted(others.items())) if others else run.name
        while run.settings.get("seed") in [
            other.settings.get("seed") for other in groups.get(key, [])
        ]:
            key += "'"
        groups.setdefault(key, []).append(run)
    curves: dict[str, list[Run]] = {}
    for members in groups.values():
        name = members[0].name
        if len(members) > 1:
            settings = members[0].settings
            rivals = [
                other[0].settings
                for other in groups.values()
                if other[0].settings.get("name") == settings.get("name")
            ]
            differing = [
                f"{key}={value}"
                for key, value in settings.items()
                if key != "seed" and any(rival.get(key, value) != value for rival in rivals)
            ]
            name = " ".join([str(settings.get("name")), *differing])
        while name in curves:
            name += "'"
        curves[name] = members
    return curves


def write_csv(curves: dict[str, list[Run]], file: Path) -> None:
    """Write a row for each evaluation of each run, then a row for each point of each mean.

    The rows of a mean have the run ``mean``, no seed, and the number of runs in ``runs``.
    """
    bounds = [f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]
    with file.open("w", newline="") as sheet:
        writer = csv.DictWriter(sheet, [*COLUMNS, *bounds])
        writer.writeheader()
        for curve, members in curves.items():
            for run in members:
                points = zip(*(curve_of([run.evaluations], one) for one in MEASURES), strict=True)
                for entry, measures in zip(run.evaluations, points, strict=True):
                    row = {key: entry.get(key, "") for key in COLUMNS}
                    row |= {"curve": curve, "run": run.name, "runs": 1}
                    writer.writerow(row | {"seed": run.settings.get("seed", "")} | _cells(measures))
            if len(members) > 1:
                means = [curve_of([run.evaluations for run in members], one) for one in MEASURES]
                for measures in zip(*means, strict=True):
                    row = {"curve": curve, "run": "mean", "runs": len(members)}
                    writer.writerow(row | {"env_steps": measures[0].env_steps} | _cells(measures))


def _cells(points: Sequence[CurvePoint]) -> dict[str, float | str]:
    return {
        f"{measure}{end}": "" if np.isnan(value) else value
        for measure, point in zip(MEASURES, points, strict=True)
        for end, value in zip(("", "_low", "_high"), point[1:], strict=True)
    }
