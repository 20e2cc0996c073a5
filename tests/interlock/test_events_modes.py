"""core.py branch by branch: arming, restart, faults and holds; all events of each, and the state
that it leaves.
"""

import pytest

from rlinf_core.interlock import Mode
from tests.interlock.conftest import HOME, TICK_NS, Rig, limits
from tests.interlock.events import (
    AWAY,
    NAN,
    PRESSED,
    about,
    active,
    chunk,
    fast,
    faulty,
    held,
    mode,
    tick,
)


# Arming and disarming
def test_s13_arming_and_disarming():
    rig = Rig().settle()
    assert tick(rig, arm=True) == [mode("ARMED")] and tick(rig, arm=True) == []
    assert tick(rig, arm=False) == [mode("DISARMED")] and tick(rig, arm=False) == []
    assert tick(rig) == []


@pytest.mark.parametrize(
    "inputs",
    [
        dict(estops=PRESSED),
        dict(silent=("x",)),
        dict(pose=(NAN, *HOME[1:])),
        dict(frame="camera"),
        dict(pose_age_ns=50_000_001),
        dict(arm=None),
    ],
)
def test_s13_what_keeps_it_from_being_armed(inputs):
    rig = Rig().settle()
    assert tick(rig, **({"arm": True} | inputs)) == [] and rig.state.mode is Mode.DISARMED


def test_s13_disarming_drops_the_command_and_brakes():
    rig = fast()
    assert tick(rig, chunk(5, rig.now, ((0.02, 0.0, 0.0),))) == []
    assert tick(rig, arm=False) == [mode("DISARMED")]
    assert rig.state.chunk is None is rig.state.window and len(rig.output.applied) == 1
    assert rig.output.source == "" and not rig.state.still


def test_s13_a_fault_is_neither_armed_nor_disarmed():
    rig = faulty()
    for inputs in (dict(arm=True), dict(arm=False), dict(end_episode=True), dict(restart=True)):
        assert tick(rig, **inputs) == [] and rig.state.mode is Mode.FAULT


def test_s06_arming_forgets_sessions_in_every_mode_and_a_hold_for_them():
    for rig in (active(), held()):
        before = rig.state.mode, rig.state.cause
        assert (
            tick(rig, arm=True) == []
            and (rig.state.mode, rig.state.cause) == before
            and rig.state.sessions == ()
        )
    rig = active()
    tick(rig, chunk(2, rig.now, session="b"))
    assert (
        tick(rig, arm=True) == [mode("ARMED")]
        and rig.state.commander == ""
        and rig.state.sessions == ()
    )
    rig = held()
    tick(rig, arm=True, silent=("x",))
    assert rig.state.sessions == (("policy", "a", 1),), "not if it may not be armed now"


def test_the_end_of_an_episode_leaves_it_armed_and_says_what_was_played():
    rig = active(ticks=3)
    assert tick(rig, end_episode=True) == [mode("ARMED")]
    assert len(rig.output.applied) == 1 and rig.state.chunk is None and rig.state.commander == ""
    assert tick(rig, end_episode=True) == []
    rig = held()
    assert tick(rig, end_episode=True) == [mode("ARMED")]
    rig = Rig().settle()
    assert tick(rig, end_episode=True) == [] and rig.state.mode is Mode.DISARMED


def test_the_end_of_an_episode_does_not_end_a_hold_that_waits_for_a_person():
    rig = active()
    tick(rig, chunk(2, rig.now, session="b"))
    assert tick(rig, end_episode=True) == [] and rig.output.cause == "new_session"
    assert tick(rig, arm=True) == [mode("ARMED")]
    rig = active()
    tick(rig, clock_stepped=True)
    assert tick(rig, end_episode=True, clock_stepped=True) == [] and rig.output.cause == "clock"
    assert tick(rig, arm=True, clock_stepped=True) == []
    assert tick(rig, arm=False, clock_stepped=True) == [mode("DISARMED")]
    assert tick(rig, arm=True) == [mode("ARMED")]


# Restart
def test_a_scene_that_was_reset_puts_the_set_point_where_the_arm_is():
    for rig in (Rig().settle(), Rig().arm(), held()):
        rig.pose = (0.4, 0.1, 0.3, *HOME[3:])
        assert tick(rig, restart=True) == [("reseeded", "restart", "", "", -1, ())]
        assert rig.output.target == rig.pose and rig.state.still and rig.state.track.valid
        assert rig.state.track.sampled_ns == rig.now - TICK_NS
    rig = Rig(follow=False).arm()
    assert tick(rig, restart=True, pose=(NAN, *HOME[1:])) == []
    rig = active()
    assert tick(rig, restart=True, pose=AWAY) == [], "not while it moves"
    assert rig.state.mode is Mode.ACTIVE and rig.output.target != AWAY
    rig = faulty()
    rig.follow = False
    assert (
        tick(rig, restart=True, pose=(0.4, 0.1, 0.3, *HOME[3:])) == [] and not rig.state.track.valid
    )


# Faults
def test_s13_a_fault_names_its_first_cause_and_is_cleared_by_it_alone():
    rig = active(ticks=2)
    assert tick(rig, estops=PRESSED, robot_fault="reflex") == [mode("FAULT:estop:pendant")]
    assert len(rig.output.applied) == 1 and rig.state.chunk is None
    assert tick(rig, robot_fault="reflex") == [] and rig.state.cause == "estop:pendant"
    for inputs in (
        dict(reset_fault="robot:reflex"),
        dict(reset_fault=""),
        dict(reset_fault="estop:pendant", robot_fault="x"),
        dict(reset_fault="estop:pendant", estops=PRESSED),
    ):
        assert tick(rig, **inputs) == []
    assert tick(rig, reset_fault="estop:pendant") == [mode("DISARMED")]
    assert tick(rig, reset_fault="") == []


def test_s15_a_fault_is_cleared_with_the_enable_held():
    rig = Rig(limits(enable_lease=60.0)).arm()
    tick(rig, robot_fault="reflex")
    assert tick(rig, reset_fault="robot:reflex", enable=False, enable_age_s=0.0) == []
    assert tick(rig, reset_fault="robot:reflex", enable=True, enable_age_s=61.0) == []
    assert tick(rig, reset_fault="robot:reflex", enable=True, enable_age_s=0.0) == [
        mode("DISARMED")
    ]


def test_s13_a_reset_names_the_cause_of_a_fault_and_of_nothing_else():
    rig = held()
    assert tick(rig, reset_fault="silent:x") == [] and rig.state.mode is Mode.HOLD


def test_s14_while_disarmed_nothing_latches():
    rig = Rig().settle()
    assert tick(rig, estops=PRESSED, robot_fault="reflex") == [] and rig.state.mode is Mode.DISARMED
    rig.arm()
    assert tick(rig, estops=PRESSED) == [mode("FAULT:estop:pendant")]


# Holds
@pytest.mark.parametrize(
    "inputs, cause",
    [
        (dict(silent=("x",)), "silent:x"),
        (dict(distance=(0.0, 0.0)), "obstacle"),
        (dict(late_s=0.1001), "stalled"),
        (dict(late_s=0.1), None),
        (dict(frame="camera"), "state_frame"),
        (dict(pose_age_ns=50_000_000), None),
        (dict(pose_age_ns=50_000_001), "stale_state"),
        (dict(pose=(NAN, *HOME[1:])), "stale_state"),
        (dict(pose=(500.0, *HOME[1:])), "state_units"),
        (dict(pose=(10.69, *HOME[1:])), "state_jump"),
        (dict(distance=(100.0, 0.0)), None),
        (dict(distance=(500.0, 0.0)), "distance_units"),
        (dict(pose=(0.6, *HOME[1:])), "state_jump"),
        (dict(pose=(0.6, *HOME[1:]), pose_age_ns=50_000_000), "state_jump"),
        (dict(pose=(0.6, *HOME[1:]), pose_age_ns=50_000_001), "stale_state"),
        (dict(frame="base_link"), None),
    ],
)
def test_what_holds_in_the_same_tick_while_active_and_nothing_while_armed(inputs, cause):
    rig = active(ticks=2)
    assert tick(rig, **inputs) == ([mode(f"HOLD:{cause}")] if cause else [])
    assert len(rig.output.applied) == (1 if cause else 0) and (
        rig.output.cause,
        rig.output.source,
    ) == ((cause, "") if cause else ("", "policy"))
    rig = Rig().arm()
    assert tick(rig, **inputs) == [] and rig.state.mode is Mode.ARMED


def test_the_first_of_several_reasons_is_named_and_a_hold_keeps_its_own():
    rig = active()
    assert tick(rig, silent=("a", "b"), late_s=1.0) == [mode("HOLD:silent:a")]
    assert tick(rig, silent=("b",)) == [] and rig.state.cause == "silent:a"


def test_s15_the_enable_is_asked_of_the_policy_alone():
    leased, held_down = limits(enable_lease=60.0), dict(enable=True, enable_age_s=0.0)
    rig = active(limits_=leased, **held_down)
    assert tick(rig) == [mode("HOLD:enable")]
    rig = active("operator", limits_=leased)
    assert tick(rig) == [] and rig.state.mode is Mode.ACTIVE
    rig = Rig(leased).arm()
    late = chunk(1, rig.now)
    assert tick(rig, late) == [about("dropped", "enable", late)] and rig.state.sessions == (
        ("policy", "a", 1),
    )


def test_s24_a_late_tick_begins_from_rest_and_an_even_one_does_not():
    for late_s, rests in ((0.01, False), (0.0100001, True)):
        rig = fast()
        before = rig.output.target[0]
        tick(rig, arm=False, late_s=late_s)
        assert (rig.output.target[0] == before) is rests


# S3, S21: how long it may be unknown
@pytest.mark.parametrize(
    "inputs, ticks, cause",
    [
        (dict(pose=(NAN, *HOME[1:])), 51, "stale_state"),
        (dict(pose=(0.6, *HOME[1:])), 51, "state_jump"),
        (dict(frame="camera"), 51, "state_frame"),
        (dict(pose=(500.0, *HOME[1:])), 51, "state_units"),
        (dict(pose_age_ns=500_000_001), 1, "stale_state"),
    ],
)
def test_s03_unknown_for_longer_than_half_a_second_is_a_fault(inputs, ticks, cause):
    rig = Rig(follow=False).arm()
    for number in range(1, ticks):
        assert tick(rig, **inputs) == [] and rig.state.lost_ticks == number
    assert tick(rig, **inputs) == [mode(f"FAULT:{cause}")]
    rig = Rig(follow=False).arm()
    tick(rig, pose_age_ns=500_000_000)
    assert rig.state.mode is Mode.ARMED
    tick(rig)
    assert rig.state.lost_ticks == 0


def test_s21_a_jump_that_falls_silent_is_still_told_as_a_jump():
    rig = Rig(follow=False).arm()
    for _ in range(49):
        tick(rig, pose=(0.6, *HOME[1:]))
    tick(rig, pose=(0.6, *HOME[1:]), pose_age_ns=60_000_000)
    assert tick(rig, pose=(0.6, *HOME[1:]), pose_age_ns=60_000_000) == [mode("FAULT:state_jump")]


def test_s03_active_it_holds_first_and_both_are_said():
    rig = active()
    assert tick(rig, pose_age_ns=500_000_001) == [
        mode("HOLD:stale_state"),
        mode("FAULT:stale_state"),
    ]


def test_s03_while_disarmed_nothing_is_lost():
    rig = Rig().settle()
    for _ in range(60):
        assert tick(rig, pose=(NAN, *HOME[1:])) == []
    assert rig.state.mode is Mode.DISARMED and rig.state.diverged_ticks == 0


def test_s21_a_set_point_adrift_is_counted_in_ticks_and_only_while_armed():
    rig = active(ticks=1)
    rig.follow = False
    while not (rig.state.still and rig.state.mode is Mode.HOLD):
        tick(rig)
    rig.follow = False
    for _ in range(4):
        rig.pose = (rig.pose[0], rig.pose[1] + 0.02, *rig.pose[2:])
        tick(rig)
    first = rig.state.diverged_ticks
    assert 0 < first <= 3
    for number in range(first + 1, 51):
        assert tick(rig) == [] and rig.state.diverged_ticks == number
    assert tick(rig) == [mode("FAULT:divergence")] and rig.state.diverged_ticks == 51
    tick(rig)
    assert rig.state.diverged_ticks == 0


def test_s21_an_arm_that_is_near_again_ends_the_count():
    rig = held()
    rig.follow = False
    while not rig.state.still:
        tick(rig)
    for y in (0.02, 0.04, 0.06, 0.06, 0.04, 0.02):
        tick(rig, pose=(HOME[0], y, *HOME[2:]))
    assert rig.state.diverged_ticks == 0 and rig.state.mode is Mode.HOLD


def test_an_armed_arm_that_touches_may_go_back_from_it_whatever_is_asked_for():
    rig = Rig().arm()
    for _ in range(10):
        tick(rig, wrench=(30.0, 0.0))
    command = chunk(1, rig.now)
    assert tick(rig, command, wrench=(30.0, 0.0)) == [about("dropped", "contact", command)]
    assert rig.state.mode is Mode.ARMED
