"""playing.py and state.adopt: the way back to the arm, what an action's window becomes, and going over to other limits."""

import math
from dataclasses import replace

import pytest

from rlinf_core.interlock import Mode, State, adopt
from rlinf_core.interlock.motion import Motion, stopping_speed
from rlinf_core.interlock.playing import ADRIFT, Play
from rlinf_core.interlock.types import Window
from tests.interlock.conftest import HOME, JOINTS, TICK_NS, Rig, chunk, joint_limits, limits
from tests.interlock.test_requirements import stream

NAN, INF = math.nan, math.inf
ORIGIN = ((0.5, 0.0, 0.25), (0.0, 0.0, 0.0))
GRIP = limits(gripper_width=0.08)


def place(x=0.0, turn=0.0, *gripper):
    return ((0.5 + x, 0.0, 0.25), (0.0, turn, 0.0), *([gripper] if gripper else []))


def playing(limits_=None, at=ORIGIN, goal=None, window=None):
    """A play that rests somewhere, and the list of what it notes."""
    limits_ = limits_ or limits()
    notes = []
    motions = tuple(map(Motion.at_rest, limits_.groups, at))
    return Play(limits_, motions, window, goal, lambda *note: notes.append(note)), notes


# How far from the arm
def test_s21_apart_is_measured_by_group_and_leaves_the_gripper_out():
    play, _ = playing(GRIP, (*ORIGIN, (0.02,)))
    assert play.apart(place(0.03, 0.25, 0.08)) == pytest.approx([0.03, 0.25])
    assert play.apart(None) == [0.0, 0.0] and play.set_points() == (*ORIGIN, (0.02,))
    joints, _ = playing(joint_limits(gripper_width=0.08), (JOINTS, (0.02,)))
    assert joints.apart(((*JOINTS[:6], JOINTS[6] + 0.25), (0.0,))) == pytest.approx([0.25])
    assert joints.apart(None) == [0.0]


def test_divergences_are_those_of_the_mode():
    assert playing(limits(divergence=0.02, rotation_divergence=0.2))[0].divergences() == (0.02, 0.2)
    assert playing(joint_limits(joint_divergence=0.07), (JOINTS,))[0].divergences() == (0.07,)


def far(size):
    """Where exactly so far from a set-point in the origin."""
    return ((size, 0.0, 0.0), (0.0, 0.0, 0.0))


ZERO = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


@pytest.mark.parametrize("most", [0.03, 0.25])
def test_s08_too_far_and_adrift_begin_beyond_their_limit(most):
    play, _ = playing(limits(divergence=most), ZERO)
    assert not play.too_far(far(most)) and play.too_far(far(math.nextafter(most, 1))) and not play.too_far(None)
    assert not play.adrift(far(ADRIFT * most)) and play.adrift(far(math.nextafter(ADRIFT * most, 1)))
    assert not play.adrift(None)
    turned, _ = playing(limits(rotation_divergence=most), ZERO)
    assert not turned.too_far((ZERO[0], (0.0, most, 0.0))) and turned.too_far((ZERO[0], (0.0, most + 1e-9, 0.0)))


def test_s21_adrift_is_a_resting_set_point_that_goes_nowhere():
    away = far(0.1)
    play, _ = playing(at=ZERO)
    assert play.adrift(away)
    play.goal = away
    assert not play.adrift(away), "it is on its way"
    play.goal = ZERO
    assert play.adrift(away), "it has arrived, where the arm no longer is"
    play.goal = None
    play.motions = tuple(motion._replace(still=False) for motion in play.motions)
    assert not play.adrift(away), "it moves"
    play.motions = ()
    assert not play.adrift(away)


@pytest.mark.parametrize("limits_, at, near, beyond", [
    (limits(), ZERO, far(0.01), far(0.010001)),
    (limits(), ZERO, (ZERO[0], (0.05, 0.0, 0.0)), (ZERO[0], (0.050001, 0.0, 0.0))),
    (joint_limits(), ((0.0,) * 7,), ((0.0,) * 6 + (0.05,),), ((0.0,) * 6 + (-0.050001,),))])
def test_misaligned_beyond_a_centimetre_or_50_mrad(limits_, at, near, beyond):
    play, _ = playing(limits_, at)
    assert not play.misaligned(near) and play.misaligned(beyond)


def test_the_first_workspace_that_does_not_hold_the_arm_is_named():
    play, _ = playing(GRIP, (*ORIGIN, (0.0,)))
    for arm, name in ((place(0.0, 0.0, 0.0), ""), (place(0.5, 0.9, 0.0), "box"), (place(0.0, 0.9, 0.0), "rotation"),
                      (place(0.0, 0.0, 0.09), "gripper")):
        assert play.outside(arm) == name
    joints, _ = playing(joint_limits(), (JOINTS,))
    assert joints.outside((JOINTS,)) == "" and joints.outside(((9.0,) * 7,)) == "joints"
    with pytest.raises(ValueError):
        play.outside(ORIGIN)


# The way back
def test_the_way_back_leads_where_the_arm_rests_but_not_its_gripper():
    play, _ = playing(GRIP, (*ORIGIN, (0.02,)))
    play.go_back(place(0.1, 0.2, 0.08))
    assert play.goal == place(0.1, 0.2)
    assert play.homing()[2] == (0.0,), "it grasps"
    joints, _ = playing(joint_limits(gripper_width=0.08), (JOINTS, (0.02,)))
    joints.go_back((JOINTS, (0.0,)))
    assert joints.goal == (JOINTS,)


def test_the_goal_is_lost_when_the_arm_leaves_it_by_more_than_it_may_diverge():
    play, _ = playing(limits(divergence=0.25), ZERO, goal=ZERO)
    assert play.lost_its_goal(None) and not play.lost_its_goal(far(0.25)) and play.lost_its_goal(far(0.2501))
    assert play.lost_its_goal((ZERO[0], (0.0, 0.301, 0.0))) and not play.lost_its_goal((ZERO[0], (0.0, 0.3, 0.0)))
    play.goal = None
    assert not play.lost_its_goal(far(9.0)), "there is none to lose"


def test_homing_wants_the_speed_from_which_half_the_acceleration_stops_at_the_goal():
    play, _ = playing(at=ZERO, goal=((0.1, 0.0, 0.0), (0.0, -0.2, 0.0)))
    assert play.homing() == (pytest.approx((0.25, 0.0, 0.0)), pytest.approx((0.0, -0.5, 0.0)))
    play.goal = ((0.0, 0.0, -0.01), (0.0, 0.0, 0.02))
    slow, turn = stopping_speed(0.01, 2.0, 0.01), stopping_speed(0.02, 1.25, 0.01)
    assert play.homing() == (pytest.approx((0.0, 0.0, -slow)), pytest.approx((0.0, 0.0, turn)))
    assert slow < 0.25 and turn < 0.5
    play.goal = ((1e-9, 0.0, 0.0), (0.0, 1.1e-9, 0.0))
    assert play.homing() == ((0.0, 0.0, 0.0), pytest.approx((0.0, 1.1e-7, 0.0)))
    play.goal = None
    assert play.homing() == ZERO
    play.goal = ((0.0, 0.0, 0.05),)
    assert play.homing() == (pytest.approx((0.0, 0.0, 0.25)), (0.0, 0.0, 0.0)), "groups without a goal rest"


@pytest.mark.parametrize("changes", [{}, {"acceleration": 1.0, "jerk": 10.0}, {"tick": 0.004}])
def test_homing_arrives_exactly_and_in_the_time_that_its_speed_takes(changes):
    limits_ = limits(**changes)
    goal = ((0.62, -0.1, 0.3), (0.2, 0.1, -0.1))
    play, _ = playing(limits_, goal=goal)
    fastest, ticks = 0.0, 0
    while not play.arrived():
        before = play.set_points()
        play.move(play.homing(), 0, 0)
        fastest = max(fastest, math.dist(before[0], play.set_points()[0]) / limits_.tick)
        ticks += 1
        assert ticks < 2000
    for at, there in zip(play.set_points(), goal, strict=True):
        assert at == pytest.approx(there, abs=2e-9)
    assert fastest == pytest.approx(0.25, abs=1e-9)
    least = math.dist(ORIGIN[0], goal[0]) / 0.25
    assert least < ticks * limits_.tick < least + 1.0


def test_arrived_is_to_rest_within_two_nanometres_of_the_goal():
    play, _ = playing(at=ZERO, goal=far(2e-9))
    assert play.arrived()
    play.goal = far(2.1e-9)
    assert not play.arrived()
    play.goal = ZERO
    assert play.arrived()
    play.motions = tuple(motion._replace(still=False) for motion in play.motions)
    assert not play.arrived()
    play, _ = playing(at=ZERO)
    assert not play.arrived()
    play, _ = playing(GRIP, (*ZERO, (0.01,)), goal=ZERO)
    assert play.arrived()
    play.goal = (ZERO[0], (0.0, 0.0, 1e-3))
    assert not play.arrived()


def test_a_set_point_outside_may_go_back_in_and_nowhere_else():
    """The wall would bar the way; without a goal it does."""
    outside = ((0.75, 0.0, 0.25), (0.0, 0.0, 0.0))
    for goal, moves in ((ORIGIN, True), (None, False)):
        play, _ = playing(at=outside, goal=goal)
        for _ in range(5):
            play.move(((0.0, 0.2, 0.0), (0.0, 0.0, 0.0)), 0, 0)
        assert (play.set_points()[0][1] > 0.0) is moves
    inside, _ = playing(at=((0.7, 0.0, 0.25), (0.0, 0.0, 0.0)), goal=ORIGIN)
    for _ in range(5):
        inside.move(((0.2, 0.0, 0.0), (0.0, 0.0, 0.0)), 0, 0)
    assert inside.set_points()[0][0] == 0.7, "inside the walls stand, goal or not"


def test_be_there_at_once_and_rest_where_the_set_points_are():
    play, _ = playing(limits(acceleration=1.0, jerk=10.0), goal=ORIGIN)
    motions = play.motions
    play.rest()
    assert play.motions is motions and play.goal == ORIGIN, "what rests is left alone"
    for _ in range(5):
        play.move(((0.2, 0.0, 0.0), (0.0, 0.0, 0.1)), 0, 0)
    at = play.set_points()
    assert not play.still
    play.rest()
    assert play.still and play.set_points() == at and play.goal is None
    play.goal = ORIGIN
    play.rest_at(place(0.1))
    assert play.set_points() == place(0.1) and play.goal is None and play.motions[0].trail == (place(0.1)[0],) * 20


# The window of an action
COMMAND = chunk(3, 7 * TICK_NS, ((0.01, 0.0, 0.0), (0.0, 0.02, 0.0)), dt_s=0.05)


def test_a_window_begins_where_the_set_point_is_and_one_of_another_action_ends():
    play, notes = playing()
    wanted = play.play(COMMAND, 0, None, None)
    assert wanted == ((0.01 / 0.05, 0.0, 0.0), (0.0, 0.0, 0.0)) and play.window == Window(COMMAND, 0, ORIGIN)
    first = play.window
    play.play(COMMAND, 0, None, None)
    assert play.window is first and play.applied == []
    assert play.play(COMMAND, 1, None, None) == ((0.0, 0.02 / 0.05, 0.0), (0.0, 0.0, 0.0))
    assert play.window == Window(COMMAND, 1, ORIGIN) and [record.index for record in play.applied] == [0]
    play.play(replace(COMMAND), 1, None, None)
    assert [record.index for record in play.applied] == [0, 1] and notes == []


def test_what_is_reported_of_an_action():
    play, notes = playing(window=Window(COMMAND, 1, place(-0.01), frozenset({"speed", "acceleration"})))
    play.finish_window()
    (record,) = play.applied
    assert (record.source, record.session, record.seq, record.index, record.policy_version) == ("policy", "a", 3, 1, 7)
    assert (record.start_ns, record.observation_stamp_ns) == (7 * TICK_NS + 50_000_000, 7 * TICK_NS)
    assert record.requested == (0.0, 0.02, 0.0) and record.executed == pytest.approx((0.01, 0.0, 0.0))
    assert record.limits == ("acceleration", "speed")
    assert notes == [("limited", "acceleration,speed", COMMAND, 1)] and play.window.done
    play.finish_window()
    assert len(play.applied) == len(notes) == 1, "once"
    nothing, notes = playing()
    nothing.finish_window()
    assert nothing.applied == [] == notes
    nothing.motions, nothing.window = (), Window(COMMAND, 0, ())
    nothing.finish_window()
    assert nothing.applied == []


def test_a_window_ends_with_the_last_tick_before_the_next_action():
    for now, done in ((TICK_NS, True), (TICK_NS - 1, False), (TICK_NS + 1, True)):
        play, _ = playing(window=Window(COMMAND, 0, ORIGIN))
        play.move(ORIGIN, now, 2 * TICK_NS)
        assert play.window.done is done is bool(play.applied)


def test_only_an_action_in_play_is_limited():
    wanted = ((9.0, 0.0, 0.0), (0.0, 9.0, 0.0))
    play, _ = playing(window=Window(COMMAND, 0, ORIGIN))
    play.move(wanted, 0, 9 * TICK_NS)
    assert play.window.limits == {"speed", "acceleration"}
    play, _ = playing(window=Window(COMMAND, 0, ORIGIN, done=True))
    play.move(wanted, 0, 0)
    assert play.window == Window(COMMAND, 0, ORIGIN, done=True)
    play, _ = playing()
    play.move(wanted, 0, 9 * TICK_NS)
    play.limited_by({"distance"})
    assert play.window is None
    window = Window(COMMAND, 0, ORIGIN, frozenset({"a", "b"}))
    play, _ = playing(window=window)
    for known in ({"a"}, {"a", "b"}, set()):
        play.limited_by(known)
        assert play.window is window
    play.limited_by({"a", "c"})
    assert play.window.limits == {"a", "b", "c"}


@pytest.mark.parametrize("distance_m, fraction", [
    (None, 1.0), (0.02, 1.0), (0.03, 1.0), (0.01, 0.5), (0.019, 0.95), (0.001, 0.05)])
def test_s11_the_nearer_the_slower(distance_m, fraction):
    play, _ = playing()
    turning = chunk(actions=((0.01, 0.0, 0.0, 0.0, 0.0, 0.02),))
    full = play.play(turning, 0, None, None)
    assert full[0][0] == pytest.approx(0.1) and full[1] != (0.0, 0.0, 0.0)
    slow = play.play(turning, 0, None, distance_m)
    assert slow == tuple(pytest.approx([fraction * value for value in part]) for part in full)
    assert play.window.limits == (frozenset() if fraction == 1.0 else {"distance"})


@pytest.mark.parametrize("arm, action, wanted", [
    (place(-0.029), (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)), (place(-0.031), (0.01, 0.0, 0.0), (0.0, 0.0, 0.0)),
    (place(-0.031), (-0.01, 0.0, 0.0), (-0.1, 0.0, 0.0)), (place(-0.031), (0.0, 0.01, 0.0), (0.0, 0.1, 0.0)),
    (place(0.031), (0.01, 0.0, 0.0), (0.1, 0.0, 0.0)), (place(0.031), (-0.01, 0.0, 0.0), (0.0, 0.0, 0.0)),
    (None, (0.01, 0.0, 0.0), (0.1, 0.0, 0.0))])
def test_s08_a_set_point_that_is_far_from_the_arm_does_not_go_further(arm, action, wanted):
    play, _ = playing()
    position, turn = play.play(chunk(actions=((*action, 0.0, 0.0, 0.02),)), 0, arm, None)
    assert position == pytest.approx(wanted) and turn[2] != 0.0, "the rotation goes on"
    assert play.window.limits == ({"divergence"} if not any(wanted) else frozenset())


def test_s08_each_group_stops_for_itself():
    play, _ = playing()
    position, turn = play.play(chunk(actions=((0.01, 0.0, 0.0, 0.0, 0.02, 0.0),)), 0, place(0.0, 0.31), None)
    assert position == pytest.approx((0.1, 0.0, 0.0)) and turn != (0.0, 0.0, 0.0), "it turns towards the arm"
    position, turn = play.play(chunk(actions=((0.01, 0.0, 0.0, 0.0, -0.02, 0.0),)), 0, place(0.0, 0.31), None)
    assert position == pytest.approx((0.1, 0.0, 0.0)) and turn == (0.0, 0.0, 0.0), "and not away from it"


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
