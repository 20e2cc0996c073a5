"""A simulator in a virtual environment of its own: the same to the last bit, and said in words when
it fails.
"""

import io
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError, RlinfError
from sim_bridges.core.isolated import IsolatedSimulator, make, python_of

pytestmark = pytest.mark.timed


def motion(simulator):
    simulator.reset(3)
    target = simulator.tcp_pose() + [0.03, -0.02, 0.01, 0, 0, 0, 0]
    for _ in range(10):
        simulator.advance(target, 0.02)
    simulator.advance(None)
    return (
        simulator.channels(),
        simulator.gripper_width(),
        simulator.succeeded(),
        simulator.render("front", 48, 64),
    )


@pytest.fixture
def isolated(monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_GYMNASIUM_ROBOTICS", sys.executable)
    simulator = make("gymnasium_robotics")
    yield simulator
    simulator.close()


def test_it_is_the_same_as_in_this_process(isolated, monkeypatch):
    assert isinstance(isolated, IsolatedSimulator)
    monkeypatch.delenv("RLINF_PYTHON_GYMNASIUM_ROBOTICS")
    here = make("gymnasium_robotics")
    assert (isolated.tick_s, isolated.cameras, isolated.joint_names) == (
        here.tick_s,
        here.cameras,
        here.joint_names,
    )
    (far, *rest), (near, *expected) = motion(isolated), motion(here)
    assert far.keys() == near.keys()
    assert all(np.array_equal(far[name], near[name]) for name in far)
    assert rest[:2] == expected[:2]
    assert np.array_equal(rest[2], expected[2])
    assert isolated.instruction == "", "the task says it"
    assert isolated.faults == () and not isolated.provoke("joint_reflex") and isolated.recover(), (
        "its arm has none"
    )


def test_what_a_scene_asks_for_is_said_here(monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_FRANKA_MARKS", sys.executable)
    simulator = make("franka_marks")
    sentences = []
    for seed in (0, 1):  # a blue one and a red one
        simulator.reset(seed)
        sentences.append(simulator.instruction)
    simulator.close()
    assert sentences == ["go to the blue mark", "go to the red mark"]


def test_what_cannot_be_built_there_is_said_here(monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_GYMNASIUM_ROBOTICS", sys.executable)
    with pytest.raises(
        RecipeError, match="task: expected one of FetchPickAndPlace-v4, .*; got 'FetchReech-v4'"
    ):
        make("gymnasium_robotics", task="FetchReech-v4")


def test_a_process_that_dies_is_named_with_its_code(isolated):
    isolated._process.kill()
    with pytest.raises(
        RlinfError, match=r"simulator 'gymnasium_robotics': its process in .* ended with code -9"
    ):
        isolated.channels()


def test_a_mistake_there_does_not_end_it(isolated):
    with pytest.raises(RlinfError, match="KeyError: 'nowhere'"):
        isolated.render("nowhere", 8, 8)
    isolated.reset(0)
    assert isolated.tcp_pose().shape == (7,)


PICTURES = {
    "floating": ("np.full((height, width, 3), 0.5)", "got float64"),
    "nan": ("np.full((height, width, 3), np.nan)", "192 values that are not finite"),
    "rgba": ("np.zeros((height, width, 4), np.uint8)", r"got uint8 of shape \(8, 8, 4\)"),
    "turned": ("np.zeros((width // 2, height, 3), np.uint8)", r"got uint8 of shape \(4, 8, 3\)"),
    "flat": ("np.zeros(3 * height * width, np.uint8)", "got uint8"),
    "none": ("None", "got object"),
}


@pytest.mark.parametrize(("picture", "message"), PICTURES.values(), ids=PICTURES)
def test_a_damaged_picture_is_refused_by_its_camera(picture, message, tmp_path):
    """The next call gets its own answer."""
    (tmp_path / "bad.py").write_text(
        "import numpy as np\n\n\nclass Bad:\n    tick_s, cameras, joint_names = 0.01, (), ()\n\n"
        "    def tcp_pose(self):\n        return np.zeros(7)\n\n    def gripper_width(self):\n"
        "        return 0.5\n\n    def succeeded(self):\n        return True\n\n"
        f"    def render(self, camera, height, width):\n        return {picture}\n"
    )
    simulator = IsolatedSimulator(sys.executable, f"{tmp_path}/bad.py:Bad", {})
    try:
        with pytest.raises(RlinfError, match=f"camera front: expected frames of .*{message}"):
            simulator.render("front", 8, 8)
        assert simulator.succeeded() is True and simulator.gripper_width() == 0.5
    finally:
        simulator.close()


@pytest.mark.parametrize("answer", [b"a warning\n", b"[]\n", b"{}\n", b'{"value": [8, 8, 4]}\n'])
def test_an_answer_of_another_protocol_is_refused_by_name(answer, isolated):
    isolated._file.close()
    isolated._file = Answers(answer)
    with pytest.raises(RlinfError, match="simulator 'gymnasium_robotics'.* in both Pythons"):
        isolated.render("front", 8, 8)


class Answers(io.BytesIO):
    """A connection whose other side has answered already."""

    def write(self, call):
        return len(call)


def test_a_python_that_is_not_there(monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_GYMNASIUM_ROBOTICS", "/nowhere/python")
    with pytest.raises(RlinfError, match="cannot start /nowhere/python"):
        make("gymnasium_robotics")


def test_closing_ends_its_process(isolated):
    isolated.close()
    assert isolated._process.returncode == -9


def test_most_simulators_have_no_python_of_their_own():
    assert python_of("franka_mujoco") is None


def test_what_a_python_that_is_a_script_has_started_ends_with_it(tmp_path, monkeypatch):
    """Isaac Sim's python.sh starts a Python instead of replacing itself by it."""
    wrapper = tmp_path / "python.sh"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@" &\necho $! > {tmp_path}/pid\nwait\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("RLINF_PYTHON_GYMNASIUM_ROBOTICS", str(wrapper))
    simulator = make("gymnasium_robotics")
    pid = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    simulator.close()
    end = time.monotonic() + 10.0
    while (
        time.monotonic() < end
        and (stat := Path(f"/proc/{pid}/stat")).exists()
        and " Z " not in stat.read_text()
    ):
        time.sleep(0.01)
    assert not stat.exists() or " Z " in stat.read_text()
    simulator.close()


def test_it_ends_with_whoever_began_it_also_in_the_middle_of_a_long_answer(tmp_path):
    """Killed, as a supervisor kills what does not end; nobody could tell the simulator."""
    (tmp_path / "slow.py").write_text(
        "import time\n\nimport numpy as np\n\n\nclass Slow:\n    tick_s, cameras, joint_names = "
        "0.01, (), ()\n\n"
        "    def tcp_pose(self):\n        return np.zeros(7)\n\n    def gripper_width(self):\n     "
        "   return None\n\n"
        "    def reset(self, seed):\n        time.sleep(600)\n"
    )
    begin = (
        "import os, sys\nfrom sim_bridges.core.isolated import IsolatedSimulator\n"
        f"s = IsolatedSimulator(sys.executable, '{tmp_path}/slow.py:Slow', "
        f"{{}})\nprint(s._process.pid, flush=True)\n"
        "s.reset(0)"
    )
    asks = subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True)
    pid = int(asks.stdout.readline())
    time.sleep(0.5)
    asks.kill()
    asks.wait(10)
    end = time.monotonic() + 10.0
    while (
        time.monotonic() < end
        and (stat := Path(f"/proc/{pid}/stat")).exists()
        and " Z " not in stat.read_text()
    ):
        time.sleep(0.01)
    assert not stat.exists() or " Z " in stat.read_text()
