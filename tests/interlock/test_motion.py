"""motion.py against the physics, computed again tick by tick and by hand."""

import math
from random import Random

import numpy as np
import pytest

from rlinf_core.interlock import motion as module
from rlinf_core.interlock.motion import (
    Group,
    Motion,
    advance,
    braking_distance,
    resting,
    stopping_speed,
)

INF = math.inf
TICK, ACCELERATION = 0.01, 2.0
# numbers that floats hold exactly
BOX = Group("box", 0.5, 1.0, 2.0, low=(-4.0, -4.0), high=(4.0, 4.0))
BALL = Group("ball", 0.5, 1.0, 2.0, radius=5.0)
JOINTS = Group("joints", 0.5, 1.0, 2.0, low=(-4.0, -4.0), high=(4.0, 4.0), together=True)


def slid(speed, acceleration, tick):
    """Return the braking distance with ``acceleration``, computed tick by tick."""
    distance = 0.0
    while speed - acceleration * tick > 0.0:
        speed -= acceleration * tick
        distance += speed * tick
    return distance


SPEEDS = [0.0, 1e-6, 0.0199, 0.02, 0.0201, 0.04, 0.1, 0.1234, 1.0, 3.0]


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("acceleration, tick", [(2.0, 0.01), (0.7, 0.004), (13.0, 0.1)])
def test_braking_takes_as_far_as_its_ticks_added_up(speed, acceleration, tick):
    assert braking_distance(speed, acceleration, tick) == pytest.approx(
        slid(speed, acceleration, tick), abs=1e-12
    )
    assert braking_distance(speed, INF, tick) == 0.0


@pytest.mark.parametrize("acceleration, tick", [(2.0, 0.01), (0.7, 0.004), (13.0, 0.1)])
def test_the_stopping_speed_uses_up_the_distance_to_within_an_eighth_of_a_tick_of_braking(
    acceleration, tick
):
    """Exactly so for whole ticks of braking; a distance of less than one such tick is gone through
    in one.
    """
    step = acceleration * tick
    for distance in (1e-9, 1e-4, 0.003, 0.2, 2.0):
        speed = stopping_speed(distance, acceleration, tick)
        used = tick * speed + slid(speed, acceleration, tick)
        assert distance - 1e-12 <= used <= distance + step * tick / 8.0
    for ticks in (2, 3, 20):
        assert stopping_speed(
            step * tick * ticks * (ticks + 1) / 2.0, acceleration, tick
        ) == pytest.approx(ticks * step)
    assert stopping_speed(0.25 * step * tick, acceleration, tick) == pytest.approx(0.25 * step)


def test_nothing_is_left_of_no_distance_and_no_acceleration_stops_within_a_tick():
    assert (
        stopping_speed(0.0, 2.0, 0.01)
        == stopping_speed(-1.0, 2.0, 0.01)
        == stopping_speed(-1.0, INF, 0.01)
        == 0.0
    )
    assert stopping_speed(0.02, INF, 0.01) == 2.0 and stopping_speed(INF, 2.0, 0.01) == INF


@pytest.mark.parametrize(
    "acceleration, jerk, tick, points",
    [
        (1.0, 10.0, 0.01, 20),
        (1.0, 10.0, 0.004, 50),
        (1.0, 9.9, 0.01, 21),
        (2.5, 25.0, 0.01, 20),
        (1.0, INF, 0.01, 1),
        (INF, 10.0, 0.01, 1),
        (INF, INF, 0.01, 1),
        (0.01, 6500.0, 0.01, 1),
        (1.0, 200.0, 0.01, 1),
        (1.0, 100.0, 0.01, 2),
    ],
)
def test_the_mean_is_of_as_many_points_as_the_jerk_asks_for(acceleration, jerk, tick, points):
    assert Group("x", tick, 1.0, acceleration, jerk).points == points


def test_norms_are_euclidean_or_of_the_fastest_joint():
    assert (BOX.norm((3.0, -4.0)), JOINTS.norm((3.0, -4.0))) == (5.0, 4.0)
    assert (BOX.distance((1.0, 1.0), (4.0, 5.0)), JOINTS.distance((1.0, 1.0), (4.0, 5.0))) == (
        5.0,
        4.0,
    )
    assert JOINTS.distance((4.0, 5.0), (1.0, 1.0)) == 4.0


def test_the_reach_is_two_ticks_and_braking_with_half_the_acceleration():
    assert BOX.reach == 1.0 * (1.0 / 2.0 + 2.0 * 0.5)
    assert Group("x", 0.01, 0.3, 1.5).reach == pytest.approx(
        0.3**2 / (2 * 0.5 * 1.5) + 2 * 0.3 * 0.01
    )


@pytest.mark.parametrize(
    "group, position, inside",
    [
        (BOX, (4.0, -4.0), True),
        (BOX, (4.0 + 5e-13, 0.0), True),
        (BOX, (4.0 + 3e-12, 0.0), False),
        (BOX, (0.0, -4.0 - 5e-13), True),
        (BOX, (0.0, -4.0 - 3e-12), False),
        (BOX, (math.nan, 0.0), False),
        (BALL, (3.0, 4.0), True),
        (BALL, (3.0, 4.0 + 5e-13), True),
        (BALL, (3.0, 4.0 + 3e-12), False),
        (Group("free", 0.5, 1.0), (1e9, 1e9), True),
    ],
)
def test_walls_belong_to_the_workspace_to_rounding(group, position, inside):
    assert group.inside(position) is inside


@pytest.mark.parametrize(
    "group, position, velocity, far",
    [
        (BOX, (0.0, 0.0), (0.0, 0.0), True),
        (BOX, (2.5, -2.5), (1.0, 0.0), True),
        (BOX, (-2.5, 2.5), (1.0, 0.0), True),
        (BOX, (2.51, 0.0), (0.0, 0.0), False),
        (BOX, (0.0, -2.51), (0.0, 0.0), False),
        (BOX, (0.0, 2.51), (0.0, 0.0), False),
        (BOX, (0.0, 0.0), (1.0 + 1e-9, 0.0), True),
        (BOX, (0.0, 0.0), (1.0 + 3e-9, 0.0), False),
        (BOX, (0.0, 0.0), (0.8, 0.8), False),
        (BALL, (3.5, 0.0), (0.0, 0.0), True),
        (BALL, (3.51, 0.0), (0.0, 0.0), False),
        (JOINTS, (0.0, 0.0), (0.8, 0.8), True),
    ],
)
def test_walls_matter_within_the_reach_and_at_any_distance_to_what_is_too_fast(
    group, position, velocity, far
):
    assert group.far_from_walls(position, group.norm(velocity)) is far


def test_a_group_without_walls_keeps_everything_else():
    group = Group("box", 0.5, 1.0, 2.0, 3.0, (0.0,), (1.0,), 4.0, True)
    assert group.without_walls == Group("box", 0.5, 1.0, 2.0, 3.0, together=True)


def random_case(random, group):
    """Return a place in the workspace and a velocity."""
    if group.radius < INF:
        angle, away = random.uniform(0, 6.3), random.choice((0.3, 0.9, 1.0)) * group.radius
        position = (away * math.cos(angle), away * math.sin(angle))
    else:
        position = tuple(
            random.choice((random.uniform(lo, hi), lo, hi, 0.99 * hi))
            for lo, hi in zip(group.low, group.high, strict=True)
        )
    angle, size = random.uniform(0, 6.3), random.choice((0.1, 0.5, 0.99, 1.0, 1.6)) * group.speed
    return position, (size * math.cos(angle), size * math.sin(angle))


FINE = [
    Group("box", 0.01, 0.25, 1.0, low=(-0.05, -0.03), high=(0.05, 0.06)),
    Group("ball", 0.01, 0.5, 2.5, radius=0.1),
    Group("joints", 0.01, 0.5, 2.5, low=(-0.1, -0.1), high=(0.1, 0.1), together=True),
]


def stops_inside(group, position, velocity):
    """Return whether a tick at ``velocity`` and then braking end inside, computed tick by tick."""
    position, velocity = np.array(position), np.array(velocity)
    size = np.abs(velocity).max() if group.together else np.linalg.norm(velocity)
    if size == 0.0:
        return True
    position = (
        position
        + velocity * group.tick
        + velocity / size * slid(size, group.acceleration, group.tick)
    )
    if group.radius < INF:
        return bool(np.linalg.norm(position) <= group.radius + 1e-12)
    return bool(
        (position >= np.array(group.low) - 1e-12).all()
        and (position <= np.array(group.high) + 1e-12).all()
    )


@pytest.mark.parametrize("group", FINE, ids=lambda group: group.name)
def test_what_can_stop_is_what_stops_inside_tick_by_tick(group):
    random, counts = Random(0), {True: 0, False: 0}
    for _ in range(400):
        case = random_case(random, group)
        counts[stops_inside(group, *case)] += 1
        assert group.can_stop(*case) is stops_inside(group, *case)
    assert min(counts.values()) > 40
    assert group.can_stop((9.0, 9.0), (0.0, 0.0)), "what rests outside stays where it is"
    assert not group.can_stop((9.0, 9.0), (0.01, 0.0))


@pytest.mark.parametrize("group", FINE, ids=lambda group: group.name)
def test_what_cannot_stop_is_slowed_down_to_the_last_thirty_second_that_can(group):
    """Between braking straight and what is asked for, five halvings."""
    random, checked = Random(1), 0
    while checked < 60:
        position, velocity = random_case(random, group)
        if not group.can_stop(position, velocity):
            continue
        target = tuple(
            v + random.uniform(-1, 1) * 0.7 * group.acceleration * group.tick for v in velocity
        )
        if group.can_stop(position, target):
            continue
        size = group.norm(velocity)
        braked = tuple(v * max(0.0, 1.0 - group.acceleration * group.tick / size) for v in velocity)
        mixes = [
            tuple(a + fraction / 32 * (b - a) for a, b in zip(braked, target, strict=True))
            for fraction in range(32)
        ]
        able = [group.can_stop(position, mix) for mix in mixes]
        if able != sorted(able, reverse=True):
            continue  # at a corner more than one way out: bisection finds one of them
        checked += 1
        result = module._last_that_can_stop(
            group, Motion.at_rest(group, position)._replace(velocity=velocity), target
        )
        assert result == pytest.approx(mixes[sum(able) - 1], abs=1e-12) and sum(able) > 0


# Towards a wall: the velocity that is allowed there, by hand
ROOT_HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    "position, wanted, allowed",
    [
        ((0.0, 0.0), (0.3, -0.4), (0.3, -0.4)),
        ((4.0, 0.0), (0.5, 0.5), (0.0, 0.5)),
        ((4.0, 0.0), (-0.5, 0.5), (-0.5, 0.5)),
        ((-4.0, 0.0), (-0.5, 0.5), (0.0, 0.5)),
        ((0.0, -4.0), (0.5, -0.5), (0.5, 0.0)),
        ((5.0, -5.0), (0.5, -0.5), (0.0, 0.0)),
        ((5.0, -5.0), (-0.5, 0.5), (-0.5, 0.5)),
        ((4.0, 4.0), (0.0, 0.0), (0.0, 0.0)),
        ((3.875, 0.0), (1.0, 0.0), (0.25, 0.0)),
        ((0.0, -3.875), (0.0, -1.0), (0.0, -0.25)),
        ((3.0, 0.0), (9.0, 0.0), (stopping_speed(1.0, 2.0 * ROOT_HALF, 0.5), 0.0)),
        ((0.0, -3.0), (0.0, -9.0), (0.0, -stopping_speed(1.0, 2.0 * ROOT_HALF, 0.5))),
    ],
)
def test_the_tool_slides_along_its_walls(position, wanted, allowed):
    assert module._towards_walls(BOX, position, wanted) == pytest.approx(allowed, abs=1e-15)


@pytest.mark.parametrize(
    "position, wanted, allowed",
    [
        ((0.0, 0.0), (0.3, -0.4), (0.3, -0.4)),
        ((4.0, 0.0), (0.5, 0.5), (0.0, 0.0)),
        ((4.0, 0.0), (-0.5, 0.5), (-0.5, 0.5)),
        ((-4.0, 0.0), (-0.5, 0.5), (0.0, 0.0)),
        ((3.9375, 0.0), (1.0, -0.5), (0.125, -0.0625)),
        ((0.0, -3.9375), (-0.5, -1.0), (-0.0625, -0.125)),
        ((3.9375, 0.0), (0.0, 1.0), (0.0, 1.0)),
        ((3.9375, 0.0), (0.5, 1.0), (0.125, 0.25)),
        ((3.9375, -3.875), (0.5, -0.5), (0.125, -0.125)),
        ((4.0, 4.0), (0.0, 0.0), (0.0, 0.0)),
        ((3.0, 0.0), (4.0, 2.0), (1.5615528128088303, 0.7807764064044151)),
    ],
)
def test_joints_slow_down_together(position, wanted, allowed):
    assert module._towards_walls(JOINTS, position, wanted) == pytest.approx(allowed, abs=1e-15)


@pytest.mark.parametrize(
    "position, wanted, allowed",
    [
        ((0.0, 0.0), (9.0, 9.0), (9.0, 9.0)),
        ((5.0, 0.0), (1.0, 0.7), (0.0, 0.7)),
        ((-5.0, 0.0), (-1.0, 0.7), (0.0, 0.7)),
        ((5.0, 0.0), (-1.0, 0.7), (-1.0, 0.7)),
        ((0.0, 6.0), (0.3, 1.0), (0.3, 0.0)),
        ((3.0, 4.0), (0.6, 0.8), (0.0, 0.0)),
        ((0.0, 4.96875), (0.5, 1.0), (0.5, stopping_speed(0.03125, 1.0, 0.5))),
        ((2.0, 0.0), (0.5, 0.1), (0.5, 0.1)),
        ((4.0, 0.0), (9.0, 0.5), (stopping_speed(1.0, 1.0, 0.5), 0.5)),
    ],
)
def test_rotation_slides_along_its_cone(position, wanted, allowed):
    assert module._towards_walls(BALL, position, wanted) == pytest.approx(allowed, abs=1e-15)


# One tick
def rest(group, *position):
    return Motion.at_rest(group, position)


def test_one_tick_says_which_limits_changed_it():
    free = Group("box", 0.5, 1.0, 2.0)
    for group, start, wanted, velocity, bits in (
        (free, (0.0, 0.0), (0.5, 0.0), (0.5, 0.0), set()),
        (free, (0.0, 0.0), (1.0, 0.0), (1.0, 0.0), set()),  # at the limits is within them
        (free, (0.0, 0.0), (2.0, 0.0), (1.0, 0.0), {"speed"}),
        (Group("box", 0.5, 1.0, 1.0), (0.0, 0.0), (0.0, -0.75), (0.0, -0.5), {"acceleration"}),
        (
            Group("box", 0.5, 1.0, 1.0),
            (0.0, 0.0),
            (-3.0, 0.0),
            (-0.5, 0.0),
            {"acceleration", "speed"},
        ),
        (BOX, (4.0, 0.0), (0.5, 0.25), (0.0, 0.25), {"box"}),
        (BOX, (4.0, 0.0), (2.0, 0.0), (0.0, 0.0), {"speed", "box"}),
        (JOINTS, (4.0, 0.0), (0.5, 0.25), (0.0, 0.0), {"joints"}),
        (BALL, (5.0, 0.0), (0.5, 0.0), (0.0, 0.0), {"ball"}),
    ):
        moved, active = advance(group, rest(group, *start), wanted)
        assert moved.velocity == pytest.approx(velocity, abs=1e-15) and active == bits
        assert moved.position == pytest.approx(
            [p + 0.5 * v for p, v in zip(start, velocity, strict=True)], abs=1e-15
        )


@pytest.mark.parametrize(
    "velocity, wanted, share, moved, limits",
    [
        ((2.0, 0.0), (0.5, 0.0), 1.0, (1.0, 0.0), {"speed"}),
        ((2.0, 0.0), (0.0, 0.5), 1.0, (1.0, 0.0), {"speed"}),
        ((3.0, 0.0), (0.5, 0.0), 1.0, (2.0, 0.0), {"speed", "acceleration"}),
        ((1.0, 0.0), (0.25, 0.0), 0.5, (0.5, 0.0), {"speed"}),
        ((2.0, 0.0), (0.0, 0.0), 1.0, (1.0, 0.0), {"acceleration"}),
        ((1.0 + 5e-10, 0.0), (0.25, 0.0), 1.0, (0.25, 0.0), set()),
    ],
)
def test_a_plan_above_its_speed_limit_brakes_along_its_path(velocity, wanted, share, moved, limits):
    motion = rest(BOX, 0.0, 0.0)._replace(velocity=velocity, still=False)
    result, active = advance(Group("free", 0.5, 1.0, 2.0), motion, wanted, share)
    assert result.velocity == pytest.approx(moved) and active == limits


def test_what_could_not_stop_is_changed_by_its_workspace():
    """Along a curved wall the straight way to stop leaves the ball, though no velocity goes
    outward.
    """
    group = Group("ball", 0.01, 0.5, 2.5, radius=0.1)
    motion = rest(group, 0.099998, 0.0)._replace(velocity=(0.0, 0.04), still=False)
    moved, active = advance(group, motion, (0.0, 0.065))
    assert (
        active == {"ball"}
        and 0.015 <= moved.velocity[1] < 0.065
        and group.can_stop(moved.position, (0.0, 0.0))
    )
    assert stops_inside(group, motion.position, moved.velocity)
    assert advance(group, motion, (0.0, 9.0))[1] == {"speed", "acceleration", "ball"}, (
        "and it is one of several"
    )


def test_what_rests_stays_the_same_object_and_is_limited_by_nothing():
    for group in (BOX, JOINTS, BALL):
        motion = rest(group, 4.5, 4.5)
        moved, active = advance(group, motion, (0.0, 0.0))
        assert moved is motion and active == frozenset()
    moving = rest(BOX, 0.0, 0.0)._replace(velocity=(0.5, 0.0), still=False)
    moved, active = advance(BOX, moving, (0.0, 0.0))
    assert (moved.velocity, moved.position, active) == ((0.0, 0.0), (0.0, 0.0), frozenset())


def test_acceleration_is_met_exactly_or_shared_by_the_coordinates():
    group = Group("x", 0.5, 9.0, 2.0)
    goal = (1.0, 0.0)
    assert module._within_acceleration(group, (0.0, 0.0), goal) is goal
    assert module._within_acceleration(group, (1.0, 1.0), (4.0, 5.0)) == pytest.approx((1.6, 1.8))
    assert module._within_acceleration(group, (4.0, 5.0), (1.0, 1.0)) == pytest.approx((3.4, 4.2))
    assert module._within_acceleration(JOINTS, (1.0, 1.0), (4.0, 5.0)) == pytest.approx((1.75, 2.0))


def test_a_set_point_is_the_mean_of_its_trail_and_still_when_all_of_it_is_one_place():
    group = Group("x", 0.5, 1.0, 1.0, 1.0)
    motion = rest(group, 1.0, 2.0)
    assert group.points == 4 and motion == (
        (1.0, 2.0),
        (0.0, 0.0),
        ((1.0, 2.0),) * 4,
        (1.0, 2.0),
        True,
        2,
    )
    motion = motion.moved_to((5.0, 2.0), (8.0, 0.0))
    assert motion == (
        (5.0, 2.0),
        (8.0, 0.0),
        ((1.0, 2.0),) * 3 + ((5.0, 2.0),),
        (2.0, 2.0),
        False,
        0,
    )
    for number in range(3):
        assert not motion.still and not resting([rest(group, 0.0, 0.0), motion])
        motion = motion.moved_to((5.0, 2.0), (0.0, 0.0))
        assert motion.set_point == (3.0 + number, 2.0)
    assert motion.still and resting([motion, rest(group, 0.0, 0.0)]) and resting([])
    for ticks in range(4):
        assert (motion.rested, motion.settled) == (min(ticks, 2), ticks >= 2)
        again = motion.moved_to((5.0, 2.0), (0.0, 0.0))
        motion, _ = advance(group, motion, (0.0, 0.0))
        assert motion == again
    assert not motion.moved_to((5.0, 2.0), (0.1, 0.0)).settled
    assert not motion.moved_to((5.0, 2.0), (0.1, 0.0)).still
    assert not motion.moved_to((6.0, 2.0), (0.0, 0.0)).still
    forth_and_back = (
        rest(group, 0.0, 0.0).moved_to((1.0, 0.0), (1.0, 0.0)).moved_to((0.0, 0.0), (0.0, 0.0))
    )
    assert not forth_and_back.still and forth_and_back.set_point == (0.25, 0.0)


def test_numbers_that_do_not_belong_together_are_an_error_and_none_is_left_out():
    one, two = (1.0,), (0.5, 0.5)
    motion = rest(BOX, 0.0, 0.0)
    for wrong in (
        lambda: BOX.can_stop(two, one),
        lambda: module._towards_walls(BOX, two, one),
        lambda: module._towards_walls(JOINTS, two, one),
        lambda: module._towards_walls(BALL, (5.0, 0.0), one),
        lambda: module._last_that_can_stop(BOX, motion, one),
        lambda: module._within_acceleration(JOINTS, (0.0, 0.0, 0.0), (9.0, 9.0)),
        lambda: advance(JOINTS.without_walls, motion, one),
        lambda: motion._replace(trail=(two, two)).moved_to(one, one),
    ):
        with pytest.raises(ValueError):
            wrong()
