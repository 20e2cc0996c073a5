"""A comparison of two policies: paired episodes on the same scenes, with a sequential test.

Both policies play each scene. Pairs with equal results are ignored. In the others policy A does
better with probability p; equal policies have p = 1/2. Two of Wald's sequential tests run in
parallel (Sequential Analysis, Wiley 1947, section 6.4.2), one for each policy as the better one,
each at half of ``alpha``. They may be evaluated after every pair, so a clear difference ends a duel
early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from rlinf_core.reports.throughput import EpisodeTime, Rate, Throughput, throughput, wilson

A_BETTER = "A is better"
B_BETTER = "B is better"
ALIKE = "alike"
OPEN = ""
MEASURES = ("success", "time", "return")
FASTER = 0.05  # fraction of the longer time from which two successes differ in time


@dataclass(frozen=True)
class DuelEpisode:
    """One episode of a duel: success, length in robot time [s] and undiscounted return."""

    success: bool
    seconds: float
    value: float


def compare_pair(a: DuelEpisode, b: DuelEpisode, measures: Sequence[str] = MEASURES[:1]) -> int:
    """Compare two episodes of one scene by the first measure in which they differ.

    Args:
        a: episode of policy A.
        b: episode of policy B.
        measures: ``success``; ``time`` of two successes; ``return`` as partial credit.

    Returns:
        1 if A did better, -1 if B did, 0 if they did alike.
    """
    for measure in measures:
        if measure == "success":
            better = a.success - b.success
        elif measure == "time":
            differs = abs(a.seconds - b.seconds) > FASTER * max(a.seconds, b.seconds)
            better = (
                (a.seconds < b.seconds) - (a.seconds > b.seconds)
                if a.success and b.success and differs
                else 0
            )
        else:
            better = (a.value > b.value) - (a.value < b.value)
        if better:
            return better
    return 0


@dataclass
class Duel:
    """The sequential test and its pairs.

    Attributes:
        odds: odds of better to worse of a difference that must be found; 3 finds 90 against 70 %
            success.
        alpha: maximum probability of calling one of two equal policies better.
        beta: maximum probability of missing a difference of these odds.
        pairs: results of ``compare_pair``.
    """

    odds: float = 3.0
    alpha: float = 0.05
    beta: float = 0.05
    pairs: list[int] = field(default_factory=list)
    # log-likelihood ratios: A, B better
    _evidence: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _excluded: list[bool] = field(default_factory=lambda: [False, False])
    _winner: int | None = None

    def add(self, pair: int) -> str:
        """Add a pair.

        Returns:
            The verdict: A_BETTER, B_BETTER, ALIKE (no difference of these odds) or OPEN.
        """
        self.pairs.append(pair)
        if not pair or self._winner is not None:
            return self.verdict
        gain, loss = math.log(2 * self.odds / (1 + self.odds)), math.log(2 / (1 + self.odds))
        for side, direction in enumerate((1, -1)):
            self._evidence[side] += gain if pair == direction else loss
            if self._evidence[side] >= math.log(2 / self.alpha) and self._winner is None:
                self._winner = side
            self._excluded[side] |= self._evidence[side] <= math.log(self.beta)
        return self.verdict

    @property
    def verdict(self) -> str:
        """The current verdict."""
        if self._winner is not None:
            return (A_BETTER, B_BETTER)[self._winner]
        return ALIKE if all(self._excluded) else OPEN

    @property
    def share_a(self) -> Rate:
        """A's fraction of the pairs that differ, with its 95 % interval."""
        differ = [pair for pair in self.pairs if pair]
        better = sum(pair > 0 for pair in differ)
        return Rate(better / len(differ) if differ else math.nan, *wilson(better, len(differ)))

    @property
    def fixed_pairs(self) -> int:
        """Number of pairs that a fixed-size test with the same errors needs.

        It is 0 if no pair differs yet.
        """
        differ = sum(map(bool, self.pairs)) / max(1, len(self.pairs))
        if not differ:
            return 0
        better = self.odds / (1 + self.odds)
        normal = NormalDist()
        spread = normal.inv_cdf(1 - self.alpha / 2) / 2 + normal.inv_cdf(1 - self.beta) * math.sqrt(
            better * (1 - better)
        )
        return math.ceil((spread / (better - 0.5)) ** 2 / differ)


def throughput_of(episodes: Sequence[DuelEpisode]) -> Throughput:
    """Return success, successes per hour and seconds to success of one policy."""
    return throughput([EpisodeTime(episode.success, episode.seconds) for episode in episodes])
