"""Controller of a run's layout: it chooses the first one, and changes it between two turns."""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from rlinf_core.core.usage import free_bytes
from rlinf_core.plan.choose import Choice, choose, recipe_layout
from rlinf_core.plan.cost import CPU, GPU, Layout, Machine, call_queue, expected_turn
from rlinf_core.plan.graph import DATA, ENVIRONMENT, LEARNER, POLICY, WEIGHTS
from rlinf_core.plan.measurements import Measurements, Sample
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import fixed_layout_reason, may_choose

# turns in a comparison
WINDOW = 3
# shorter turns in the trainer's process are merged [s]
MIN_TURN_S = 0.2
# relative reduction of a turn's seconds that a change must promise
MIN_GAIN = 0.05
# sum of these reductions over consecutive turns, at least two, before a change
MIN_EVIDENCE = 0.6
# relative reduction that a change must achieve, or the run returns to the earlier layout
MIN_MEASURED_GAIN = 0.02
# seconds that a change must save in the rest of the run, per second of its own duration
MIN_PAYBACK = 2.0
# factor by which the work of two turns must grow or shrink to count as another load
LOAD_FACTOR = 1.4
# A run whose recipe sets no placement changes only for more than these: the relative gain, the
# saved seconds, and the number of measured turns.
IMPLICIT_GAIN = 0.3
MIN_SAVED_S = 60.0
IMPLICIT_TURNS = 20
# relative reduction that is worth a line at the end of a run
MIN_ADVISED_GAIN = 0.2

# (busy, idle) seconds of each process
ProcessSeconds = list[tuple[float, float]]


def this_machine() -> Machine:
    """Return the resources of this process's machine."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sizes = (torch.cuda.get_device_properties(index).total_memory for index in range(gpus))
    gpu_bytes = float(min(sizes, default=0))
    return Machine(float(len(os.sched_getaffinity(0))), gpus, gpu_bytes, free_bytes())


def machine_description(machine: Machine) -> str:
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
        data: (busy, idle) core seconds of the trainer's process between rollouts and updates.
        call_s: seconds of calls to learners in other processes.
        send_s, sent_bytes: of weights and calls to workers.
        peak_bytes: largest GPU memory of the learner.
        resident_bytes: largest host memory of a process.
        count: turns of the run that were merged into this one.
    """

    steps: float = 0.0
    seconds: float = 0.0
    environment: ProcessSeconds = field(default_factory=list)
    policy: ProcessSeconds = field(default_factory=list)
    learner: ProcessSeconds = field(default_factory=list)
    data: ProcessSeconds = field(default_factory=list)
    call_s: float = 0.0
    send_s: float = 0.0
    sent_bytes: float = 0.0
    peak_bytes: float = 0.0
    resident_bytes: float = 0.0
    count: int = 1

    def merge(self, other: Turn) -> Turn:
        """Return two consecutive turns of the same layout as one."""
        parts: dict[str, Any] = {
            name: add_seconds(getattr(self, name), getattr(other, name))
            for name in ("environment", "policy", "learner", "data")
        }
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("steps", "seconds", "call_s", "send_s", "sent_bytes", "count")
        }
        return replace(other, **parts, **sums)


def add_seconds(before: ProcessSeconds, parts: ProcessSeconds) -> ProcessSeconds:
    """Return the sum of two measurements, process by process; either may be empty."""
    longer, shorter = (before, parts) if len(before) > len(parts) else (parts, before)
    filled = shorter + [(0.0, 0.0)] * (len(longer) - len(shorter))
    return [(one[0] + two[0], one[1] + two[1]) for one, two in zip(longer, filled, strict=True)]


@dataclass(frozen=True)
class Trial:
    """A change on trial: the layout before it, and that layout's seconds per time step."""

    before: Layout
    seconds: float


def _straggler_s(turn: Turn) -> float:
    """Return the seconds of the straggler_s player beyond the mean of all."""
    if len(turn.environment) != len(turn.policy) or not turn.environment:
        return 0.0
    seconds = [
        sum(stepping) + sum(acting)
        for stepping, acting in zip(turn.environment, turn.policy, strict=True)
    ]
    return max(seconds) - sum(seconds) / len(seconds)


def with_auto_placement(recipe: Recipe, fixed: tuple[str, ...] = ()) -> Recipe:
    """Return a recipe whose run may choose its layout, but for the keys that are ``fixed``."""
    return recipe.but(placement=recipe.placement.but(auto=True, fixed=fixed))


class LayoutController:
    """Measures every turn and decides when the run changes its layout.

    A change needs a better layout in at least two consecutive turns, whose gains sum up to 60 %,
    and enough of the run left to pay for itself twice. It is undone unless three turns are faster
    by 2 %, and is not tried again under that load. A change that was kept is the last one under the
    same load. After one that was undone another may follow, unless the model does not expect the
    failure even from its measurements. A run that ``adapts`` although its recipe sets no placement
    begins in one process, and changes only for a gain of 30 % that saves a minute.

    Args:
        recipe: the run's. With ``placement.auto`` false turns are measured, and nothing is
            changed.
        folder: the run's folder, whose measurements are reused.
        note: called with every decision, for progress.jsonl.
        machine: this one by default.
        adapts: whether a run whose recipe sets no placement may move to workers.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        note: Callable[[dict[str, Any]], None],
        machine: Machine | None = None,
        adapts: bool = False,
    ) -> None:
        self.folder, self.note = folder, note
        self.machine = machine or this_machine()
        on_cpu = not self.machine.gpus or recipe.device == "cpu"
        self.is_implicit = adapts and on_cpu and may_choose(recipe)
        self.recipe = with_auto_placement(recipe, ("learners",)) if self.is_implicit else recipe
        self.measurements = Measurements(recipe, machine_description(self.machine))
        self.reused = self.measurements.load(folder)
        self.layout = recipe_layout(recipe)
        self.refused: set[Layout] = set()  # under this load
        self.trial: Trial | None = None
        # seconds and work per time step
        self.turns: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.work = 0.0  # work per step at the last check of the load
        self.evidence = 0.0
        self.streak = 0
        self.skip = 1
        self.has_changed = False  # under this load
        self.is_model_wrong = False  # whether it cannot explain a failed change under this load
        self.turn_count = 0
        self.spent_s = 0.0
        self.pending_turn = Turn(count=0)

    def first_layout(self) -> Layout:
        """Return the first layout."""
        if self.is_implicit or not self.recipe.placement.auto:
            return self.layout
        choice = choose(self.recipe, self.measurements.costs(), self.machine)
        self.layout = choice.layout
        reason = "measurements of this folder" if self.reused else "a first guess"
        runner_up = str(choice.runner_up) if choice.runner_up else ""
        self._note("chosen", reason, choice.expectation.rate, runner_up=runner_up)
        return choice.layout

    def record_turn(self, turn: Turn, steps_left: float) -> Layout | None:
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
        if not self.layout.workers:
            turn = self.pending_turn.merge(turn)
            self.pending_turn = turn
            if turn.seconds < MIN_TURN_S:
                return None
        self.pending_turn = Turn(count=0)
        self.turn_count += 1
        self.spent_s += turn.seconds
        work = self._measure(turn)
        if not self.recipe.placement.auto:
            return None
        self.turns.append((turn.seconds / turn.steps, work))
        if len(self.turns) < WINDOW:
            return None
        seconds = median(value for value, _ in self.turns)
        if self.trial is not None:
            return self._check_trial(self.trial, seconds)
        self._check_load()
        if self.is_implicit and self.turn_count < IMPLICIT_TURNS:
            return None
        return self._propose_layout(seconds, steps_left)

    def advice(self) -> str:
        """Return a line about a layout that would have saved a minute; empty if there is none.

        Only a run that measured its turns and could not choose itself gets advice.
        """
        if self.recipe.placement.auto and not self.is_implicit:
            return ""
        # how long several learners wait for each other is not measured
        recipe = with_auto_placement(self.recipe, ("learners",))
        if not self.measurements.samples or fixed_layout_reason(recipe):
            return ""
        choice = self._choice(recipe)
        gain = self._gain(choice)
        if (
            choice.layout == self.layout
            or gain < MIN_ADVISED_GAIN
            or gain * self.spent_s < MIN_SAVED_S
        ):
            return ""
        return (
            f"placement: {choice.layout}: expected {1 - gain:.0%} of the seconds of this run's "
            "layout. --set placement=auto begins with it"
        )

    def record_change(self, layout: Layout, seconds: float) -> None:
        """Record a completed change of layout and its duration."""
        kinds = [
            name
            for name in ("workers", "learners")
            if getattr(layout, name) != getattr(self.layout, name)
        ]
        self.measurements.add_switch("+".join(kinds) or "mode", seconds)
        self.layout = layout
        self.turns.clear()
        self.pending_turn = Turn(count=0)
        self.evidence = 0.0
        self.streak = 0
        # new environments start in the next rollout, whose turn is the one after if pipelined
        self.skip = 2 if layout.pipelined else 1

    def record_refusal(self, layout: Layout, reason: str) -> None:
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
            (DATA, turn.data),
        ):
            if not parts:
                continue
            gpus = self.layout.learner_gpus if name == LEARNER else self.layout.worker_gpus
            device = GPU if gpus and name in (POLICY, LEARNER) else CPU
            busy = sum(part[0] for part in parts) / turn.steps
            idle = sum(part[1] for part in parts) / len(parts) / turn.steps
            call = turn.call_s / turn.count if name == LEARNER and self.layout.learners else -1.0
            peak = turn.peak_bytes if name == LEARNER else 0.0
            size = len(parts)
            if name == ENVIRONMENT and self.layout.simulators:
                size = self.layout.simulators
            resident = turn.resident_bytes if name == ENVIRONMENT else 0.0
            straggler_s = _straggler_s(turn) / turn.steps if name == ENVIRONMENT else 0.0
            sample = Sample(busy, idle, call, 0.0, peak, resident, straggler_s)
            self.measurements.add(name, size, device, sample)
            work += busy + idle * (1 if name == LEARNER else size)
        # otherwise calls overlap with updates
        if self.layout.workers and not self.layout.pipelined:
            workers = self.layout.workers
            send_s = turn.send_s / call_queue(workers, self.machine)
            sample = Sample(0.0, 0.0, send_s, turn.sent_bytes)
            self.measurements.add(WEIGHTS, workers, CPU, sample)
        self.measurements.steps = turn.steps / turn.count
        return work

    def _check_trial(self, trial: Trial, seconds: float) -> Layout | None:
        """Decide whether a change has paid; return the earlier layout if not."""
        self.trial = None
        pays = seconds < trial.seconds * (1 - MIN_MEASURED_GAIN)
        expectation = expected_turn(self.measurements.costs(), self.layout, self.machine)
        self._note(
            "kept" if pays else "taken back",
            f"{seconds / trial.seconds:.2f} times the seconds a time step of {trial.before}",
            expectation.rate,
            1 / seconds,
        )
        self.work = self._median_work()
        if pays:
            self.has_changed = True
            return None
        self.refused.add(self.layout)
        before = expected_turn(self.measurements.costs(), trial.before, self.machine)
        self.is_model_wrong = expectation.seconds < (1 - MIN_GAIN) * before.seconds
        return trial.before

    def _median_work(self) -> float:
        return median(work for _, work in self.turns)

    def _check_load(self) -> None:
        """Discard old measurements if the newest two turns belong to another load."""
        works = [work for _, work in self.turns][-2:]
        if not self.work:
            self.work = self._median_work()
        if min(works) <= LOAD_FACTOR * self.work and max(works) * LOAD_FACTOR >= self.work:
            return
        ratio = works[-1] / self.work
        self.work = works[-1]
        layout = self.layout
        sizes = {
            ENVIRONMENT: max(layout.workers, 1),
            POLICY: max(layout.workers, 1),
            LEARNER: max(layout.learners, 1),
            DATA: 1,
            WEIGHTS: layout.workers,
        }
        self.measurements.forget(sizes)
        self.refused.clear()
        self.has_changed = self.is_model_wrong = False
        self.evidence = 0.0
        self.streak = 0
        self.turns.popleft()
        self._note("load changed", f"{ratio:.2f} times the work of a time step", 0.0)

    def _choice(self, recipe: Recipe) -> Choice:
        return choose(recipe, self.measurements.costs(), self.machine, tuple(self.refused))

    def _gain(self, choice: Choice) -> float:
        """Return the expected relative reduction of a turn's seconds."""
        present = expected_turn(self.measurements.costs(), self.layout, self.machine)
        return 1.0 - choice.expectation.seconds / present.seconds

    def _propose_layout(self, seconds: float, steps_left: float) -> Layout | None:
        """Return a layout once consecutive turns are enough evidence for it, or None."""
        choice = self._choice(self.recipe)
        gain = self._gain(choice)
        saved = gain * seconds * steps_left
        pays = gain > MIN_GAIN and saved > MIN_PAYBACK * self.measurements.switch_s()
        if self.is_implicit:
            pays = pays and gain > IMPLICIT_GAIN and saved > MIN_SAVED_S
        is_final = self.has_changed or self.is_model_wrong
        if choice.layout == self.layout or not pays or is_final:
            self.evidence = 0.0
            self.streak = 0
            return None
        self.evidence += gain
        self.streak += 1
        if self.streak < 2 or self.evidence < MIN_EVIDENCE:
            return None
        self.trial = Trial(self.layout, seconds)
        self._note(
            "change",
            f"{gain:.0%} less seconds a turn are expected, {saved:.0f} s in what is left"
            + (". placement.auto=false keeps one process" if self.is_implicit else ""),
            1.0 / (1.0 - gain) / seconds,
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
