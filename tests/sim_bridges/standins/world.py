"""A world without physics for the stand-ins of Isaac Lab and OmniGibson: a hand and a cube."""

import numpy as np

# [m/s], [m/s], of the cube [m], distance at which it is held [m]
SPEED = 1.0
GRIP_SPEED = 0.4
HALF = 0.02
HOLDS = 0.03


class World:
    def __init__(self, goal_height=(0.1, 0.3)):
        self.goal_height = goal_height
        self.reset(0)

    def reset(self, seed):
        random = np.random.default_rng(seed)
        self.position = np.array([0.5, 0.0, 0.25]) + random.normal(0, 0.01, 3)
        self.quaternion = np.array([1.0, 0, 0, 0])
        self.cube = np.array([*([0.5, 0.0] + random.uniform(-0.1, 0.1, 2)), HALF])
        self.goal = np.array(
            [*([0.5, 0.0] + random.uniform(-0.1, 0.1, 2)), random.uniform(*self.goal_height)]
        )
        self.opening, self.velocity, self.held = 0.08, np.zeros(3), None

    def step(self, position, quaternion, opening, seconds):
        delta = np.clip(position - self.position, -SPEED * seconds, SPEED * seconds)
        self.position += delta
        self.velocity = delta / seconds
        self.quaternion = np.array(quaternion)
        floor = 2 * HALF if self.held is not None else 0.0
        self.opening += np.clip(
            max(opening, floor) - self.opening, -GRIP_SPEED * seconds, GRIP_SPEED * seconds
        )
        closed = opening < 2 * HALF
        if self.held is None and closed and np.linalg.norm(self.cube - self.position) < HOLDS:
            self.held = self.cube - self.position
        if self.held is not None and not closed:
            self.held = None
        if self.held is not None:
            self.cube = self.position + self.held
        else:
            self.cube[2] = max(self.cube[2] - 1.0 * seconds, HALF)

    def picture(self, height, width):
        """Return a picture from above."""
        image = np.full((height, width, 3), 90, np.uint8)
        for place, colour, size in (
            (self.goal, (0, 200, 0), 12),
            (self.cube, (200, 0, 0), 16),
            (self.position, (255, 255, 255), 8),
        ):
            row = int(np.clip(height / 2 - place[1] * height, 0, height - 1))
            column = int(np.clip(place[0] * width, 0, width - 1))
            image[max(row - size, 0) : row + size, max(column - size, 0) : column + size] = colour
        return image
