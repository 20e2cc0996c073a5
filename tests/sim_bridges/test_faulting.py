"""A twin whose arm stops by itself: its own faults beside those that are injected, and what ends
either.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.core.errors import RlinfError
from sim_bridges.core import isolated
from sim_bridges.core.isolated import make
from sim_bridges.twins.franka_state import IMPEDANCE, MOVE, REFLEX, USER_STOP, Control, Controlled
from tests.sim_bridges.stopping import Simulator

FLAGS = ("joint_reflex", "cartesian_reflex")


def twin(**how):
    arm, control = Simulator(**how), Control(FLAGS)
    return arm, control, Controlled(arm, control)


def test_what_the_arm_can_do_itself_it_does_and_its_own_recovery_ends_it():
    arm, control, inside = twin()
    control.inject("joint_reflex")
    inside.advance(None)
    assert arm.faults == ("joint_reflex",) and control.reported_errors == set()
    assert (
        control.errors == control.last_errors == {"joint_reflex"}
        and control.mode == REFLEX
        and not control.follows
    )
    assert control.recover() and arm.faults == () and control.errors == set()
    assert control.last_errors == {"joint_reflex"}, "of the last motion, until the next begins"
    assert control.switch([IMPEDANCE], []) and control.last_errors == set() and control.mode == MOVE


def test_what_it_cannot_is_said_above_it():
    arm, control, inside = twin()
    control.inject("cartesian_reflex")
    here = arm.tcp_pose()
    inside.advance(here + 1.0)
    assert (
        arm.faults == ()
        and control.errors == {"cartesian_reflex"}
        and arm.tcp_pose() == pytest.approx(here)
    )
    assert control.recover() and control.follows
    inside.advance(here + 1.0)
    assert arm.tcp_pose() == pytest.approx(here + 1.0)


def test_an_arm_that_does_not_recover_stays_in_its_fault():
    arm, control, _ = twin(recovers=False)
    control.inject("joint_reflex")
    assert not control.recover() and control.errors == {"joint_reflex"}
    assert not control.set_hardware("FrankaHardwareInterface", active=True)
    arm.recovers = True
    control.inject(USER_STOP)
    assert not control.recover(), "nobody recovers a robot whose stop is pressed"
    control.inject("")
    assert control.recover()


def test_a_fault_of_its_own_comes_unasked():
    arm, control, inside = twin()
    arm.provoke("joint_reflex")
    inside.advance(None)
    assert control.mode == REFLEX and control.last_errors == {"joint_reflex"}


def test_in_a_python_of_its_own_it_is_the_same(monkeypatch):
    monkeypatch.setenv("RLINF_PYTHON_TESTS_SIM_BRIDGES_STOPPING", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    far = make("tests.sim_bridges.stopping")
    assert far.faults == () and not far.provoke("cartesian_reflex") and far.faults == ()
    assert far.provoke("joint_reflex") and far.faults == ("joint_reflex",)
    here = far.tcp_pose()
    far.advance(here + 1.0)
    assert np.array_equal(far.tcp_pose(), here) and far.recover() and far.faults == ()
    far.close()


def test_without_franka_sim_the_twin_says_what_to_run(monkeypatch):
    monkeypatch.setattr(isolated, "python_of", lambda name: None)
    with pytest.raises(
        RlinfError,
        match=r"expected the package franka_sim, which is not installed .* Run: make fci",
    ):
        make("sim_bridges.twins.fci")
