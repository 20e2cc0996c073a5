"""Training in vectorised simulators: rollouts, updates, evaluations, and where the time went.

A run folder holds recipe.yaml, progress.jsonl (one line an evaluation), tensorboard/, policies/ and checkpoints/.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.cluster import checkpoint
from rlinf_core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy
from rlinf_core.policies.files import load_policy, newest_policy, policy_name, save_policy
from rlinf_core.recipes import Recipe, resolved
from rlinf_core.training.playing import evaluate
from rlinf_core.training.runs import RUNS, PlayingRun, Run
from rlinf_core.training.stations import stations
from rlinf_core.training.vector import Arrays, VectorEnv


class Clock:
    """Seconds spent in each of simulate, infer, transfer, learn, demonstrate and evaluate; a part within another counts
    as the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.part = ""

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        if self.part:
            yield
            return
        self.part, started = part, time.perf_counter()
        try:
            yield
        finally:
            self.part = ""
            self.seconds[part] += time.perf_counter() - started


class Timed:
    """A vector of environments whose steps are timed."""

    def __init__(self, env: VectorEnv, clock: Clock) -> None:
        self.env, self.clock, self.spec, self.size = env, clock, env.spec, env.size

    def reset(self, seeds: Any) -> Arrays:
        with self.clock("simulate"):
            return self.env.reset(seeds)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Any:
        with self.clock("simulate"):
            return self.env.step(actions, active)

    def expert(self) -> np.ndarray:
        with self.clock("simulate"):
            return self.env.expert()


def learner_class(recipe: Recipe) -> type:
    """The recipe's learner; RecipeError if it cannot train the recipe's policy."""
    name = recipe.algorithm.name
    learner = algorithm(name).Learner
    if recipe.policy.kind not in learner.policies:
        raise RecipeError(f"policy.kind: {name} trains {' or '.join(learner.policies)}, got '{recipe.policy.kind}'")
    return learner


def train(recipe: Recipe, run_dir: Path, make: Callable[[Recipe, int], VectorEnv] = stations,
          tell: Callable[[int, dict[str, float] | None], None] = lambda steps, entry: None) -> dict[str, float]:
    """Train to ``simulation.env_steps``, resuming from what is in ``run_dir``; returns the last evaluation.

    Args:
        recipe: with ``simulation.environments`` above 0.
        run_dir: the run's folder.
        make: builds so many environments.
        tell: hears the time steps so far, often, and each evaluation.

    Raises:
        RecipeError: what of the recipe does not go together.
        RlinfError: training diverged; the last checkpoint is good.
    """
    from torch.utils.tensorboard import SummaryWriter

    torch.set_num_threads(1)
    learner = learner_class(recipe)
    clock, settings, kind = Clock(), recipe.simulation, RUNS[learner.learns_from]
    if settings.workers and not issubclass(kind, PlayingRun):
        raise RecipeError(f"simulation.workers: expected 0 for {recipe.algorithm.name}, which learns from "
                          f"{learner.learns_from}, got {settings.workers}")
    held_out = make(recipe, min(settings.environments, 8))
    env = held_out if settings.workers else make(recipe, settings.environments)
    torch.manual_seed(recipe.seed)
    before = Path(settings.initial_policy) if settings.initial_policy else None
    policy = load_policy(newest_policy(before), env.spec) if before else make_policy(env.spec, recipe.policy)
    policy.train()
    if policy.config != recipe.policy:
        raise RecipeError(f"simulation.initial_policy: expected the recipe's policy {recipe.policy}, got {policy.config}")
    run = kind(Timed(env, clock), policy, learner, recipe, clock, make)
    try:
        (run_dir / "policies").mkdir(parents=True, exist_ok=True)
        (run_dir / "recipe.yaml").write_text(resolved(recipe))
        found, started = checkpoint.checkpoints(run_dir / "checkpoints"), time.perf_counter()
        run.start(checkpoint.load(found[-1]) if found else None)
        if before and before.is_dir() and not found:
            run.inherit(before)
        scenes = range(recipe.evaluate.first_seed, recipe.evaluate.first_seed + settings.evaluate_episodes)
        with SummaryWriter(str(run_dir / "tensorboard")) as writer:
            return _loop(run, lambda: evaluate(held_out, run.policy, scenes), clock, started, run_dir, writer, tell)
    finally:
        run.close()
        env.close()
        held_out.close()


def _loop(run: Run, judge: Callable[[], list], clock: Clock, started: float, run_dir: Path, writer: Any,
          tell: Callable) -> dict[str, float]:
    """Advance to the run's total; evaluate, write down and save on the way."""
    began, due = run.steps, run.steps
    metrics: dict[str, float] = {}
    while True:
        done = run.steps >= run.total
        if run.steps >= due or done:
            due += run.settings.evaluate_every
            with clock("evaluate"):
                episodes = judge()
            seconds = time.perf_counter() - started
            entry = {"env_steps": run.steps, "success": float(np.mean([episode.success for episode in episodes])),
                     "return": float(np.mean([episode.value for episode in episodes])), "updates": run.learner.updates,
                     "seconds": seconds, "steps_per_second": (run.steps - began) / seconds,
                     **{f"seconds_{part}": value for part, value in clock.seconds.items()}, **metrics}
            with (run_dir / "progress.jsonl").open("a") as file:
                file.write(json.dumps({"event": "evaluation"} | entry) + "\n")
            for name, value in entry.items():
                writer.add_scalar(name, value, run.steps)
            save_policy(run.policy, run_dir / "policies" / policy_name(run.steps), env_steps=run.steps)
            checkpoint.save(run_dir / "checkpoints", f"steps-{run.steps:09d}",
                            {"learner": run.learner.state_dict(), "run": run.state_dict()})
            tell(run.steps, entry)
        if done:
            return entry
        metrics = run.advance() or metrics
        tell(run.steps, None)
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise RlinfError(f"training diverged: {name} is {value} after {run.steps} time steps. The last good "
                                 f"state is in {run_dir / 'checkpoints'}; lower the learning rate and resume from it")
