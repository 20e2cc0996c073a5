"""N points that must move into small holes: the task of ``toy.py`` as a vector of environments."""

import numpy as np

from rlinf_core.rollouts.envs import Steps
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec

SPEC = StationSpec(
    (ArraySpec("offset", (2,)),),
    ActionSpec("tcp_delta", ("dx", "dy"), (0.1, 0.1), ("m", "m")),
    10.0,
)
STEPS, RADIUS = 25, 0.08
TURN = np.array([[0.5, -0.866], [0.866, 0.5]])  # the world turns every action by 60 degrees

# Another robot: each coordinate moves backwards, by the action of another coordinate.
CIRCLE = -np.eye(3)[[1, 2, 0]]
SPACE = StationSpec(
    (ArraySpec("where", (3,)),), ActionSpec("tcp_delta", tuple("xyz"), (0.1,) * 3, ("m",) * 3), 10.0
)


class Points:
    """N points, each with a hole at the origin.

    The reward is 1 in the hole, plus ``shaping`` times the approach in a time step. An episode ends in
    the hole, or after 25 time steps.
    """

    def __init__(self, size, shaping=1.0, spec=SPEC, turn=TURN):
        self.spec, self.size, self.shaping, self.turn, self.next = spec, size, shaping, turn, 10**6
        self.at, self.steps = np.zeros((size, len(turn))), np.zeros(size, int)

    def start(self, seed):
        return np.random.default_rng(seed).uniform(-1, 1, len(self.turn))

    def reset(self, seeds):
        self.at, self.steps[:] = np.array([self.start(seed) for seed in seeds]), 0
        return self.observation()

    def observation(self):
        return {"vectors": self.at.astype(np.float32)}

    def step(self, actions, active=None):
        active = np.ones(self.size, bool) if active is None else active
        away = np.linalg.norm(self.at, axis=1)
        self.at = np.clip(
            self.at + active[:, None] * (0.1 * np.clip(actions, -1, 1) @ self.turn.T), -1.5, 1.5
        )
        self.steps += active
        now = np.linalg.norm(self.at, axis=1)
        terminated = (now < RADIUS) & active
        done = terminated | (self.steps >= STEPS) & active
        next_observations = self.observation()
        for index in np.flatnonzero(done):
            self.next += 1
            self.at[index], self.steps[index] = self.start(self.next), 0
        reward = terminated + self.shaping * (away - now) * active
        terminated = terminated.astype(float)
        return Steps(
            next_observations, reward, terminated, done - terminated, terminated, self.observation()
        )

    def expert(self):
        return np.clip(-(self.at @ self.turn) / 0.1, -1, 1).astype(np.float32)

    def state_dict(self):
        return {"at": self.at, "steps": self.steps, "next": self.next}

    def load_state_dict(self, state):
        self.at = np.array(state["at"])
        self.steps = np.array(state["steps"])
        self.next = int(state["next"])

    def close(self):
        pass


def points(recipe, size):
    """Return the world for a recipe's task; with two arms it has three numbers."""
    return (
        Points(size, spec=SPACE, turn=CIRCLE)
        if recipe.station.task == "reach_both"
        else Points(size)
    )


def success(act, episodes=64):
    """Return the share of solved held-out scenes.

    Args:
        act: returns chunks (N, H, A), played to their ends, for observations of N points.
    """
    env = Points(episodes)
    observations = env.reset(range(10**7, 10**7 + episodes))
    plays = np.ones(episodes, bool)
    solved = 0
    while plays.any():
        for actions in np.swapaxes(act(observations), 0, 1):
            steps = env.step(actions, plays)
            solved += (plays * steps.terminated).sum()
            plays, observations = plays & (steps.done == 0), steps.observation
    return solved / episodes


def expert(observation):
    """Return the action straight to the hole."""
    return np.clip(-(TURN.T @ observation["offset"]) / 0.1, -1, 1)


def misled(random, fraction=0.35):
    """Return a demonstrator that is right in a ``fraction`` of its actions, else 100 degrees off.

    Its mean action leads nowhere.
    """
    aside = np.array([[np.cos(1.75), -np.sin(1.75)], [np.sin(1.75), np.cos(1.75)]])

    def act(observation):
        action = expert(observation)
        return (action if random.random() < fraction else aside @ action)[None]

    return act


def play(act, seed, shaping=1.0):
    """Play an episode of ``act``, which returns chunks (H, A); return its arrays for a replay."""
    env = Points(1, shaping)
    positions = [env.reset([seed])["vectors"][0]]
    actions = []
    rewards = []
    discounts = []
    done = False
    while not done:
        for action in act({"offset": positions[-1]}):
            steps = env.step(np.clip(action, -1, 1)[None])
            positions.append(steps.next_observations["vectors"][0])
            actions.append(np.clip(action, -1, 1))
            rewards.append(steps.reward[0])
            discounts.append(1.0 - steps.terminated[0])
            done = bool(steps.done[0])
            if done:
                break
    return (
        {"vectors": np.array(positions)},
        np.array(actions),
        np.array(rewards),
        np.array(discounts),
    )
