"""Where a set-point goes next, within workspace, speed, acceleration and jerk, for every input.

Two ideas carry the proof (tests/interlock/test_properties.py):

1. A *plan* runs ahead without regard to jerk. It takes a velocity only if braking straight from it, with the full
   acceleration, ends inside the workspace. Braking for one tick keeps that property, so there is always a way out.
2. The set-point is the mean of the plan's last N points. A mean of points that keep a convex limit keeps it too: workspace,
   speed and acceleration. Its jerk is a difference of two accelerations over N ticks, so N = 2 a / (j T) bounds it
   (Biagiotti and Melchiorri, FIR filters for online trajectory planning, Control Engineering Practice 2012).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_BISECTIONS = 7
_ROUNDING = 1e-12
Numbers = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Coordinates that move and stop together, and their limits (SI units).

    Attributes:
        tick: seconds a tick.
        speed, acceleration, jerk: in the Euclidean norm, or of each coordinate if ``together``.
        low, high: workspace, per coordinate; empty if there is none.
        radius: workspace as a ball around zero.
        together: no coordinate slides along its wall while others go on: all slow down along their common path.
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

    @property
    def points(self) -> int:
        """How many points of the plan the set-point is the mean of."""
        if math.isinf(self.jerk) or math.isinf(self.acceleration):
            return 1
        return max(1, math.ceil(2.0 * self.acceleration / (self.jerk * self.tick) - 1e-9))

    def norm(self, vector: Numbers) -> float:
        return max(map(abs, vector)) if self.together else math.hypot(*vector)

    def inside(self, position: Numbers) -> bool:
        """Whether the workspace holds ``position``, to rounding."""
        if self.low and not all(lo - _ROUNDING <= p <= hi + _ROUNDING
                                for lo, p, hi in zip(self.low, position, self.high, strict=True)):
            return False
        return math.isinf(self.radius) or math.hypot(*position) <= self.radius + _ROUNDING

    def can_stop(self, position: Numbers, velocity: Numbers) -> bool:
        """Whether one tick at ``velocity``, and then braking straight, ends inside (and so stays inside: it is convex)."""
        speed = self.norm(velocity)
        if speed == 0.0:
            return True
        reach = self.tick + braking_distance(speed, self.acceleration, self.tick) / speed
        return self.inside(tuple(p + v * reach for p, v in zip(position, velocity, strict=True)))


@dataclass(frozen=True, slots=True)
class Motion:
    """A group's state: the plan's newest position and velocity, and its last ``points`` positions, oldest first."""

    position: Numbers
    velocity: Numbers
    trail: tuple[Numbers, ...]

    @classmethod
    def at_rest(cls, group: Group, position: Numbers) -> Motion:
        return cls(position, (0.0,) * len(position), (position,) * group.points)

    @property
    def set_point(self) -> Numbers:
        """The mean of the trail."""
        if self.trail[0] == self.trail[-1] and self.still:
            return self.position
        count = len(self.trail)
        return tuple(math.fsum(values) / count for values in zip(*self.trail, strict=True))

    @property
    def still(self) -> bool:
        """Whether neither the plan nor the set-point moves any more."""
        return not any(self.velocity) and all(point == self.position for point in self.trail)


def resting(motions: Iterable[Motion]) -> bool:
    """Whether no group moves any more."""
    return all(motion.still for motion in motions)


def advance(group: Group, motion: Motion, wanted: Numbers) -> tuple[Motion, frozenset[str]]:
    """One tick towards the wanted velocity; also the names of the limits that changed it.

    Zero stops within the acceleration, along the path. With ``motion`` able to stop inside the workspace, so is the result.
    """
    if not any(wanted) and motion.still:
        return motion, frozenset()
    bit: set[str] = set()
    speed = group.norm(wanted)
    if speed > group.speed:
        bit.add("speed")
        wanted = tuple(v * group.speed / speed for v in wanted)
    goal = _towards_walls(group, motion.position, wanted)
    if goal != wanted:
        bit.add(group.name)
    velocity = _within_acceleration(group, motion.velocity, goal)
    if velocity is not goal:
        bit.add("acceleration")
    if not group.can_stop(motion.position, velocity):
        bit.add(group.name)
        velocity = _last_that_can_stop(group, motion, velocity)
    position = tuple(p + v * group.tick for p, v in zip(motion.position, velocity, strict=True))
    if any(velocity):
        return Motion(position, velocity, (*motion.trail[1:], position)), frozenset(bit)
    return Motion(motion.position, velocity, (*motion.trail[1:], motion.position)), frozenset(bit)


def braking_distance(speed: float, acceleration: float, tick: float) -> float:
    """How far braking goes on after a tick at ``speed``: T sum_k (speed - k a T) over the ticks until it stands."""
    step = acceleration * tick
    if speed <= step:
        return 0.0
    ticks = math.floor(speed / step)
    return tick * (ticks * speed - step * ticks * (ticks + 1) / 2.0)


def stopping_speed(distance: float, acceleration: float, tick: float) -> float:
    """Largest speed from which a tick and then braking stay within ``distance`` (discrete v^2 / 2a, from below)."""
    if distance <= 0.0:
        return 0.0
    if math.isinf(acceleration):
        return distance / tick
    half = 0.5 * acceleration * tick
    return min(math.sqrt(half * half + 2.0 * acceleration * distance) - half, distance / tick)


def _towards_walls(group: Group, position: Numbers, wanted: Numbers) -> Numbers:
    """``wanted``, slowed down before the walls: sliding along them, or as a whole if the group goes together."""
    if not any(wanted):
        return wanted
    if group.together:
        speed = group.norm(wanted)
        far = min(((hi - p if v > 0.0 else p - lo) * speed / abs(v)
                   for lo, p, hi, v in zip(group.low, position, group.high, wanted, strict=True) if v), default=math.inf)
        most = stopping_speed(far, group.acceleration, group.tick)
        return wanted if speed <= most else tuple(v * most / speed for v in wanted)
    if group.low:
        braking, tick = group.acceleration / math.sqrt(len(wanted)), group.tick
        wanted = tuple(min(max(v, -stopping_speed(p - lo, braking, tick)), stopping_speed(hi - p, braking, tick))
                       for lo, p, hi, v in zip(group.low, position, group.high, wanted, strict=True))
    if math.isfinite(group.radius) and any(position):
        away = math.hypot(*position)
        outward = sum(p * v for p, v in zip(position, wanted, strict=True)) / away
        most = stopping_speed(group.radius - away, 0.5 * group.acceleration, group.tick)
        if outward > most:
            wanted = tuple(v - (outward - most) * p / away for p, v in zip(position, wanted, strict=True))
    return wanted


def _within_acceleration(group: Group, velocity: Numbers, goal: Numbers) -> Numbers:
    """As far towards ``goal`` as one tick's acceleration goes."""
    change = tuple(g - v for g, v in zip(goal, velocity, strict=True))
    size, most = group.norm(change), group.acceleration * group.tick
    if size <= most:
        return goal
    return tuple(v + c * most / size for v, c in zip(velocity, change, strict=True))


def _last_that_can_stop(group: Group, motion: Motion, velocity: Numbers) -> Numbers:
    """From braking straight, which can always stop, towards ``velocity``, which cannot: as far as can."""
    best = _within_acceleration(group, motion.velocity, (0.0,) * len(velocity))
    low, high = 0.0, 1.0
    braked = best
    for _ in range(_BISECTIONS):
        share = 0.5 * (low + high)
        between = tuple(a + share * (b - a) for a, b in zip(braked, velocity, strict=True))
        if group.can_stop(motion.position, between):
            low, best = share, between
        else:
            high = share
    return best
