"""trajectory.py and state.adopt: the way back to the arm, what an action's window becomes, going
over to other limits.
"""

import math
from dataclasses import replace

import pytest

from rlinf_core.interlock import Mode, State, adopt_limits
from rlinf_core.interlock.motion import Motion, stopping_speed
from rlinf_core.interlock.trajectory import DIVERGED_FACTOR, Trajectory
from tests.interlock.conftest import HOME, JOINTS, Rig, joint_limits, limits, stream

NAN, INF = math.nan, math.inf
ORIGIN = ((0.5, 0.0, 0.25), (0.0, 0.0, 0.0))
GRIP = limits(gripper_width=0.08)


def place(x=0.0, turn=0.0, *gripper):
    return ((0.5 + x, 0.0, 0.25), (0.0, turn, 0.0), *([gripper] if gripper else []))


def make_trajectory(limits_=None, at=ORIGIN, goal=None, window=None):
    """A trajectory that rests somewhere, and the list of what it notes."""
    limits_ = limits_ or limits()
    notes = []
    motions = tuple(map(Motion.at_rest, limits_.groups, at))
    return Trajectory(limits_, motions, window, goal, lambda *note: notes.append(note)), notes


# How far from the arm
def test_s21_apart_is_measured_by_group_and_leaves_the_gripper_out():
    trajectory, _ = make_trajectory(GRIP, (*ORIGIN, (0.02,)))
    assert trajectory.tracking_error(place(0.03, 0.25, 0.08)) == pytest.approx([0.03, 0.25])
    assert trajectory.tracking_error(None) == [0.0, 0.0] and trajectory.set_points() == (
        *ORIGIN,
        (0.02,),
    )
    joints, _ = make_trajectory(joint_limits(gripper_width=0.08), (JOINTS, (0.02,)))
    assert joints.tracking_error(((*JOINTS[:6], JOINTS[6] + 0.25), (0.0,))) == pytest.approx([0.25])
    assert joints.tracking_error(None) == [0.0]


def test_divergences_are_those_of_the_mode():
    assert make_trajectory(limits(divergence=0.02, rotation_divergence=0.2))[0].divergences() == (
        0.02,
        0.2,
    )
    assert make_trajectory(joint_limits(joint_divergence=0.07), (JOINTS,))[0].divergences() == (
        0.07,
    )


def far(size):
    """Return a place at this exact distance from a set-point in the origin."""
    return ((size, 0.0, 0.0), (0.0, 0.0, 0.0))


ZERO = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@pytest.mark.parametrize("largest", [0.03, 0.25])
def test_s08_too_far_and_adrift_begin_beyond_their_limit(largest):
    trajectory, _ = make_trajectory(limits(divergence=largest), ZERO)
    assert not trajectory.too_far(far(largest)) and trajectory.too_far(
        far(math.nextafter(largest, 1))
    )
    assert not trajectory.too_far(None)
    assert not trajectory.has_diverged(far(DIVERGED_FACTOR * largest)) and trajectory.has_diverged(
        far(math.nextafter(DIVERGED_FACTOR * largest, 1))
    )
    assert not trajectory.has_diverged(None)
    turned, _ = make_trajectory(limits(rotation_divergence=largest), ZERO)
    assert not turned.too_far((ZERO[0], (0.0, largest, 0.0))) and turned.too_far(
        (ZERO[0], (0.0, largest + 1e-9, 0.0))
    )


def test_s21_adrift_is_a_resting_set_point_that_goes_nowhere():
    away = far(0.1)
    trajectory, _ = make_trajectory(at=ZERO)
    assert trajectory.has_diverged(away)
    trajectory.goal = away
    assert not trajectory.has_diverged(away), "it is on its way"
    trajectory.goal = ZERO
    assert trajectory.has_diverged(away), "it has arrived, where the arm no longer is"
    trajectory.goal = None
    trajectory.motions = tuple(motion._replace(still=False) for motion in trajectory.motions)
    assert not trajectory.has_diverged(away), "it moves"
    trajectory.motions = ()
    assert not trajectory.has_diverged(away)


@pytest.mark.parametrize(
    "limits_, at, near, beyond",
    [
        (limits(), ZERO, far(0.01), far(0.010001)),
        (limits(), ZERO, (ZERO[0], (0.05, 0.0, 0.0)), (ZERO[0], (0.050001, 0.0, 0.0))),
        (joint_limits(), ((0.0,) * 7,), ((0.0,) * 6 + (0.05,),), ((0.0,) * 6 + (-0.050001,),)),
    ],
)
def test_misaligned_beyond_a_centimetre_or_50_mrad(limits_, at, near, beyond):
    trajectory, _ = make_trajectory(limits_, at)
    assert not trajectory.misaligned(near) and trajectory.misaligned(beyond)


def test_the_first_workspace_that_does_not_hold_the_arm_is_named():
    trajectory, _ = make_trajectory(GRIP, (*ORIGIN, (0.0,)))
    for arm, name in (
        (place(0.0, 0.0, 0.0), ""),
        (place(0.5, 0.9, 0.0), "box"),
        (place(0.0, 0.9, 0.0), "rotation"),
        (place(0.0, 0.0, 0.09), "gripper"),
    ):
        assert trajectory.exceeded_workspace(arm) == name
    joints, _ = make_trajectory(joint_limits(), (JOINTS,))
    assert (
        joints.exceeded_workspace((JOINTS,)) == ""
        and joints.exceeded_workspace(((9.0,) * 7,)) == "joints"
    )
    with pytest.raises(ValueError):
        trajectory.exceeded_workspace(ORIGIN)


@pytest.mark.parametrize(
    "limits_, at, arm, name",
    [
        (limits(divergence=0.25), ZERO, far(0.25), ""),
        (limits(divergence=0.25), ZERO, far(math.nextafter(0.25, 1)), "box"),
        (limits(divergence=0.1), ORIGIN, place(0.15), ""),
        (limits(divergence=0.1), ORIGIN, place(0.25), "box"),
        (limits(rotation_divergence=0.25), ORIGIN, place(0.0, 0.75), "rotation"),
        (limits(rotation_divergence=0.25), ORIGIN, place(0.0, 0.4), ""),
        (joint_limits(joint_divergence=0.25), (JOINTS,), ((3.0, *JOINTS[1:]),), "joints"),
    ],
)
def test_s21_a_workspace_is_left_by_an_arm_beyond_it_and_its_divergence(limits_, at, arm, name):
    assert make_trajectory(limits_, at)[0].left_workspace(arm) == name


# The way back
def test_the_way_back_leads_where_the_arm_rests_but_not_its_gripper():
    trajectory, _ = make_trajectory(GRIP, (*ORIGIN, (0.02,)))
    trajectory.set_goal(place(0.1, 0.2, 0.08))
    assert trajectory.goal == place(0.1, 0.2)
    assert trajectory.velocities_to_goal()[2] == (0.0,), "it grasps"
    joints, _ = make_trajectory(joint_limits(gripper_width=0.08), (JOINTS, (0.02,)))
    joints.set_goal((JOINTS, (0.0,)))
    assert joints.goal == (JOINTS,)


def test_the_goal_is_lost_when_the_arm_leaves_it_by_more_than_it_may_diverge():
    trajectory, _ = make_trajectory(limits(divergence=0.25), ZERO, goal=ZERO)
    lost = trajectory.lost_its_goal
    assert lost(None) and not lost(far(0.25)) and lost(far(0.2501))
    assert lost((ZERO[0], (0.0, 0.301, 0.0))) and not lost((ZERO[0], (0.0, 0.3, 0.0)))
    trajectory.goal = None
    assert not trajectory.lost_its_goal(far(9.0)), "there is none to lose"


def test_homing_wants_the_speed_from_which_half_the_acceleration_stops_at_the_goal():
    trajectory, _ = make_trajectory(at=ZERO, goal=((0.1, 0.0, 0.0), (0.0, -0.2, 0.0)))
    assert trajectory.velocities_to_goal() == (
        pytest.approx((0.25, 0.0, 0.0)),
        pytest.approx((0.0, -0.5, 0.0)),
    )
    trajectory.goal = ((0.0, 0.0, -0.01), (0.0, 0.0, 0.02))
    slow, turn = stopping_speed(0.01, 2.0, 0.01), stopping_speed(0.02, 1.25, 0.01)
    assert trajectory.velocities_to_goal() == (
        pytest.approx((0.0, 0.0, -slow)),
        pytest.approx((0.0, 0.0, turn)),
    )
    assert slow < 0.25 and turn < 0.5
    trajectory.goal = ((1e-9, 0.0, 0.0), (0.0, 1.1e-9, 0.0))
    assert trajectory.velocities_to_goal() == ((0.0, 0.0, 0.0), pytest.approx((0.0, 1.1e-7, 0.0)))
    trajectory.goal = None
    assert trajectory.velocities_to_goal() == ZERO
    trajectory.goal = ((0.0, 0.0, 0.05),)
    assert trajectory.velocities_to_goal() == (pytest.approx((0.0, 0.0, 0.25)), (0.0, 0.0, 0.0)), (
        "groups without a goal rest"
    )


@pytest.mark.parametrize("changes", [{}, {"acceleration": 1.0, "jerk": 10.0}, {"tick": 0.004}])
def test_homing_arrives_exactly_and_in_the_time_that_its_speed_takes(changes):
    limits_ = limits(**changes)
    goal = ((0.62, -0.1, 0.3), (0.2, 0.1, -0.1))
    trajectory, _ = make_trajectory(limits_, goal=goal)
    fastest, ticks = 0.0, 0
    while not trajectory.arrived():
        before = trajectory.set_points()
        trajectory.move(trajectory.velocities_to_goal(), 0, 0)
        fastest = max(fastest, math.dist(before[0], trajectory.set_points()[0]) / limits_.tick)
        ticks += 1
        assert ticks < 2000
    for at, target in zip(trajectory.set_points(), goal, strict=True):
        assert at == pytest.approx(target, abs=2e-9)
    assert fastest == pytest.approx(0.25, abs=1e-9)
    least = math.dist(ORIGIN[0], goal[0]) / 0.25
    assert least < ticks * limits_.tick < least + 1.0


def test_arrived_is_to_rest_within_two_nanometres_of_the_goal():
    trajectory, _ = make_trajectory(at=ZERO, goal=far(2e-9))
    assert trajectory.arrived()
    trajectory.goal = far(2.1e-9)
    assert not trajectory.arrived()
    trajectory.goal = ZERO
    assert trajectory.arrived()
    trajectory.motions = tuple(motion._replace(still=False) for motion in trajectory.motions)
    assert not trajectory.arrived()
    trajectory, _ = make_trajectory(at=ZERO)
    assert not trajectory.arrived()
    trajectory, _ = make_trajectory(GRIP, (*ZERO, (0.01,)), goal=ZERO)
    assert trajectory.arrived()
    trajectory.goal = (ZERO[0], (0.0, 0.0, 1e-3))
    assert not trajectory.arrived()


def test_a_set_point_outside_may_go_back_in_and_nowhere_else():
    """The wall would bar the way; without a goal it does."""
    outside = ((0.75, 0.0, 0.25), (0.0, 0.0, 0.0))
    for goal, moves in ((ORIGIN, True), (None, False)):
        trajectory, _ = make_trajectory(at=outside, goal=goal)
        for _ in range(5):
            trajectory.move(((0.0, 0.2, 0.0), (0.0, 0.0, 0.0)), 0, 0)
        assert (trajectory.set_points()[0][1] > 0.0) is moves
    inside, _ = make_trajectory(at=((0.7, 0.0, 0.25), (0.0, 0.0, 0.0)), goal=ORIGIN)
    for _ in range(5):
        inside.move(((0.2, 0.0, 0.0), (0.0, 0.0, 0.0)), 0, 0)
    assert inside.set_points()[0][0] == 0.7, "inside the walls stand, goal or not"


def test_be_there_at_once_and_rest_where_the_set_points_are():
    trajectory, _ = make_trajectory(limits(acceleration=1.0, jerk=10.0), goal=ORIGIN)
    motions = trajectory.motions
    trajectory.rest()
    assert trajectory.motions is motions and trajectory.goal == ORIGIN, "what rests is left alone"
    for _ in range(5):
        trajectory.move(((0.2, 0.0, 0.0), (0.0, 0.0, 0.1)), 0, 0)
    at = trajectory.set_points()
    assert not trajectory.still
    trajectory.rest()
    assert trajectory.still and trajectory.set_points() == at and trajectory.goal is None
    trajectory.goal = ORIGIN
    trajectory.rest_at(place(0.1))
    assert trajectory.set_points() == place(0.1) and trajectory.goal is None
    assert trajectory.motions[0].trail == (place(0.1)[0],) * 20


# S19: other limits
def moving():
    rig = Rig(limits(acceleration=1.0, jerk=10.0)).arm()
    stream(rig, (0.02, 0.0, 0.0, 0.0, 0.0, 0.02), actions=4)
    assert rig.state.mode is Mode.ACTIVE and not rig.state.still
    return rig


def test_s19_the_state_is_taken_over_as_it_is_but_for_its_goal():
    rig = moving()
    state = replace(rig.state, goal=ORIGIN)
    taken, reason = adopt_limits(replace(rig.limits, speed=0.1), state, rig.limits)
    assert (
        reason == "" and taken == replace(state, goal=None) and taken.motions == rig.state.motions
    )


@pytest.mark.parametrize(
    "changes",
    [{"acceleration": 0.5}, {"jerk": 5.0}, {"rotation_acceleration": 1.0}, {"rotation_jerk": 9.0}],
)
def test_s19_shapes_change_at_rest_alone_and_then_begin_anew(changes):
    rig = moving()
    new = replace(rig.limits, **changes)
    assert adopt_limits(new, rig.state, rig.limits) == (
        rig.state,
        "acceleration and jerk can only change while the set-point rests",
    )
    still = Rig(rig.limits).arm()
    taken, reason = adopt_limits(new, still.state, still.limits)
    assert reason == "" and [len(motion.trail) for motion in taken.motions] == [
        group.points for group in new.groups
    ]
    assert [motion.set_point for motion in taken.motions] == [
        motion.set_point for motion in still.state.motions
    ]


def test_s19_what_could_not_stop_inside_is_said_by_group():
    rig = moving()
    x = rig.state.motions[0].position[0]
    for new, name in (
        (replace(rig.limits, box_high=(x + 0.001, 0.25, 0.45)), "position"),
        (replace(rig.limits, cone=0.02), "rotation"),
    ):
        assert adopt_limits(new, rig.state, rig.limits) == (
            rig.state,
            f"the set-point could not stop inside the new limits of its {name}",
        )
    trail = replace(rig.limits, box_low=(rig.state.motions[0].trail[0][0] + 1e-4, -0.25, 0.005))
    assert "its position" in adopt_limits(trail, rig.state, rig.limits)[1], (
        "all of its trail must lie inside"
    )


def test_s19_what_rests_outside_may_stay_there_under_any_limits():
    rig = Rig(pose=(0.9, 0.0, 0.2, *HOME[3:])).settle()
    for box_high in ((0.6, 0.25, 0.45), (0.8, 0.25, 0.45)):
        new = replace(rig.limits, box_high=box_high)
        assert adopt_limits(new, rig.state, rig.limits) == (rig.state, "")
    inside = Rig().settle()
    refused = adopt_limits(
        replace(inside.limits, box_high=(0.45, 0.25, 0.45)), inside.state, inside.limits
    )
    assert refused == (
        inside.state,
        "the set-point could not stop inside the new limits of its position",
    )


def test_s19_the_gripper_stays_and_the_old_limits_are_those_of_the_state():
    rig = Rig(GRIP, gripper=0.04).arm()
    without = replace(GRIP, gripper_width=0.0)
    assert adopt_limits(without, rig.state, GRIP) == (
        rig.state,
        "gripper_width: a gripper cannot be added or removed while the interlock runs",
    )
    assert adopt_limits(without, State(), GRIP) == (
        State(),
        "gripper_width: a gripper cannot be added or removed while the interlock runs",
    )
    assert (
        adopt_limits(GRIP, rig.state, without)[1]
        == "gripper_width: a gripper cannot be added or removed while the interlock runs"
    )
