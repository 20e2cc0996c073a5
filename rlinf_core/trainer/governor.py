"""The governor: ratio of updates to data, lag of the learner, staleness, shares of stations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rlinf_core.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Governor:
    """Bounds samples per insert and policy staleness.

    Reverb (arXiv 2102.04736) describes the first bound, AReaL (arXiv 2505.24298) the second.

    Attributes:
        updates_per_step: gradient updates per online transition (update-to-data ratio).
        max_lag_episodes: lag of the learner, in episodes, beyond which stations must pause.
        max_staleness: maximum age, in versions, of an episode's policy to count as online data.
        steps_per_episode: transitions of a typical episode, to convert the lag into updates.
        min_transitions: transitions before the first update; they earn none and no station waits.
        max_staleness_of: ``max_staleness`` of single stations, by name.
        max_samples: maximum mean number of draws of a station's transitions; 0 for no bound.
        min_samples: minimum mean number of draws before a station may send more; 0 for no bound.
        balance_stations: draw equally often from each station.
    """

    updates_per_step: float
    max_lag_episodes: float
    max_staleness: int
    steps_per_episode: int
    min_transitions: int = 0
    max_staleness_of: Mapping[str, int] = field(default_factory=dict)
    max_samples: float = 0.0
    min_samples: float = 0.0
    balance_stations: bool = False

    def due(self, transitions: int, updates: int) -> int:
        """Return the updates that are due for online transitions, after ``updates`` updates."""
        return max(
            0, int(self.updates_per_step * max(0, transitions - self.min_transitions)) - updates
        )

    def accepting(self, transitions: int, updates: int) -> bool:
        """Return whether stations may play on; False if the learner is too far behind."""
        lag = self.updates_per_step * self.max_lag_episodes * self.steps_per_episode
        return self.due(transitions, updates) <= lag

    def is_fresh(self, episode_version: int, newest_version: int, station: str = "") -> bool:
        """Return whether an episode of that policy version counts as online data."""
        return newest_version - episode_version <= self.max_staleness_of.get(
            station, self.max_staleness
        )

    def weights(
        self,
        present: np.ndarray,
        inserted: np.ndarray,
        sampled: np.ndarray,
        robot_weights: np.ndarray | None = None,
    ) -> np.ndarray | None:
        """Return sampling weights by origin; None for uniform sampling.

        An origin at its maximum number of draws has weight 0, unless all are there.

        Args:
            present: (N,) transitions in the buffer, by origin.
            inserted: (N,) transitions inserted so far, by origin.
            sampled: (N,) transitions drawn so far, by origin.
            robot_weights: (N,) weights for equal shares of robots, if several share a policy.
        """
        if not (self.balance_stations or self.max_samples) or (present > 0).sum() < 2:
            return None
        by_origin = (present > 0) * 1.0 if self.balance_stations else present * 1.0
        weights = by_origin if robot_weights is None else robot_weights
        if self.max_samples:
            left = np.where(sampled < self.max_samples * inserted, weights, 0.0)
            weights = left if left.any() else weights
        return weights

    def must_wait(self, inserted: int, sampled: int) -> bool:
        """Return whether a station must wait until more of its transitions were drawn."""
        return sampled < self.min_samples * (inserted - self.min_transitions)


def make_governor(recipe: Recipe, max_steps: int) -> Governor:
    """Return the governor of a recipe.

    The ratio of updates comes from the algorithm if it sets one, else from ``simulation`` for a
    run in simulators, else from ``online``.
    """
    online, simulation = recipe.online, recipe.simulation
    per_step, min_transitions = (
        (simulation.updates_per_step, simulation.start_steps)
        if simulation.environments
        else (online.updates_per_step, online.min_transitions)
    )
    if recipe.algorithm.utd_ratio is not None:
        per_step, min_transitions = recipe.algorithm.utd_ratio, 0
    lag = 0.0 if online.synchronous else online.max_lag_episodes
    return Governor(
        updates_per_step=per_step,
        max_lag_episodes=lag,
        max_staleness=online.max_staleness,
        steps_per_episode=max_steps,
        min_transitions=min_transitions,
        max_staleness_of=online.max_staleness_of,
        max_samples=online.max_samples_per_insert,
        min_samples=online.min_samples_per_insert,
        balance_stations=recipe.replay.balance_stations,
    )
