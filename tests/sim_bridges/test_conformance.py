"""A check of a simulator that fails names axis, cause and orientation, and the others go on."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np

from sim_bridges.core import conformance
from sim_bridges.core.conformance import _failures, _motion, _pictures, rotation_deg

LIMITS = SimpleNamespace(box_low=(-1.0, -1.0, -1.0), box_high=(1.0, 1.0, 1.0), gripper_width=0.0)


class Drifting:
    """One arm, whose y follows half of what it is told; its renderer does not work."""

    arms, tick_s, cameras, joint_names = ("",), 0.1, ("front", "video"), ()

    def __init__(self):
        self.reset(0)

    def reset(self, seed):
        self.pose = np.array([0.1, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])

    def advance_arms(self, targets, gripper_widths):
        if targets[""] is not None:
            self.pose = targets[""].copy()
            self.pose[1] *= 0.5

    def tcp_poses(self):
        return {"": self.pose.copy()}

    def gripper_widths(self):
        return {"": None}

    def channels(self):
        return {"current_pose": self.pose}

    def succeeded(self):
        return None

    def render(self, camera, height, width):
        if camera == "front":
            raise RuntimeError("an OpenGL platform library has not been loaded")
        picture = np.zeros((height, width, 3), np.uint8)
        picture[:, : width // 2] = 200
        picture[: height // 2, :, 0] = 255 if self.pose[1] > 0 else 0
        return picture


def test_a_renderer_that_fails_is_one_row_and_the_others_go_on():
    rows = list(_pictures(Drifting(), {"front": None}))
    assert [row.passed for row in rows] == [True, False]
    assert "front render raised RuntimeError: an OpenGL platform library" in rows[1].measured
    assert "video True" in rows[1].measured


def test_a_tool_that_goes_elsewhere_names_its_worst_axis():
    (row,) = [row for row in _motion(Drifting(), "", LIMITS) if "each axis" in row.name]
    assert not row.passed
    assert (
        row.measured == "within 15.0 mm after a second, worst along y (+15.0 mm) for targets "
        "along y"
    )


def test_a_script_that_fails_says_how_the_tool_starts_and_what_held_it():
    steps = iter([[""], ["HOLD realigning"], [""]])
    station = SimpleNamespace(
        robot=Drifting(), reset=lambda seed: None, expert=lambda: None, causes=[""]
    )

    def step(action):
        station.hold_reasons = next(steps, None)
        last = station.hold_reasons is None
        station.hold_reasons = station.hold_reasons or [""]
        return None, SimpleNamespace(last=last)

    station.step = step
    assert _failures(station, []) == ""
    assert _failures(station, [7, 8]) == ("; scene 7: the tool starts turned by [180.   0.   0.] "
                                          "degrees; "
                                          "the interlock held it last for HOLD "
                                          "realigning")  # fmt: skip
    assert rotation_deg(np.array([0, 0, 0, 0, 0, np.sin(0.5), np.cos(0.5)])) == "[ 0.  0. 57.]"


def test_a_film_that_cannot_be_made_is_a_remark(tmp_path):
    station = SimpleNamespace(robot=Drifting(), reset=lambda seed: None, simulator=Drifting())
    station.simulator.cameras = ()
    station.simulator.render = lambda *_: 1 / 0
    assert (
        conformance._save_film(station, 3, tmp_path / "a.mp4")
        == "; no film: ZeroDivisionError: division by zero"
    )


def test_a_renderer_that_is_collected_after_its_library_prints_nothing():
    code = (
        "from rlinf_core.core.rendering import set_mujoco_gl; set_mujoco_gl()\n"
        "class Context:\n"
        "    def __del__(self): raise RuntimeError('EGL_NOT_INITIALIZED')\n"
        "for name in ('mujoco.egl', 'OpenGL.raw', 'another'):\n"
        "    Context.__del__.__module__ = name\n"
        "    Context()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0 and result.stderr.count("EGL_NOT_INITIALIZED") == 1, result.stderr
