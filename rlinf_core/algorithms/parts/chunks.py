"""Time steps grouped into action chunks, for learners whose action is a whole chunk."""

from __future__ import annotations

import numpy as np

Arrays = dict[str, np.ndarray]


def chunked(observations: Arrays, actions: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, horizon: int,
            gamma: float) -> Arrays:
    """An episode of T time steps as ceil(T / H) transitions, as the policy played it: chunk after chunk.

    Args:
        observations: name to (T + 1, ...).
        actions: (T, A).
        rewards, discounts: (T,).
        horizon: H; the last chunk may be cut short by the episode's end: what was not played repeats its last action.
        gamma: discount per time step.

    Returns:
        observations at the chunks' starts and ends (``next/``), action (C, H A), reward (C,) = sum_i gamma^i r_i, discount
        (C,) = the last step's, steps (C,) = time steps spanned: the next value counts gamma^steps.
    """
    starts = np.arange(0, len(actions), horizon)
    ends = np.minimum(starts + horizon, len(actions))
    index = np.minimum(starts[:, None] + np.arange(horizon), (ends - 1)[:, None])
    played = starts[:, None] + np.arange(horizon) < ends[:, None]
    reward = (rewards[index] * played * gamma ** np.arange(horizon)).sum(axis=1)
    return {**{name: values[starts] for name, values in observations.items()},
            **{f"next/{name}": values[ends] for name, values in observations.items()},
            "action": actions[index].reshape(len(starts), -1).astype(np.float32), "reward": reward.astype(np.float32),
            "discount": discounts[ends - 1].astype(np.float32), "steps": (ends - starts).astype(np.float32)}
