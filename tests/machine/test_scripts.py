"""The scripts on a half-prepared machine, in a copy of the repository without downloads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRESENT_LIBRARIES = "\n".join(
    f"\t{library} (libc6,x86-64) => /lib/{library}"
    for library in (
        "libOSMesa.so.8",
        "libEGL.so.1",
        "libGL.so.1",
        "libusb-1.0.so.0",
        *(f"lib{number}.so" for number in range(9999)),
    )
)


class Clone:
    """A copy of some scripts, and programs that stand first on PATH."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("scripts", "shims", ".venv/bin"):
            (folder / name).mkdir(parents=True)

    def script(self, name, text):
        """An executable file."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, name, *arguments, **more):
        """A script of ours, here."""
        shutil.copy2(ROOT / "scripts" / name, self.folder / "scripts")
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("ROS", "PYTHON", "LIBERO"))
        }
        return subprocess.run(
            [self.folder / "scripts" / name, *arguments],
            text=True,
            capture_output=True,
            timeout=120,
            env=environment | {"PATH": f"{self.folder}/shims:{os.environ['PATH']}"} | more,
        )


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.mark.slow
def test_an_environment_that_ended_before_it_had_pip_is_finished_and_keeps_what_it_has(clone):
    (clone.folder / "libraries").write_text(PRESENT_LIBRARIES)
    clone.script("shims/ldconfig", f"#!/bin/sh\nexec cat '{clone.folder}/libraries'\n")
    for tool in ("apt-get", "sudo"):
        clone.script(f"shims/{tool}", "#!/bin/sh\nexit 1\n")
    (clone.folder / "scripts/install.py").write_text("import pip, kept\nprint('pip is there')\n")
    subprocess.run(
        [sys._base_executable, "-m", "venv", "--without-pip", clone.folder / ".venv"], check=True
    )
    next(clone.folder.glob(".venv/lib/python*/site-packages")).joinpath("kept.py").touch()
    clone.script(".venv/bin/rlinf", "#!/bin/sh\n")
    done = clone.run("setup.sh")
    assert "pip is there" in done.stdout and "done. Next" in done.stdout, done.stderr
    assert "not installed" not in done.stdout, (
        "all libraries are there, early in a list that is longer than a pipe"
    )


def test_a_pythons_own_message_is_shown_where_it_does_not_run(clone):
    """pyenv's shim is on PATH and prints the versions that it has."""
    clone.script(
        "shims/python3.12",
        "#!/bin/sh\n"
        "echo 'pyenv: python3.12: command not found. It exists in: 3.12.1' >&2\nexit 127\n",
    )
    done = clone.run("setup.sh", PYTHON="python3.12", ROS_DISTRO="")
    assert done.returncode == 1
    assert (
        "PYTHON=python3.12 does not run. It says:\npyenv: python3.12: command not found."
        in done.stderr
    )
    clone.script(
        "shims/python3.8", '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.18 || exit 1\n'
    )
    done = clone.run("setup.sh", PYTHON="python3.8", ROS_DISTRO="")
    assert done.returncode == 1
    assert "expected Python 3.10 to 3.13, got Python 3.8.18 (PYTHON=python3.8)" in done.stderr


@pytest.mark.slow
def test_wheels_of_ros_are_not_left_beside_one_that_is_sourced(clone, monkeypatch):
    packages = clone.folder / ".venv/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    sourced = clone.folder / "opt/rclpy.py"
    sourced.parent.mkdir()
    sourced.touch()
    monkeypatch.setenv("LANG", "C")
    clone.script(
        "a python",
        f"#!/bin/sh\nROS_DISTRO= PYTHONPATH='{sourced.parent}' exec '{sys.executable}' \"$@\"\n",
    )
    for wheels in (False, True):
        if wheels:
            (packages / "ros_wheels_bootstrapper.pth").touch()
        done = clone.run("setup.sh", ROS_DISTRO="jazzy", PYTHON=str(clone.folder / "a python"))
        assert (
            "make clean" in done.stderr
        ) is wheels and "expected Python 3.10" not in done.stderr, done.stderr
        assert done.returncode


@pytest.mark.parametrize("has_library", [False, True])
def test_simulators_that_lack_a_library_are_tried_again_by_the_next_make(clone, has_library):
    clone.script("shims/ldconfig", "#!/bin/sh\n")
    for tool in ("apt-get", "sudo"):
        clone.script(f"shims/{tool}", f"#!/bin/sh\nexit {int(not has_library)}\n")
    clone.script("shims/id", "#!/bin/sh\necho 0\n")
    clone.script("shims/grep", "#!/bin/sh\nexit 1\n")
    clone.script(".venv/bin/python", "#!/bin/sh\n")
    done = clone.run("simulators.sh")
    assert done.returncode == 0 and ("not installed" in done.stdout) is not has_library, (
        done.stdout + done.stderr
    )
    assert (clone.folder / ".venv/.simulators-done").exists() is has_library


def test_a_simulator_whose_files_were_cut_off_on_their_way_is_fetched_anew(clone):
    clone.script(
        "scripts/install_lock.sh",
        "#!/bin/sh\nmkdir -p $2/lib/python3.11/site-packages/libero/libero\n",
    )
    clone.script(".venv/bin/uv", "#!/bin/sh\nmkdir -p $6\n")
    clone.script(
        "shims/git",
        "#!/bin/sh\n[ $1 != clone ] || exec mkdir -p $4/.git\n[ -e up ] && touch $2/assets\n",
    )
    source = clone.folder / ".venvs/libero/src"
    assert clone.run("isolated.sh", "libero").returncode
    (source / ".git").mkdir(parents=True, exist_ok=True)  # as an earlier one would have left it
    (clone.folder / "up").touch()
    done = clone.run("isolated.sh", "libero")
    assert done.returncode == 0 and "done. Next" in done.stdout, done.stderr
    assert (source / "assets").exists()
    (source / "assets").rename(source / "mine")
    assert clone.run("isolated.sh", "libero").returncode == 0 and (source / "mine").exists(), (
        "what is there stays"
    )


def test_colcon_builds_our_packages_alone_as_a_page_says(tmp_path):
    subprocess.run(
        f"git ls-files -z --cached --others --exclude-standard ros_ws | xargs -0 cp -P --parents "
        f"-t {tmp_path}",
        shell=True,
        cwd=ROOT,
        check=True,
    )
    (tmp_path / "ros_ws/src/franka_ros2").mkdir()
    shutil.copytree(
        ROOT / "ros_ws/definitions/franka_msgs", tmp_path / "ros_ws/src/franka_ros2/franka_msgs"
    )
    listed = subprocess.run(
        [
            Path(sys.executable).with_name("colcon"),
            "--log-base",
            os.devnull,
            "list",
            "--names-only",
        ],
        cwd=tmp_path / "ros_ws",
        text=True,
        capture_output=True,
    )
    ours = [path.parent.name for path in ROOT.glob("ros_ws/src/*/package.xml")]
    assert sorted(listed.stdout.split()) == sorted(["franka_msgs", *ours]), listed.stderr
