"""The next set-point, within workspace, speed, acceleration and jerk, for every input.

Two ideas carry the proof (tests/interlock/test_properties.py):

1. A *plan* runs ahead without regard to jerk. It takes a velocity only if braking straight from
   it, with the full acceleration, ends inside the workspace. Braking for one tick keeps that
   property, so there is always a way out.
2. The set-point is the mean of the plan's last N points. A mean of points that keep a convex limit
   keeps it too: workspace, speed and acceleration. Its jerk is a difference of two accelerations
   over N ticks, so N = 2 a / (j T) bounds it (Biagiotti and Melchiorri, FIR filters for online
   trajectory planning, Control Engineering Practice 2012).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from operator import mul, sub
from typing import NamedTuple

_BISECTIONS = 5
_ROUNDING = 1e-12
# relative difference of speeds that are equal up to rounding
_SAME_SPEED = 1e-9
# this many ticks after the set-point's last step, its acceleration has been zero for a tick, too
SETTLED_TICKS = 2
_NONE: frozenset[str] = frozenset()
Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Group:
    """Coordinates that move and stop together, and their limits (SI units).

    Attributes:
        tick: period of a tick [s].
        speed, acceleration, jerk: limits of the Euclidean norm, or of each coordinate if
            ``together``.
        low, high: workspace, per coordinate; empty if there is none.
        radius: workspace as a ball around zero.
        together: True if all coordinates slow down along their common path. Otherwise one may slide
            along its wall while the others go on.
    """

    name: str
    tick: float
    speed: float
    acceleration: float = math.inf
    jerk: float = math.inf
    low: Numbers = ()
    high: Numbers = ()
    radius: float = math.inf
    together: bool = False

    @cached_property
    def points(self) -> int:
        """Number of points of the plan that the set-point averages."""
        if math.isinf(self.jerk) or math.isinf(self.acceleration):
            return 1
        return max(1, math.ceil(2.0 * self.acceleration / (self.jerk * self.tick) - 1e-9))

    def norm(self, vector: Numbers) -> float:
        return max(map(abs, vector)) if self.together else math.hypot(*vector)

    def distance(self, a: Numbers, b: Numbers) -> float:
        return max(map(abs, map(sub, a, b))) if self.together else math.dist(a, b)

    def inside(self, position: Numbers) -> bool:
        """Return True if ``position`` is in the workspace, up to rounding."""
        return self._walls.hold(position)

    def far_from_walls(self, position: Numbers, speed: float) -> bool:
        """Return True if no wall is near enough to matter.

        At a speed above the limit, which a tightened limit can cause, every wall counts as near.
        """
        return speed <= self.fastest and self._near_walls.hold(position)

    @cached_property
    def step(self) -> float:
        """The change of velocity in a tick at full acceleration."""
        return self.acceleration * self.tick

    @cached_property
    def fastest(self) -> float:
        """The speed limit, to rounding."""
        return self.speed * (1.0 + _SAME_SPEED)

    @cached_property
    def _walls(self) -> Walls:
        return Walls.of(self, -_ROUNDING)

    @cached_property
    def _near_walls(self) -> Walls:
        return Walls.of(self, self.reach)

    @cached_property
    def without_walls(self) -> Group:
        """The same speeds in an unlimited workspace."""
        return replace(self, low=(), high=(), radius=math.inf)

    @cached_property
    def reach(self) -> float:
        """A distance beyond that of two ticks and a stop from full speed at half acceleration."""
        return self.speed * (self.speed / self.acceleration + 2.0 * self.tick)

    def can_stop(self, position: Numbers, velocity: Numbers) -> bool:
        """Return True if a tick at ``velocity``, then straight braking, ends inside the workspace.

        The path in between stays inside too, because the workspace is convex.
        """
        speed = self.norm(velocity)
        if speed == 0.0:
            return True
        reach = self.tick + braking_distance(speed, self.acceleration, self.tick) / speed
        return self.inside(tuple([p + v * reach for p, v in zip(position, velocity, strict=True)]))


class Walls(NamedTuple):
    """A group's workspace, smaller by a margin: low and high of each coordinate, and the radius."""

    ends: tuple[tuple[float, float], ...]
    radius: float

    @classmethod
    def of(cls, group: Group, margin: float) -> Walls:
        ends = zip(group.low, group.high, strict=False)
        return cls(tuple((lo + margin, hi - margin) for lo, hi in ends), group.radius - margin)

    def hold(self, position: Numbers) -> bool:
        for (lo, hi), p in zip(self.ends, position, strict=False):
            if not lo <= p <= hi:
                return False
        return self.radius == math.inf or math.hypot(*position) <= self.radius


class Motion(NamedTuple):
    """A group's state.

    Attributes:
        position, velocity: the plan's newest.
        trail: its last ``points`` positions, oldest first.
        set_point: their mean.
        still: True if neither the plan nor the set-point moves any more.
        rested: ticks since the set-point's last step, at most ``SETTLED_TICKS``. The speed after
            that step can be stopped in one tick, within the present limits.
    """

    position: Numbers
    velocity: Numbers
    trail: tuple[Numbers, ...]
    set_point: Numbers
    still: bool
    rested: int = 0

    @classmethod
    def at_rest(cls, group: Group, position: Numbers) -> Motion:
        return cls(
            position,
            (0.0,) * len(position),
            (position,) * group.points,
            position,
            True,
            SETTLED_TICKS,
        )

    @property
    def settled(self) -> bool:
        """Whether the set-point's velocity and acceleration are zero, so that any limits hold."""
        return self.still and self.rested >= SETTLED_TICKS

    def one_tick_later(self) -> Motion:
        """Return the same place after a tick at rest."""
        return self if self.rested >= SETTLED_TICKS else self._replace(rested=self.rested + 1)

    def moved_to(self, position: Numbers, velocity: Numbers) -> Motion:
        """Return the state one tick later, with the plan at ``position``."""
        trail = (*self.trail[1:], position)
        if position == trail[0] and not any(velocity) and trail.count(position) == len(trail):
            return (
                self.one_tick_later()
                if self.still
                else Motion(position, velocity, trail, position, True)
            )
        count = len(trail)
        mean = tuple([fsum(values) / count for values in zip(*trail, strict=True)])
        return Motion(position, velocity, trail, mean, False)


def resting(motions: Iterable[Motion]) -> bool:
    """Return True if no group moves any more."""
    return all([motion.still for motion in motions])


def advance(
    group: Group, motion: Motion, desired: Numbers, share: float = 1.0
) -> tuple[Motion, frozenset[str]]:
    """Advance one tick towards the desired velocity.

    Zero stops within the acceleration, along the path. If ``motion`` can stop inside the workspace,
    so can the result. A plan above its speed limit, which a tightened limit can cause, brakes along
    its path first. Its speed then falls by the full acceleration each tick until the limit holds.

    Args:
        group: the coordinates and their limits.
        motion: the current state.
        desired: the velocity to approach.
        share: fraction of the speed limit that holds now.

    Returns:
        The next state, and the names of the limits that changed the desired velocity.
    """
    if motion.still and not any(desired):
        return motion.one_tick_later(), _NONE
    active = _NONE
    fastest = group.speed * share
    speed = group.norm(desired)
    current = group.norm(motion.velocity)
    if speed > fastest:
        active |= {"speed"}
        desired = tuple([v * fastest / speed for v in desired])
    walls = not group.far_from_walls(motion.position, current)
    if current > fastest * (1.0 + _SAME_SPEED) and any(desired):
        active |= {"speed"}
        desired = goal = tuple([v * fastest / current for v in motion.velocity])
    else:
        goal = _towards_walls(group, motion.position, desired) if walls else desired
    if goal != desired:
        active |= {group.name}
    velocity = _within_acceleration(group, motion.velocity, goal)
    if velocity is not goal:
        active |= {"acceleration"}
    if walls and not group.can_stop(motion.position, velocity):
        active |= {group.name}
        velocity = _last_that_can_stop(group, motion, velocity)
    tick = group.tick
    position = tuple([p + v * tick for p, v in zip(motion.position, velocity, strict=True)])
    return motion.moved_to(position, velocity), active


def braking_distance(speed: float, acceleration: float, tick: float) -> float:
    """Return the braking distance after a tick at ``speed``: T sum_k (speed - k a T)."""
    step = acceleration * tick
    if speed <= step:
        return 0.0
    ticks = math.floor(speed / step)
    return tick * (ticks * speed - step * ticks * (ticks + 1) / 2.0)


def stopping_speed(distance: float, acceleration: float, tick: float) -> float:
    """Return the speed from which a tick and then braking take ``distance``.

    The formula v^2 / 2a + v T / 2 is within a T^2 / 8 of the sum.
    """
    if distance <= 0.0:
        return 0.0
    if math.isinf(acceleration):
        return distance / tick
    half = 0.5 * acceleration * tick
    return min(math.sqrt(half * half + 2.0 * acceleration * distance) - half, distance / tick)


def _towards_walls(group: Group, position: Numbers, desired: Numbers) -> Numbers:
    """Slow ``desired`` down before the walls.

    The result slides along the walls, or slows down as a whole if the group moves together.
    """
    if group.together and group.low:
        speed = group.norm(desired)
        far = min(
            (
                (hi - p if v > 0.0 else p - lo) * speed / abs(v)
                for lo, p, hi, v in zip(group.low, position, group.high, desired, strict=True)
                if v
            ),
            default=math.inf,
        )
        fastest = stopping_speed(far, group.acceleration, group.tick)
        return desired if speed <= fastest else tuple(v * fastest / speed for v in desired)
    if group.low:
        braking, tick = group.acceleration / math.sqrt(len(desired)), group.tick
        desired = tuple(
            [
                max(
                    -stopping_speed(p - lo, braking, tick),
                    min(v, stopping_speed(hi - p, braking, tick)),
                )
                for lo, p, hi, v in zip(group.low, position, group.high, desired, strict=True)
            ]
        )
    if any(position):
        away = math.hypot(*position)
        outward = sum(map(mul, position, desired)) / away
        fastest = stopping_speed(group.radius - away, 0.5 * group.acceleration, group.tick)
        if outward > fastest:
            desired = tuple(
                v - (outward - fastest) * p / away for p, v in zip(position, desired, strict=True)
            )
    return desired


def _within_acceleration(group: Group, velocity: Numbers, goal: Numbers) -> Numbers:
    """Return the velocity nearest to ``goal`` within one tick's acceleration."""
    size, fastest = group.distance(goal, velocity), group.step
    if size <= fastest:
        return goal
    return _between(velocity, goal, fastest / size)


def _between(a: Numbers, b: Numbers, fraction: float) -> Numbers:
    return tuple([x + (y - x) * fraction for x, y in zip(a, b, strict=True)])


def _last_that_can_stop(group: Group, motion: Motion, velocity: Numbers) -> Numbers:
    """Return the velocity nearest to ``velocity``, which cannot stop, that can still stop.

    The search starts from straight braking, which can always stop.
    """
    best = _within_acceleration(group, motion.velocity, (0.0,) * len(velocity))
    low, high = 0.0, 1.0
    braked = best
    for _ in range(_BISECTIONS):
        fraction = 0.5 * (low + high)
        between = _between(braked, velocity, fraction)
        if group.can_stop(motion.position, between):
            low, best = fraction, between
        else:
            high = fraction
    return best
