"""Residual RL: RLPD of a correction of a frozen base policy, which grows with success."""

from __future__ import annotations

from collections import deque
from typing import Any

from pydantic import Field

from rlinf_core.algorithms.rlpd import Config as RLPD
from rlinf_core.config.base import with_default
from rlinf_core.core.plugins import lazy_attributes

__getattr__ = lazy_attributes(__name__, "learner")


class Config(RLPD):
    """Hyper-parameters of residual RL: those of RLPD, and how the correction grows."""

    policies, several_robots = ("residual",), False

    name: str = with_default(RLPD, "name", "residual")
    base_episodes: int = Field(
        20,
        gt=0,
        le=10_000,
        description="first episodes of the base policy alone, which measure its success",
    )
    growth: float = Field(
        0.05, gt=0, le=1, description="share of the full correction that each episode adds, up to 1"
    )
    window: int = Field(
        20, gt=1, le=10_000, description="newest episodes whose success is compared with the base's"
    )
    keep_above: float = Field(
        0.9,
        ge=0,
        le=1,
        description="if the window's success falls below this share of the base's, the "
        "correction is halved and a new window begins",
    )

    @property
    def share(self) -> CorrectionShare:
        return CorrectionShare(self)


class CorrectionShare:
    """The share of the correction that is played; it follows the outcomes of episodes.

    Attributes:
        value: 0 while the base plays alone, then up to 1.
        episodes: number of recorded outcomes.
        base_successes: number of successes of the base alone.
        recent: outcomes since the correction was halved the last time, at most a window.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.value = 0.0
        self.episodes = 0
        self.base_successes = 0
        self.recent: deque[bool] = deque(maxlen=config.window)

    @property
    def base_success(self) -> float:
        """The success rate of the base, in the episodes so far."""
        return self.base_successes / max(1, min(self.episodes, self.config.base_episodes))

    def record_outcome(self, success: bool) -> None:
        """Record the outcome of an episode without a takeover."""
        self.episodes += 1
        if self.episodes <= self.config.base_episodes:
            self.base_successes += success
            return
        self.recent.append(success)
        rate = sum(self.recent) / len(self.recent)
        if (
            2 * len(self.recent) >= self.config.window
            and rate < self.config.keep_above * self.base_success
        ):
            self.value *= 0.5
            self.recent.clear()
        else:
            self.value = min(1.0, self.value + self.config.growth)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from."""
        return {
            "value": self.value,
            "episodes": self.episodes,
            "base_successes": self.base_successes,
            "recent": [[*self.recent]],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self.value = state["value"]
        self.episodes = state["episodes"]
        self.base_successes = state["base_successes"]
        self.recent.clear()
        self.recent.extend(state["recent"][0])
