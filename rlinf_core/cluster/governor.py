"""How much to learn from how much data, and which data is too old: the trainer's two governors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Governor:
    """Samples per insert (as in Reverb, arXiv 2102.04736) and policy staleness (as in AReaL, arXiv 2505.24298).

    Attributes:
        updates_per_step: gradient updates per online transition (the update-to-data ratio).
        max_lag_episodes: episodes' worth of updates the learner may be behind before stations are asked to pause.
        max_staleness: versions by which an episode's policy may be older than the newest to count as online data.
        steps_per_episode: transitions of a typical episode, which turns episodes of lag into updates.
        min_transitions: below this nothing is learned yet, and nobody has to wait.
    """

    updates_per_step: float
    max_lag_episodes: float
    max_staleness: int
    steps_per_episode: int
    min_transitions: int = 1

    def due(self, transitions: int, updates: int) -> int:
        """Updates the learner owes for ``transitions`` online transitions after ``updates`` updates."""
        if transitions < self.min_transitions:
            return 0
        return max(0, int(self.updates_per_step * transitions) - updates)

    def accepting(self, transitions: int, updates: int) -> bool:
        """Whether stations may go on collecting: false when the learner is too far behind."""
        lag = self.updates_per_step * self.max_lag_episodes * self.steps_per_episode
        return self.due(transitions, updates) <= lag

    def is_fresh(self, episode_version: int, newest_version: int) -> bool:
        """Whether an episode of that policy version counts as online data."""
        return newest_version - episode_version <= self.max_staleness
