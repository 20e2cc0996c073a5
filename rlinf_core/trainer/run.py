"""A training run: one loop runs the nodes of the run's graph whose inputs are filled.

A source brings experience, and a learner updates the policy.

The run folder holds recipe.yaml, progress.jsonl (one line for each evaluation), tensorboard/,
policies/ and checkpoints/. Runs with recorded episodes also have inbox/, refused/ and
journal.jsonl.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlinf_core.algorithms.common.offload import Offload
from rlinf_core.core.usage import measure_usage
from rlinf_core.plan.graph import (
    DATA,
    ENVIRONMENT,
    EVALUATION,
    LEARNER,
    POLICY,
    STATION,
    WEIGHTS,
)
from rlinf_core.policies.policy_folder import free_version, newest_version, policy_name
from rlinf_core.policies.serialization import save_policy
from rlinf_core.recipes import Recipe
from rlinf_core.reports.evaluations import Outcome, evaluation
from rlinf_core.rollouts.types import Experience, Source, Trajectory
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.layout_change import change_layout
from rlinf_core.trainer.learner_setup import inherit_networks
from rlinf_core.trainer.progress import WRITE_S
from rlinf_core.trainer.run_state import PARTS, RunState
from rlinf_core.trainer.sources.recordings import check_demonstrations, read_recordings
from rlinf_core.trainer.sources.simulators import Simulators
from rlinf_core.trainer.trace import write_spans

MAX_UPDATES = 16  # between two polls of the source
REPORT_S = 0.25  # interval of reports to the stations
POLL_S = 0.02  # pause of a run that waits for stations
OnProgress = Callable[["Run", dict[str, float] | None], None]


class Run(RunState):
    """A training run in one or two stages: an optional warm start (SFT), then the algorithm.

    ``loop`` repeats turns of four nodes, with an evaluation between two turns::

        source --experience--> data --batches--> learner --weights--> source
                                                    |
                                                    +--policy--> evaluation

    Args:
        recipe: recipe of the run.
        run_dir: folder of the run.
        spec: observation and action spec of the stations.
        on_progress: called after every turn, and with the figures of each evaluation.
    """

    def __init__(
        self, recipe: Recipe, run_dir: Path, spec: StationSpec, on_progress: OnProgress
    ) -> None:
        super().__init__(recipe, run_dir, spec)
        self.on_progress = on_progress
        # the work of each node of the graph
        self.work: dict[str, Callable[[], None]] = {
            STATION: self._play,
            ENVIRONMENT: self._play,
            DATA: self._insert,
            LEARNER: lambda: self._learn(self.due),
            WEIGHTS: self._send_weights,
            EVALUATION: self._evaluate,
        }
        self.experience = Experience()
        # edges with weights or experience on their way to the next node; no checkpoint meanwhile
        self.in_flight: set[tuple[str, str]] = set()
        # set by ``_plan_turn``: the updates that are due, and whether the run ends after this turn
        self.due: int
        self.is_done: bool
        # numbers of the last checkpoint
        self.saved: tuple[int, ...] = ()

    def start(self, source: Source) -> None:
        """Start with a source, or resume from the newest valid checkpoint."""
        self.source = source
        self.started = time.perf_counter()
        state = checkpoint.load_newest(
            self.run_dir / "checkpoints", PARTS, self.run_dir / checkpoint.DAMAGED
        )
        if state is not None:
            self.load_state_dict(state)
        else:
            self._begin()
        self.first_step = self.steps
        self.reported_at = -math.inf
        self.saved_at = time.monotonic()

    def _begin(self) -> None:
        """Begin a new run: make its learner, and read or play its demonstrations."""
        self.enter_stage(0)
        # A run that died before its first checkpoint may have published policies.
        self.version = max(0, newest_version(self.run_dir / "policies"))
        if self.recipe.collect.recordings:
            read_recordings(self.recipe.collect.recordings, self.intake, self.insert)
            check_demonstrations(
                self.source.asynchronous or self.has_demonstrations, self.data.statuses
            )
            if self.recipe.simulation.environments:
                self.data.steps = 0  # recorded steps do not count as simulated ones
        elif not self.has_demonstrations:
            for trajectory in self.source.demonstrate().trajectories:
                self.insert(trajectory)
        if self.initial and self.initial.is_dir():
            inherit_networks(self.learner, self.initial, self.recipe.algorithm.name)

    def insert(self, trajectory: Trajectory) -> str:
        """Insert an episode of a source into the training data, and return its status."""
        return self.data.insert(trajectory, self.version)

    def loop(self) -> dict[str, float]:
        """Run until no node is ready or ``stopping`` is set, then save a checkpoint.

        Returns:
            The figures of the last evaluation.
        """
        while self.in_flight or not self.stopping:
            if not self.advance():
                break
        self.save()
        self.disk.try_write("curves", self._write)
        return self.progress.last

    def advance(self) -> list[str]:
        """Run the nodes that are ready, and the periodic work unless items are in flight.

        Returns:
            The nodes that ran; none at the end of the run.
        """
        ready = self.graph.ready(self.in_flight or self._plan_turn())
        for node in ready:
            self.work[node]()
        if ready and not self.in_flight:
            self._do_periodic_work(LEARNER in ready or DATA in ready)
        return ready

    def _plan_turn(self) -> set[tuple[str, str]]:
        """Choose the work of the next turn, and set ``due`` and ``is_done``.

        An evaluation comes first, then updates, then the next rollout. Stations play all the time.
        The normalisation is fitted here as soon as there is enough data.

        Returns:
            The edges of the graph that hold an item, as (source, target).
        """
        self.due = self.updates_due()
        # an offline algorithm is evaluated between its updates, others after all that are due
        can_evaluate = (
            self.is_last_stage and self.ensure_fitted() and bool(self.offline or not self.due)
        )
        self.is_done = can_evaluate and self.has_all_steps(self.due)
        filled = set()
        if self.source.asynchronous:
            filled.add((WEIGHTS, STATION))
            if self.is_publication_due():
                filled.add((LEARNER, WEIGHTS))
        if can_evaluate and self.is_evaluation_due(self.is_done):
            filled.add((LEARNER, EVALUATION))
        elif self.due:
            filled.add((DATA, LEARNER))
        elif not self.source.asynchronous and self._needs_weights():
            filled.add((LEARNER, WEIGHTS))
        return filled

    def _needs_weights(self) -> bool:
        """Return whether the next rollout, or the file of the last policy, needs the weights."""
        return self.is_unpublished() if self.is_done else bool(self.graph.inputs(POLICY))

    def _play(self) -> None:
        """Take experience from the source."""
        with self._off_device():
            self.experience = self.source.take(self.learner.updates, self.data.rollout_length())
        if isinstance(self.source, Simulators):
            self.meter.add_rollout(self.source.usages)
        experience = self.experience
        if experience.trajectories or experience.rollouts or experience.steps:
            self.in_flight = {(edge.source, DATA) for edge in self.graph.inputs(DATA)}
        else:
            self.in_flight = set()

    def _insert(self) -> None:
        """Insert the new experience into the training data."""
        with self.clock("transfer"), measure_usage() as usage:
            self.data.put(self.experience, self.version)
        self.meter.add_data(usage)
        self.meter.turn.steps += self.experience.steps
        self.experience = Experience()
        self.in_flight = set()

    def _learn(self, due: int) -> None:
        """Take up to ``due`` updates, at most MAX_UPDATES and at least one."""
        if not self.fitted:
            self.fit_normalisation()
        count = min(due, MAX_UPDATES)
        if self.offline and self.is_last_stage and self.evaluator:
            count = min(count, self.next_evaluation - self.steps)
        count = max(1, count)
        draw: Callable[[], Any] = self.data.batch
        if self.offline and not self.is_last_stage:
            draw = partial(self.data.demonstration_batch, self.offline.batch_size)
        with self.clock("learn"), measure_usage() as total:
            for batch in self.prefetch.batches(draw, count):
                with measure_usage() as update:
                    metrics = self.learner.update(batch)
                self.meter.add_update(self.learner, update)
                self.progress.note(metrics, self.learner.updates)
                self.data.after_update(self.learner)
        self.meter.add_data(total)

    def _send_weights(self) -> None:
        """Publish the newest weights for stations, or copy them for the next rollout."""
        if self.source.asynchronous:
            self.disk.try_write("a policy", self.publish)
        elif self.is_done:
            self.publish()
        else:
            self._end_turn()
            self.learner.sync()
            self.in_flight = {(WEIGHTS, POLICY)}

    def _evaluate(self) -> None:
        """Evaluate on held-out scenes, publish the evaluated policy and save a checkpoint."""
        assert self.evaluator is not None
        interval = self.recipe.simulation.evaluate_every
        # a turn may take more steps than one interval
        intervals = 1 + (self.steps - self.next_evaluation) // interval
        self.next_evaluation += interval * intervals
        self.learner.sync()
        self.learner.ship(self.shipped)
        hz = self.policy.spec.control_hz
        with self.clock("evaluate"):
            outcomes = [
                Outcome(result.success, result.failure, result.value, result.steps / hz)
                for result in self.evaluator()
            ]
        seconds = time.perf_counter() - self.started
        self.publish()
        entry = {
            **evaluation(
                outcomes, self.steps, self.updates, self.seconds + seconds, self.version, hz
            ),
            "steps_per_second": (self.steps - self.first_step) / seconds,
            **{f"seconds_{part}": value for part, value in self.clock.seconds.items()},
            **self.progress.metrics,
            **self.source.counts(),
        }
        self.progress.write_evaluation(entry)
        self.save()
        self.on_progress(self, entry)

    def publish(self) -> None:
        """Write the policy as the next version."""
        self.learner.sync()
        self.learner.ship(self.shipped)
        folder, updates = self.run_dir / "policies", self.updates
        version = free_version(folder, self.version)
        stations_wait = self.source.asynchronous  # stations wait for the policy
        if stations_wait:
            self.flush.prepare()
        save_policy(
            self.shipped,
            folder / policy_name(version),
            durable=not stations_wait,
            version=version,
            updates=updates,
            env_steps=self.steps,
        )
        if stations_wait:
            self.flush.begin(version)
        self.version = version
        self.published_at = updates
        self.data.versions[version] = updates

    def _end_turn(self) -> None:
        """Close the measurement of a turn; the controller may change the layout."""
        if self.layout_controller is None or not isinstance(self.source, Simulators):
            return
        if not self.meter.turn.learner and self.learner.updates:
            return  # no update in this turn: the rollouts wait for more
        turn = self.meter.finish(self.source)
        layout = (
            self.layout_controller.record_turn(turn, self.total - self.steps)
            if turn.learner
            else None
        )
        if layout is not None:
            change_layout(self, layout)

    @contextmanager
    def _off_device(self) -> Iterator[None]:
        """Move the learner off its device during rollouts, if ``placement.offload`` is set."""
        if not self.recipe.placement.offload or self.source.asynchronous:
            yield
            return
        learner: Any = self.learner
        moved = learner if isinstance(learner, LearnerGroup) else Offload(learner, self.policy)
        with self.clock("switch"):
            moved.off()
        try:
            yield
        finally:
            with self.clock("switch"):
                moved.on()

    def _do_periodic_work(self, worked: bool) -> None:
        """Do the periodic work: next stage, report to the stations, checkpoint, curves."""
        if self.is_warm_start_done():
            self._enter_last_stage()
            if self.source.asynchronous:
                return  # stations get the policy first, so that the checkpoint knows its version
        if self.source.asynchronous:
            if time.monotonic() - self.reported_at > REPORT_S:
                self.source.report, self.reported_at = self.report(), time.monotonic()
            if not worked:
                time.sleep(POLL_S)
        if time.monotonic() - self.saved_at > 60.0 * self.recipe.checkpoint.every_minutes:
            self.disk.try_write("a checkpoint", self.save)
        if time.monotonic() - self.progress.written_at > WRITE_S:
            self.disk.try_write("curves", self._write)
        self.on_progress(self, None)

    def _enter_last_stage(self) -> None:
        """Begin the algorithm after the warm start. An evaluation and a checkpoint are due."""
        self.learner.sync()
        self.learner.close()
        self.enter_stage(self.stage + 1)
        self.next_evaluation = self.steps
        self.saved_at = -math.inf

    def _write(self) -> None:
        """Write curves, spans and the controller's measurements; called every few seconds."""
        self.progress.write(self.steps, self.counts())
        write_spans(self.run_dir, self.clock.spans)
        if self.layout_controller is not None:
            self.layout_controller.save()

    def save(self) -> None:
        """Save a checkpoint of the whole run, between two updates; nothing if nothing changed."""
        warm_start_updates = self.recipe.sft.steps if self.stage else 0
        numbers = (
            self.data.steps,
            self.learner.updates,
            len(self.intake.ids),
            self.next_evaluation,
            self.version,
        )
        self.flush.wait()
        if numbers != self.saved:
            checkpoint.save(
                self.run_dir / "checkpoints",
                f"updates-{self.learner.updates + warm_start_updates:09d}",
                self.state_dict(),
            )
        self.saved = numbers
        self.saved_at = time.monotonic()
