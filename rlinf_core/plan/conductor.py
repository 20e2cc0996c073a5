"""Chooses a run's layout at its start, and changes it between two turns."""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rlinf_core.plan.choose import choose, layout_of
from rlinf_core.plan.cost import CPU, GPU, Layout, Machine, expected
from rlinf_core.plan.graph import ENVIRONMENT, LEARNER, POLICY, WEIGHTS
from rlinf_core.plan.measured import Measurements, Sample
from rlinf_core.recipes import Recipe

WINDOW = 3  # turns in a comparison, and consecutive turns that must favour a change
GAIN = 0.05  # relative reduction of a turn's seconds that a change must promise
KEEP = 0.02  # relative reduction that a change must achieve, or it is undone
COST = 2.0  # seconds that a change must save in the rest of the run, per second of its own duration
SHIFT = 1.4  # factor by which a turn's work must grow or shrink to count as another load


def this_machine() -> Machine:
    """Return the resources of this process's machine."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sizes = (torch.cuda.get_device_properties(index).total_memory for index in range(gpus))
    return Machine(float(len(os.sched_getaffinity(0))), gpus, float(min(sizes, default=0)))


def machine_words(machine: Machine) -> str:
    """Return the machine as text, the key for reusing measurements."""
    return f"{platform.machine()}, {machine.cpus:g} CPUs, {machine.gpus} GPUs"


@dataclass
class Turn:
    """One measured turn of a run.

    Attributes:
        steps: its time steps.
        seconds: its duration, without evaluations.
        environment, policy: (busy, idle) core seconds of each player.
        learner: (busy, idle) core seconds of each learner process.
        call_s: seconds of calls to learners in other processes.
        send_s, sent_bytes: of weights to workers.
        peak_bytes: largest GPU memory of the learner.
    """

    steps: float = 0.0
    seconds: float = 0.0
    environment: list[tuple[float, float]] = field(default_factory=list)
    policy: list[tuple[float, float]] = field(default_factory=list)
    learner: list[tuple[float, float]] = field(default_factory=list)
    call_s: float = 0.0
    send_s: float = 0.0
    sent_bytes: float = 0.0
    peak_bytes: float = 0.0


@dataclass(frozen=True)
class Trial:
    """A change on trial: the layout before it, and that layout's seconds per time step."""

    before: Layout
    seconds: float


class Conductor:
    """Measures every turn and decides when the run changes its layout.

    A change needs the same better layout in three consecutive turns, a gain of 5 %, and enough of
    the run left to pay for itself twice. It is undone unless three turns are faster by 2 %, and is
    not tried again under that load.

    Args:
        recipe: the run's. Without ``placement.auto`` turns are measured, and nothing is changed.
        folder: the run's folder, whose measurements are reused.
        note: receives every decision, for progress.jsonl.
        machine: this one by default.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        note: Callable[[dict[str, Any]], None],
        machine: Machine | None = None,
    ) -> None:
        self.recipe, self.folder, self.note = recipe, folder, note
        self.machine = machine or this_machine()
        self.measurements = Measurements(recipe, machine_words(self.machine))
        self.reused = self.measurements.load(folder)
        self.layout = layout_of(recipe)
        self.refused: set[Layout] = set()  # under this load
        self.trial: Trial | None = None
        # seconds and work per time step
        self.turns: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.work = 0.0  # work per step at the last check of the load
        self.favoured, self.streak, self.skip = self.layout, 0, 1

    def first(self) -> Layout:
        """Return the first layout."""
        if not self.recipe.placement.auto:
            return self.layout
        choice = choose(self.recipe, self.measurements.costs(), self.machine)
        self.layout = self.favoured = choice.layout
        reason = "measurements of this folder" if self.reused else "a first guess"
        runner_up = str(choice.runner_up) if choice.runner_up else ""
        self._note("chosen", reason, choice.expectation.rate, runner_up=runner_up)
        return choice.layout

    def turn(self, turn: Turn, steps_left: float) -> Layout | None:
        """Record a turn; return the layout to change to, if any.

        Args:
            turn: the newest one.
            steps_left: time steps that the run has yet to gather.
        """
        if turn.steps <= 0 or turn.seconds <= 0:
            return None
        if self.skip:  # the first turn after a change starts environments and compiles
            self.skip -= 1
            return None
        work = self._measure(turn)
        if not self.recipe.placement.auto:
            return None
        self.turns.append((turn.seconds / turn.steps, work))
        if len(self.turns) < WINDOW:
            return None
        seconds = median(value for value, _ in self.turns)
        if self.trial is not None:
            return self._judge(self.trial, seconds)
        if self._load_has_changed():
            return None
        return self._better(seconds, steps_left)

    def changed(self, layout: Layout, seconds: float) -> None:
        """Record a completed change of layout and its duration."""
        kinds = [
            name
            for name in ("workers", "learners")
            if getattr(layout, name) != getattr(self.layout, name)
        ]
        self.measurements.add_switch("+".join(kinds) or "mode", seconds)
        self.layout = self.favoured = layout
        self.turns.clear()
        self.streak, self.skip = 0, 1

    def refuse(self, layout: Layout, reason: str) -> None:
        """Record that the run could not change to a layout; it is not tried again."""
        self.refused.add(layout)
        self.trial = None
        self._note("refused", reason, 0.0, refused=str(layout))

    def save(self) -> None:
        """Write the measurements to the run's folder."""
        if self.measurements.samples:
            self.measurements.save(self.folder)

    def _measure(self, turn: Turn) -> float:
        """Store a turn's samples; return its work [s per time step], independent of the layout."""
        work = 0.0
        for name, parts in (
            (ENVIRONMENT, turn.environment),
            (POLICY, turn.policy),
            (LEARNER, turn.learner),
        ):
            if not parts:
                continue
            gpus = self.layout.learner_gpus if name == LEARNER else self.layout.worker_gpus
            device = GPU if gpus and name != ENVIRONMENT else CPU
            busy = sum(part[0] for part in parts) / turn.steps
            idle = sum(part[1] for part in parts) / len(parts) / turn.steps
            call = turn.call_s if name == LEARNER and self.layout.learners else -1.0
            peak = turn.peak_bytes if name == LEARNER else 0.0
            size = len(parts)
            if name == ENVIRONMENT and self.layout.simulators:
                size = self.layout.simulators
            self.measurements.add(name, size, device, Sample(busy, idle, call, 0.0, peak))
            work += busy + idle * (1 if name == LEARNER else size)
        if self.layout.workers:
            sample = Sample(0.0, 0.0, turn.send_s, turn.sent_bytes)
            self.measurements.add(WEIGHTS, self.layout.workers, CPU, sample)
        self.measurements.steps = turn.steps
        return work

    def _judge(self, trial: Trial, seconds: float) -> Layout | None:
        """Decide whether a change has paid; return the earlier layout if not."""
        self.trial = None
        pays = seconds < trial.seconds * (1 - KEEP)
        expectation = expected(self.measurements.costs(), self.layout, self.machine)
        self._note(
            "kept" if pays else "taken back",
            f"{seconds / trial.seconds:.2f} times the seconds a time step of {trial.before}",
            expectation.rate,
            1 / seconds,
        )
        self.work = self._work()
        if pays:
            return None
        self.refused.add(self.layout)
        return trial.before

    def _work(self) -> float:
        return median(work for _, work in self.turns)

    def _load_has_changed(self) -> bool:
        works = [work for _, work in self.turns]
        if not self.work:
            self.work = self._work()
        if all(work > SHIFT * self.work for work in works) or all(
            work * SHIFT < self.work for work in works
        ):
            ratio = self._work() / self.work
            self.work, self.streak = self._work(), 0
            layout = self.layout
            sizes = {
                ENVIRONMENT: max(layout.workers, 1),
                POLICY: max(layout.workers, 1),
                LEARNER: max(layout.learners, 1),
                WEIGHTS: layout.workers,
            }
            self.measurements.forget(sizes)
            self.refused.clear()
            self._note("load changed", f"{ratio:.2f} times the work of a time step", 0.0)
            return True
        return False

    def _better(self, seconds: float, steps_left: float) -> Layout | None:
        """Return a layout that has promised enough in three consecutive turns, or None."""
        costs = self.measurements.costs()
        choice = choose(self.recipe, costs, self.machine, tuple(self.refused))
        present = expected(costs, self.layout, self.machine)
        gain = 1.0 - choice.expectation.seconds / present.seconds
        saved = gain * seconds * steps_left
        worth = gain > GAIN and saved > COST * self.measurements.switch_s()
        if choice.layout == self.layout or not worth:
            self.streak = 0
            return None
        self.streak = self.streak + 1 if choice.layout == self.favoured else 1
        self.favoured = choice.layout
        if self.streak < WINDOW:
            return None
        self.trial = Trial(self.layout, seconds)
        self._note(
            "change",
            f"{gain:.0%} less seconds a turn are expected, {saved:.0f} s in what is left",
            present.seconds / choice.expectation.seconds / seconds,
            1 / seconds,
            to=str(choice.layout),
        )
        return choice.layout

    def _note(
        self, decision: str, reason: str, predicted: float, measured: float = 0.0, **more: Any
    ) -> None:
        entry = {"decision": decision, "layout": str(self.layout), "reason": reason}
        if predicted:
            entry["predicted_steps_per_s"] = predicted  # type: ignore[assignment]
        if measured:
            entry["measured_steps_per_s"] = measured  # type: ignore[assignment]
        self.note(entry | more)
