"""safety_checks.py and coordinates.py at each of their edges: what latches, what holds, and which place of the
arm is valid.
"""

import math

import pytest

from rlinf_core.interlock import EStop, Inputs, active_faults, enabled, missing_inputs
from rlinf_core.interlock.coordinates import (
    Track,
    measured_at_rest,
    measured_coordinates,
    recheck_due,
    track_at_rest,
    update_track,
)
from rlinf_core.interlock.safety_checks import count_contacts, obstacles
from tests.interlock.conftest import HOME, JOINTS, joint_limits, limits

NAN, INF = math.nan, math.inf
LIMITS = limits(enable_lease=60.0)
QUIET = (0, 0)


# S10
@pytest.mark.parametrize(
    "wrench, before, after",
    [
        (None, (3, 1), (3, 1)),
        ((0.0, 0.0), (3, 1), (0, 0)),
        ((20.0, 5.0), (3, 1), (0, 0)),
        ((20.1, 0.0), (3, 1), (4, 0)),
        ((0.0, 5.1), (3, 1), (4, 0)),
        ((40.0, 0.0), (0, 0), (1, 0)),
        ((40.1, 0.0), (3, 1), (4, 2)),
        ((NAN, 0.0), (0, 0), (1, 1)),
        ((0.0, NAN), (0, 0), (1, 0)),
        ((INF, 0.0), (0, 0), (1, 1)),
    ],
)
def test_s10_samples_are_counted_in_a_row(wrench, before, after):
    assert count_contacts(LIMITS, before, wrench) == after


@pytest.mark.parametrize(
    "contacts, holds, latches",
    [
        ((0, 0), [], []),
        ((1, 1), [], []),
        ((2, 0), ["contact"], []),
        ((2, 2), ["contact"], ["contact"]),
        ((0, 3), [], ["contact"]),
    ],
)
def test_s10_as_many_samples_as_the_limits_say(contacts, holds, latches):
    assert (
        obstacles(LIMITS, Inputs(), contacts) == holds
        and active_faults(LIMITS, Inputs(), contacts) == latches
    )
    assert obstacles(limits(contact_samples=3), Inputs(), (2, 2)) == []
    assert active_faults(limits(contact_samples=4), Inputs(), (9, 3)) == []


# S13, S14, S17, S23
@pytest.mark.parametrize(
    "estop, causes",
    [
        (EStop("a", False, 0.3), []),
        (EStop("a", False, 0.301), ["estop_silent:a"]),
        (EStop("a", True, 0.0), ["estop:a"]),
        (EStop("a", True, INF), ["estop:a"]),
        (EStop("a", False, NAN), ["estop_silent:a"]),
    ],
)
def test_s14_pressed_or_silent(estop, causes):
    assert active_faults(LIMITS, Inputs(estops=(estop,)), QUIET) == causes


def test_standing_faults_are_named_in_the_order_of_their_weight():
    inputs = Inputs(
        estops=(EStop("a", False, 9.0), EStop("b", True, 0.0), EStop("c", False, 0.0)),
        foreign=("x", "y"),
        robot_fault="reflex",
    )
    assert active_faults(LIMITS, inputs, (2, 2)) == [
        "estop:b",
        "estop_silent:a",
        "foreign_publisher:x",
        "foreign_publisher:y",
        "robot:reflex",
        "contact",
    ]
    assert active_faults(LIMITS, Inputs(), QUIET) == []


# S22, S23, S4
def test_what_is_missing_is_named():
    inputs = Inputs(
        silent=("wrench", "joints"), doubled=("enable",), clock_stepped=True, distance=(0.0, 0.0)
    )
    missing = ["silent:wrench", "silent:joints", "two_publishers:enable", "clock"]
    assert missing_inputs(inputs) == missing and missing_inputs(Inputs()) == []
    assert obstacles(LIMITS, inputs, (2, 0)) == ["contact", "obstacle", *missing]


# S11
@pytest.mark.parametrize(
    "distance, cause",
    [
        (None, []),
        ((0.5, 0.1), []),
        ((0.5, 0.101), ["distance_silent"]),
        ((0.5, INF), ["distance_silent"]),
        ((0.5, NAN), ["distance_silent"]),
        ((NAN, 0.0), ["distance_silent"]),
        ((INF, 0.0), ["distance_silent"]),
        ((1e-9, 0.0), []),
        ((0.0, 0.0), ["obstacle"]),
        ((-1.0, 0.0), ["obstacle"]),
        ((0.9, 0.0), []),
    ],
)
def test_s11_distances(distance, cause):
    assert obstacles(LIMITS, Inputs(distance=distance), QUIET) == cause


# S15
@pytest.mark.parametrize(
    "pressed, age_s, may",
    [
        (True, 60.0, True),
        (True, 60.001, False),
        (False, 0.0, False),
        (True, NAN, False),
        (True, INF, False),
    ],
)
def test_s15_an_enable_is_pressed_and_not_old(pressed, age_s, may):
    assert enabled(LIMITS, Inputs(enable=pressed, enable_age_s=age_s)) is may
    assert (
        enabled(limits(enable_lease=INF), Inputs(enable=pressed, enable_age_s=age_s)) is pressed
    ), "let go counts"


@pytest.mark.parametrize("age_s", [1e9, INF])  # as the node says it, and as the core's inputs do
def test_s15_without_a_lease_nobody_need_hold_what_was_never_heard(age_s):
    assert enabled(limits(enable_lease=INF), Inputs(enable=False, enable_age_s=age_s))
    assert not enabled(LIMITS, Inputs(enable=False, enable_age_s=age_s))


def test_s15_an_enable_of_three_years_ago_was_heard():
    assert not enabled(limits(enable_lease=INF), Inputs(enable=False, enable_age_s=1e8))


# S8: the side of the arm that the set-point does not speak of
def test_s08_the_tool_has_a_box_while_joints_are_commanded():
    ranges = joint_limits(box_low=(0.25, -0.25, 0.0), box_high=(0.75, 0.25, 0.5))
    for place, out in (
        ((0.25, -0.25, 0.0), False),
        ((0.75, 0.25, 0.5), False),
        ((0.249, 0.0, 0.2), True),
        ((0.751, 0.0, 0.2), True),
        ((0.5, -0.26, 0.2), True),
        ((0.5, 0.26, 0.2), True),
        ((0.5, 0.0, -0.01), True),
        ((0.5, 0.0, 0.51), True),
        ((0.5, NAN, 0.2), True),
    ):
        assert obstacles(ranges, Inputs(pose=(*place, *HOME[3:])), QUIET) == (
            ["outside_box"] if out else []
        )
    assert obstacles(ranges, Inputs(pose=None, joints=(9.0,) * 7), QUIET) == []


def test_s08_the_cone_itself_is_inside():
    tilted = (*HOME[:3], 0.2, 0.9798, 0.0, 0.0)
    turn = math.hypot(*measured_coordinates(LIMITS, Inputs(pose=tilted))[1])
    assert turn == pytest.approx(2.0 * math.atan2(0.2, 0.9798))
    for cone, causes in ((turn, []), (math.nextafter(turn, 0.0), ["outside_rotation"])):
        assert obstacles(joint_limits(cone=cone), Inputs(pose=tilted), QUIET) == causes


def test_s08_the_joints_have_a_range_while_the_tool_is_commanded():
    tool = limits(
        joint_names=("a", "b"), joint_low=(-1.0, -2.0), joint_high=(1.0, 2.0), joint_margin=0.25
    )
    for joints, out in (
        ((-0.75, -1.75), False),
        ((0.75, 1.75), False),
        ((-0.76, 0.0), True),
        ((0.76, 0.0), True),
        ((0.0, -1.76), True),
        ((0.0, 1.76), True),
        ((NAN, 0.0), True),
    ):
        assert obstacles(tool, Inputs(joints=joints, pose=(9.0, *HOME[1:])), QUIET) == (
            ["outside_joints"] if out else []
        )
    assert (
        obstacles(tool, Inputs(joints=None), QUIET)
        == []
        == obstacles(LIMITS, Inputs(joints=JOINTS), QUIET)
    )


# S21: which place of the arm is valid. Numbers: 5 mm and 30 mrad of noise, 3 m/s and 10 rad/s, 10
# ticks of rest
NS, TICK_NS = 10**9, 10_000_000
REST = ((0.5, 0.0, 0.25), (0.0, 0.0, 0.0))


def at(x=0.0, turn=0.0):
    return ((0.5 + x, 0.0, 0.25), (turn, 0.0, 0.0))


def track_of(**changes):
    return Track(
        **(dict(at=REST, sampled_ns=NS, jumped=False, rest=REST, rested=10, valid=True) | changes)
    )


def next_of(track, sample, age_ns=0, now_ns=NS + TICK_NS, may_relocate=False, limits_=LIMITS):
    return update_track(limits_, track, sample, age_ns, now_ns, may_relocate)


@pytest.mark.parametrize(
    "sample, valid",
    [
        (at(0.0349), True),
        (at(0.0351), False),
        (at(-0.0349), True),
        (at(0.0, 0.1299), True),
        (at(0.0, 0.1301), False),
        (at(0.0349, 0.1301), False),
        (at(0.0351, 0.1), False),
    ],
)
def test_s21_a_sample_is_believed_where_the_arm_can_have_come_in_a_tick(sample, valid):
    track = next_of(track_of(), sample)
    assert (track.valid, track.jumped, track.sampled_ns) == (valid, not valid, NS + TICK_NS)
    assert track.at == (sample if valid else REST)


@pytest.mark.parametrize(
    "since_ns, age_ns, max_m",
    [
        (TICK_NS, 0, 0.035),
        (2 * TICK_NS, 0, 0.065),
        (2 * TICK_NS, TICK_NS, 0.035),
        (5 * TICK_NS, 0, 0.155),
        (9 * TICK_NS, 0, 0.155),
        (0, 0, 0.035),
        (TICK_NS, 3 * TICK_NS, 0.035),
    ],
)
def test_s21_how_far_depends_on_when_it_was_measured_up_to_the_oldest_that_counts(
    since_ns, age_ns, max_m
):
    for x, valid in ((max_m - 1e-4, True), (max_m + 1e-4, False)):
        assert next_of(track_of(), at(x), age_ns, NS + since_ns).valid is valid
    jumped = track_of(jumped=True)
    assert next_of(jumped, at(0.0349), age_ns, NS + since_ns).valid
    assert not next_of(jumped, at(0.0351), age_ns, NS + since_ns).valid, (
        "after a jump no time is given"
    )


def test_s21_the_edge_itself_is_believed():
    """A tick and speeds that floats hold exactly."""
    exact = limits(tick=0.015625, measured_speed=2.0, measured_rotation_speed=8.0)
    noise = 0.005 + 0.03125
    assert next_of(
        track_of(at=((0.0, 0.0, 0.0), (0.0,) * 3)), ((noise, 0.0, 0.0), (0.0,) * 3), limits_=exact
    ).valid
    ranges = joint_limits(measured_joint_speed=8.0, tick=0.015625)
    track = track_of(at=((0.0,) * 7,), rest=((0.0,) * 7,))
    assert next_of(track, ((0.03 + 0.125,) + (0.0,) * 6,), limits_=ranges).valid
    assert not next_of(track, ((0.03 + 0.126,) + (0.0,) * 6,), limits_=ranges).valid


def test_s21_a_gripper_may_jump():
    grip = limits(gripper_width=0.08)
    assert next_of(
        track_of(at=(*REST, (0.0,)), rest=(*REST, (0.0,))), (*REST, (0.08,)), limits_=grip
    ).valid


def test_s21_nothing_measured_believes_nothing_and_forgets_the_rest():
    assert next_of(track_of(), None) == track_of(rest=None, rested=0, valid=False)


@pytest.mark.parametrize(
    "sample, rested",
    [(at(0.0019), 11), (at(0.0021), 1), (at(0.0, 0.0099), 11), (at(0.0, 0.0101), 1)],
)
def test_s21_rest_is_to_stay_within_2_mm_and_10_mrad_of_where_it_began(sample, rested):
    track = next_of(track_of(), sample)
    assert track.rested == rested and track.rest == (REST if rested > 1 else sample)
    assert next_of(track_of(rest=None), sample).rested == 1


def test_s21_the_first_place_is_believed_after_a_tenth_of_a_second_of_rest():
    track = Track()
    for tick in range(1, 13):
        track = next_of(track, REST, now_ns=tick * TICK_NS)
        assert (track.rested, track.valid, measured_at_rest(LIMITS, track)) == (
            tick,
            tick >= 10,
            tick >= 10,
        )
        assert track.at == (REST if tick >= 10 else None) and track.jumped is (tick < 10)


@pytest.mark.parametrize(
    "tick, ticks", [(0.01, 10), (0.004, 25), (0.05, 3), (0.1, 3), (0.03, 3), (0.001, 100)]
)
def test_s21_a_tenth_of_a_second_has_at_least_three_ticks(tick, ticks):
    some = limits(tick=tick)
    assert track_at_rest(some, REST, 5) == Track(REST, 5, False, REST, ticks, True)
    assert not measured_at_rest(some, track_of(rested=ticks - 1)) and measured_at_rest(
        some, track_of(rested=ticks)
    )
    assert not measured_at_rest(some, track_of(rested=ticks, valid=False))


def test_a_resting_arm_is_looked_at_again_every_tenth_of_a_second():
    due = [rested for rested in range(1, 31) if recheck_due(LIMITS, track_of(rested=rested))]
    assert due == [10, 20, 30]


def test_s21_another_place_is_believed_only_anew_and_at_rest():
    far = at(0.2)
    waits = track_of(jumped=True, rest=far, rested=8, valid=False)
    ninth = next_of(waits, far, may_relocate=True)
    assert (ninth.valid, ninth.rested, ninth.at) == (False, 9, REST)
    tenth = next_of(ninth, far, may_relocate=True)
    assert tenth == Track(far, NS + TICK_NS, False, far, 10, True)
    assert not next_of(ninth, far, may_relocate=False).valid


def test_s21_a_believed_sample_ends_a_jump():
    track = next_of(track_of(jumped=True, valid=False, rest=at(0.2), rested=4), at(0.001))
    assert track == Track(at(0.001), NS + TICK_NS, False, at(0.001), 1, True)
