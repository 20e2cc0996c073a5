"""Franka's own protocol: libfranka's client moves franka-sim's robot, which stops by itself and
recovers.
"""

import socket
import time

import numpy as np
import pytest

from rlinf_core.core.errors import RlinfError
from sim_bridges.core.isolated import make, python_of
from sim_bridges.twins.fci import PORT
from tests.sim_bridges.test_franka_frames import axes, fr3

NAME = "sim_bridges.twins.fci"
pytestmark = [
    pytest.mark.ros,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(  # ros: one after the other
        not python_of(NAME), reason="not run: .venvs/fci is not there (make fci)"
    ),
]


@pytest.fixture(scope="module")
def arm():
    arm = make(NAME)
    yield arm
    arm.close()
    deadline = time.monotonic() + 10.0
    while taken():
        assert time.monotonic() < deadline, "its server ends with it"
        time.sleep(0.1)


def follow(arm, pose, ticks):
    for _ in range(ticks):
        arm.advance(pose)


def test_it_goes_where_it_is_told_and_tells_where_it_is(arm):
    goal = np.array([0.52, 0.06, 0.22, 1.0, 0.0, 0.0, 0.0])
    follow(arm, goal, 200)
    pose, channels = arm.tcp_pose(), arm.channels()
    assert np.abs(pose[:3] - goal[:3]).max() < 0.006 and abs(pose[3]) > 0.999 and arm.faults == ()
    assert (
        channels["current_pose"] == pytest.approx(pose)
        and np.abs(channels["current_twist"]).max() < 0.05
    )
    flange = fr3(channels["joint_states"])
    assert flange[:3, 3] == pytest.approx(pose[:3], abs=1e-4)
    assert flange[:3, :3] == pytest.approx(axes(pose[3:]), abs=1e-4)
    follow(arm, None, 50)
    assert np.abs(arm.tcp_pose()[:3] - pose[:3]).max() < 0.003, "left alone, it stays where it is"


def test_an_error_of_its_own_ends_the_motion_until_it_recovers(arm):
    here = arm.tcp_pose()
    assert not arm.provoke("joint_reflex") and not arm.provoke(
        "communication_constraints_violation"
    ), "not enforced"
    assert arm.provoke("controller_torque_discontinuity")
    follow(arm, here + [0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0], 30)
    assert arm.faults == ("controller_torque_discontinuity",)
    assert abs(arm.tcp_pose()[2] - here[2]) < 0.005
    assert arm.recover() and arm.faults == ()
    follow(arm, here + [0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0], 100)
    assert arm.tcp_pose()[2] - here[2] > 0.012


def test_two_on_a_machine_are_refused(arm):
    with pytest.raises(RlinfError, match=f"expected port {PORT} of this machine to be free"):
        make(NAME)


def taken():
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0
