"""A training run: one loop runs the nodes of the run's graph whose inputs are filled.

A source brings experience, and a learner updates the policy.

The run folder holds recipe.yaml, progress.jsonl (one line for each evaluation), tensorboard/,
policies/ and checkpoints/. Runs with recorded episodes also have inbox/, refused/ and
journal.jsonl.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.learner import BaseLearner, Learner
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.offload import Offload
from rlinf_core.algorithms.common.settings import (
    ROLLOUTS,
    AlgorithmSettings,
    DemonstrationSettings,
    is_offline,
)
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.usage import Usage, measured, resident_bytes
from rlinf_core.plan.choose import with_layout
from rlinf_core.plan.cost import Layout
from rlinf_core.plan.graph import (
    DATA,
    ENVIRONMENT,
    EVALUATION,
    LEARNER,
    POLICY,
    STATION,
    WEIGHTS,
    build_graph,
)
from rlinf_core.plan.layout_controller import LayoutController, ProcessSeconds, Turn, add_seconds
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.serialization import (
    free_version,
    load_policy,
    newest_policy,
    newest_version,
    policy_name,
    save_policy,
)
from rlinf_core.policies.small.latent_noise import Config as LatentNoise
from rlinf_core.policies.torch_device import device_of
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import initial_source
from rlinf_core.recipes.station import longest_episode
from rlinf_core.reports.evaluations import Outcome, evaluation
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.rollouts.types import Experience, Source, Trajectory
from rlinf_core.specs.arrays import StationSpec, TextSpec
from rlinf_core.trainer import checkpoint
from rlinf_core.trainer.data import make_data
from rlinf_core.trainer.distributed.group import LearnerGroup
from rlinf_core.trainer.distributed.ray_cluster import NoRoomError, connect, cpus_for
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.policy_flush import PolicyFlush
from rlinf_core.trainer.prefetch import make_prefetch
from rlinf_core.trainer.progress import WRITE_S, Clock, DiskGuard, Progress
from rlinf_core.trainer.sources.recordings import Intake, check_demonstrations, read_recordings
from rlinf_core.trainer.sources.simulators import Simulators
from rlinf_core.trainer.trace import write_spans


def learner_usage(learner: Learner, usage: Usage) -> tuple[ProcessSeconds, float]:
    """Return (busy, idle) seconds of each learner process, and the overhead of the call [s]."""
    if isinstance(learner, LearnerGroup):
        inside = max(part.wall_s for part in learner.usages)
        return [(part.busy_s, part.idle_s) for part in learner.usages], max(
            0.0, usage.wall_s - inside
        )
    return [(usage.busy_s, usage.idle_s)], 0.0


def make_learner(recipe: Recipe, config: AlgorithmSettings, policy: NetworkPolicy) -> Learner:
    """Return a learner in this process, or a group of learner processes on Ray."""
    placement = recipe.placement
    if not placement.learners:
        learner: BaseLearner = algorithm(config.name).Learner(policy, config, recipe.seed)
        apply_computing(learner, recipe.learner)
        return learner
    return LearnerGroup(
        config.name,
        policy,
        config,
        recipe.seed,
        size=placement.learners,
        strategy=placement.strategy,
        restarts=placement.restarts,
        gpus=placement.learner_gpus,
        cpus=cpus_for(placement),
        computing=recipe.learner,
        tensor_parallel=placement.tensor_parallel,
    )


def is_normalised(policy: NetworkPolicy, before: Path | None) -> bool:
    """Return whether the initial policy needs no fit of the normalisation.

    True for text policies, for a run that is continued, and for a policy that brings its own.
    """
    if isinstance(policy.spec, TextSpec):
        return True
    return before is not None and (
        before.is_dir() or any(isinstance(part, Normalisation) for part in policy.modules())
    )


def inherit_networks(learner: Learner, folder: Path, name: str) -> None:
    """Load the learner's networks from another run; update count and noise start anew.

    A reference policy, if the algorithm has one, becomes the loaded policy.

    Args:
        learner: learner to load into.
        folder: folder of the other run.
        name: name of the algorithm.

    Raises:
        RecipeError: the other run used another algorithm.
    """
    saved = checkpoint.load_newest(folder / "checkpoints")
    state = saved["learner"] if saved else {"modules": {}}
    current = learner.state_dict()
    current_modules = current["modules"]
    if state["modules"].keys() != current_modules.keys():
        raise RecipeError(
            f"simulation.initial_policy: expected in {folder / 'checkpoints'} a learner with "
            f"{', '.join(current_modules)}, got {', '.join(state['modules']) or 'none'}. Name a "
            f"run of {name}, or a policy file to use only the policy"
        )
    modules = state["modules"] | (
        {"reference": state["modules"]["policy"]} if "reference" in current_modules else {}
    )
    learner.load_state_dict(
        state | {"modules": modules, "updates": 0, "generator": current["generator"]}
    )


def initial_policy(recipe: Recipe, spec: StationSpec, before: Path | None) -> NetworkPolicy:
    """Return the initial policy: a new one, or the newest policy of another run (``before``).

    Raises:
        RecipeError: the other run's policy differs from the recipe's.
    """
    policy = (
        load_policy(newest_policy(before), spec) if before else make_policy(spec, recipe.policy)
    )
    if isinstance(recipe.policy, LatentNoise) and policy.config == recipe.policy.flow_settings:
        policy = policy_kind(recipe.policy.kind).Policy.around(recipe.policy, policy)
    if policy.config != recipe.policy:
        raise RecipeError(
            f"simulation.initial_policy: expected the recipe's policy {recipe.policy}, got "
            f"{policy.config}"
        )
    return policy.to(device_of(recipe.device)).train()


MAX_UPDATES, REPORT_S = 16, 0.25  # maximum updates between two polls; seconds between two reports
TURN = ("simulate", "infer", "wait", "transfer", "switch", "learn")  # the clock's parts of a turn
PARTS = ("learner", "data", "intake", "source", "progress", "clock", "run")  # parts of a checkpoint
OnProgress = Callable[["Run", dict[str, float] | None], None]
Evaluator = Callable[[], list[EpisodeResult]]


class Run:
    """A training run in one or two stages: an optional warm start (SFT), then the algorithm.

    Args:
        recipe: recipe of the run.
        run_dir: folder of the run.
        spec: observation and action spec of the stations.
        on_progress: called after every turn, and with the figures of each evaluation.
    """

    def __init__(
        self, recipe: Recipe, run_dir: Path, spec: StationSpec, on_progress: OnProgress
    ) -> None:
        self.recipe = recipe
        self.run_dir = run_dir
        self.on_progress = on_progress
        self.clock = Clock()
        self.before = initial_source(recipe)
        torch.manual_seed(recipe.seed)
        self.policy = initial_policy(recipe, spec, self.before)
        # the policy that is sent to stations
        self.shipped = copy.deepcopy(self.policy) if recipe.algorithm.averages else self.policy
        self.data = make_data(recipe, self.policy, make_governor(recipe, longest_episode(recipe)))
        self.prefetch = make_prefetch(recipe, self.policy.device)
        self.intake = Intake(
            run_dir,
            spec,
            self.data.max_transitions,
            recipe.replay.use_executed,
            recipe.policy if recipe.algorithm.learns_from == ROLLOUTS else None,
        )
        warm = recipe.algorithm.warm_start and not self.before
        self.stages: list[AlgorithmSettings] = (
            [recipe.sft, recipe.algorithm] if warm else [recipe.algorithm]
        )
        self.progress = Progress(
            run_dir, recipe.wandb, recipe.model_dump(mode="json") if recipe.wandb else None
        )
        self.disk, self.flush = DiskGuard(run_dir), PolicyFlush(run_dir / "policies")
        self.version: int  # of the newest policy; ``start`` sets it
        self.published_at = -1
        self.fitted = is_normalised(self.policy, self.before)
        self.stopping = False
        self.saved: tuple[int, ...] = ()
        self.next_evaluation = 0
        self.seconds = 0.0  # duration of the run before its last restart
        self.evaluator: Evaluator | None = None
        self.layout_controller: LayoutController | None = None
        self.turn = Turn()
        self.turn_began = 0.0
        self.first_bytes = 0.0
        self.graph = build_graph(recipe)
        self.work: dict[str, Callable[[], None]] = {
            STATION: self._play,
            ENVIRONMENT: self._play,
            DATA: self._insert,
            LEARNER: lambda: self._learn(self.due),
            WEIGHTS: self._send_weights,
            EVALUATION: self._evaluate,
        }
        self.due: int  # ``advance`` sets both
        self.is_done: bool
        self.experience = Experience()
        # edges with weights or experience on their way to the next node; no checkpoint meanwhile
        self.in_flight: set[tuple[str, str]] = set()

    @property
    def config(self) -> AlgorithmSettings:
        """The config of the current learner."""
        return self.stages[self.stage]

    @property
    def offline(self) -> DemonstrationSettings | None:
        """The current settings if they train on demonstrations alone, else None."""
        return self.config if is_offline(self.config) else None

    @property
    def is_last_stage(self) -> bool:
        return self.stage == len(self.stages) - 1

    @property
    def steps(self) -> int:
        """Environment steps; for an offline algorithm its updates."""
        return self.learner.updates if self.is_last_stage and self.offline else self.data.steps

    @property
    def updates(self) -> int:
        """Updates of the last stage's learner; 0 before it."""
        return self.learner.updates if self.is_last_stage else 0

    @property
    def total(self) -> int:
        """Number of steps after which the run ends."""
        last = self.stages[-1]
        return last.steps if is_offline(last) else self.recipe.simulation.env_steps

    @property
    def phase(self) -> str:
        """waiting for demonstrations, sft, or online."""
        return (
            "waiting"
            if not (self._has_demonstrations() and self.data.has_all_robots)
            else "online"
            if self.is_last_stage
            else "sft"
        )

    def _has_demonstrations(self) -> bool:
        """Return whether the recipe's number of demonstrations is there."""
        episode_count = 1 if self.recipe.collect.recordings else self.recipe.collect.episodes
        return (
            not self.config.needs_demonstrations or self.data.demonstration_count >= episode_count
        )

    def start(self, source: Source) -> None:
        """Start with a source, or resume from the newest valid checkpoint."""
        self.source = source
        self.started = time.perf_counter()
        state = checkpoint.load_newest(
            self.run_dir / "checkpoints", PARTS, self.run_dir / checkpoint.DAMAGED
        )
        if state is not None:
            self._resume(state)
        else:
            self._begin(source)
        self.first_step = self.steps
        self.reported_at = -math.inf
        self.saved_at = time.monotonic()

    def _begin(self, source: Source) -> None:
        self._enter_stage(0)
        # A run that died before its first checkpoint may have published policies.
        self.version = max(0, newest_version(self.run_dir / "policies"))
        if self.recipe.collect.recordings:
            read_recordings(self.recipe.collect.recordings, self.intake, self.insert)
            check_demonstrations(
                source.asynchronous or self._has_demonstrations(), self.data.statuses
            )
            if self.recipe.simulation.environments:
                self.data.steps = 0  # recorded steps do not count as simulated ones
        elif not self._has_demonstrations():
            for trajectory in source.demonstrate().trajectories:
                self.insert(trajectory)
        if self.before and self.before.is_dir():
            inherit_networks(self.learner, self.before, self.recipe.algorithm.name)

    def _enter_stage(self, stage: int) -> None:
        self.stage = stage
        self.learner = make_learner(self.recipe, self.config, self.policy)

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
        self.disk.keep("curves", self._write)
        return self.progress.last

    def advance(self) -> list[str]:
        """Run the nodes that are ready, and the periodic work unless items are in flight.

        Returns:
            The nodes that ran; none at the end of the run.
        """
        ready = self.graph.ready(self._filled())
        for node in ready:
            self.work[node]()
        if ready and not self.in_flight:
            self._do_periodic_work(LEARNER in ready or DATA in ready)
        return ready

    def _filled(self) -> set[tuple[str, str]]:
        """Return the edges of the graph that hold an item, as (source, target).

        Without items in flight, an evaluation comes first, then updates, then the next rollout.
        Stations play all the time.
        """
        if self.in_flight:
            return self.in_flight
        asynchronous = self.source.asynchronous
        filled = {(WEIGHTS, STATION)} if asynchronous else set()
        self.due = self._updates_due()
        settled = self.is_last_stage and self._fit() and bool(self.offline or not self.due)
        self.is_done = done = settled and self._is_done(self.due)
        if settled and self._is_evaluation_due(done):
            filled.add((LEARNER, EVALUATION))
        elif self.due:
            filled.add((DATA, LEARNER))
        elif not asynchronous and (self._is_unpublished() if done else self.graph.inputs(POLICY)):
            filled.add((LEARNER, WEIGHTS))
        if asynchronous and self._is_publication_due():
            filled.add((LEARNER, WEIGHTS))
        return filled

    def _updates_due(self) -> int:
        """Return the number of updates that are due now."""
        if not self._has_demonstrations() or not self._fit():
            return 0
        return (
            self._updates_left()
            if self.offline
            else self.data.due(self.learner.updates, self.learner)
        )

    def _updates_left(self) -> int:
        """Return the remaining updates of an offline stage."""
        return max(0, self.offline.steps - self.learner.updates) if self.offline else 0

    def _fit(self) -> bool:
        """Fit the normalisation if it is still to be fitted, and return whether the policy may act.

        An off-policy algorithm without demonstrations fits it at the first update instead.
        """
        early = self.config.needs_demonstrations or self.config.rollout
        return self.fitted or not early or (self._has_demonstrations() and self._fit_now())

    def _fit_now(self) -> bool:
        if (vectors := self.data.normalisation()) is not None:
            self.learner.fit_normalisation(vectors)
            self.fitted = True
            self.published_at = -1
        return self.fitted

    def _is_done(self, due: int) -> bool:
        through = not due if self.offline else self.data.steps >= self.recipe.simulation.env_steps
        return through and not self.source.asynchronous

    def _is_evaluation_due(self, done: bool) -> bool:
        """Return whether the policy is to be evaluated; a run that is ``done`` ends with it."""
        if self.evaluator is None:
            return False
        # an ended run has evaluated this policy already
        is_evaluated = self.progress.last.get("env_steps") == self.steps
        return self.steps >= self.next_evaluation or (done and not is_evaluated)

    def _is_unpublished(self) -> bool:
        """Return whether no evaluation publishes the last policy, as after a robot's recordings."""
        return self.evaluator is None and self.published_at < self.updates

    def _is_publication_due(self) -> bool:
        """Return whether the stations are due a policy.

        The first usable policy is due, then one every ``publish_every_updates`` updates.
        """
        every = 1 if self.config.rollout else self.recipe.online.publish_every_updates
        if (
            not self.is_last_stage
            or not self._has_demonstrations()
            or (self.offline and (self.due or not self.fitted))
        ):
            return False
        return self.published_at < 0 or self.updates // every > self.published_at // every

    def _learn(self, due: int) -> None:
        """Take up to ``due`` updates, at most GROUP."""
        if not self.fitted:
            self._fit_now()
        left = (
            self.next_evaluation - self.steps
            if self.offline and self.is_last_stage and self.evaluator
            else MAX_UPDATES
        )
        warm = None if self.is_last_stage else self.offline
        draw = partial(self.data.demonstration_batch, warm.batch_size) if warm else self.data.batch
        with self.clock("learn"), measured() as total:
            for batch in self.prefetch.batches(draw, max(1, min(due, MAX_UPDATES, left))):
                with measured() as update:
                    metrics = self.learner.update(batch)
                self._count_update(update)
                self.progress.note(metrics, self.learner.updates)
                self.data.after_update(self.learner)
        self._count_data(total)

    def _count_update(self, usage: Usage) -> None:
        """Add the usage of an update to the current turn."""
        parts, call_s = learner_usage(self.learner, usage)
        self.turn.call_s += call_s
        self.turn.learner = add_seconds(self.turn.learner, parts)
        self._count_data(usage, -1.0)  # within the usage of ``_learn``

    def _count_data(self, usage: Usage, sign: float = 1.0) -> None:
        """Add this process's own work between rollouts and updates to the current turn."""
        self.turn.data = add_seconds(self.turn.data, [(sign * usage.busy_s, sign * usage.idle_s)])

    def _send_weights(self) -> None:
        """Publish the newest weights for stations, or copy them for the next rollout."""
        if self.source.asynchronous:
            self.disk.keep("a policy", self.publish)
        elif self.is_done:
            self.publish()
        else:
            self._end_turn()
            self.learner.sync()
            self.in_flight = {(WEIGHTS, POLICY)}

    def _play(self) -> None:
        """Take experience from the source."""
        with self._off_device():
            self.experience = self.source.take(self.learner.updates, self.data.rollout_length())
        if isinstance(self.source, Simulators):
            usages = self.source.usages
            self.turn.environment = add_seconds(
                self.turn.environment, [usage.environment for usage in usages]
            )
            self.turn.policy = add_seconds(self.turn.policy, [usage.policy for usage in usages])
        taken = self.experience
        if taken.trajectories or taken.rollouts or taken.steps:
            self.in_flight = {(edge.source, DATA) for edge in self.graph.inputs(DATA)}
        else:
            self.in_flight = set()

    def _insert(self) -> None:
        """Insert the taken experience into the training data."""
        with self.clock("transfer"), measured() as usage:
            self.data.put(self.experience, self.version)
        self._count_data(usage)
        self.turn.steps += self.experience.steps
        self.experience, self.in_flight = Experience(), set()

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

    def _end_turn(self) -> None:
        """Close the measurement of a turn; the controller may change the layout."""
        if self.layout_controller is None or not isinstance(self.source, Simulators):
            return
        turn, source = self.turn, self.source
        if not turn.learner and self.learner.updates:
            return  # no update in this turn: the rollouts wait for more
        now = sum(self.clock.seconds[part] for part in TURN)
        turn.seconds = now - self.turn_began
        self.turn_began = now
        turn.send_s, turn.sent_bytes = source.send_s, source.sent_bytes
        self.first_bytes = self.first_bytes or resident_bytes()  # before the replay grows
        of_workers = max((usage.total.resident_bytes for usage in source.usages), default=0.0)
        turn.resident_bytes = of_workers or self.first_bytes
        if self.policy.device.type == "cuda":
            turn.peak_bytes = float(torch.cuda.max_memory_allocated(self.policy.device))
        self.turn = Turn()
        layout = (
            self.layout_controller.record_turn(turn, self.total - self.steps)
            if turn.learner
            else None
        )
        if layout is not None:
            self.change_layout(layout)

    def change_layout(self, layout: Layout) -> None:
        """Change the layout without a change of state.

        An infeasible layout is reported to the controller.
        """
        controller, source = self.layout_controller, self.source
        assert controller is not None and isinstance(source, Simulators)
        before, started = self.recipe, time.perf_counter()
        self.turn = Turn()
        recipe = with_layout(controller.recipe, layout)
        try:
            if recipe.placement.on_ray:  # maybe the first processes on Ray
                connect(recipe.placement.ray)
        except (RlinfError, OSError, RuntimeError, ValueError) as error:
            controller.record_refusal(layout, f"Ray does not start: {error}")
            return
        try:
            with self.clock("place"):
                source.change_layout(recipe)
                self._change_learner(recipe)
        except (RecipeError, NoRoomError) as error:
            source.change_layout(before)
            controller.record_refusal(layout, str(error))
            return
        seconds = time.perf_counter() - started
        print(f"layout: {layout}, in {seconds:.1f} s", flush=True)
        controller.record_change(layout, seconds)

    def _change_learner(self, recipe: Recipe) -> None:
        before, count = self.recipe.placement.learners, recipe.placement.learners
        if isinstance(self.learner, LearnerGroup) and count:
            self.learner.resize(count)
        elif count != before:
            self.learner.sync()
            state = self.learner.state_dict()
            learner = make_learner(recipe, self.config, self.policy)
            learner.load_state_dict(state)
            self.learner.close()
            self.learner = learner
        self.recipe = recipe
        self.graph = build_graph(recipe)
        self.prefetch = make_prefetch(recipe, self.policy.device)

    def _do_periodic_work(self, worked: bool) -> None:
        """Do the periodic work: next stage, report to the stations, checkpoint, curves."""
        if (
            not self.is_last_stage
            and self._has_demonstrations()
            and self._fit()
            and not self._updates_due()
        ):
            self.learner.sync()
            self.learner.close()
            self._enter_stage(self.stage + 1)
            self.next_evaluation, self.saved_at = self.steps, -math.inf
            if self.source.asynchronous:
                return  # stations get the policy first, so that the checkpoint knows its version
        if self.source.asynchronous:
            if time.monotonic() - self.reported_at > REPORT_S:
                self.source.report, self.reported_at = self.report(), time.monotonic()
            if not worked:
                time.sleep(0.02)
        if time.monotonic() - self.saved_at > 60.0 * self.recipe.checkpoint.every_minutes:
            self.disk.keep("a checkpoint", self.save)
        if time.monotonic() - self.progress.written_at > WRITE_S:
            self.disk.keep("curves", self._write)
        self.on_progress(self, None)

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

    def _evaluate(self) -> None:
        """Evaluate on held-out scenes, publish the evaluated policy and save a checkpoint."""
        assert self.evaluator is not None
        every = self.recipe.simulation.evaluate_every  # a turn may take more steps
        self.next_evaluation += every * (1 + (self.steps - self.next_evaluation) // every)
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

    def _write(self) -> None:
        """Write curves, spans and the controller's measurements; called every few seconds."""
        self.progress.write(self.steps, self.counts())
        write_spans(self.run_dir, self.clock.spans)
        if self.layout_controller is not None:
            self.layout_controller.save()

    def counts(self) -> dict[str, float]:
        """Return the counters of all experience, in total and by station."""
        return {**self.intake.counts(), **self.data.counts(), **self.source.counts()}

    def report(self) -> dict[str, Any]:
        """Return the fields of the report to the stations."""
        steps, updates = self.data.steps, self.updates
        return {
            "phase": self.phase,
            "policy_version": self.version,
            "updates": updates,
            "transitions": steps,
            "episodes": len(self.intake.ids),
            "update_ratio": updates / max(1, steps),
            **(self.data.admission(updates) if self.is_last_stage else {"accepting": True}),
            "metrics": {
                **self.progress.metrics,
                **self.counts(),
                "sft_left": float(self._updates_left()),
            },
        }

    def save(self) -> None:
        """Save a checkpoint of the whole run, between two updates; nothing if nothing changed."""
        done = self.learner.updates + (self.recipe.sft.steps if self.stage else 0)
        now = (
            self.data.steps,
            self.learner.updates,
            len(self.intake.ids),
            self.next_evaluation,
            self.version,
        )
        self.flush.wait()
        if now != self.saved:
            checkpoint.save(
                self.run_dir / "checkpoints",
                f"updates-{done:09d}",
                {
                    "learner": self.learner.state_dict(),
                    "data": self.data.state_dict(),
                    "intake": self.intake.state_dict(),
                    "source": self.source.state_dict(),
                    "progress": self.progress.state_dict(),
                    "clock": [self.clock.seconds],
                    "run": {
                        "stage": self.stage,
                        "version": self.version,
                        "fitted": self.fitted,
                        "published_at": self.published_at,
                        "next_evaluation": self.next_evaluation,
                        "seconds": self.seconds + time.perf_counter() - self.started,
                    },
                },
            )
        self.saved = now
        self.saved_at = time.monotonic()

    def _resume(self, state: dict[str, Any]) -> None:
        self._enter_stage((run := state["run"])["stage"])
        # Older checkpoints also count the updates of the run that they continue.
        for counted, key in ((state["learner"], "updates"), (run, "published_at")):
            counted[key] -= run.get("owed_from", 0)
        for part in ("learner", "data", "intake", "source"):
            getattr(self, part).load_state_dict(state[part])
        self.next_evaluation, self.seconds = run["next_evaluation"], run["seconds"]
        self.progress.load_state_dict(
            state["progress"], before=self.next_evaluation, step=self.steps
        )
        self.clock.seconds.update(state["clock"][0])
        self.version = self.data.register_published(
            run["version"], self.run_dir / "policies", self.updates
        )
        self.fitted, self.published_at = run["fitted"], run["published_at"]
