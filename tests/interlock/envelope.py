"""An independent check of the motion of a group of coordinates from tick to tick.

Speed and position must hold to 1e-9. Acceleration and jerk are differences of published targets,
whose float64 errors are about 1e-12 and 1e-9; the tolerances are larger accordingly.
"""

import math
from collections import defaultdict

import numpy as np

TOLERANCE = {"position": 1e-9, "speed": 1e-9, "acceleration": 1e-8, "jerk": 1e-5}
# Largest excess over each limit, by shape.
WORST: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(lambda: -math.inf))


def rotation_vector(nominal, q):
    """Return log(nominal^-1 q), computed by matrices, independently of the code."""

    def matrix(q):
        x, y, z, w = np.asarray(q) / np.linalg.norm(q)
        return np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
            ]
        )

    r = matrix(nominal).T @ matrix(q)
    axis = np.array([r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]])
    sine = 0.5 * np.linalg.norm(axis)
    angle = math.atan2(sine, 0.5 * (np.trace(r) - 1.0))
    return axis * (0.5 if sine < 1e-9 else 0.5 * angle / sine)


class Envelope:
    """Checks one group's published coordinates, tick by tick."""

    def __init__(self, group, shape):
        self.group, self.worst = group, WORST[shape]

    def restart(self, position):
        self.position, self.outside = np.array(position, float), math.inf
        self.velocity = self.acceleration = np.zeros(len(self.position))

    def check(self, position):
        group, position = self.group, np.array(position, float)
        assert np.isfinite(position).all()
        size = (lambda x: np.abs(x).max()) if group.together else np.linalg.norm
        velocity = (position - self.position) / group.tick
        acceleration = (velocity - self.velocity) / group.tick
        jerk = (acceleration - self.acceleration) / group.tick
        excess = {
            "speed": size(velocity) - group.speed,
            "acceleration": size(acceleration) - group.acceleration,
            "jerk": size(jerk) - group.jerk,
            "position": np.linalg.norm(position) - group.radius,
        }
        if group.low:
            excess["position"] = max(
                (np.array(group.low) - position).max(), (position - np.array(group.high)).max()
            )
        outside, self.outside = self.outside, max(excess["position"], 0.0)
        # An arm outside of its range may rest there or return.
        if outside > TOLERANCE["position"]:
            assert excess.pop("position") <= outside + 1e-9, f"{group.name}: further outside"
        for name, value in excess.items():
            self.worst[name] = max(self.worst[name], value)
            assert value <= TOLERANCE[name], f"{group.name}: {name} exceeded by {value}"
        self.position, self.velocity, self.acceleration = position, velocity, acceleration

    def stood(self):
        """Restart from rest after a time without ticks."""
        self.velocity = self.acceleration = np.zeros(len(self.position))
