"""Sweeps in Hydra's grammar: which runs they are, that they run, and what is said of bad ones."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf_core.cli import compare as comparing
from rlinf_core.cli import sweep
from rlinf_core.cli.main import main
from rlinf_core.config.overrides import apply_override, combinations, quote_value, split_overrides
from rlinf_core.config.yaml_source import Document
from rlinf_core.core.errors import RecipeError
from rlinf_core.recipes import load_recipe

TINY = [
    "simulation.env_steps=60",
    "simulation.start_steps=30",
    "simulation.evaluate_every=60",
    "simulation.evaluate_episodes=2",
    "algorithm.batch_size=16",
    "evaluate.filmed_episodes=1",
]
PENDULUM = "env=gym:Pendulum-v1"


def test_every_combination_in_order():
    assert combinations(["seed=0,1", "policy.hidden=[64,64],[8]", "name=x"]) == [
        ("seed=0", "policy.hidden=[64,64]", "name=x"),
        ("seed=0", "policy.hidden=[8]", "name=x"),
        ("seed=1", "policy.hidden=[64,64]", "name=x"),
        ("seed=1", "policy.hidden=[8]", "name=x"),
    ]
    assert combinations(["seed=range(1,4)"]) == [("seed=1",), ("seed=2",), ("seed=3",)]
    assert combinations(["algorithm={name:sac},{name:crossq}"])[1] == ("algorithm={name:crossq}",)
    assert combinations(["+station.robot=a,b", "~seed"]) == [
        ("+station.robot=a", "~seed"),
        ("+station.robot=b", "~seed"),
    ]
    assert combinations([]) == [()]


@pytest.mark.parametrize("bad", ["seed", "seed=choice(", "algorithm.learning_rate=interval(0,1)"])
def test_what_is_not_the_grammar_is_named(bad):
    with pytest.raises(RecipeError, match="expected key=value, key=a,b,c"):
        combinations([bad])


def test_runs_are_trained_and_compared(tmp_path, capsys):
    command = [
        "sweep",
        "sim_sac",
        "--out",
        str(tmp_path),
        "--set",
        *TINY,
        PENDULUM,
        "algorithm.learning_rate=1e-3,3e-4",
    ]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "2 runs" in output and "1  algorithm.learning_rate=0.0003" in output
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and {row["env_steps"] for row in rows} == {"60"}
    assert (tmp_path / "sweep.png").stat().st_size > 1000
    assert len(list(tmp_path.glob("0*/policies/*.safetensors"))) >= 2
    assert main([*command, "algorithm.discount=0.9"]) == 2, (
        "another sweep, into the folders of this one"
    )
    error = capsys.readouterr().err
    assert (
        "algorithm.discount: expected 0.95" in error
        and "got 0.9. One table holds runs of one recipe" in error
    )
    # further
    sweep._check(
        load_recipe(
            "sim_sac", [*TINY, PENDULUM, "simulation.env_steps=80", "algorithm.learning_rate=1e-3"]
        ),
        next(tmp_path.glob("000*")),
    )


def test_stations_are_refused_before_anything_is_made(tmp_path, capsys):
    """Training with stations ends only with Ctrl-C."""
    assert main(["sweep", "demo", "--out", str(tmp_path / "run"), "--set", "seed=0,1"]) == 2
    assert (
        "recipe demo: expected a recipe for simulators or recordings, got one for stations"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_one_is_said_before_the_first_begins(tmp_path, capsys):
    assert (
        main(
            [
                "sweep",
                "sim_sac",
                "--out",
                str(tmp_path),
                "--set",
                "algorithm.learning_rat=1e-3,3e-4",
            ]
        )
        == 2
    )
    assert "did you mean 'learning_rate'" in capsys.readouterr().err
    assert not list(tmp_path.glob("0*"))


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", []),
        ("  a=1\t b.c=2 ", ["a=1", "b.c=2"]),
        (
            "station.operator={kind: gamepad, device: x} seed=1",
            ["station.operator={kind: gamepad, device: x}", "seed=1"],
        ),
        (
            "a=[1, [2, 3]] b='two words, so' c=\"it's\" ~d",
            ["a=[1, [2, 3]]", "b='two words, so'", 'c="it\'s"', "~d"],
        ),
        (r"a='it\'s said' b=1", [r"a='it\'s said'", "b=1"]),
    ],
)
def test_overrides_of_one_text_are_apart_at_spaces_that_no_bracket_or_quote_holds(text, parts):
    assert split_overrides(text) == parts


@pytest.mark.parametrize(
    "path",
    [
        "/runs/a",
        "/my runs/a, b",
        "/it's/[1]={x: 2}",
        r"/a\b",
        "/ends in\\",
        r"/\'",
        "${runs}",
        "true",
    ],
)
def test_a_path_that_is_quoted_is_that_path_whatever_signs_it_has(path):
    document = Document({})
    apply_override(document, f"station.robot={quote_value(path)}")
    assert document.data == {"station": {"robot": path}}
    assert split_overrides(f"seed=1 station.robot={quote_value(path)}") == [
        "seed=1",
        f"station.robot={quote_value(path)}",
    ]


TRAINS = """import pathlib, time
try:
    pathlib.Path("trains").touch()
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path("asked").touch()
"""
ENDS = """import pathlib, time
while not pathlib.Path("trains").exists():
    time.sleep(0.05)
"""


LOST = """import sys, time; from pathlib import Path; from rlinf_core.cli import sweep
sys.executable = "./trains"
sweep._train("x", (), Path("run"))
time.sleep(600)
"""


def test_those_that_train_end_with_a_sweep_that_is_killed(tmp_path):
    (tmp_path / "trains").write_text(
        "#!/bin/sh\necho $$ > pid.part; mv pid.part pid; exec sleep 600\n"
    )
    (tmp_path / "trains").chmod(0o755)
    ours = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, "-c", LOST], cwd=tmp_path, env=ours) as killed:
        until = time.monotonic() + 60.0
        while not (tmp_path / "pid").exists() and time.monotonic() < until:
            time.sleep(0.05)
        killed.kill()
    left = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    # of one that nobody waits for it is empty
    while left.exists() and left.read_bytes() and time.monotonic() < until:
        time.sleep(0.05)
    assert not left.exists() or not left.read_bytes()


def test_a_sweep_that_is_asked_to_end_asks_those_that_train_and_begins_no_other(
    tmp_path, monkeypatch
):
    begun = []

    def begin(recipe, chosen, run):
        begun.append(
            subprocess.Popen([sys.executable, "-c", TRAINS if begun else ENDS], cwd=tmp_path)
        )
        return begun[-1]

    def ended(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_train", begin)
    monkeypatch.setattr(sweep, "read_evaluations", ended)
    assert (
        main(
            [
                "sweep",
                "sim_sac",
                "--out",
                str(tmp_path / "runs"),
                "--jobs",
                "2",
                "--set",
                "seed=0,1,2,3",
            ]
        )
        == 130
    )
    assert [process.poll() for process in begun] == [0, 0] and (tmp_path / "asked").exists()


def test_recordings_of_what_no_simulator_has_are_not_swept_over_as_nobody_would_judge_them(
    tmp_path, capsys
):
    real = [
        "simulation.environments=0",
        "collect.recordings=[there]",
        "station.robot=franka_fr3",
        "algorithm={name: iql}",
        "collect.episodes=1",
        "seed=0,1",
    ]
    assert main(["sweep", "sim_sac", "--out", str(tmp_path / "run"), "--set", *real]) == 2
    assert (
        "expected runs with an evaluation in simulation, got recordings of robot"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def entry(success, value):
    return {
        "event": "evaluation",
        "env_steps": 10,
        "success": success,
        "return": value,
        "episodes": 4,
        "seconds": 3.0,
    }


def test_where_nothing_succeeds_runs_are_ranked_and_drawn_by_their_returns(
    tmp_path, capsys, monkeypatch
):
    runs = {
        tmp_path / name: ([name], [entry(0.0, value)])
        for name, value in (("a=1", -900.0), ("a=2", -150.0))
    }
    lines = sweep.table(runs, tmp_path / "x.csv").splitlines()
    assert lines[1].endswith("a=2") and lines[2].endswith("a=1"), "the best first"
    drawn = []
    monkeypatch.setattr(comparing, "draw", lambda curves, out, measure: drawn.append(measure))
    for run, (_, entries) in runs.items():
        run.mkdir()
        (run / "progress.jsonl").write_text(json.dumps(entries[0]) + "\n")
    comparing.compare(list(runs), tmp_path / "x.png")
    assert "last return -150.00 at 10 steps" in capsys.readouterr().out
    with (tmp_path / "a=1/progress.jsonl").open("a") as file:
        file.write(json.dumps(entry(0.25, -10.0)) + "\n")
    comparing.compare(list(runs), tmp_path / "x.png")
    assert drawn == ["return", "success"] and "last 25% at 10 steps" in capsys.readouterr().out
