"""What the trainer last told a station, as director and environment ask it."""

from __future__ import annotations

import math

from rlinf_msgs.msg import PolicyStatus, TrainerStatus


def caught_up(trainer: TrainerStatus, policy: PolicyStatus, episodes: int) -> bool:
    """Whether the trainer has so many, owes nothing for them, and the station plays the policy that came of it."""
    learned = trainer.accepting and trainer.backlog == 0 and trainer.episodes >= episodes
    return learned and policy.version == trainer.policy_version


def holds_back(trainer: TrainerStatus, mode: str) -> bool:
    """Whether no episode of that mode begins now: it is held, nothing could be recorded, or the learner is behind."""
    behind = mode == "train" and trainer.connected and not trainer.accepting
    return bool(trainer.held or trainer.spool_full >= 1.0 or behind)


def refused(trainer: TrainerStatus, station: str) -> int:
    """Episodes of a station that its trainer did not take, at the door or when it read them."""
    read = dict(zip(trainer.names, trainer.values, strict=False)).get(f"{station}/refused", 0.0)
    return trainer.set_aside + (int(read) if math.isfinite(read) else 0)
