"""The images: what a linter says of their files, and their steps, as far as they run where no
Docker is.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlinf_core.cli.parsers import make_parser
from rlinf_core.interlock.latch import FOLDERS
from rlinf_core.launch.graph import TRAINER_STOP_S, station_processes
from rlinf_core.recipes import load_recipe

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSED = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
BIN = Path(sys.executable).parent


def stages(file):
    """Return the instructions of each stage, each in one line with its arguments."""
    text = re.sub(r"^#.*\n|\\\n", "", file.read_text(), flags=re.M)
    return [
        [line.split(None, 1) for line in stage.splitlines() if line][1:]
        for stage in re.split(r"^(?=FROM )", text, flags=re.M)[1:]
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_linter_is_silent_and_nobody_is_root(file):
    process = subprocess.run([BIN / "hadolint", file], text=True, capture_output=True)
    assert (process.returncode, process.stdout + process.stderr) == (0, "")
    assert dict(stages(file)[-1])["USER"] == "2000"


def test_no_key_and_nothing_that_is_built_anew_goes_into_an_image():
    ignored = {*(ROOT / ".dockerignore").read_text().split()}
    keys = (ROOT / ".gitignore").read_text().partition("# keys")[2].splitlines()[1:]
    # here, or wherever one lies
    key_patterns = {line.strip("/") if line.startswith("/") else f"**/{line}" for line in keys}
    assert {"**/station.key", "**/ca.key", "**/page.token", "credentials"} <= key_patterns
    assert key_patterns | {".git", ".venv", "runs"} <= ignored
    assert {"ros_ws/src/*", "!ros_ws/src/rlinf*"} <= ignored, (
        "what drives the arm is built beside it"
    )


@pytest.mark.parametrize(
    "key", ["station_a/station.key", "station.key", "fleet/ca.key", "page.token"]
)
def test_no_key_is_added_to_git(key):
    assert subprocess.run(["git", "check-ignore", "-q", key], cwd=ROOT).returncode == 0


def test_a_stations_container_sees_the_devices_that_its_image_can_read():
    station = COMPOSED["station"]
    for mounted in ("../configs:/rlinf/configs:ro", "../robots:/rlinf/robots:ro"):
        assert mounted in station["volumes"] and mounted in COMPOSED["trainer"]["volumes"]
    assert "/dev:/dev" in station["volumes"] and station["device_cgroup_rules"] == ["c *:* rmw"]
    assert {"plugdev", "dialout", "video"} <= {*station["group_add"]}


@pytest.mark.parametrize("name", COMPOSED)
def test_what_a_service_runs_is_there(name):
    service = COMPOSED[name]
    assert ROOT / service["build"]["dockerfile"] in FILES
    command = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", service["command"]).split()
    if command[0] == "rlinf":
        load_recipe(make_parser().parse_args(command[1:]).name)
        return
    *launch, file = command[:4]
    arguments = dict(argument.split(":=") for argument in command[4:])
    assert launch == ["ros2", "launch", "rlinf"] and (ROOT / "launch" / file).is_file()
    load_recipe(
        arguments.pop("recipe"),
        [f"station.robot={arguments.pop('robot')}", "station.operator.kind=keyboard"],
    )
    assert arguments.pop("token", "bridge.token").endswith("bridge.token") and not arguments


def test_a_trainer_may_save_and_a_latch_outlives_its_container(tmp_path):
    assert {float(service["stop_grace_period"].rstrip("s")) for service in COMPOSED.values()} == {
        TRAINER_STOP_S
    }
    recipe = load_recipe("demo", ["station.robot=franka_fr3", "station.operator.kind=keyboard"])
    latch = next(
        process.parameters["latch_file"]
        for process in station_processes(recipe, tmp_path)
        if process.name == "interlock"
    )
    assert latch == "robot:station_a"
    folder = str(FOLDERS[0])  # the machine's own, which a login beside the container meets, too
    assert {
        "type": "bind",
        "source": folder,
        "target": folder,
        "bind": {"create_host_path": False},
    } in COMPOSED["station"]["volumes"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "name, check",
    [
        ("trainer", "rlinf train --help"),
        ("simulator", "rlinf check sim franka_mujoco --episodes 1 --no-station"),
    ],
)
def test_what_an_image_is_built_by_runs_on_a_copy_of_what_it_copies(name, check, tmp_path):
    """The station's needs ROS; so do its steps."""
    subprocess.run(
        f"git ls-files -z | xargs -0 cp --parents -t {tmp_path}", shell=True, cwd=ROOT, check=True
    )
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims/python").symlink_to(sys._base_executable)
    path = f"{tmp_path}/.venv/bin:{tmp_path}/shims:{os.environ['PATH']}"
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE")
    values = {key: value for key, value in os.environ.items() if key not in ours} | {"PATH": path}
    building = stages(ROOT / f"docker/{name}.Dockerfile")[0]
    values |= dict(step.split("=", 1) for kind, step in building if kind == "ARG") | {
        "TORCH": "cpu"
    }
    for kind, step in [*building, ("RUN", check)]:
        if kind == "RUN" and "apt-get" not in step:
            ran = subprocess.run(
                ["sh", "-ec", step], cwd=tmp_path, env=values, text=True, capture_output=True
            )
            assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
