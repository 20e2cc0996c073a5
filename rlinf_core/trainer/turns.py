"""Turns of a run on simulators: their measurement, and a change of the layout between two turns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from rlinf_core.algorithms.common.learner import Learner
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.usage import Usage, resident_bytes
from rlinf_core.plan.choose import with_layout
from rlinf_core.plan.cost import Layout
from rlinf_core.plan.graph import build_graph
from rlinf_core.plan.layout_controller import ProcessSeconds, Turn, add_seconds
from rlinf_core.recipes import Recipe
from rlinf_core.rollouts.collect import RolloutUsage
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.ray_cluster import NoRoomError, connect
from rlinf_core.trainer.learner_setup import make_learner
from rlinf_core.trainer.prefetch import make_prefetch
from rlinf_core.trainer.progress import Clock
from rlinf_core.trainer.sources.simulators import Simulators

if TYPE_CHECKING:
    from rlinf_core.trainer.run import Run

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


def change_layout(run: Run, layout: Layout) -> None:
    """Change the layout of a run without a change of its state.

    An infeasible layout is reported to the controller.
    """
    controller, source = run.layout_controller, run.source
    assert controller is not None and isinstance(source, Simulators)
    before, started = run.recipe, time.perf_counter()
    run.meter.turn = Turn()
    recipe = with_layout(controller.recipe, layout)
    try:
        if recipe.placement.on_ray:  # maybe the first processes on Ray
            connect(recipe.placement.ray)
    except (RlinfError, OSError, RuntimeError, ValueError) as error:
        controller.record_refusal(layout, f"Ray does not start: {error}")
        return
    try:
        with run.clock("place"):
            source.change_layout(recipe)
            change_learner(run, recipe)
    except (RecipeError, NoRoomError) as error:
        source.change_layout(before)
        controller.record_refusal(layout, str(error))
        return
    seconds = time.perf_counter() - started
    print(f"layout: {layout}, in {seconds:.1f} s", flush=True)
    controller.record_change(layout, seconds)


def change_learner(run: Run, recipe: Recipe) -> None:
    """Move the learner of a run into the processes of another recipe, which the run then has."""
    before, count = run.recipe.placement.learners, recipe.placement.learners
    if isinstance(run.learner, LearnerGroup) and count:
        run.learner.resize(count)
    elif count != before:
        run.learner.sync()
        state = run.learner.state_dict()
        learner = make_learner(recipe, run.config, run.policy)
        learner.load_state_dict(state)
        run.learner.close()
        run.learner = learner
    run.recipe = recipe
    run.graph = build_graph(recipe)
    run.prefetch = make_prefetch(recipe, run.policy.device)
