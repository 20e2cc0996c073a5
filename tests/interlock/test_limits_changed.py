"""S19: limits that change while a station runs."""


import pytest

from rlinf_core.interlock import State, adopt, with_values
from tests.interlock.conftest import HOME, S9, Rig, limits, stream, until


def test_s19_limits_can_change_before_the_arm_was_ever_seen():
    state, reason = adopt(with_values(limits(), {"speed": 0.1}), State(), limits())
    assert reason == "" and state == State()


@pytest.mark.parametrize("changes", [{"acceleration": 2.0}, {"jerk": 5.0}, {"rotation_jerk": 20.0}])
def test_s19_acceleration_and_jerk_change_only_at_rest(changes):
    rig = Rig(limits(**S9)).arm()
    stream(rig, (0.02, 0.0, 0.0, 0.0, 0.0, 0.02), actions=4)
    new = with_values(rig.limits, changes)
    assert "can only change while the set-point rests" in adopt(new, rig.state, rig.limits)[1]
    until(rig, lambda: rig.state.still)
    assert adopt(new, rig.state, rig.limits)[1] == ""


def test_s19_a_gripper_neither_comes_nor_goes():
    rig = Rig(limits(gripper_width=0.08), gripper=0.04).arm()
    assert "whether there is a gripper" in adopt(with_values(rig.limits, {"gripper_width": 0.0}), rig.state, rig.limits)[1]


def test_s19_a_set_point_outside_may_get_limits_that_hold_it():
    rig = Rig(pose=(0.9, 0.0, 0.2, *HOME[3:])).settle()
    wider = with_values(rig.limits, {"box_high": [1.0, 0.25, 0.45]})
    assert adopt(wider, rig.state, rig.limits)[1] == ""
    narrower = with_values(limits(), {"box_high": [0.45, 0.25, 0.45]})
    assert "could not stop inside" in adopt(narrower, Rig().settle().state, limits())[1]
