"""Measurement of the turns of a run on simulators, by which its layout is chosen."""

from __future__ import annotations

import torch

from rlinf_core.algorithms.common.learner import Learner
from rlinf_core.core.usage import Usage, resident_bytes
from rlinf_core.plan.layout_controller import ProcessSeconds, Turn, add_seconds
from rlinf_core.rollouts.collect import RolloutUsage
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.sources.simulators import Simulators

TURN_PARTS = ("simulate", "infer", "wait", "transfer", "switch", "learn")  # parts of the clock


class TurnMeter:
    """Measures one turn after another: rollout, insertion and updates, until the next rollout.

    Args:
        clock: clock of the run.
        device: device of the policy.

    Attributes:
        turn: measurement of the current turn.
        first_bytes: host memory of this process before the replay grew.
    """

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.clock, self.device = clock, device
        self.turn = Turn()
        self.first_bytes = 0.0
        self._started_at = 0.0  # seconds of the clock

    def add_rollout(self, usages: list[RolloutUsage]) -> None:
        """Add the usage of each worker in a rollout."""
        turn = self.turn
        turn.environment = add_seconds(turn.environment, [usage.environment for usage in usages])
        turn.policy = add_seconds(turn.policy, [usage.policy for usage in usages])

    def add_update(self, learner: Learner, usage: Usage) -> None:
        """Add the usage of an update. ``add_data`` gets it as a part of all updates, too."""
        parts, call_s = learner_usage(learner, usage)
        self.turn.call_s += call_s
        self.turn.learner = add_seconds(self.turn.learner, parts)
        self.add_data(usage, -1.0)

    def add_data(self, usage: Usage, sign: float = 1.0) -> None:
        """Add this process's own work between rollouts and updates."""
        self.turn.data = add_seconds(self.turn.data, [(sign * usage.busy_s, sign * usage.idle_s)])

    def finish(self, source: Simulators) -> Turn:
        """Return the completed measurement of the current turn, and begin the next one."""
        turn, self.turn = self.turn, Turn()
        now = sum(self.clock.seconds[part] for part in TURN_PARTS)
        turn.seconds = now - self._started_at
        self._started_at = now
        turn.send_s, turn.sent_bytes = source.send_s, source.sent_bytes
        self.first_bytes = self.first_bytes or resident_bytes()
        worker_bytes = max((usage.total.resident_bytes for usage in source.usages), default=0.0)
        turn.resident_bytes = worker_bytes or self.first_bytes
        if self.device.type == "cuda":
            turn.peak_bytes = float(torch.cuda.max_memory_allocated(self.device))
        return turn


def learner_usage(learner: Learner, usage: Usage) -> tuple[ProcessSeconds, float]:
    """Return (busy, idle) seconds of each learner process, and the overhead of the call [s]."""
    if isinstance(learner, LearnerGroup):
        slowest_s = max(part.wall_s for part in learner.usages)
        seconds = [(part.busy_s, part.idle_s) for part in learner.usages]
        return seconds, max(0.0, usage.wall_s - slowest_s)
    return [(usage.busy_s, usage.idle_s)], 0.0
