"""Release of new policies to the stations: in stages with a sequential test, or by commands. Needs no torch."""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import Settings


class Release(Settings):
    """Settings of the release of new policies to the stations."""

    staged: bool = Field(False, description="it goes to one station first, and to all unless it is worse than theirs; "
                         "false sends every policy to all at once")
    canary: str = Field("", pattern="^([A-Za-z][A-Za-z0-9_]*)?$", max_length=64, description="the name of that station; "
                        "empty for the first by name of those that are connected, neither pinned nor drained")
    episodes: int = Field(50, ge=1, le=1000, description="training episodes of it, each compared with one of the policy of "
                          "all, after which it goes to all if it was not found worse")
    watch: int = Field(400, ge=0, le=10_000, description="training episodes of it, after it went to all, that are compared "
                       "with those of the version before it, each at its station; an equal share of each; 0 compares none")
    interlock: bool = Field(True, description="it is also worse if the interlock limits or holds it in more of an "
                                "episode's time steps")
    odds_ratio: float = Field(3.0, gt=1, le=100, description="how much worse it is that has to be found out: of pairs of "
                              "episodes that differ, it does worse in so many for each one in which it does better")
    alpha: float = Field(0.05, gt=0, lt=0.5, description="the probability, at most, that one which is no worse is rolled "
                         "back at its trial; and once more, at most, that it is after it went to all")
    beta: float = Field(0.1, gt=0, lt=0.5, description="the probability, at most, that one which is so much worse is found "
                        "not to be, and goes to all before its episodes are over")
