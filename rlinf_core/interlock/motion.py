"""Where the set-point goes next: speed, acceleration, workspace box and divergence, each tick, per axis."""

from __future__ import annotations

import math

from rlinf_core.interlock.limits import Limits
from rlinf_core.interlock.types import Vector

_AXES = (0, 1, 2)


def advance(limits: Limits, position: Vector, velocity: Vector, wanted: Vector,
            measured: Vector) -> tuple[Vector, Vector, frozenset[str]]:
    """Move the set-point for one tick towards the wanted velocity.

    Args:
        position: the last command [m].
        velocity: of the set-point over the last tick [m/s].
        wanted: velocity asked for [m/s]; zero stops, along the path and within the acceleration.
        measured: the measured position [m], which the set-point must not run away from.

    Returns:
        The next position, the velocity over this tick, and the names of the limits that bit.
    """
    bit: set[str] = set()
    wanted = _within_speed(limits.speed, wanted, bit)
    wanted = _near(limits, position, wanted, measured, bit)
    # Each axis brakes before its wall with 1/sqrt(3) of the acceleration, so that all three at once stay within it.
    braking = limits.acceleration / math.sqrt(3.0)
    least, goal = [0.0] * 3, [0.0] * 3
    for i in _AXES:
        up = _stopping_speed(limits.box_high[i] - position[i], braking, limits.tick)
        down = _stopping_speed(position[i] - limits.box_low[i], braking, limits.tick)
        least[i] = min(max(velocity[i], -down), up)
        goal[i] = min(max(wanted[i], -down), up)
        if goal[i] != wanted[i]:
            bit.add("box")
    share = _share_of(limits.acceleration * limits.tick, velocity, least, goal)
    if share < 1.0:
        bit.add("acceleration")
    chosen = [a + share * (b - a) for a, b in zip(least, goal, strict=True)]
    moved = [min(max(p + v * limits.tick, low), high) for p, v, low, high in
             zip(position, chosen, limits.box_low, limits.box_high, strict=True)]
    return _vector(moved), _vector(chosen), frozenset(bit)


def _share_of(budget: float, velocity: Vector, least: list[float], goal: list[float]) -> float:
    """How far to go from ``least`` (the velocity, braked for the walls) to ``goal`` within a change of ``budget`` [m/s].

    All three bounds (speed, walls, change of velocity) are convex and ``least`` keeps each of them, so every point on
    the way does: the largest s in [0, 1] with ``|least + s (goal - least) - velocity| <= budget``.
    """
    start = [a - v for a, v in zip(least, velocity, strict=True)]
    way = [b - a for a, b in zip(least, goal, strict=True)]
    if math.isinf(budget) or math.hypot(*(s + w for s, w in zip(start, way, strict=True))) <= budget:
        return 1.0
    a = sum(w * w for w in way)
    b = sum(s * w for s, w in zip(start, way, strict=True))
    c = sum(s * s for s in start) - budget * budget
    if a == 0.0 or c >= 0.0:
        return 0.0
    return min(max((math.sqrt(b * b - a * c) - b) / a, 0.0), 1.0)


def _stopping_speed(distance: float, acceleration: float, tick: float) -> float:
    """Largest speed from which braking each tick still stops within ``distance`` (discrete v^2 / 2a)."""
    if distance <= 0.0:
        return 0.0
    if math.isinf(acceleration):
        return distance / tick
    half = 0.5 * acceleration * tick
    return min(math.sqrt(half * half + 2.0 * acceleration * distance) - half, distance / tick)


def _within_speed(speed: float, wanted: Vector, bit: set[str]) -> Vector:
    norm = math.hypot(*wanted)
    if norm <= speed:
        return wanted
    bit.add("speed")
    return _vector([v * speed / norm for v in wanted])


def _near(limits: Limits, position: Vector, wanted: Vector, measured: Vector, bit: set[str]) -> Vector:
    """Stop a set-point that is too far from the arm and would go further."""
    away = [p - m for p, m in zip(position, measured, strict=True)]
    outward = sum(a * w for a, w in zip(away, wanted, strict=True))
    if math.hypot(*away) <= limits.divergence or outward <= 0.0:
        return wanted
    bit.add("divergence")
    return (0.0, 0.0, 0.0)


def _vector(values: list[float]) -> Vector:
    return (values[0], values[1], values[2])
