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
    # Each axis may use 1/sqrt(3) of the acceleration, so that the sum of all three never exceeds it.
    axis_acceleration = limits.acceleration / math.sqrt(3.0)
    step = axis_acceleration * limits.tick
    next_velocity, next_position = [0.0] * 3, [0.0] * 3
    for i in _AXES:
        v = min(max(wanted[i], velocity[i] - step), velocity[i] + step)
        if v != wanted[i]:
            bit.add("acceleration")
        low, high = limits.box_low[i], limits.box_high[i]
        fastest_up = _stopping_speed(high - position[i], axis_acceleration, limits.tick)
        fastest_down = _stopping_speed(position[i] - low, axis_acceleration, limits.tick)
        braked = min(max(v, -fastest_down), fastest_up)
        if braked != v:
            bit.add("box")
        next_position[i] = min(max(position[i] + braked * limits.tick, low), high)
        next_velocity[i] = braked
    return _vector(next_position), _vector(next_velocity), frozenset(bit)


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
