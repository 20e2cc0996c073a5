"""Release of new policies to the stations: in stages with a sequential test, or by commands.

Needs no torch.
"""

from __future__ import annotations

from pydantic import Field

from rlinf_core.config.base import Settings


class Release(Settings):
    """Settings of the release of new policies to the stations."""

    staged: bool = Field(
        False,
        description="send a new policy to one station first, and to all "
        "after its trial. false sends it to all at once",
    )
    canary: str = Field(
        "",
        pattern="^([A-Za-z][A-Za-z0-9_]*)?$",
        max_length=64,
        description="name of the trial station. Empty takes the first by name that is "
        "connected, not pinned and not drained",
    )
    episodes: int = Field(
        50,
        ge=1,
        le=1000,
        description="episodes of the trial. Each is compared with an episode of the current policy",
    )
    watch: int = Field(
        400,
        ge=0,
        le=10_000,
        description="episodes after the release that are compared with those of the version "
        "before, in equal shares for each station. 0 compares none",
    )
    interlock: bool = Field(
        True,
        description="a policy is also worse if the interlock limits or holds it in more time steps",
    )
    odds_ratio: float = Field(
        3.0,
        gt=1,
        le=100,
        description="odds ratio that the trial must detect, among pairs of episodes with different "
        "outcome",
    )
    alpha: float = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="largest probability that an equally good policy is rolled back at its trial. "
        "The same holds for the watch after it",
    )
    beta: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="largest probability that a policy worse by odds_ratio passes its trial",
    )
