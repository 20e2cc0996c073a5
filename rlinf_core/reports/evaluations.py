"""The record of an evaluation in progress.jsonl, for simulators and stations alike."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rlinf_core.reports.throughput import EpisodeTime, throughput


class Outcome(NamedTuple):
    """One episode.

    Attributes:
        success: the task succeeded.
        failure: the task failed; both are False at a time limit.
        value: undiscounted return.
        seconds: length in robot time [s] (time steps over the control rate).
    """

    success: bool
    failure: bool
    value: float
    seconds: float


def evaluation(
    episodes: Sequence[Outcome],
    env_steps: int,
    updates: int,
    seconds: float,
    policy_version: int,
    control_hz: float,
) -> dict[str, Any]:
    """Return the record of an evaluation.

    Args:
        episodes: episodes on held-out scenes, at least one.
        env_steps: environment steps of training so far.
        updates: gradient updates so far.
        seconds: duration of the run so far [s].
        policy_version: version of the evaluated policy.
        control_hz: time steps per second, to compute ``robot_minutes`` of training without resets.
    """
    success, failure, value, _ = map(fmean, zip(*episodes, strict=True))
    times = throughput(
        [EpisodeTime(episode.success, episode.seconds) for episode in episodes]
    ).flat()
    figures = {
        name: times[name]
        for name in times
        if name.startswith(("successes_per_hour", "time_to_success_s"))
    }
    return {
        "env_steps": env_steps,
        "success": success,
        "failure": failure,
        "return": value,
        "episodes": len(episodes),
        "updates": updates,
        "seconds": seconds,
        "policy_version": policy_version,
        "robot_minutes": env_steps / control_hz / 60,
        "longest_run": times["longest_run"],
        **figures,
    }
