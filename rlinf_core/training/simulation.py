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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.parts.actor_critic import ActorCritic
from rlinf_core.algorithms.parts.on_policy import OnPolicy, Rollout
from rlinf_core.cluster import checkpoint
from rlinf_core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy
from rlinf_core.policies.actor import Encoder
from rlinf_core.policies.files import policy_name, save_policy
from rlinf_core.recipes import Recipe, algorithm_name, resolved
from rlinf_core.replay import ReplayBuffer
from rlinf_core.training.rollouts import Collector, to_batch
from rlinf_core.training.vector import Arrays, VectorEnv

HELD_OUT = 1_000_000
KINDS = {"gaussian": OnPolicy, "tanh_gaussian": ActorCritic, "flow": ActorCritic}


class Clock:
    """Seconds spent in each of simulate, infer, transfer, learn and evaluate."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - started


class Timed:
    """A vector of environments whose steps are timed."""

    def __init__(self, env: VectorEnv, clock: Clock) -> None:
        self.env, self.clock, self.spec, self.size = env, clock, env.spec, env.size

    def reset(self, seeds: Any) -> Arrays:
        with self.clock("simulate"):
            return self.env.reset(seeds)

    def step(self, actions: np.ndarray) -> Any:
        with self.clock("simulate"):
            return self.env.step(actions)


class OffPolicyRun:
    """Plays N environments, keeps whole episodes, and learns from the replay.

    Args:
        env: the environments.
        learner: an ``ActorCritic``.
        recipe: its ``simulation`` and ``replay`` parts.
        clock: where the time goes.
    """

    def __init__(self, env: VectorEnv, learner: ActorCritic, recipe: Recipe, clock: Clock) -> None:
        self.env, self.learner, self.clock, self.settings = env, learner, clock, recipe.simulation
        self.batch_size = recipe.algorithm.batch_size
        self.replay = ReplayBuffer(env.spec, recipe.replay.capacity)
        self.random, self.generator = np.random.default_rng(recipe.seed), torch.Generator().manual_seed(recipe.seed)
        self.steps = self.owed = 0
        self.observation: Arrays | None = None

    def advance(self) -> dict[str, float]:
        """One time step of every environment, and the updates that it is worth."""
        if self.observation is None:
            self.observation = self.env.reset(range(self.env.size))
            self.episodes: list[list[tuple]] = [[] for _ in range(self.env.size)]
        with self.clock("infer"):
            if self.steps < self.settings.start_steps:
                actions = self.random.uniform(-1.0, 1.0, (self.env.size, self.env.spec.action.dim)).astype(np.float32)
            else:
                with torch.inference_mode():
                    actions = self.learner.actor.sample(to_batch(self.observation), self.generator)[0].numpy()
        before, result = self.observation, self.env.step(actions)
        with self.clock("transfer"):
            for index, episode in enumerate(self.episodes):
                episode.append(({name: values[index] for name, values in before.items()}, actions[index],
                                result.reward[index], 1.0 - result.terminated[index]))
                if result.ended[index]:
                    self._keep(episode, {name: values[index] for name, values in result.following.items()})
                    episode.clear()
        self.observation = result.observation
        self.steps += self.env.size
        metrics: dict[str, float] = {}
        if self.steps > self.settings.start_steps and self.replay.inserted:
            if not self.learner.updates:
                fit_normalisation(self.learner, self.replay.vectors())
            self.owed += self.env.size * self.settings.updates_per_step
            with self.clock("learn"):
                while self.owed >= 1.0:
                    metrics = self.learner.update(self.replay.sample(self.batch_size, self.random))
                    self.owed -= 1.0
        return metrics

    def _keep(self, episode: list[tuple], last: Arrays) -> None:
        seen = [step[0] for step in episode] + [last]
        observations = {name: np.stack([arrays[name] for arrays in seen]) for name in last}
        actions, rewards, discounts = (np.array([step[part] for step in episode]) for part in (1, 2, 3))
        self.replay.insert_episode(observations, actions, rewards, discounts)

    def state_dict(self) -> dict[str, Any]:
        """Replay and random states; episodes under way begin anew."""
        return {"replay": self.replay.state_dict(), "steps": self.steps, "generator": self.generator.get_state(),
                "random": [self.random.bit_generator.state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.replay.load_state_dict(state["replay"])
        self.steps = state["steps"]
        self.generator.set_state(torch.as_tensor(state["generator"]))
        self.random.bit_generator.state = state["random"][0]


class OnPolicyRun:
    """Plays rollouts and learns from each once; arguments as ``OffPolicyRun``."""

    def __init__(self, env: VectorEnv, learner: OnPolicy, recipe: Recipe, clock: Clock) -> None:
        self.env, self.learner, self.clock, self.config = env, learner, clock, recipe.algorithm
        if not hasattr(self.config, "decisions") and env.size % self.config.group:
            raise RecipeError(f"simulation.environments: expected a multiple of algorithm.group = {self.config.group}, "
                              f"got {env.size}")
        self.collector, self.steps = Collector(env, learner.policy, recipe.seed), 0

    def advance(self) -> dict[str, float]:
        """One rollout and its update; before the first, some steps whose observations are only looked at."""
        if not self.learner.updates:
            seen = self._rollout().observations["vectors"]
            fit_normalisation(self.learner, seen.flatten(0, 1).numpy())
        before = self.clock.seconds["simulate"]
        started = time.perf_counter()
        self.collector.version = self.learner.updates
        rollout = self._rollout()
        self.clock.seconds["infer"] += time.perf_counter() - started - (self.clock.seconds["simulate"] - before)
        self.steps += int(rollout.mask.sum()) * self.learner.policy.config.horizon
        with self.clock("learn"):
            return self.learner.update(rollout)

    def _rollout(self) -> Rollout:
        if hasattr(self.config, "decisions"):
            return self.collector.decisions(self.config.decisions)
        return self.collector.episodes(self.config.group)

    def state_dict(self) -> dict[str, Any]:
        """Counters and random state; rollouts begin anew."""
        return {"steps": self.steps, "scene": self.collector.scene, "generator": self.collector.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.collector.scene = state["steps"], state["scene"]
        self.collector.generator.set_state(torch.as_tensor(state["generator"]))


def fit_normalisation(learner: Any, vectors: np.ndarray) -> None:
    """Centre and scale observations (N, V) alike in every encoder of a learner."""
    for module in learner.modules.values():
        for part in module.modules():
            if isinstance(part, Encoder):
                part.fit_normalisation(vectors)


def evaluate(env: VectorEnv, policy: Any, episodes: int, first_seed: int = HELD_OUT) -> tuple[float, float]:
    """Success rate and mean return of ``episodes`` held-out scenes, without exploring; an episode that ends before its time
    has succeeded (``rlinf_core.environment.judge``)."""
    random, results = np.random.default_rng(0), []
    for start in range(0, episodes, env.size):
        observation = env.reset(range(first_seed + start, first_seed + start + env.size))
        returns, ended, solved = np.zeros(env.size), np.zeros(env.size, bool), np.zeros(env.size, bool)
        while not ended.all():
            actions = np.stack([policy.act(_named(env, observation, index), False, random)[0] for index in range(env.size)])
            steps = env.step(actions)
            returns += np.where(ended, 0.0, steps.reward)
            solved |= ~ended & (steps.terminated > 0)
            ended |= steps.ended > 0
            observation = steps.observation
        results += list(zip(solved, returns, strict=True))
    results = results[:episodes]
    return float(np.mean([success for success, _ in results])), float(np.mean([value for _, value in results]))


def _named(env: VectorEnv, observation: Arrays, index: int) -> Arrays:
    """One environment's observation under the names of its spec."""
    named, start = {}, 0
    for item in env.spec.vectors:
        named[item.name] = observation["vectors"][index, start:start + item.size].reshape(item.shape)
        start += item.size
    return named | {image.name: observation[image.name][index] for image in env.spec.images}


def make_learner(recipe: Recipe, env: VectorEnv) -> Any:
    """The recipe's learner around a fresh policy; RecipeError if the two do not go together."""
    name = algorithm_name(recipe)
    learner = algorithm(name).Learner
    kinds = [kind for kind, base in KINDS.items() if issubclass(learner, base)]
    if name in ("rlpd", "dsrl") or not kinds:
        known = "crossq, sac, sac_flow, ppo, async_ppo, grpo, dapo, reinforce"
        raise RecipeError(f"algorithm.name: in simulation alone, expected one of {known}; '{name}' wants demonstrations or "
                          "a policy to begin with, and is used from Python so far")
    wanted = ["flow"] if name == "sac_flow" else [kind for kind in kinds if kind != "flow"]
    if recipe.policy.kind not in wanted:
        raise RecipeError(f"policy.kind: {name} trains {' or '.join(wanted)}, got '{recipe.policy.kind}'")
    torch.manual_seed(recipe.seed)
    return learner(make_policy(env.spec, recipe.policy), recipe.algorithm, recipe.seed)


def stations(recipe: Recipe, size: int) -> VectorEnv:
    """So many of the recipe's simulated stations."""
    from rlinf_core.cli.evaluate import simulated_station
    from sim_bridges.vector import Stations

    return Stations(partial(simulated_station, recipe), size, recipe.simulation.processes)


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
    (run_dir / "policies").mkdir(parents=True, exist_ok=True)
    (run_dir / "recipe.yaml").write_text(resolved(recipe))
    clock, settings = Clock(), recipe.simulation
    env, held_out = make(recipe, settings.environments), make(recipe, min(settings.environments, 8))
    learner = make_learner(recipe, env)
    on_policy = isinstance(learner, OnPolicy)
    policy = learner.policy if on_policy else learner.actor
    run = (OnPolicyRun if on_policy else OffPolicyRun)(Timed(env, clock), learner, recipe, clock)
    found = checkpoint.checkpoints(run_dir / "checkpoints")
    if found:
        state = checkpoint.load(found[-1])
        learner.load_state_dict(state["learner"])
        run.load_state_dict(state["run"])
    began, started, due = run.steps, time.perf_counter(), run.steps
    metrics: dict[str, float] = {}
    with SummaryWriter(str(run_dir / "tensorboard")) as writer:
        while True:
            done = run.steps >= settings.env_steps
            if run.steps >= due or done:
                due += settings.evaluate_every
                with clock("evaluate"):
                    success, returned = evaluate(held_out, policy, settings.evaluate_episodes)
                seconds = time.perf_counter() - started
                entry = {"env_steps": run.steps, "success": success, "return": returned, "updates": learner.updates,
                         "seconds": seconds, "steps_per_second": (run.steps - began) / seconds,
                         **{f"seconds_{part}": value for part, value in clock.seconds.items()}, **metrics}
                with (run_dir / "progress.jsonl").open("a") as file:
                    file.write(json.dumps({"event": "evaluation"} | entry) + "\n")
                for name, value in entry.items():
                    writer.add_scalar(name, value, run.steps)
                save_policy(policy, run_dir / "policies" / policy_name(run.steps), env_steps=run.steps)
                checkpoint.save(run_dir / "checkpoints", f"steps-{run.steps:09d}",
                                {"learner": learner.state_dict(), "run": run.state_dict()})
                tell(run.steps, entry)
            if done:
                return entry
            metrics = run.advance() or metrics
            tell(run.steps, None)
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise RlinfError(f"training diverged: {name} is {value} after {run.steps} time steps. The last good "
                                     f"state is in {run_dir / 'checkpoints'}; lower the learning rate and resume from it")
