"""State of a training run: its parts, its stage, the work that is due, and its checkpoint."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlinf_core.algorithms.common.learner import Learner
from rlinf_core.algorithms.common.settings import (
    ROLLOUTS,
    AlgorithmSettings,
    DemonstrationSettings,
    is_offline,
)
from rlinf_core.plan.graph import build_graph
from rlinf_core.plan.layout_controller import LayoutController
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import initial_source
from rlinf_core.recipes.station import longest_episode
from rlinf_core.rollouts.evaluate import EpisodeResult
from rlinf_core.rollouts.types import Source
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.trainer.data import make_data
from rlinf_core.trainer.governor import make_governor
from rlinf_core.trainer.learner_setup import initial_policy, is_normalised, make_learner
from rlinf_core.trainer.policy_flush import PolicyFlush
from rlinf_core.trainer.prefetch import make_prefetch
from rlinf_core.trainer.progress import Clock, DiskGuard, Progress
from rlinf_core.trainer.sources.recordings import Intake
from rlinf_core.trainer.turn_meter import TurnMeter

PARTS = ("learner", "data", "intake", "source", "progress", "clock", "run")  # parts of a checkpoint
Evaluator = Callable[[], list[EpisodeResult]]


class RunState:
    """State of a run in one or two stages: an optional warm start (SFT), then the algorithm.

    Args:
        recipe: recipe of the run.
        run_dir: folder of the run.
        spec: observation and action spec of the stations.

    Attributes:
        initial: policy file or run that the run begins with; None for a new policy.
        source, learner, stage: set at the start of the run.
        started: time of the start or restart [s of ``time.perf_counter``].
        shipped: policy that is evaluated and sent to stations.
        evaluator: plays the evaluation episodes of ``shipped``; None without evaluations.
        fitted: whether the normalisation is fitted.
        version: version of the newest published policy.
        published_at: updates at its publication; -1 if the current policy must be published.
        next_evaluation: steps at which the next evaluation is due.
        seconds: duration of the run before its last restart.
        stopping: whether the loop ends after the current turn.
    """

    source: Source
    learner: Learner
    stage: int
    started: float
    version: int

    def __init__(self, recipe: Recipe, run_dir: Path, spec: StationSpec) -> None:
        self.recipe = recipe
        self.run_dir = run_dir
        self.clock = Clock()
        self.initial = initial_source(recipe)
        torch.manual_seed(recipe.seed)
        self.policy = initial_policy(recipe, spec, self.initial)
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
        has_warm_start = recipe.algorithm.warm_start and not self.initial
        self.stages: list[AlgorithmSettings] = (
            [recipe.sft, recipe.algorithm] if has_warm_start else [recipe.algorithm]
        )
        self.graph = build_graph(recipe)
        self.progress = Progress(
            run_dir, recipe.wandb, recipe.model_dump(mode="json") if recipe.wandb else None
        )
        self.disk = DiskGuard(run_dir)
        self.flush = PolicyFlush(run_dir / "policies")
        self.meter = TurnMeter(self.clock, self.policy.device)
        self.layout_controller: LayoutController | None = None
        self.evaluator: Evaluator | None = None
        self.fitted = is_normalised(self.policy, self.initial)
        self.published_at = -1
        self.next_evaluation = 0
        self.seconds = 0.0
        self.stopping = False

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
        """Whether the algorithm trains, not the warm start."""
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
    def has_demonstrations(self) -> bool:
        """Whether the demonstrations that the current stage needs are there."""
        episode_count = 1 if self.recipe.collect.recordings else self.recipe.collect.episodes
        return (
            not self.config.needs_demonstrations or self.data.demonstration_count >= episode_count
        )

    @property
    def phase(self) -> str:
        """Phase of the run: waiting (for demonstrations), sft, or online."""
        if not (self.has_demonstrations and self.data.has_all_robots):
            return "waiting"
        return "online" if self.is_last_stage else "sft"

    def enter_stage(self, stage: int) -> None:
        """Begin a stage with a new learner."""
        self.stage = stage
        self.learner = make_learner(self.recipe, self.config, self.policy)

    def ensure_fitted(self) -> bool:
        """Fit the normalisation if that is due, and return whether the policy may act.

        An off-policy algorithm without demonstrations fits it at the first update instead.
        """
        at_first_update = not (self.config.needs_demonstrations or self.config.rollout)
        if self.fitted or at_first_update:
            return True
        return self.has_demonstrations and self.fit_normalisation()

    def fit_normalisation(self) -> bool:
        """Fit the normalisation to the data, and return whether there was enough."""
        if (vectors := self.data.normalisation()) is not None:
            self.learner.fit_normalisation(vectors)
            self.fitted = True
            self.published_at = -1
        return self.fitted

    def updates_due(self) -> int:
        """Return the number of updates that are due now."""
        if not self.has_demonstrations or not self.ensure_fitted():
            return 0
        if self.offline:
            return self.updates_left()
        return self.data.due(self.learner.updates, self.learner)

    def updates_left(self) -> int:
        """Return the remaining updates of an offline stage."""
        return max(0, self.offline.steps - self.learner.updates) if self.offline else 0

    def is_warm_start_done(self) -> bool:
        """Return whether the warm start has taken all of its updates."""
        return (
            not self.is_last_stage
            and self.has_demonstrations
            and self.ensure_fitted()
            and not self.updates_due()
        )

    def has_all_steps(self, due: int) -> bool:
        """Return whether the last stage has all of its steps. A run with stations never has."""
        if self.source.asynchronous:
            return False
        return not due if self.offline else self.data.steps >= self.recipe.simulation.env_steps

    def is_evaluation_due(self, is_done: bool) -> bool:
        """Return whether the policy is to be evaluated; a run that is done ends with it."""
        if self.evaluator is None:
            return False
        # an ended run has evaluated this policy already
        is_evaluated = self.progress.last.get("env_steps") == self.steps
        return self.steps >= self.next_evaluation or (is_done and not is_evaluated)

    def is_unpublished(self) -> bool:
        """Return whether no evaluation publishes the last policy, as after a robot's recordings."""
        return self.evaluator is None and self.published_at < self.updates

    def is_publication_due(self) -> bool:
        """Return whether the stations are due a policy.

        The first usable policy is due, then one every ``publish_every_updates`` updates.
        """
        every = 1 if self.config.rollout else self.recipe.online.publish_every_updates
        if (
            not self.is_last_stage
            or not self.has_demonstrations
            or (self.offline and (self.updates_left() or not self.fitted))
        ):
            return False
        return self.published_at < 0 or self.updates // every > self.published_at // every

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
                "sft_left": float(self.updates_left()),
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``, also one of an older release."""
        run = state["run"]
        self.enter_stage(run["stage"])
        # Older checkpoints also count the updates of the run that they continue.
        for counted, key in ((state["learner"], "updates"), (run, "published_at")):
            counted[key] -= run.get("owed_from", 0)
        self.learner.load_state_dict(state["learner"])
        self.data.load_state_dict(state["data"])
        self.intake.load_state_dict(state["intake"])
        self.source.load_state_dict(state["source"])
        self.next_evaluation = run["next_evaluation"]
        self.seconds = run["seconds"]
        self.progress.load_state_dict(
            state["progress"], before=self.next_evaluation, step=self.steps
        )
        self.clock.seconds.update(state["clock"][0])
        self.version = self.data.register_published(
            run["version"], self.run_dir / "policies", self.updates
        )
        self.fitted = run["fitted"]
        self.published_at = run["published_at"]
