"""What a run says of an evaluation in progress.jsonl, whoever has played it: a trainer's environments, or a station."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """Of one episode; neither success nor failure is a time limit. ``value`` is its undiscounted return."""

    success: bool
    failure: bool
    value: float


def evaluation(episodes: Sequence[Outcome], env_steps: int, updates: int, seconds: float, policy_version: int
               ) -> dict[str, Any]:
    """One record.

    Args:
        episodes: on held-out scenes, one or more.
        env_steps: time steps that training has played by then.
        updates: and gradient updates.
        seconds: and since the run began.
        policy_version: which played them.
    """
    success, failure, value = map(fmean, zip(*episodes, strict=True))
    return {"env_steps": env_steps, "success": success, "failure": failure, "return": value, "episodes": len(episodes),
            "updates": updates, "seconds": seconds, "policy_version": policy_version}
