"""The choice of the Python that runs a node installed by colcon."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = getattr(sys, "_base_executable", sys.executable)  # as ROS's own: without the distribution
PROGRAM = "import rlinf_ros, rlinf_core, sys; print(sys.executable, *sys.argv[1:])\n"


@pytest.fixture
def run(tmp_path):
    """Run an executable of a package as the base Python, from a workspace below ``tmp_path``."""
    package = tmp_path / "ros_ws/install/rlinf_x"
    (package / "lib/rlinf_x").mkdir(parents=True)
    shutil.copytree(ROOT / "ros_ws/src/rlinf_ros/rlinf_ros", package / "lib/rlinf_ros")
    executable = package / "lib/rlinf_x/node"
    executable.write_text(PROGRAM)

    def start(*words, program=executable, **variables):
        clean = {
            key: value
            for key, value in os.environ.items()
            if key not in ("VIRTUAL_ENV", "RLINF_PYTHON")
        }
        path = f"{package}/lib"
        return subprocess.run(
            [BASE, str(program), *words],
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env=clean | {"PYTHONPATH": path, "HOME": str(tmp_path)} | variables,
        )

    return start


@pytest.fixture
def environment(tmp_path):
    """Return an environment in a folder with a space, whose Python has the distribution."""
    python = tmp_path / "my own/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{ROOT}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_the_environment_that_is_named_active_or_above_the_workspace_runs_the_node(
    run, environment, tmp_path
):
    named = run("--odd", "it's", RLINF_PYTHON=str(environment))
    active = run(VIRTUAL_ENV=str(environment.parents[1]))
    assert named.stdout.split() == [sys.executable, "--odd", "it's"], named.stderr
    assert active.stdout.split() == [sys.executable], active.stderr
    (tmp_path / ".venv").symlink_to(environment.parents[1])
    above = run()
    assert above.stdout.split() == [sys.executable], above.stderr


def test_a_python_that_has_the_distribution_stays(run):
    libraries = sysconfig.get_path("purelib")  # what the distribution needs, as yaml
    path = f"{ROOT}:{ROOT}/ros_ws/src/rlinf_ros:{libraries}"
    stayed = run(PYTHONPATH=path, VIRTUAL_ENV="/nowhere")
    assert stayed.stdout.split()[:1] == [BASE], stayed.stderr


@pytest.mark.parametrize(
    "variables", [{}, {"VIRTUAL_ENV": "/nowhere"}, {"RLINF_PYTHON": "/nowhere/bin/python"}]
)
def test_where_no_python_has_it_an_error_names_what_was_tried(run, variables):
    refused = run(**variables)
    assert (
        refused.returncode
        and "expected a Python with the distribution rlinf, got " in refused.stderr
    )
    assert "/nowhere/bin/python" in refused.stderr or not variables
    assert "RLINF_PYTHON=<environment>/bin/python" in refused.stderr


def test_a_program_of_anybody_is_left_alone(run, tmp_path, environment):
    program = tmp_path / "program.py"
    program.write_text("import rlinf_ros, sys; print(sys.executable)\n")
    assert run(program=program, RLINF_PYTHON=str(environment)).stdout.split() == [BASE]


def test_a_launch_file_finds_the_distribution_and_its_python(run, tmp_path, environment):
    launch = tmp_path / "ros2"
    launch.write_text(
        "from rlinf_ros.interpreter import importable\npython = importable()\n"
        "import rlinf_core; print(python)\n"
    )
    launched = run(program=launch, RLINF_PYTHON=str(environment))
    assert launched.stdout.strip() == str(environment), launched.stderr
    (tmp_path / "old/bin").mkdir(parents=True)
    old = tmp_path / "old/bin/python"
    old.write_text("#!/bin/sh\nprintf '3\\n8\\n/nowhere\\n'\n")
    old.chmod(0o755)
    refused = run(program=launch, RLINF_PYTHON=str(old))
    assert (
        "expected the distribution for Python 3." in refused.stderr
        and "of Python 3.8" in refused.stderr
    )
