"""Rotations as unit quaternions (x, y, z, w) and as rotation vectors (axis times angle, [rad])."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import ndarray

    Four = tuple[float, float, float, float] | ndarray
    Three = Sequence[float] | ndarray

Quaternion = tuple[float, float, float, float]
Vector = tuple[float, float, float]


def product(a: Four, b: Four) -> Quaternion:
    """Return the rotation that first does ``b``, then ``a``."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return (
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
        aw * bw - ax * bx - ay * by - az * bz,
    )


def inverse(q: Four) -> Quaternion:
    """Return the inverse rotation."""
    return (-q[0], -q[1], -q[2], q[3])


def rotate(q: Four, vector: Three) -> Vector:
    """Return ``vector`` rotated by ``q``."""
    x, y, z = vector
    return product(product(q, (x, y, z, 0.0)), inverse(q))[:3]


def unit(q: tuple[float, ...]) -> Quaternion:
    """Return ``q`` scaled to length 1."""
    size = math.hypot(*q)
    return (q[0] / size, q[1] / size, q[2] / size, q[3] / size)


def to_quaternion(vector: Three) -> Quaternion:
    """Return the exponential map of a rotation vector."""
    angle = math.hypot(*vector)
    half = 0.5 * angle
    scale = math.sin(half) / angle if angle > 1e-8 else 0.5
    return (vector[0] * scale, vector[1] * scale, vector[2] * scale, math.cos(half))


def to_vector(q: Four) -> Vector:
    """Return the logarithm with the smaller angle, in [0, pi]."""
    return _logarithm(q if q[3] >= 0.0 else (-q[0], -q[1], -q[2], -q[3]))


def _logarithm(q: Four) -> Vector:
    """Return the rotation vector of a quaternion, with an angle in [0, 2 pi)."""
    x, y, z, w = q
    sine = math.sqrt(x * x + y * y + z * z)
    scale = 2.0 * math.atan2(sine, w) / sine if sine > 1e-12 else 2.0
    return (x * scale, y * scale, z * scale)


def same_hemisphere(q: Four, around: Four) -> Quaternion:
    """Return ``q`` with the sign of ``around``: the nearer of a rotation's two quaternions."""
    sign = 1.0 if sum(a * b for a, b in zip(q, around, strict=True)) >= 0.0 else -1.0
    return (sign * q[0], sign * q[1], sign * q[2], sign * q[3])


def to_vector_around(q: Four, around: Four) -> Vector:
    """Return the logarithm continuous around an orientation, with an angle in [0, 2 pi).

    This one jumps only at half a turn from ``around``. The plain logarithm jumps at half a turn
    from the frame, the place of a tool that points down.
    """
    home = around if around[3] >= 0.0 else (-around[0], -around[1], -around[2], -around[3])
    return _logarithm(same_hemisphere(q, home))


def angle(q: Four) -> float:
    """Return the angle of the rotation, in [0, pi]."""
    return math.hypot(*to_vector(q))
