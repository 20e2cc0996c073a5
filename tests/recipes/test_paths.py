"""Paths of recipes, tasks and robots: a home that nobody has is said in words, with the key that
names it.
"""

from pathlib import Path

import pytest
import yaml

from rlinf_core.cli.check import simulator_recipe
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expand_user
from rlinf_core.launch.graph import station_processes
from rlinf_core.page.access import token_of
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.bridge_security import credentials_of, fleet_of
from rlinf_core.recipes.sources import initial_source
from rlinf_core.tasks.task import load_task

NOBODYS = "~nobody_x/there"
HOME_ERROR = "expected a path in which ~name is the home of a user of this machine, got '~nobody_x/"


def test_a_home_is_the_users_own_or_that_of_one_there_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_user("~/a", "here") == tmp_path / "a" and expand_user("a/~b", "here") == Path(
        "a/~b"
    )
    with pytest.raises(RecipeError, match=f"^here: {HOME_ERROR}"):
        expand_user(NOBODYS, "here")


@pytest.mark.parametrize(
    "key, use",
    [
        ("station.robot", check_recipe),
        ("station.task", check_recipe),
        ("simulation.initial_policy", initial_source),
        ("bridge.fleet", lambda recipe: fleet_of(recipe.bridge)),
        ("bridge.credentials", lambda recipe: credentials_of(recipe.bridge)),
        ("station.web.token_file", lambda recipe: token_of(recipe.station.web)),
        ("station.web.token_file", lambda recipe: station_processes(recipe, Path("run"))),
    ],
)
def test_of_a_recipe(key, use):
    with pytest.raises(RecipeError, match=f"^{key}: {HOME_ERROR}"):
        use(load_recipe("demo", [f"{key}='{NOBODYS}'", "station.web.port=8080"]))


@pytest.mark.parametrize(
    "key, kind", [("checkpoint", "openvla"), ("statistics", "pi0"), ("image_weights", "gaussian")]
)
def test_of_a_policy(key, kind, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    policy = load_recipe("sim_sft", [f"policy={{kind: {kind}, {key}: '~/vla'}}"]).policy
    assert getattr(policy, key) == str(tmp_path / "vla")
    with pytest.raises(
        RecipeError, match=f"'policy.{key}': expected a path in which ~name is .* machine, got str"
    ):
        load_recipe("sim_sft", [f"policy={{kind: {kind}, {key}: '{NOBODYS}'}}"])


def test_of_a_part_in_a_file_of_ones_own():
    with pytest.raises(RecipeError, match=f"'station.operator.kind': {HOME_ERROR}"):
        load_recipe("demo", [f"station.operator={{kind: '{NOBODYS}.py:Mine'}}"])


@pytest.mark.parametrize(
    "reward, key",
    [
        ({"kind": "classifier", "model": NOBODYS}, "reward.model"),
        ({"kind": f"{NOBODYS}.py:Mine"}, "reward.kind"),
    ],
)
def test_of_a_task(reward, key, tmp_path):
    document = yaml.safe_load(Path("configs/tasks/reach.yaml").read_text()) | {"reward": reward}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(RecipeError, match=rf"task.yaml, line \d+: '{key}': {HOME_ERROR}"):
        load_task(tmp_path / "task.yaml")


def test_a_robot_and_a_task_that_are_checked_may_lie_anywhere(tmp_path):
    robot, task = tmp_path / "o'brien, é/r", tmp_path / "o'brien, é/t.yaml"
    robot.parent.mkdir()
    robot.symlink_to(Path("sim_bridges/simulators/franka_mujoco/franka_sim").resolve())
    task.write_text(Path("configs/tasks/reach.yaml").read_text())
    station = simulator_recipe("franka_mujoco", str(robot), str(task)).station
    assert (station.robot, station.task) == (str(robot), str(task))


def test_own_parts_are_found_beside_the_recipe_wherever_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "task.py").write_text("class Adding:\n    pass\n")
    (tmp_path / "mine.py").write_text("from rlinf_core.algorithms.sac import Config\n")
    (tmp_path / "talk.yaml").write_text("defaults: text_arithmetic\nenv: text:./task.py:Adding\n")
    (tmp_path / "learn.yaml").write_text("defaults: sim_sac\nalgorithm: {name: ./mine.py}\n")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_recipe(tmp_path / "talk.yaml").env == f"text:{tmp_path}/task.py:Adding"
    assert load_recipe(tmp_path / "learn.yaml").algorithm.name == f"{tmp_path}/mine.py"
    assert load_recipe("../talk.yaml").text_task == f"{tmp_path}/task.py:Adding"
    assert (
        load_recipe("sim_sac", ["algorithm.name=../mine.py"]).algorithm.name
        == f"{tmp_path}/mine.py"
    )
    assert (
        load_recipe("text_arithmetic", ["env='text:../task.py:Adding'"]).env
        == f"text:{tmp_path}/task.py:Adding"
    )
    assert load_recipe("text_arithmetic").env == "text:arithmetic", "a name stays a name"
