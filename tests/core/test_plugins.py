"""Parts of one's own: by entry point, by ``package.module:name``, by path; and what is answered
when they are not there.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import kinds, policy_kind
from rlinf_core.recipes import check_recipe, load_recipe, station_robot, station_task
from rlinf_core.robots.config import load_robot, robots
from rlinf_core.tasks.rewards import reward_names
from rlinf_core.tasks.scripts import make_script, script_names
from rlinf_core.tasks.task import load_task
from sim_bridges.core.interface import simulators
from sim_bridges.core.isolated import make

CODE = {
    "__init__": "from pathlib import Path\nTASK = Path(__file__).parent / 'task.yaml'\n",
    "parts": """
        from sim_bridges.simulators.franka_mujoco import Simulator as Ours
        from sim_bridges.scripted import ReachOperator

        class High:
            '''True when the object is high.

            Args:
                height: how high [m].
            '''
            channels = ("object_pose",)
            def __init__(self, height: float = 0.1, *, strict: bool = False) -> None:
                self.height = height
            def __call__(self, channels):
                return bool(channels["object_pose"][2] > self.height)

        class Slow(ReachOperator):
            def __init__(self, action, slowness: int = 2, **reach):
                self.slowness = slowness
                super().__init__(action, **reach)

        class Mine(Ours):
            def __init__(self, noise_m: float = 0.0) -> None:
                super().__init__(pose_noise_m=noise_m)

        class Lacking:
            def __init__(self) -> None:
                import a_package_that_nobody_has
        """,
    "sgd": """
        from rlinf_core.algorithms.sft import Config as SFT
        from rlinf_core.config.base import with_default

        class Config(SFT):
            name: str = with_default(SFT, "name", "sgd")
            momentum: float = 0.9

        class Learner:
            pass
        """,
    "constant": """
        from rlinf_core.policies.settings import PolicySettings

        class Config(PolicySettings):
            value: float = 0.0

        class Policy:
            def __init__(self, spec, config):
                self.spec, self.config = spec, config
        """,
}
POINTS = """
[rlinf.rewards]
high = mine.parts:High
[rlinf.scripts]
slow = mine.parts:Slow
[rlinf.simulators]
mine = mine.parts:Mine
[rlinf.algorithms]
sgd = mine.sgd
[rlinf.policies]
constant = mine.constant
[rlinf.robots]
my_arm = mine.arm
[rlinf.tasks]
my_task = mine:TASK
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Provide an installed package with a part of every kind."""
    package = tmp_path / "mine"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", package / "arm")
    (package / "arm/__init__.py").write_text("")
    (package / "arm/robot.yaml").write_text(
        (package / "arm/robot.yaml").read_text().replace("franka_mujoco", "mine")
        + "options: {noise_m: 0.001}\n"
    )
    for name, code in CODE.items():
        (package / f"{name}.py").write_text(textwrap.dedent(code))
    task = yaml.safe_load(Path("configs/tasks/reach.yaml").read_text())
    task |= {
        "reward": {"kind": "high", "height": 0.3},
        "script": {"kind": "slow", "slowness": 3, "height": 0.05},
    }
    (package / "task.yaml").write_text(yaml.safe_dump(task))
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n"
    )
    (tmp_path / "mine-1.0.dist-info/entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name == "mine" or name.startswith("mine.")]:
        del sys.modules[name]


def test_an_installed_package_brings_a_part_of_every_kind(mine):
    listed = {
        "high": reward_names,
        "slow": script_names,
        "mine": simulators,
        "sgd": algorithms,
        "constant": kinds,
        "my_arm": robots,
    }
    assert all(name in names_of() for name, names_of in listed.items())
    recipe = load_recipe(
        "demo",
        [
            "station.robot=my_arm",
            "station.task=my_task",
            "policy={kind: constant, value: 2.0}",
            "algorithm={name: sgd, momentum: 0.5}",
        ],
    )
    assert (recipe.algorithm.momentum, recipe.policy.value, recipe.policy.kind) == (
        0.5,
        2.0,
        "constant",
    )
    assert (
        algorithm("sgd").Learner.__name__ == "Learner"
        and policy_kind("constant").Policy.__name__ == "Policy"
    )
    robot, task = station_robot(recipe), station_task(recipe)
    assert (robot.simulator, robot.options) == ("mine", {"noise_m": 0.001})
    assert (
        task.success.height == 0.3
        and make_script(task).slowness == 3
        and make_script(task).height == 0.05
    )
    assert make(robot.simulator, **robot.options).pose_noise_m == 0.001


def test_package_module_and_name(mine):
    recipe = load_recipe(
        "demo",
        [
            "station.robot=mine.arm",
            "station.task='mine:TASK'",
            "algorithm={name: mine.sgd}",
            "policy={kind: mine.constant}",
        ],
    )
    assert station_task(recipe).max_steps == 30 and station_robot(recipe).simulator == "mine"
    assert (recipe.algorithm.name, recipe.policy.kind) == ("mine.sgd", "mine.constant")
    assert make("mine.parts:Mine", noise_m=0.25).pose_noise_m == 0.25


def test_a_file_beside_the_yaml_that_names_it(mine, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(mine, elsewhere)
    task = yaml.safe_load((elsewhere / "task.yaml").read_text())
    task |= {
        "reward": {"kind": "parts.py:High", "height": 0.4},
        "script": {"kind": "./parts.py:Slow", "slowness": 4},
    }
    (elsewhere / "task.yaml").write_text(yaml.safe_dump(task))
    loaded = load_task(elsewhere / "task.yaml")
    assert loaded.success.height == 0.4 and make_script(loaded).slowness == 4
    robot = elsewhere / "arm/robot.yaml"
    robot.write_text(robot.read_text().replace("simulator: mine", "simulator: ../parts.py:Mine"))
    loaded_robot = load_robot(str(elsewhere / "arm"))
    assert make(loaded_robot.simulator, **loaded_robot.options).pose_noise_m == 0.001
    (elsewhere / "recipe.yaml").write_text(
        "name: x\nstation: {robot: ./arm, task: ../elsewhere/task.yaml}\n"
    )
    assert station_task(load_recipe(elsewhere / "recipe.yaml")).success.height == 0.4


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"reward": {"kind": "high", "hight": 0.3}},
            "unknown key 'reward.hight' (did you mean 'height'?)",
        ),
        (
            {"reward": {"kind": "high", "height": "0.3"}},
            "'reward.height': expected a number, got str '0.3'",
        ),
        (
            {"reward": {"kind": "high", "strict": 1}},
            "'reward.strict': expected true or false, got int 1",
        ),
        ({"reward": {"kind": "hihg"}}, "(did you mean 'high'?)"),
        (
            {"reward": {"kind": "mine.parts:Hihg"}},
            "mine.parts has no 'Hihg' (did you mean 'High'?)",
        ),
        (
            {"reward": {"kind": "mine.prts:High"}},
            "expected an importable module, got ModuleNotFoundError",
        ),
        (
            {"reward": {"kind": "prts.py:High"}},
            "expected an importable module, got FileNotFoundError",
        ),
        (
            {"script": {"kind": "slow", "slowness": 2.5}},
            "'script.slowness': expected int, got float 2.5",
        ),
    ],
)
def test_their_parameters_are_checked_like_ours(mine, change, message):
    path = mine / "task.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    with pytest.raises(RecipeError) as error:
        load_task(path)
    assert message in str(error.value) and "task.yaml, line " in str(error.value)


def test_a_broken_file_says_what_breaks_it(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(RecipeError, match="expected an importable module, got SyntaxError"):
        plugins.find("rewards", f"{tmp_path}/broken.py:f", {}, "reward.kind")


def test_a_simulator_of_ones_own_that_lacks_a_package_says_which(mine):
    with pytest.raises(
        RlinfError, match="a_package_that_nobody_has.*Run: pip install a_package_that_nobody_has"
    ):
        make("mine.parts:Lacking")


@pytest.mark.parametrize(
    "text, message",
    [
        ("station.robot=.", "station.robot: expected a folder with a robot.yaml, got '.'"),
        ("station.task=..", "expected a readable YAML file, got: [Errno 21] Is a directory"),
        (
            "station.task=mytask.yaml",
            "station.task: expected a name or a path, got 'mytask.yaml', which is a file here: "
            "write ./my",
        ),
        (
            "station.task=yours.yaml",
            "'yours.yaml': expected an importable module, got ModuleNotFoundError",
        ),
        (
            "station.robot=':x'",
            "station.robot: expected a name, package.module:name, or file.py:name, got ':x'",
        ),
        ("station.robot=.foo", "expected a name, package.module:name, or file.py:name, got '.foo'"),
        (
            "station.robot='os:getcwd'",
            "station.robot: 'os:getcwd': expected a path (package.module:PATH) or a package",
        ),
        ("station.task='sys:'", "station.task: 'sys:': expected a path (package.module:PATH)"),
        (
            "policy.kind=.foo",
            "'policy.kind': expected a name, package.module:name, or file.py:name, got '.foo'",
        ),
        ("policy.kind=..", "'policy.kind': expected a name"),
        ("algorithm.name=':x'", "'algorithm.name': expected a name"),
    ],
)
def test_what_is_no_reference_is_refused_in_words(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytask.yaml").write_text("")
    with pytest.raises(RecipeError) as error:
        check_recipe(load_recipe("demo", [text]))
    assert message in str(error.value)


def test_a_robots_folder_may_be_named_by_dots(tmp_path, monkeypatch):
    folder = Path("robots/ur5e").resolve()
    shutil.copytree(folder, tmp_path / "arm")
    (tmp_path / "arm/inner").mkdir()
    for where, name in (("arm", "."), ("arm", "./"), ("arm/inner", "..")):
        monkeypatch.chdir(tmp_path / where)
        assert load_robot(name).limits == tmp_path / "arm/limits.yaml"


@pytest.mark.parametrize(
    "group, names_of", [("rewards", reward_names), ("algorithms", algorithms), ("robots", robots)]
)
def test_an_unknown_name_is_answered_with_all_and_the_ways_to_name_others(group, names_of):
    find = {
        "rewards": lambda: plugins.find(
            "rewards", "insertoin", dict.fromkeys(names_of(), ""), "here"
        ),
        "algorithms": lambda: algorithm("saq"),
        "robots": lambda: load_robot("frank_sim"),
    }[group]
    with pytest.raises(RecipeError, match="did you mean '(insertion|sac|franka_sim)'") as error:
        find()
    assert all(name in str(error.value) for name in names_of())


def test_a_path_to_nothing_is_refused_as_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as error:
        station_task(load_recipe("sim_sac", ["station.task=./reech.yaml"]))
    assert str(error.value).endswith(f", and nothing is at {tmp_path}/reech.yaml")


def test_a_vendors_driver_is_gone_with_its_files(tmp_path):
    """No other code names it, and without it all others are there."""
    vendor_paths = (
        "rlinf_core/robots/drivers/franka.py",
        "ros_ws/src/rlinf_drivers/rlinf_drivers/franka",
        "sim_bridges/twins/franka",
    )
    code = [
        path
        for folder in ("rlinf_core", "ros_ws/src", "sim_bridges", "launch")
        for path in Path(folder).rglob("*.py")
    ]
    named = {
        str(path)
        for path in code
        if re.search(
            r"^(import|from) .*franka(_msgs|_hand|_recovery)?\b(?!_mujoco)", path.read_text(), re.M
        )
    }
    assert named and not [
        name for name in named if not name.startswith((*vendor_paths, "sim_bridges/"))
    ], named
    for folder in ("rlinf_core", "robots"):
        shutil.copytree(folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "configs").mkdir()  # by which it is known for a clone
    (tmp_path / "rlinf_core/robots/drivers/franka.py").unlink()
    load = (
        "from rlinf_core.robots.config import load_robot; print(load_robot('ur5e').driver); "
        "load_robot('franka_fr3')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", load],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
    )
    assert ran.stdout == "universal_robots\n", ran.stdout
    assert (
        "'driver': expected one of external, servo_arm, simulator, universal_robots" in ran.stderr
    ), ran.stderr
