"""DAgger: the policy drives, an expert says what it should have done, and cloning goes on over everything so far.

Ross, Gordon, Bagnell 2011, arXiv 1011.0686. Human-gated (HG-DAgger, Kelly et al. 2018, arXiv 1810.02890): a person takes
over when they must, and only what they did is learned from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_core.algorithms.dagger.config import Config
from rlinf_core.algorithms.parts.learner import EXPERT
from rlinf_core.algorithms.sft.learner import Learner as SFT


class Learner(SFT):
    """Cloning over all labelled decisions."""

    config: Config
    learns_from = EXPERT

    def share(self, episode: int) -> float:
        """The expert's share of decisions in an episode."""
        return max(self.config.beta * self.config.beta_decay ** episode, self.config.beta_floor)

    def expert_drives(self, episode: int, size: int, random: np.random.Generator) -> np.ndarray:
        """Who drives the next time step in each of ``size`` environments: (size,) true for the expert."""
        return random.random(size) < self.share(episode)

    def learned_from(self, sources: Sequence[str]) -> np.ndarray:
        """Which decisions of an episode count, by who drove each."""
        return np.array([not self.config.gated or source == "operator" for source in sources])
