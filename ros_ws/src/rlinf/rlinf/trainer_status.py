"""What the trainer last told a station, as director and environment ask it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from rlinf_msgs.msg import PolicyStatus, TrainerStatus

SETTLED_S = 2.0  # reports come twice a second

def caught_up(trainer: TrainerStatus, policy: PolicyStatus, station: str, episodes: int) -> bool:
    """Whether the trainer has so many of a station, owes nothing, and the station plays the policy that came of it."""
    learned = trainer.accepting and trainer.backlog == 0 and taken(trainer, station) >= episodes
    return learned and policy.version == trainer.policy_version


def taken(trainer: TrainerStatus, station: str) -> int:
    """Episodes of a station that its trainer has taken in, of every mode."""
    return _counted(trainer, f"{station}/episodes")


class Settled:
    """Whether a count has been the same for SETTLED_S: what is on its way to the trainer, as its words are, has come."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.count, self.number, self.since = count, -1, 0.0

    def __call__(self) -> bool:
        if (now := self.count()) != self.number:
            self.number, self.since = now, time.monotonic()
        return time.monotonic() - self.since > SETTLED_S


def holds_back(trainer: TrainerStatus, mode: str) -> bool:
    """Whether no episode of that mode begins now: it is held, nothing could be recorded, or the learner is behind."""
    behind = mode == "train" and trainer.connected and not trainer.accepting
    return bool(trainer.held or trainer.spool_full >= 1.0 or behind)


def refused(trainer: TrainerStatus, station: str) -> int:
    """Episodes of a station that its trainer did not take, at the door or when it read them."""
    return trainer.set_aside + _counted(trainer, f"{station}/refused")


def _counted(trainer: TrainerStatus, name: str) -> int:
    """What it says of it; 0 where that is no count."""
    read = dict(zip(trainer.names, trainer.values, strict=False)).get(name, 0.0)
    return int(read) if math.isfinite(read) else 0
