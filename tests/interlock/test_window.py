"""The window of an action: where it begins and ends, and what is limited in it."""

import math
from dataclasses import replace

import pytest

from rlinf_core.interlock import Mode
from rlinf_core.interlock.types import Window
from tests.interlock.conftest import HOME, JOINTS, TICK_NS, Rig, chunk, joint_limits, limits
from tests.interlock.test_trajectory import ORIGIN, make_trajectory, place

COMMAND = chunk(3, 7 * TICK_NS, ((0.01, 0.0, 0.0), (0.0, 0.02, 0.0)), dt_s=0.05)


def test_a_window_begins_where_the_set_point_is_and_one_of_another_action_ends():
    trajectory, notes = make_trajectory()
    wanted = trajectory.play(COMMAND, 0, None, None)
    assert wanted == ((0.01 / 0.05, 0.0, 0.0), (0.0, 0.0, 0.0)) and trajectory.window == Window(
        COMMAND, 0, ORIGIN
    )
    first = trajectory.window
    trajectory.play(COMMAND, 0, None, None)
    assert trajectory.window is first and trajectory.applied == []
    assert trajectory.play(COMMAND, 1, None, None) == ((0.0, 0.02 / 0.05, 0.0), (0.0, 0.0, 0.0))
    assert trajectory.window == Window(COMMAND, 1, ORIGIN) and [
        record.index for record in trajectory.applied
    ] == [0]
    trajectory.play(replace(COMMAND), 1, None, None)
    assert [record.index for record in trajectory.applied] == [0, 1] and notes == []


def test_what_is_reported_of_an_action():
    trajectory, notes = make_trajectory(
        window=Window(COMMAND, 1, place(-0.01), frozenset({"speed", "acceleration"}))
    )
    trajectory.finish_window()
    (record,) = trajectory.applied
    assert (record.source, record.session, record.seq, record.index, record.policy_version) == (
        "policy",
        "a",
        3,
        1,
        7,
    )
    assert (record.start_ns, record.observation_stamp_ns) == (7 * TICK_NS + 50_000_000, 7 * TICK_NS)
    assert record.requested == (0.0, 0.02, 0.0) and record.executed == pytest.approx(
        (0.01, 0.0, 0.0)
    )
    assert record.limits == ("acceleration", "speed")
    assert notes == [("limited", "acceleration,speed", COMMAND, 1)] and trajectory.window.done
    trajectory.finish_window()
    assert len(trajectory.applied) == len(notes) == 1, "once"
    nothing, notes = make_trajectory()
    nothing.finish_window()
    assert nothing.applied == [] == notes
    nothing.motions, nothing.window = (), Window(COMMAND, 0, ())
    nothing.finish_window()
    assert nothing.applied == []


def test_a_window_ends_with_the_last_tick_before_the_next_action():
    for now, done in ((TICK_NS, True), (TICK_NS - 1, False), (TICK_NS + 1, True)):
        trajectory, _ = make_trajectory(window=Window(COMMAND, 0, ORIGIN))
        trajectory.move(ORIGIN, now, 2 * TICK_NS)
        assert trajectory.window.done is done is bool(trajectory.applied)


def test_only_an_action_in_play_is_limited():
    wanted = ((9.0, 0.0, 0.0), (0.0, 9.0, 0.0))
    trajectory, _ = make_trajectory(window=Window(COMMAND, 0, ORIGIN))
    trajectory.move(wanted, 0, 9 * TICK_NS)
    assert trajectory.window.limits == {"speed", "acceleration"}
    trajectory, _ = make_trajectory(window=Window(COMMAND, 0, ORIGIN, done=True))
    trajectory.move(wanted, 0, 0)
    assert trajectory.window == Window(COMMAND, 0, ORIGIN, done=True)
    trajectory, _ = make_trajectory()
    trajectory.move(wanted, 0, 9 * TICK_NS)
    trajectory.limited_by({"distance"})
    assert trajectory.window is None
    window = Window(COMMAND, 0, ORIGIN, frozenset({"a", "b"}))
    trajectory, _ = make_trajectory(window=window)
    for causes in ({"a"}, {"a", "b"}, set()):
        trajectory.limited_by(causes)
        assert trajectory.window is window
    trajectory.limited_by({"a", "c"})
    assert trajectory.window.limits == {"a", "b", "c"}


@pytest.mark.parametrize(
    "distance_m, fraction",
    [(None, 1.0), (0.02, 1.0), (0.03, 1.0), (0.01, 0.5), (0.019, 0.95), (0.001, 0.05)],
)
def test_s11_the_nearer_the_slower(distance_m, fraction):
    trajectory, _ = make_trajectory()
    turning = chunk(actions=((0.01, 0.0, 0.0, 0.0, 0.0, 0.02),))
    full = trajectory.play(turning, 0, None, None)
    assert full[0][0] == pytest.approx(0.1) and full[1] != (0.0, 0.0, 0.0)
    slow = trajectory.play(turning, 0, None, distance_m)
    assert slow == tuple(pytest.approx([fraction * value for value in part]) for part in full)
    assert trajectory.window.limits == (frozenset() if fraction == 1.0 else {"distance"})


@pytest.mark.parametrize(
    "arm, action, wanted",
    [
        (place(-0.029), (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)),
        (place(-0.031), (0.01, 0.0, 0.0), (-0.005, 0.0, 0.0)),
        (place(-0.031), (0.01, 0.01, 0.0), (-0.005, 0.1, 0.0)),
        (place(-0.04), (0.01, -0.01, 0.01), (-0.05, -0.1, 0.1)),
        (place(-0.031), (-0.01, 0.0, 0.0), (-0.1, 0.0, 0.0)),
        (place(-0.031), (0.0, 0.01, 0.0), (0.0, 0.1, 0.0)),
        (place(0.031), (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)),
        (place(0.031), (-0.01, 0.0, 0.0), (0.005, 0.0, 0.0)),
        (None, (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)),
    ],
)
def test_s08_a_set_point_that_is_far_from_the_arm_does_not_go_further(arm, action, wanted):
    trajectory, _ = make_trajectory()
    position, turn = trajectory.play(chunk(actions=((*action, 0.0, 0.0, 0.02),)), 0, arm, None)
    assert position == pytest.approx(wanted) and turn[2] != 0.0, "the rotation goes on"
    limited = wanted != pytest.approx([10.0 * value for value in action])
    assert trajectory.window.limits == ({"divergence"} if limited else frozenset())


def test_s08_the_divergence_itself_may_still_be_gone_to():
    """Numbers that floats hold exactly."""
    command = chunk(actions=((0.125, 0.0, 0.0),), dt_s=0.5)
    trajectory, _ = make_trajectory(limits(divergence=0.25))
    assert trajectory.play(command, 0, place(-0.25), None)[0] == (0.25, 0.0, 0.0)
    assert trajectory.window.limits == frozenset()
    trajectory, _ = make_trajectory(
        joint_limits(joint_divergence=0.25), ((0.25, 0.65, *JOINTS[2:]),)
    )
    command = chunk(actions=((0.125, -0.125, *[0.0] * 5),), dt_s=0.5, mode="joint_delta")
    (velocity,) = trajectory.play(command, 0, (JOINTS,), None)
    assert velocity == (0.25, -0.25, *[0.0] * 5), "the second one is too far, and comes back"
    assert trajectory.window.limits == frozenset()


def test_s08_a_tool_that_presses_slides_along_and_no_further_from_the_arm():
    """Against a floor: the arm follows along it and not into it, while it is asked for both."""
    rig, floor = Rig(follow=False).arm(), HOME[2]
    errors = []
    for number in range(300):
        if number % 10 == 0:
            rig.tick(chunk(number + 1, rig.now, ((0.005, 0.0, -0.02),)))
        else:
            rig.tick()
        x, y, z = rig.output.target[:3]
        rig.pose = (x, y, max(z, floor), *HOME[3:])
        errors.append(math.dist(rig.output.target[:3], rig.pose[:3]))
    assert rig.state.mode is Mode.ACTIVE and rig.pose[0] - HOME[0] > 0.08
    assert max(errors) < 0.03 + 0.015 and max(errors[150:]) < 0.031


@pytest.mark.parametrize(
    "action, wanted",
    [
        ((0.02, 0.05), None),
        ((0.001, -0.05), None),
        ((-0.02, -0.05), (-0.2, -0.5)),
        ((0.0, 0.05), (0.0, 0.5)),
    ],
)
def test_s08_a_joint_that_is_too_far_goes_no_further_whatever_the_others_do(action, wanted):
    """The first is stuck 0.11 rad behind, the second on its way back from 0.09, of 0.1 that they
    may be.
    """
    at = (JOINTS[0] + 0.11, JOINTS[1] - 0.09, *JOINTS[2:])
    trajectory, _ = make_trajectory(joint_limits(joint_divergence=0.1), (at,))
    (velocity,) = trajectory.play(
        chunk(actions=((*action, *[0.0] * 5),), mode="joint_delta"), 0, (JOINTS,), None
    )
    assert velocity == pytest.approx((*(wanted or (0.0, 0.0)), *[0.0] * 5)), (
        "all stop together, or none does"
    )
    assert trajectory.window.limits == (frozenset() if wanted else {"divergence"})


def test_s08_each_group_stops_for_itself():
    trajectory, _ = make_trajectory()
    position, turn = trajectory.play(
        chunk(actions=((0.01, 0.0, 0.0, 0.0, 0.02, 0.0),)), 0, place(0.0, 0.31), None
    )
    assert position == pytest.approx((0.1, 0.0, 0.0)) and turn != (0.0, 0.0, 0.0), (
        "it turns towards the arm"
    )
    position, turn = trajectory.play(
        chunk(actions=((0.01, 0.0, 0.0, 0.0, -0.02, 0.0),)), 0, place(0.0, 0.31), None
    )
    assert position == pytest.approx((0.1, 0.0, 0.0)) and turn == pytest.approx((0.0, 0.05, 0.0)), (
        "it is drawn back"
    )
