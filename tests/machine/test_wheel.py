"""The wheel brings recipes, robots and message definitions, and runs in an environment that has the
base alone.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import install  # noqa: E402

UV = Path(sys.executable).parent / "uv"
NODES = [
    str(path.parent.relative_to(ROOT))
    for path in sorted(ROOT.glob("ros_ws/src/rlinf_*/rlinf_*/__init__.py"))
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(*command, **environment):
    clean = {
        key: value
        for key, value in os.environ.items()
        if key
        not in (
            "PYTHONPATH",
            "AMENT_PREFIX_PATH",
            "LD_LIBRARY_PATH",
            "VIRTUAL_ENV",
            "_ROS_WHEELS_BOOTSTRAP_COMPLETE",
        )
    }
    elsewhere = tempfile.gettempdir()  # from within it, `python -m` would find the source tree
    return subprocess.run(
        [str(part) for part in command],
        text=True,
        capture_output=True,
        timeout=1200,
        env=clean | environment,
        cwd=elsewhere,
    )


def must(*command, **environment):
    result = run(*command, **environment)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel, made of the sdist, as on PyPI."""
    folder = tmp_path_factory.mktemp("dist")
    must(UV, "build", "--out-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An environment with the wheel, its base and the extra ros, in the lock's versions; nothing of
    this source tree.
    """
    folder = tmp_path_factory.mktemp("bare")
    must(UV, "venv", "-q", "--python", sys.executable, folder / "venv")
    pins = must(
        UV,
        "export",
        "-q",
        "--frozen",
        "--no-hashes",
        "--no-emit-project",
        "--extra=ros",
        "--project",
        ROOT,
    )
    (folder / "pins.txt").write_text(pins)
    must(
        UV,
        "pip",
        "install",
        "-q",
        "--python",
        folder / "venv/bin/python",
        "-c",
        folder / "pins.txt",
        f"{wheel}[ros]",
    )
    must(folder / "venv/bin/rlinf", "messages")
    return folder / "venv"


def test_it_holds_what_is_no_python_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "configs",
            "robots",
            "ros_ws/src/rlinf_msgs",
            "ros_ws/definitions",
            *NODES,
            "rlinf_core",
            "sim_bridges",
        ],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    ).stdout.split()
    packages = [re.sub(r"^ros_ws/src/(rlinf_\w+)/\1/", r"\1/", path) for path in tracked]
    python = ("rlinf_core", "sim_bridges", *(Path(folder).name for folder in NODES))
    expected = {
        path if path.split("/")[0] in python else f"rlinf_core/share/{path}" for path in packages
    }
    installed = {name.partition(".data/data/")[2] for name in names} - {""}
    assert {
        name for name in names if ".dist-info/" not in name and ".data/data/" not in name
    } == expected
    listed = subprocess.run(
        ["git", "ls-files", "launch", "robots"], cwd=ROOT, text=True, capture_output=True
    ).stdout.split()
    assert installed == {
        f"share/rlinf_bringup/{path}"
        for path in (
            *listed,
            "package.xml",
            "systemd/rlinf@.service",
            "systemd/station.conf",
            "udev/70-rlinf-operators.rules",
            "udev/71-rlinf-devices.rules",
        )
    } | {"share/ament_index/resource_index/packages/rlinf_bringup"}


def test_pypi_takes_wheel_and_sdist(wheel):
    files = [*wheel.parent.glob("*.whl"), *wheel.parent.glob("*.tar.gz")]
    assert len(files) == 2
    must(UV, "tool", "run", "-q", "twine", "check", "--strict", *files)


def test_the_base_has_neither_torch_nor_ray(bare):
    listed = must(UV, "pip", "list", "--python", bare / "bin/python")
    assert not re.search(r"^(torch|ray|mujoco|nvidia\S*) ", listed, re.M)


def test_doctor_runs_on_the_base(bare):
    process = run(bare / "bin/rlinf", "doctor")
    assert process.returncode == 0, process.stdout + process.stderr
    # the cells of a table, which break their lines, and long paths
    words = re.sub(r"[│\s]+", "", process.stdout)
    assert (
        "lackstorch>=2.5" in words
        and "animagecamethrough" in words
        and "none-any.whl[trainer]" in words
    )


@pytest.mark.parametrize("command", ["up", "demo", "train", "teleop"])
def test_help_runs_on_the_base(bare, command):
    assert "usage: rlinf" in must(bare / "bin/rlinf", command, "--help")


def test_messages_are_built_once(bare):
    assert "up to date" in must(bare / "bin/rlinf", "messages")


def test_the_interlock_of_the_wheel_loads_a_robot_and_answers(bare, tmp_path):
    code = (
        "from rlinf_core.core.paths import data_folder; from rlinf_core.interlock import load_limits; "
        "import rlinf_core\n"
        "print(load_limits(data_folder() / 'robots/franka_fr3/limits.yaml').hash[:4], "
        "rlinf_core.__file__)\n"
        "from rlinf_core.episodes.messages import typestore; typestore()\n"
    )
    assert str(bare) in must(bare / "bin/python", "-c", code)


@pytest.fixture(scope="module")
def full(wheel, bare):
    """The same environment, once the trainer's and the simulators' packages have come to it."""
    pins = must(
        UV,
        "export",
        "-q",
        "--frozen",
        "--no-hashes",
        "--no-emit-project",
        "--extra=ros",
        "--extra=trainer",
        "--extra=sim",
        "--project",
        ROOT,
    )
    (bare / "pins.txt").write_text(pins)
    if install.wants_cpu("auto"):
        install.cpu_torch(
            str(UV), re.search(r"^torch==(\S+)", pins, re.M).group(1), str(bare / "bin/python")
        )
    # of pyproject.toml: what two packages ask for and ours do without
    overrides = bare / "overrides.txt"
    overrides.write_text(
        "".join(
            f"{name}; python_version < '3'\n"
            for name in ("opencv-python", "pygame", "pynput", "hidapi", "triton")
        )
    )
    must(
        UV,
        "pip",
        "install",
        "-q",
        "--python",
        bare / "bin/python",
        "-c",
        bare / "pins.txt",
        "--override",
        overrides,
        f"{wheel}[ros,trainer,sim]",
    )
    return bare


def test_a_station_and_a_training_run_where_their_extras_are(full, tmp_path):
    up = run(
        "timeout",
        "-s",
        "INT",
        "40",
        full / "bin/rlinf",
        "up",
        "demo",
        "--out",
        tmp_path / "up",
        "--set",
        "station.domain_id=192",
    )
    assert "station 'station_a' is up: sim_bridge, interlock, environment" in up.stdout, up.stderr
    assert not re.search(r"ended|Traceback", up.stdout + up.stderr)
    must(
        full / "bin/rlinf",
        "train",
        "sim_sac",
        "--out",
        tmp_path / "sac",
        "--set",
        "simulation.env_steps=400",
        "simulation.start_steps=200",
        "simulation.evaluate_every=400",
        "simulation.evaluate_episodes=2",
    )
    assert '"evaluat' in (tmp_path / "sac/progress.jsonl").read_text()
