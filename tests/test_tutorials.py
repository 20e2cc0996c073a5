"""The tutorials' commands, as a reader would paste them, in one shell per page."""

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.timeout(900)


def station(test):
    """Marks a test that takes a whole station through its phases."""
    return pytest.mark.ros(pytest.mark.lockstep(pytest.mark.slow(test)))


def follow(page, tmp_path, **environment):
    """Run every bash block in a copy of the tree that shares what is installed."""
    for name in (
        "configs",
        "robots",
        "launch",
        "rlinf_core",
        "ros_ws",
        "sim_bridges",
        "docs",
        ".venv",
    ):
        (tmp_path / name).symlink_to(ROOT / name)
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    script = "set -e\n" + "\n".join(blocks).replace("make setup\n", "")
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=800,
        env=os.environ | environment,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout + result.stderr


@station
def test_first_run(tmp_path):
    output = follow("start/first_run.md", tmp_path)
    assert "did you mean 'max_minutes'" in output and "refused, as it should be" in output
    report = json.loads((tmp_path / "runs/first/report.json").read_text())
    assert report["eval_episodes"] == 2 and report["updates"] > 0
    for name in (
        "report.md",
        "learning_curve.png",
        "before_after.mp4",
        "five.mp4",
        "recipe.yaml",
        "progress.jsonl",
    ):
        assert (tmp_path / "runs/first" / name).stat().st_size > 100, name


@station
def test_classifier(tmp_path):
    output = follow("tutorials/classifier.md", tmp_path)
    assert "frames of held-out episodes" in output
    assert (tmp_path / "runs/seen/success.safetensors").is_file()


@station
def test_your_task(tmp_path):
    output = follow("tutorials/your_task.md", tmp_path)
    assert "does not fit this station" in output and "refused, as it should be" in output
    recipe = (tmp_path / "runs/my_task/run/recipe.yaml").read_text()
    assert "runs/my_task/task.yaml" in recipe


@pytest.mark.slow
def test_your_robot(tmp_path):
    """A UR5e of robosuite, with a task, a reward and a script that are not ours."""
    pytest.importorskip("robosuite")
    output = follow("tutorials/your_robot.md", tmp_path, PYTHONPATH=str(ROOT))
    assert output.count("15 of 15 kept") == 2, "lifting and stacking"
    assert "robot.yaml, line 3: unknown key 'options.griper' (did you mean 'gripper'?)" in output
    assert "refused, as it should be" in output
    evaluations = [
        json.loads(line)
        for line in (tmp_path / "runs/my_robot/run/progress.jsonl").read_text().splitlines()
    ]
    assert [entry["updates"] for entry in evaluations] == [0, 200]
    recipe = yaml.safe_load((tmp_path / "runs/my_robot/run/recipe.yaml").read_text())
    assert recipe["station"]["robot"] == str(tmp_path / "runs/my_robot/ur5e"), (
        "from where the recipe lies"
    )


@pytest.mark.slow
def test_your_algorithm(tmp_path):
    """A loss of the reader's, three seeds with and without it, and one table of all curves."""
    short = (
        "simulation.env_steps=300 simulation.start_steps=100 simulation.evaluate_every=150 "
        "simulation.evaluate_episodes=2"
    )
    output = follow("tutorials/your_algorithm.md", tmp_path, PYTHONPATH=str(ROOT), SHORT=short)
    assert "6 runs in" in output and "algorithm.calm=0.1" in output
    folder = tmp_path / "runs/my_algorithm"
    with (folder / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    runs = [row for row in rows if row["runs"] == "1"]
    assert len({row["run"] for row in runs}) == 6 and all(float(row["seconds"]) > 0 for row in runs)
    assert {row["curve"] for row in rows if row["run"] == "mean"} == {"sac", "calm"}
    assert len((folder / "sweep/sweep.csv").read_text().splitlines()) == 7
    recipe = yaml.safe_load((folder / "try/recipe.yaml").read_text())
    original = yaml.safe_load((ROOT / "configs/sim_sac.yaml").read_text())
    assert {key: recipe["algorithm"][key] for key in original["algorithm"] if key != "name"} == {
        key: value for key, value in original["algorithm"].items() if key != "name"
    }, "the page repeats them"


@station
def test_collecting(tmp_path):
    output = follow("tutorials/collect.md", tmp_path)
    assert (
        "3 of 3 demonstrations succeeded and count" in output
        and "4 of 4 recordings are intact" in output
    ), "and the session"
    assert output.count("policies: ") == 2, (
        "learned from as they were recorded, and as they came back"
    )
    lines = (tmp_path / "runs/cloned/journal.jsonl").read_text().splitlines()
    assert len([line for line in lines if '"demonstration"' in line]) == 3


@station
def test_transfer(tmp_path):
    short = (
        "simulation.env_steps=900 simulation.start_steps=300 simulation.evaluate_every=900 "
        "simulation.evaluate_episodes=3 sft.steps=100"
    )
    output = follow("tutorials/sim_to_real.md", tmp_path, SHORT=short)
    assert "the model accounts for" in output and "for simulation.randomise" in output
    assert "of 20 succeeded" in output
    evaluations = [
        json.loads(line)
        for line in (tmp_path / "runs/tuned/progress.jsonl").read_text().splitlines()
    ]
    assert evaluations[0]["updates"] > 0, "its learner goes on from that of the other run"
    assert (tmp_path / "runs/transfer.png").stat().st_size > 1000
