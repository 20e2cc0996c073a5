"""External signals: e-stops, enabling, contact, and the robot's own faults."""

import math

import pytest

from rlinf_core.interlock import EStop, Mode
from tests.interlock.conftest import Rig, chunk, limits


def active(**limits_):
    rig = Rig(limits(**limits_)).arm()
    rig.tick(chunk(stamp_ns=rig.now), enable=True, enable_age_s=0.0)
    assert rig.state.mode is Mode.ACTIVE
    return rig


@pytest.mark.parametrize(
    "estop, cause",
    [
        (EStop("pendant", True, 0.01), "estop:pendant"),
        (EStop("pendant", False, 0.31), "estop_silent:pendant"),
        (EStop("pendant", False, math.inf), "estop_silent:pendant"),
        (EStop("pendant", False, math.nan), "estop_silent:pendant"),
    ],
)
def test_s14_any_pressed_or_silent_estop_latches_and_holds_while_it_stands(estop, cause):
    rig = active()
    fine = EStop("gate", False, 0.0)
    rig.tick(estops=(fine, EStop("pendant", False, 0.29)))
    assert rig.state.mode is Mode.ACTIVE
    rig.tick(estops=(fine, estop))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, cause)
    rig.tick(estops=(fine, estop), reset_fault=cause)
    assert rig.state.mode is Mode.FAULT, "a cause that stands cannot be cleared"
    rig.tick(estops=(fine,), reset_fault="estop")
    assert rig.state.mode is Mode.FAULT, "nor by another name"
    rig.tick(estops=(fine,), reset_fault=cause)
    assert rig.state.mode is Mode.DISARMED
    rig.tick(chunk(seq=2, stamp_ns=rig.now))
    assert rig.state.mode is Mode.DISARMED, "a reset never resumes motion"


def test_s15_the_policy_moves_only_while_enabled_and_the_operator_needs_none():
    rig = active(enable_lease=60.0)
    rig.tick(enable=True, enable_age_s=59.9)
    assert rig.state.mode is Mode.ACTIVE
    rig.tick(enable=True, enable_age_s=60.1)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "enable")
    rig.tick(chunk(seq=2, stamp_ns=rig.now), enable=False, enable_age_s=0.0)
    assert rig.state.mode is Mode.HOLD and "dropped" in rig.kinds()
    rig.tick(
        chunk(seq=1, stamp_ns=rig.now, source="operator", session="o"),
        enable=False,
        enable_age_s=0.0,
    )
    assert rig.state.mode is Mode.ACTIVE and rig.output.source == "operator"


def test_s15_releasing_the_enable_holds_within_one_tick():
    rig = active(enable_lease=60.0)
    rig.tick(enable=False, enable_age_s=0.0)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "enable")


def test_s10_contact_holds_after_two_samples_and_latches_beyond_forty_newtons():
    rig = active(contact_force=20.0, contact_fault=40.0)
    rig.tick(wrench=(25.0, 0.0))
    rig.tick(wrench=None)
    rig.tick(wrench=(10.0, 0.0))
    rig.tick(wrench=(25.0, 0.0))
    assert rig.state.mode is Mode.ACTIVE, (
        "one sample is no contact, nor two that do not follow each other"
    )
    rig.tick(wrench=(25.0, 0.0))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "contact")
    rig.tick(chunk(seq=2, stamp_ns=rig.now), wrench=(25.0, 0.0))
    assert rig.state.mode is Mode.HOLD
    rig.tick(chunk(seq=3, stamp_ns=rig.now), wrench=(5.0, 0.0))
    assert rig.state.mode is Mode.ACTIVE, (
        "the cause is gone, and the next command starts from where the arm is"
    )
    for _ in range(2):
        rig.tick(wrench=(math.nan, 0.0))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "contact"), "a NaN is no permission"


def test_s10_torque_alone_holds():
    rig = active(contact_torque=5.0)
    for _ in range(2):
        rig.tick(wrench=(0.0, 5.1))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "contact")


def test_s17_the_robots_own_fault_is_a_fault_here_and_is_not_cleared_while_it_stands():
    rig = active()
    rig.tick(robot_fault="reflex")
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "robot:reflex")
    rig.tick(robot_fault="reflex", reset_fault="robot:reflex")
    assert rig.state.mode is Mode.FAULT
    rig.tick(reset_fault="robot:reflex")
    assert rig.state.mode is Mode.DISARMED


def test_s13_a_robot_that_recovers_does_so_from_where_it_is():
    rig = active()
    for _ in range(5):
        rig.tick()
    rig.follow = False
    stopped = rig.pose = (rig.pose[0] - 0.004, *rig.pose[1:])
    rig.tick(robot_fault="reflex")
    for _ in range(6):
        beyond = rig.tick(robot_fault="reflex").target
    assert beyond[0] - stopped[0] > 0.003, "the set-point has braked a little further on"
    assert rig.tick(recover=True).target == beyond, (
        "it is the robot that must say that it follows nothing"
    )
    at = rig.tick(robot_fault="reflex", recover=True)
    while at.suppress_setpoint:  # until it has been seen at rest
        at = rig.tick(robot_fault="reflex")
    assert (at.target, at.mode, rig.state.cause) == (stopped, Mode.FAULT, "robot:reflex")
    rig.tick(reset_fault="robot:reflex")
    assert (rig.tick().target, rig.state.mode) == (stopped, Mode.DISARMED)
    rig = active()
    for _ in range(5):
        rig.tick()
    held = rig.pose
    assert rig.tick(recover=True, pose=(held[0] - 0.004, *held[1:])).target[0] >= held[0], (
        "nor while it moves"
    )


def test_s13_the_first_cause_of_a_fault_stays_until_it_is_named():
    rig = active()
    rig.tick(robot_fault="reflex")
    rig.tick(estops=(EStop("pendant", True, 0.0),))
    assert rig.state.cause == "robot:reflex"


def test_s14_while_disarmed_an_estop_latches_nothing_but_nothing_can_be_armed():
    rig = Rig().settle()
    silent = EStop("pendant", False, math.inf)
    rig.tick(estops=(silent,))
    assert rig.state.mode is Mode.DISARMED
    rig.tick(estops=(silent,), arm=True)
    assert rig.state.mode is Mode.DISARMED
    rig.tick(estops=(EStop("pendant", False, 0.0),), arm=True)
    assert rig.state.mode is Mode.ARMED
