"""trajectory.py and state.adopt: the way back to the arm, what an action's window becomes, going over to other limits."""

import math
from dataclasses import replace

import pytest

from rlinf_core.interlock import Mode, State, adopt
from rlinf_core.interlock.motion import Motion, stopping_speed
from rlinf_core.interlock.trajectory import ADRIFT, Trajectory
from rlinf_core.interlock.types import Window
from tests.interlock.conftest import HOME, JOINTS, TICK_NS, Rig, chunk, joint_limits, limits, stream

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
    assert trajectory.tracking_error(None) == [0.0, 0.0] and trajectory.set_points() == (*ORIGIN, (0.02,))
    joints, _ = make_trajectory(joint_limits(gripper_width=0.08), (JOINTS, (0.02,)))
    assert joints.tracking_error(((*JOINTS[:6], JOINTS[6] + 0.25), (0.0,))) == pytest.approx([0.25])
    assert joints.tracking_error(None) == [0.0]


def test_divergences_are_those_of_the_mode():
    assert make_trajectory(limits(divergence=0.02, rotation_divergence=0.2))[0].divergences() == (0.02, 0.2)
    assert make_trajectory(joint_limits(joint_divergence=0.07), (JOINTS,))[0].divergences() == (0.07,)


def far(size):
    """Where exactly so far from a set-point in the origin."""
    return ((size, 0.0, 0.0), (0.0, 0.0, 0.0))


ZERO = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@pytest.mark.parametrize("largest", [0.03, 0.25])
def test_s08_too_far_and_adrift_begin_beyond_their_limit(largest):
    trajectory, _ = make_trajectory(limits(divergence=largest), ZERO)
    assert not trajectory.too_far(far(largest)) and trajectory.too_far(far(math.nextafter(largest, 1)))
    assert not trajectory.too_far(None)
    assert not trajectory.adrift(far(ADRIFT * largest)) and trajectory.adrift(far(math.nextafter(ADRIFT * largest, 1)))
    assert not trajectory.adrift(None)
    turned, _ = make_trajectory(limits(rotation_divergence=largest), ZERO)
    assert not turned.too_far((ZERO[0], (0.0, largest, 0.0))) and turned.too_far((ZERO[0], (0.0, largest + 1e-9, 0.0)))


def test_s21_adrift_is_a_resting_set_point_that_goes_nowhere():
    away = far(0.1)
    trajectory, _ = make_trajectory(at=ZERO)
    assert trajectory.adrift(away)
    trajectory.goal = away
    assert not trajectory.adrift(away), "it is on its way"
    trajectory.goal = ZERO
    assert trajectory.adrift(away), "it has arrived, where the arm no longer is"
    trajectory.goal = None
    trajectory.motions = tuple(motion._replace(still=False) for motion in trajectory.motions)
    assert not trajectory.adrift(away), "it moves"
    trajectory.motions = ()
    assert not trajectory.adrift(away)


@pytest.mark.parametrize("limits_, at, near, beyond", [
    (limits(), ZERO, far(0.01), far(0.010001)),
    (limits(), ZERO, (ZERO[0], (0.05, 0.0, 0.0)), (ZERO[0], (0.050001, 0.0, 0.0))),
    (joint_limits(), ((0.0,) * 7,), ((0.0,) * 6 + (0.05,),), ((0.0,) * 6 + (-0.050001,),))])
def test_misaligned_beyond_a_centimetre_or_50_mrad(limits_, at, near, beyond):
    trajectory, _ = make_trajectory(limits_, at)
    assert not trajectory.misaligned(near) and trajectory.misaligned(beyond)


def test_the_first_workspace_that_does_not_hold_the_arm_is_named():
    trajectory, _ = make_trajectory(GRIP, (*ORIGIN, (0.0,)))
    for arm, name in ((place(0.0, 0.0, 0.0), ""), (place(0.5, 0.9, 0.0), "box"), (place(0.0, 0.9, 0.0), "rotation"),
                      (place(0.0, 0.0, 0.09), "gripper")):
        assert trajectory.outside(arm) == name
    joints, _ = make_trajectory(joint_limits(), (JOINTS,))
    assert joints.outside((JOINTS,)) == "" and joints.outside(((9.0,) * 7,)) == "joints"
    with pytest.raises(ValueError):
        trajectory.outside(ORIGIN)


# The way back
def test_the_way_back_leads_where_the_arm_rests_but_not_its_gripper():
    trajectory, _ = make_trajectory(GRIP, (*ORIGIN, (0.02,)))
    trajectory.go_back(place(0.1, 0.2, 0.08))
    assert trajectory.goal == place(0.1, 0.2)
    assert trajectory.homing()[2] == (0.0,), "it grasps"
    joints, _ = make_trajectory(joint_limits(gripper_width=0.08), (JOINTS, (0.02,)))
    joints.go_back((JOINTS, (0.0,)))
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
    assert trajectory.homing() == (pytest.approx((0.25, 0.0, 0.0)), pytest.approx((0.0, -0.5, 0.0)))
    trajectory.goal = ((0.0, 0.0, -0.01), (0.0, 0.0, 0.02))
    slow, turn = stopping_speed(0.01, 2.0, 0.01), stopping_speed(0.02, 1.25, 0.01)
    assert trajectory.homing() == (pytest.approx((0.0, 0.0, -slow)), pytest.approx((0.0, 0.0, turn)))
    assert slow < 0.25 and turn < 0.5
    trajectory.goal = ((1e-9, 0.0, 0.0), (0.0, 1.1e-9, 0.0))
    assert trajectory.homing() == ((0.0, 0.0, 0.0), pytest.approx((0.0, 1.1e-7, 0.0)))
    trajectory.goal = None
    assert trajectory.homing() == ZERO
    trajectory.goal = ((0.0, 0.0, 0.05),)
    assert trajectory.homing() == (pytest.approx((0.0, 0.0, 0.25)), (0.0, 0.0, 0.0)), "groups without a goal rest"


@pytest.mark.parametrize("changes", [{}, {"acceleration": 1.0, "jerk": 10.0}, {"tick": 0.004}])
def test_homing_arrives_exactly_and_in_the_time_that_its_speed_takes(changes):
    limits_ = limits(**changes)
    goal = ((0.62, -0.1, 0.3), (0.2, 0.1, -0.1))
    trajectory, _ = make_trajectory(limits_, goal=goal)
    fastest, ticks = 0.0, 0
    while not trajectory.arrived():
        before = trajectory.set_points()
        trajectory.move(trajectory.homing(), 0, 0)
        fastest = max(fastest, math.dist(before[0], trajectory.set_points()[0]) / limits_.tick)
        ticks += 1
        assert ticks < 2000
    for at, there in zip(trajectory.set_points(), goal, strict=True):
        assert at == pytest.approx(there, abs=2e-9)
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


# The window of an action
COMMAND = chunk(3, 7 * TICK_NS, ((0.01, 0.0, 0.0), (0.0, 0.02, 0.0)), dt_s=0.05)


def test_a_window_begins_where_the_set_point_is_and_one_of_another_action_ends():
    trajectory, notes = make_trajectory()
    wanted = trajectory.play(COMMAND, 0, None, None)
    assert wanted == ((0.01 / 0.05, 0.0, 0.0), (0.0, 0.0, 0.0)) and trajectory.window == Window(COMMAND, 0, ORIGIN)
    first = trajectory.window
    trajectory.play(COMMAND, 0, None, None)
    assert trajectory.window is first and trajectory.applied == []
    assert trajectory.play(COMMAND, 1, None, None) == ((0.0, 0.02 / 0.05, 0.0), (0.0, 0.0, 0.0))
    assert trajectory.window == Window(COMMAND, 1, ORIGIN) and [record.index for record in trajectory.applied] == [0]
    trajectory.play(replace(COMMAND), 1, None, None)
    assert [record.index for record in trajectory.applied] == [0, 1] and notes == []


def test_what_is_reported_of_an_action():
    trajectory, notes = make_trajectory(window=Window(COMMAND, 1, place(-0.01), frozenset({"speed", "acceleration"})))
    trajectory.finish_window()
    (record,) = trajectory.applied
    assert (record.source, record.session, record.seq, record.index, record.policy_version) == ("policy", "a", 3, 1, 7)
    assert (record.start_ns, record.observation_stamp_ns) == (7 * TICK_NS + 50_000_000, 7 * TICK_NS)
    assert record.requested == (0.0, 0.02, 0.0) and record.executed == pytest.approx((0.01, 0.0, 0.0))
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
    for known in ({"a"}, {"a", "b"}, set()):
        trajectory.limited_by(known)
        assert trajectory.window is window
    trajectory.limited_by({"a", "c"})
    assert trajectory.window.limits == {"a", "b", "c"}


@pytest.mark.parametrize("distance_m, fraction", [
    (None, 1.0), (0.02, 1.0), (0.03, 1.0), (0.01, 0.5), (0.019, 0.95), (0.001, 0.05)])
def test_s11_the_nearer_the_slower(distance_m, fraction):
    trajectory, _ = make_trajectory()
    turning = chunk(actions=((0.01, 0.0, 0.0, 0.0, 0.0, 0.02),))
    full = trajectory.play(turning, 0, None, None)
    assert full[0][0] == pytest.approx(0.1) and full[1] != (0.0, 0.0, 0.0)
    slow = trajectory.play(turning, 0, None, distance_m)
    assert slow == tuple(pytest.approx([fraction * value for value in part]) for part in full)
    assert trajectory.window.limits == (frozenset() if fraction == 1.0 else {"distance"})


@pytest.mark.parametrize("arm, action, wanted", [
    (place(-0.029), (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)),
    (place(-0.031), (0.01, 0.0, 0.0), (-0.005, 0.0, 0.0)), (place(-0.031), (0.01, 0.01, 0.0), (-0.005, 0.1, 0.0)),
    (place(-0.04), (0.01, -0.01, 0.01), (-0.05, -0.1, 0.1)),
    (place(-0.031), (-0.01, 0.0, 0.0), (-0.1, 0.0, 0.0)), (place(-0.031), (0.0, 0.01, 0.0), (0.0, 0.1, 0.0)),
    (place(0.031), (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)), (place(0.031), (-0.01, 0.0, 0.0), (0.005, 0.0, 0.0)),
    (None, (0.01, 0.0, 0.0), (0.1, 0.0, 0.0))])
def test_s08_a_set_point_that_is_far_from_the_arm_does_not_go_further(arm, action, wanted):
    trajectory, _ = make_trajectory()
    position, turn = trajectory.play(chunk(actions=((*action, 0.0, 0.0, 0.02),)), 0, arm, None)
    assert position == pytest.approx(wanted) and turn[2] != 0.0, "the rotation goes on"
    limited = wanted != pytest.approx([10.0 * value for value in action])
    assert trajectory.window.limits == ({"divergence"} if limited else frozenset())


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


def test_s08_each_group_stops_for_itself():
    trajectory, _ = make_trajectory()
    position, turn = trajectory.play(chunk(actions=((0.01, 0.0, 0.0, 0.0, 0.02, 0.0),)), 0, place(0.0, 0.31), None)
    assert position == pytest.approx((0.1, 0.0, 0.0)) and turn != (0.0, 0.0, 0.0), "it turns towards the arm"
    position, turn = trajectory.play(chunk(actions=((0.01, 0.0, 0.0, 0.0, -0.02, 0.0),)), 0, place(0.0, 0.31), None)
    assert position == pytest.approx((0.1, 0.0, 0.0)) and turn == pytest.approx((0.0, 0.05, 0.0)), "it is drawn back"


# S19: other limits
def moving():
    rig = Rig(limits(acceleration=1.0, jerk=10.0)).arm()
    stream(rig, (0.02, 0.0, 0.0, 0.0, 0.0, 0.02), actions=4)
    assert rig.state.mode is Mode.ACTIVE and not rig.state.still
    return rig


def test_s19_the_state_is_taken_over_as_it_is_but_for_its_goal():
    rig = moving()
    state = replace(rig.state, goal=ORIGIN)
    taken, reason = adopt(replace(rig.limits, speed=0.1), state, rig.limits)
    assert reason == "" and taken == replace(state, goal=None) and taken.motions == rig.state.motions


@pytest.mark.parametrize("changes", [
    {"acceleration": 0.5}, {"jerk": 5.0}, {"rotation_acceleration": 1.0}, {"rotation_jerk": 9.0}])
def test_s19_shapes_change_at_rest_alone_and_then_begin_anew(changes):
    rig = moving()
    new = replace(rig.limits, **changes)
    assert adopt(new, rig.state, rig.limits) == (
        rig.state, "acceleration and jerk can only change while the set-point rests")
    still = Rig(rig.limits).arm()
    taken, reason = adopt(new, still.state, still.limits)
    assert reason == "" and [len(motion.trail) for motion in taken.motions] == [group.points for group in new.groups]
    assert [motion.set_point for motion in taken.motions] == [motion.set_point for motion in still.state.motions]


def test_s19_what_could_not_stop_inside_is_said_by_group():
    rig = moving()
    x = rig.state.motions[0].position[0]
    for new, name in ((replace(rig.limits, box_high=(x + 0.001, 0.25, 0.45)), "position"),
                      (replace(rig.limits, cone=0.02), "rotation")):
        assert adopt(new, rig.state, rig.limits) == (
            rig.state, f"the set-point could not stop inside the new limits of its {name}")
    trail = replace(rig.limits, box_low=(rig.state.motions[0].trail[0][0] + 1e-4, -0.25, 0.005))
    assert "its position" in adopt(trail, rig.state, rig.limits)[1], "all of its trail must lie inside"


def test_s19_what_rests_outside_may_stay_there_under_any_limits():
    rig = Rig(pose=(0.9, 0.0, 0.2, *HOME[3:])).settle()
    for box_high in ((0.6, 0.25, 0.45), (0.8, 0.25, 0.45)):
        new = replace(rig.limits, box_high=box_high)
        assert adopt(new, rig.state, rig.limits) == (rig.state, "")
    inside = Rig().settle()
    refused = adopt(replace(inside.limits, box_high=(0.45, 0.25, 0.45)), inside.state, inside.limits)
    assert refused == (inside.state, "the set-point could not stop inside the new limits of its position")


def test_s19_the_gripper_stays_and_the_old_limits_are_those_of_the_state():
    rig = Rig(GRIP, gripper=0.04).arm()
    without = replace(GRIP, gripper_width=0.0)
    assert adopt(without, rig.state, GRIP) == (
        rig.state, "whether there is a gripper cannot change while the interlock runs")
    assert adopt(without, State(), GRIP) == (State(), "")
    with pytest.raises(ValueError):
        adopt(GRIP, rig.state, without)
