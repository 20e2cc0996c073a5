"""Runs that differ only by their seed share a curve: its mean, its interval and its table."""

import csv
import json
import math

import numpy as np
import pytest
from scipy import stats

from rlinf_core.cli import main
from rlinf_core.core.atomic_io import append_line
from rlinf_core.recipes import load_recipe, recipe_yaml
from rlinf_core.reports.curves import curve_of
from rlinf_core.reports.seeds import group_by_seed, read_run
from rlinf_core.reports.throughput import wilson


def entry(env_steps, success, value=0.0):
    return {
        "event": "evaluation",
        "env_steps": env_steps,
        "success": success,
        "return": value,
        "episodes": 10,
        "updates": env_steps,
        "seconds": 3.0,
    }


def run_of(folder, overrides, *entries):
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe_yaml(load_recipe("sim_sac", overrides)))
    for one in entries:
        append_line(folder / "progress.jsonl", json.dumps(one))
    return folder


@pytest.fixture
def runs(tmp_path):
    return [
        run_of(tmp_path / "a", ["seed=0"], entry(0, 0.0), entry(100, 0.8)),
        run_of(tmp_path / "b", ["seed=1"], entry(0, 0.2), entry(100, 1.0)),
        run_of(tmp_path / "c", ["algorithm.discount=0.9"], entry(0, 0.1), entry(100, 0.5)),
    ]


def test_runs_that_differ_only_by_their_seed_share_a_curve(runs, tmp_path):
    read = [read_run(run.name, run) for run in runs]
    curves = group_by_seed(read)
    assert {name: [run.name for run in members] for name, members in curves.items()} == {
        "sim_sac algorithm.discount=0.95": ["a", "b"],
        "c": ["c"],
    }
    assert list(group_by_seed(read[:2])) == ["sim_sac"], "no other curve has this recipe"
    clash = group_by_seed([*read[:2], read[2]._replace(name="sim_sac algorithm.discount=0.95")])
    assert [len(members) for members in clash.values()] == [2, 1]


def test_runs_without_a_recipe_have_a_curve_each(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        append_line(folder / "progress.jsonl", json.dumps(entry(0, 0.0)))
    assert list(group_by_seed([read_run(folder.name, folder) for folder in folders])) == ["a", "b"]


def test_a_second_run_of_one_seed_has_a_curve_of_its_own(runs, tmp_path):
    again = run_of(tmp_path / "again", ["seed=0"], entry(0, 0.0), entry(100, 0.8))
    curves = group_by_seed([read_run(run.name, run) for run in (*runs[:2], again)])
    assert [[run.name for run in members] for members in curves.values()] == [["a", "b"], ["again"]]


@pytest.mark.parametrize("recipe", [b"a: [", b"", b"[1, 2]", b"\xff"])
def test_a_run_whose_recipe_cannot_be_read_has_a_curve_of_its_own(runs, recipe):
    (runs[0] / "recipe.yaml").write_bytes(recipe)
    curves = group_by_seed([read_run(run.name, run) for run in runs[:2]])
    assert list(curves) == ["a", "b"]


def test_the_mean_has_students_interval():
    values = [0.3, 0.5, 0.4]
    (point,) = curve_of([[entry(10, value)] for value in values], "success")
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert point == pytest.approx((10, 0.4, low, high))
    (bounded,) = curve_of([[entry(10, 0.0)], [entry(10, 1.0)]], "success")
    assert bounded == (10, 0.5, 0.0, 1.0)
    (returns,) = curve_of([[entry(10, 0, -1.0)], [entry(10, 0, 3.0)]], "return")
    assert returns.value == 1.0 and returns.low < -20 and returns.high > 20


def test_one_run_has_the_interval_of_its_episodes():
    (point,) = curve_of([[entry(10, 0.5, 7.0)]], "success")
    assert point == (10, 0.5, *wilson(5, 10))
    (point,) = curve_of([[entry(10, 0.5, 7.0)]], "return")
    assert point.value == 7.0 and math.isnan(point.low) and math.isnan(point.high)


def test_evaluations_at_other_time_steps_are_interpolated_within_the_range_of_all():
    one = [entry(0, 0.0), entry(100, 1.0), entry(200, 1.0)]
    other = [entry(50, 0.5), entry(150, 0.5), entry(100, 0.0), entry(100, 0.5)]  # was resumed
    points = curve_of([one, other], "success")
    assert [point.env_steps for point in points] == [50, 100, 150]
    assert [point.value for point in points] == pytest.approx([0.5, 0.75, 0.75])
    assert curve_of([[entry(0, 0.0)], [entry(10, 0.0)]], "success") == []


def test_the_command_prints_draws_and_writes_the_mean(runs, tmp_path, capsys):
    table = tmp_path / "curves.csv"
    command = ["compare", *map(str, runs), "--out", str(tmp_path / "x.png"), "--csv", str(table)]
    assert main.main(command) == 0
    output = capsys.readouterr().out
    assert "mean of seeds 0, 1: 90% at 100 steps, 95 % interval 0% to 100%" in output
    assert f"table: {table}" in output and (tmp_path / "x.png").stat().st_size > 1000
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["seed"], row["runs"], row["env_steps"]) for row in rows] == [
        *(("a", "0", "1", step) for step in ("0", "100")),
        *(("b", "1", "1", step) for step in ("0", "100")),
        *(("mean", "", "2", step) for step in ("0.0", "100.0")),
        *(("c", "0", "1", step) for step in ("0", "100")),
    ]
    assert float(rows[5]["success"]) == pytest.approx(0.9) and rows[5]["success_high"] == "1.0"
    assert rows[0]["success_high"] and rows[0]["return_high"] == "" and rows[0]["updates"] == "0"


def test_seeds_without_common_time_steps_have_no_mean(tmp_path, capsys):
    runs = [
        run_of(tmp_path / "a", ["seed=0"], entry(0, 0.5)),
        run_of(tmp_path / "b", ["seed=1"], entry(10, 0.5)),
    ]
    assert main.main(["compare", *map(str, runs), "--out", str(tmp_path / "x.png")]) == 0
    assert "no mean of seeds 0, 1, whose runs have no time steps in common" in (
        capsys.readouterr().out
    )


def test_returns_are_printed_and_drawn_within_their_range(tmp_path, capsys, monkeypatch):
    from matplotlib.figure import Figure

    limits, save = [], Figure.savefig

    def noted(figure, *arguments, **options):
        limits.append(figure.axes[0].get_ylim())
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", noted)
    runs = [
        run_of(tmp_path / str(seed), [f"seed={seed}"], entry(0, 0, -9.0), entry(10, 0, value))
        for seed, value in ((0, -5.0), (1, -7.0))
    ]
    assert main.main(["compare", *map(str, runs), "--out", str(tmp_path / "x.png")]) == 0
    output = capsys.readouterr().out
    assert "return -6.00 at 10 steps, 95 % interval -18.71 to 6.71" in output
    assert "never" not in output, "no success is expected of a task that reports none"
    assert limits == [(-13.0, -1.0)]
