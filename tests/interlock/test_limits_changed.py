"""S19: limits that change while a station runs."""

import math

import pytest

from rlinf_core.interlock import Mode, State, adopt_limits, with_values
from tests.interlock.conftest import (
    HOME,
    JOINTS,
    S9,
    Rig,
    chunk,
    joint_limits,
    limits,
    stream,
    until,
)


def test_s19_limits_can_change_before_the_arm_was_ever_seen():
    state, reason = adopt_limits(with_values(limits(), {"speed": 0.1}), State(), limits())
    assert reason == "" and state == State()


@pytest.mark.parametrize("changes", [{"acceleration": 2.0}, {"jerk": 5.0}, {"rotation_jerk": 20.0}])
def test_s19_acceleration_and_jerk_change_only_at_rest(changes):
    rig = Rig(limits(**S9)).arm()
    stream(rig, (0.02, 0.0, 0.0, 0.0, 0.0, 0.02), actions=4)
    new = with_values(rig.limits, changes)
    assert (
        "can only change while the set-point rests" in adopt_limits(new, rig.state, rig.limits)[1]
    )
    until(rig, lambda: all(motion.settled for motion in rig.state.motions))
    assert adopt_limits(new, rig.state, rig.limits)[1] == ""


LAST_STEP = {
    "position": ("tcp_delta", (0.02, 0.01, 0.0), ("acceleration", "jerk")),
    "rotation": (
        "tcp_delta",
        (0.0, 0.0, 0.0, 0.0, 0.02, 0.03),
        ("rotation_acceleration", "rotation_jerk"),
    ),
    "joints": (
        "joint_delta",
        (0.03, 0.01, 0.0, 0.0, 0.0, 0.0, -0.02),
        ("joint_acceleration", "joint_jerk"),
    ),
}


@pytest.mark.parametrize("name", LAST_STEP)
@pytest.mark.parametrize("kind", [0, 1])
def test_s19_no_tightened_shape_holds_before_the_last_step_towards_rest_is_over(name, kind):
    """The set-point's last step ends at a speed; to lose it takes an acceleration, and then a jerk,
    of the old limits.
    """
    mode, action, names = LAST_STEP[name]
    shape = dict(
        zip(
            (
                "acceleration",
                "jerk",
                "rotation_acceleration",
                "rotation_jerk",
                "joint_acceleration",
                "joint_jerk",
            ),
            (1.0, 10.0) * 3,
            strict=True,
        )
    )
    rig = (
        Rig(joint_limits(**shape), joints=JOINTS).arm()
        if mode == "joint_delta"
        else Rig(limits(**shape)).arm()
    )
    stream(rig, action, actions=3)
    old = rig.limits
    new = with_values(old, {names[kind]: getattr(old, names[kind]) / 50.0})
    group, index = new.groups[name == "rotation"], int(name == "rotation")
    places, taken_at, still_at = [rig.state.motions[index].set_point], None, None
    for number in range(200):
        rig.tick()
        places.append(rig.state.motions[index].set_point)
        still_at = number if still_at is None and rig.state.still else still_at
        state, reason = adopt_limits(new, rig.state, old)
        if reason == "":
            rig.state, rig.limits, taken_at = state, new, number
            break
    for _ in range(3):
        rig.tick()
        places.append(rig.state.motions[index].set_point)
    tick = group.tick
    speeds = [
        [(b - a) / tick for a, b in zip(*pair, strict=True)]
        for pair in zip(places, places[1:], strict=False)
    ]
    changes = [
        [(b - a) / tick for a, b in zip(*pair, strict=True)]
        for pair in zip(speeds, speeds[1:], strict=False)
    ]
    jerks = [
        [(b - a) / tick for a, b in zip(*pair, strict=True)]
        for pair in zip(changes, changes[1:], strict=False)
    ]
    assert taken_at == still_at + 2
    assert (
        any(map(any, speeds[:-3]))
        and not any(map(any, changes[-3:]))
        and not any(map(any, jerks[-3:]))
    )


def test_s19_a_set_point_that_was_put_somewhere_takes_new_shapes_at_once():
    rig = Rig(limits(**S9)).settle()
    assert (
        adopt_limits(
            with_values(rig.limits, {"acceleration": 0.1, "rotation_jerk": 1.0}),
            rig.state,
            rig.limits,
        )[1]
        == ""
    )


def test_s19_a_gripper_neither_comes_nor_goes():
    rig = Rig(limits(gripper_width=0.08), gripper=0.04).arm()
    assert (
        "gripper_width: a gripper cannot be added"
        in adopt_limits(with_values(rig.limits, {"gripper_width": 0.0}), rig.state, rig.limits)[1]
    )


def test_s19_a_set_point_outside_may_get_limits_that_hold_it():
    rig = Rig(pose=(0.9, 0.0, 0.2, *HOME[3:])).settle()
    wider = with_values(rig.limits, {"box_high": [1.0, 0.25, 0.45]})
    assert adopt_limits(wider, rig.state, rig.limits)[1] == ""
    narrower = with_values(limits(), {"box_high": [0.45, 0.25, 0.45]})
    assert "could not stop inside" in adopt_limits(narrower, Rig().settle().state, limits())[1]


@pytest.mark.parametrize("reduced", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("turn", [0.0, 0.4, 1.5, 3.1])
@pytest.mark.parametrize("stops", [False, True])
def test_s19_after_a_tightened_speed_the_set_point_is_below_the_documented_bound(
    reduced, turn, stops
):
    """The mean, over the filter's points, of a speed that falls by the acceleration to the new
    limit; also in FAULT.
    """
    box = dict(box_low=(-3.0, -3.0, -3.0), box_high=(3.0, 3.0, 3.0), divergence=math.inf)
    rig = Rig(limits(**S9, **box)).arm()
    stream(rig, (0.03, 0.0, 0.0), actions=9)
    old, new = rig.limits, with_values(rig.limits, {"speed": rig.limits.speed * reduced})
    group = new.groups[0]
    assert group.norm(rig.state.motions[0].velocity) == pytest.approx(old.speed)
    rig.state, reason = adopt_limits(new, rig.state, old)
    assert reason == ""
    rig.limits = new
    fastest, before, last = [old.speed] * group.points, rig.output.target[:3], 0
    # elsewhere: it brakes along its path first
    action = (
        0.02 * math.cos(turn),
        0.02 * math.sin(turn),
        0.0,
    )
    for number in range(120):
        command = chunk(100 + number, rig.now, (action,) * 2)
        rig.tick(*([] if stops else [command]), robot_fault="silent" if stops else "")
        fastest = [*fastest[1:], max(new.speed, fastest[-1] - new.acceleration * new.tick)]
        speed = math.dist(rig.output.target[:3], before) / new.tick
        assert speed <= math.fsum(fastest) / len(fastest) + 1e-9
        before, last = rig.output.target[:3], number if speed > new.speed + 1e-9 else last
    assert (rig.output.mode is Mode.FAULT) == stops
    assert last < (old.speed - new.speed) / (new.acceleration * new.tick) + group.points
