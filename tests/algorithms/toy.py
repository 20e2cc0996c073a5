"""A point that must move into a small hole: 2-D, sparse reward, fast enough for a learning test."""

import numpy as np

from rlinf_core.policies.base import Observation
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SPEC = StationSpec(
    (ArraySpec("offset", (2,)),),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.1, 0.1), ("m", "m")),
    10.0,
)
STEPS, RADIUS = 25, 0.05


def play(act, random):
    """Play an episode and return its arrays for a replay."""
    position, positions, actions, rewards, discounts = random.uniform(-1, 1, 2), [], [], [], []
    positions.append(position.copy())
    for _ in range(STEPS):
        action = np.clip(act({"offset": position.astype(np.float32)}), -1, 1)
        position = np.clip(position + 0.1 * action, -1.5, 1.5)
        done = bool(np.linalg.norm(position) < RADIUS)
        positions.append(position.copy())
        actions.append(action)
        rewards.append(float(done))
        discounts.append(0.0 if done else 1.0)
        if done:
            break
    return (
        {"vectors": np.array(positions, np.float32)},
        np.array(actions),
        np.array(rewards),
        np.array(discounts),
    )


def clumsy(random, noise=0.9):
    """Return a demonstrator with noise, which succeeds sometimes."""
    return lambda observation: (
        np.clip(-observation["offset"] / 0.1, -1, 1) + noise * random.normal(size=2)
    )


def acted(actor, observation, explore=False, generator=None):
    """Return a policy's chunk of actions (H, A) for one observation."""
    return (
        actor.act(Observation.from_single(actor.spec, observation), explore, generator)
        .actions[0]
        .numpy()
    )
