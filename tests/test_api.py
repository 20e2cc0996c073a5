"""Exports of `rlinf_core`: lazy, complete, and typed."""

import ast
import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlinf_core

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", rlinf_core.PUBLIC)
def test_each_name_is_there_and_says_what_it_is(name):
    member = getattr(rlinf_core, name)
    assert member.__name__ == name and member.__doc__ and name in dir(rlinf_core)
    assert member.__module__.startswith("rlinf_core.")


def test_nothing_heavy_is_imported_before_it_is_asked_for():
    code = (
        "import sys, rlinf_core\nassert 'pydantic' not in sys.modules\n"
        "recipe = rlinf_core.load_recipe('sim_sac', ['seed=3'])\n"
        "assert rlinf_core.station_task(recipe).spec.vector_size and rlinf_core.read_episode and "
        "recipe.seed == 3\n"
        "print(sorted({'torch', 'ray', 'rclpy', 'gymnasium', 'mujoco'} & set(sys.modules)))\n"
        "rlinf_core.load_policy\nprint('torch' in sys.modules)\n"
        "print(rlinf_core.Observation.__module__, 'torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert process.stdout.splitlines() == ["[]", "False", "rlinf_core.policies.base True"], (
        process.stderr
    )


def test_type_checkers_are_told_the_same():
    tree = ast.parse((ROOT / "rlinf_core/__init__.py").read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    modules = {
        alias.asname: node.module
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert modules == {name: f"rlinf_core.{module}" for name, module in rlinf_core.PUBLIC.items()}


def test_an_unknown_name_is_an_attribute_error_and_modules_are_modules():
    with pytest.raises(AttributeError, match="no attribute 'load_recipes'"):
        rlinf_core.load_recipes  # noqa: B018
    from rlinf_core.core import extras

    assert extras.DISTRIBUTION == "rlinf"


@pytest.mark.parametrize(
    "package",
    [
        "rlinf_core",
        "sim_bridges",
        *(
            f"ros_ws/src/{name}/{name}"
            for name in (
                "rlinf_ros",
                "rlinf_interlock",
                "rlinf_drivers",
                "rlinf_station",
                "rlinf_operator",
                "rlinf_tools",
            )
        ),
    ],
)
def test_the_packages_say_that_they_are_typed(package):
    assert (ROOT / package / "py.typed").is_file()


def examples() -> dict[str, str]:
    """Return the setup of the page, and the example of each public name."""
    page = (ROOT / "docs/reference/api.md").read_text()
    setup, *blocks = (part.split("```")[0] for part in page.split("```pycon\n")[1:])
    headings = re.findall(r"^## `(\w+)`$", page, re.M)
    return {"setup": setup} | dict(zip(headings, blocks, strict=True))


def test_every_public_name_has_an_example():
    assert [*examples()] == ["setup", *rlinf_core.PUBLIC]


@pytest.mark.parametrize("name", rlinf_core.PUBLIC)
def test_the_example_of_a_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = examples()["setup"].replace('Path("runs/examples")', f"Path({str(tmp_path)!r})")
    example = doctest.DocTestParser().get_doctest(text + examples()[name], {}, name, None, 0)
    assert len(example.examples) > text.count(">>>") and name in examples()[name]
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_the_python_of_the_reference_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs/reference/api.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)  # noqa: S102
    assert names["chunk"].actions.shape == (1, 1, 3) and (tmp_path / "policy.safetensors").is_file()
