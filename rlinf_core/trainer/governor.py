"""How much to learn from how much data, and which data is too old: the trainer's two governors."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_core.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Governor:
    """Samples per insert (as in Reverb, arXiv 2102.04736) and policy staleness (as in AReaL, arXiv 2505.24298).

    Attributes:
        updates_per_step: gradient updates per online transition beyond the first ones (the update-to-data ratio).
        max_lag_episodes: episodes' worth of updates the learner may be behind before stations are asked to pause.
        max_staleness: versions by which an episode's policy may be older than the newest to count as online data.
        steps_per_episode: transitions of a typical episode, which turns episodes of lag into updates.
        min_transitions: of the first so many nothing is learned yet, and nobody has to wait.
    """

    updates_per_step: float
    max_lag_episodes: float
    max_staleness: int
    steps_per_episode: int
    min_transitions: int = 0

    def due(self, transitions: int, updates: int) -> int:
        """Updates the learner owes for ``transitions`` online transitions after ``updates`` updates."""
        return max(0, int(self.updates_per_step * max(0, transitions - self.min_transitions)) - updates)

    def accepting(self, transitions: int, updates: int) -> bool:
        """Whether stations may go on collecting: false when the learner is too far behind."""
        lag = self.updates_per_step * self.max_lag_episodes * self.steps_per_episode
        return self.due(transitions, updates) <= lag

    def is_fresh(self, episode_version: int, newest_version: int) -> bool:
        """Whether an episode of that policy version counts as online data."""
        return newest_version - episode_version <= self.max_staleness


def governor_for(recipe: Recipe, max_steps: int) -> Governor:
    """That of the recipe: of its online phase on stations, of its simulation there, of the algorithm where that says it."""
    online, simulation = recipe.online, recipe.simulation
    own = getattr(recipe.algorithm, "updates_per_step", None)
    per_step, least = ((simulation.updates_per_step, simulation.start_steps) if simulation.environments else
                       (online.updates_per_step, online.min_transitions))
    if own is not None:
        per_step, least = own, 0
    return Governor(updates_per_step=per_step, max_lag_episodes=online.max_lag_episodes, max_staleness=online.max_staleness,
                    steps_per_episode=max_steps, min_transitions=least)
