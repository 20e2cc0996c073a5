"""Figures in robot time: successes and takeovers per hour, seconds to success, longest run.

Robot time is the time of the episodes and of the resets between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from rlinf_core.episodes.messages import NS
from rlinf_core.episodes.types import Episode
from rlinf_core.interlock.takeover import CORRECTING

Z = 1.96  # quantile of a 95 % interval
RESAMPLES = 2000  # resamples of a bootstrap
MAX_RESET_S = 120.0  # a longer pause between two episodes is a break, not a reset
HOUR_S = 3600.0


@dataclass(frozen=True)
class EpisodeTime:
    """The robot time of one episode.

    Attributes:
        success: success that no takeover finished.
        play_s: time from the first to the last time step [s].
        takeovers: number of takeovers.
        reset_s: time since the end of the previous episode [s]; 0 if it is unknown.
    """

    success: bool
    play_s: float
    takeovers: int = 0
    reset_s: float = 0.0


@dataclass(frozen=True)
class Rate:
    """A figure and its 95 % interval; NaN if it cannot be computed."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Throughput:
    """The figures of some episodes.

    Attributes:
        episodes: number of episodes.
        robot_minutes: minutes of episodes and resets.
        success: success rate (Wilson interval).
        successes_per_hour: successes per hour of robot time (bootstrap over episodes).
        time_to_success_s: median length of successful episodes [s] (bootstrap).
        takeovers_per_hour: takeovers per hour of episodes (Byar's interval of a Poisson rate).
        longest_run: longest row of successes without a takeover.
        resets: number of pauses of at most MAX_RESET_S between episodes.
    """

    episodes: int
    robot_minutes: float
    success: Rate
    successes_per_hour: Rate
    time_to_success_s: Rate
    takeovers_per_hour: Rate
    longest_run: int
    resets: int

    def flat(self) -> dict[str, float]:
        """Return a flat dict: each figure, and its bounds as ``NAME_low`` and ``NAME_high``."""
        figures: dict[str, float] = {
            "episodes": self.episodes,
            "robot_minutes": self.robot_minutes,
            "longest_run": self.longest_run,
            "resets": self.resets,
        }
        for name in ("success", "successes_per_hour", "time_to_success_s", "takeovers_per_hour"):
            rate: Rate = getattr(self, name)
            ends = {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
            figures |= {key: value for key, value in ends.items() if math.isfinite(value)}
        return figures


def throughput(episodes: Sequence[EpisodeTime]) -> Throughput:
    """Return the figures of episodes in their order of play.

    Raises:
        ValueError: there is no episode.
    """
    if not episodes:
        raise ValueError("expected at least one episode, got none")
    success = np.array([episode.success for episode in episodes], float)
    play_s = np.array([episode.play_s for episode in episodes])
    busy_s = play_s + np.array([episode.reset_s for episode in episodes])
    takeovers = sum(episode.takeovers for episode in episodes)
    return Throughput(
        episodes=len(episodes),
        robot_minutes=float(busy_s.sum() / 60),
        success=Rate(float(success.mean()), *wilson(int(success.sum()), len(episodes))),
        successes_per_hour=_hourly(success, busy_s),
        time_to_success_s=_median(play_s[success > 0]),
        takeovers_per_hour=_poisson(takeovers, float(play_s.sum()) / HOUR_S),
        longest_run=longest_run(episode.success and not episode.takeovers for episode in episodes),
        resets=sum(episode.reset_s > 0 for episode in episodes),
    )


def longest_run(successes: Iterable[bool]) -> int:
    """Return the largest number of successes in a row."""
    return max(
        (len([*group]) for is_success, group in groupby(map(bool, successes)) if is_success),
        default=0,
    )


def times_of(episodes: Iterable[Episode]) -> list[EpisodeTime]:
    """Return the robot time of recorded episodes, in the order of their time stamps.

    An episode that a person finished is no success of the policy. A pause longer than MAX_RESET_S
    is no reset. Demonstrations count no takeovers, since a person commands all of them.
    """
    times, before_ns = [], None
    for episode in sorted(episodes, key=lambda episode: int(episode.stamps_ns[0])):
        start_ns, end_ns = int(episode.stamps_ns[0]), int(episode.stamps_ns[-1])
        pause_s = 0.0 if before_ns is None else (start_ns - before_ns) / NS
        is_demonstration = episode.mode == "demonstration"
        person = episode.takeovers == CORRECTING
        begins = int(person[:1].sum()) + sum(not a and b for a, b in pairwise(person))
        times.append(
            EpisodeTime(
                success=episode.success and (is_demonstration or not person[-1:].any()),
                play_s=(end_ns - start_ns) / NS,
                takeovers=0 if is_demonstration else begins,
                reset_s=pause_s if 0.0 < pause_s <= MAX_RESET_S else 0.0,
            )
        )
        before_ns = end_ns
    return times


def wilson(successes: int, episodes: int, z: float = Z) -> tuple[float, float]:
    """Return the 95 % interval of a success rate (Wilson 1927); it is valid at 0 and 1, too."""
    if episodes == 0:
        return 0.0, 1.0
    rate, square = successes / episodes, z * z / episodes
    centre = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / episodes + square / (4 * episodes)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def _hourly(success: np.ndarray, busy_s: np.ndarray) -> Rate:
    """Return successes per hour; NaN if an episode took no time."""
    if not busy_s.all():
        return Rate(math.nan, math.nan, math.nan)
    draws = _draws(len(success))
    rates = success[draws].sum(1) / busy_s[draws].sum(1)
    return Rate(float(success.sum() / busy_s.sum() * HOUR_S), *_middle(rates * HOUR_S))


def _poisson(count: int, hours: float) -> Rate:
    """Return a rate of events per hour with Byar's interval (Breslow and Day 1987, section 2.3)."""
    if hours <= 0.0:
        return Rate(math.nan, math.nan, math.nan)
    low = count * (1 - 1 / (9 * count) - Z / (3 * math.sqrt(count))) ** 3 if count else 0.0
    above = count + 1
    high = above * (1 - 1 / (9 * above) + Z / (3 * math.sqrt(above))) ** 3
    return Rate(count / hours, max(0.0, low) / hours, high / hours)


def _median(values: np.ndarray) -> Rate:
    if not len(values):
        return Rate(math.nan, math.nan, math.nan)
    return Rate(float(np.median(values)), *_middle(np.median(values[_draws(len(values))], axis=1)))


def _draws(size: int) -> np.ndarray:
    """Return the indices (RESAMPLES, size) of a bootstrap."""
    return np.random.default_rng(0).integers(size, size=(RESAMPLES, size))


def _middle(draws: np.ndarray) -> tuple[float, float]:
    """Return the central 95 % interval of bootstrapped figures."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)
