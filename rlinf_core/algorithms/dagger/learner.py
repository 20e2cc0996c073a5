"""DAgger: the policy drives, an expert says what it should have done, and cloning goes on over everything so far.

Ross, Gordon, Bagnell 2011, arXiv 1011.0686. Human-gated (HG-DAgger, Kelly et al. 2018, arXiv 1810.02890): a person takes
over when they must, and only what they did is learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlinf_core.algorithms.dagger.config import Config
from rlinf_core.algorithms.parts.learner import EXPERT
from rlinf_core.algorithms.sft.learner import Learner as SFT

Observation = dict[str, np.ndarray]
Act = Callable[[Observation], np.ndarray]


class Learner(SFT):
    """Cloning over all labelled decisions; ``driver`` says who drives an episode."""

    config: Config
    learns_from = EXPERT

    def share(self, episode: int) -> float:
        """The expert's share of decisions in an episode."""
        return max(self.config.beta * self.config.beta_decay ** episode, self.config.beta_floor)

    def driver(self, policy: Act, expert: Act, episode: int, random: np.random.Generator) -> Callable[
            [Observation], tuple[np.ndarray, np.ndarray, str]]:
        """A function from an observation to what is played, what the expert would play, and who drives."""
        share = self.share(episode)

        def decide(observation: Observation) -> tuple[np.ndarray, np.ndarray, str]:
            label = expert(observation)
            if random.random() < share:
                return label, label, "operator"
            return policy(observation), label, "policy"

        return decide

    def learned_from(self, sources: Sequence[str]) -> np.ndarray:
        """Which decisions of an episode count, by who drove each."""
        return np.array([not self.config.gated or source == "operator" for source in sources])
