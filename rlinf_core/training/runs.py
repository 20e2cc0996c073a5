"""How learners take turns with their environments: one class for each thing that a learner may learn from.

``advance`` plays and learns a little and returns metrics; ``steps`` counts towards ``total``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms import sft
from rlinf_core.algorithms.parts.actor_critic import ActorCritic
from rlinf_core.algorithms.parts.learner import DEMONSTRATIONS, EXPERT, REPLAY, ROLLOUTS
from rlinf_core.algorithms.parts.on_policy import OnPolicy, Rollout
from rlinf_core.algorithms.parts.running import RunningMoments
from rlinf_core.cluster import checkpoint
from rlinf_core.errors import RecipeError
from rlinf_core.policies.encoder import Encoder
from rlinf_core.recipes import Recipe
from rlinf_core.replay import ReplayBuffer, mix
from rlinf_core.training.playing import Episodes, demonstrate, named
from rlinf_core.training.rollouts import Collector
from rlinf_core.training.sources import Here, Make, OnRay, Player
from rlinf_core.training.vector import Arrays, VectorEnv

Timer = Callable[[str], AbstractContextManager[None]]
SLICE = 25  # time steps of every environment that a worker plays between two looks at the policy


class Run(ABC):
    """What all have.

    Args:
        env: the environments.
        policy: what is trained and played.
        kind: its learner's class.
        recipe: everything else.
        clock: times a part: simulate, infer, transfer, learn.
        make: builds environments, for workers.
    """

    learner: Any

    def __init__(self, env: VectorEnv, policy: Any, kind: type, recipe: Recipe, clock: Timer, make: Make) -> None:
        self.env, self.policy, self.kind, self.recipe, self.clock, self.make = env, policy, kind, recipe, clock, make
        self.settings, self.config = recipe.simulation, recipe.algorithm
        self.random, self.generator = np.random.default_rng(recipe.seed), torch.Generator().manual_seed(recipe.seed)
        self.steps, self.total = 0, recipe.simulation.env_steps
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make room for data; RecipeError if the recipe does not fit this kind of learner."""

    def begin(self) -> None:  # noqa: B027 (most need nothing)
        """What the policy goes through before its learner is made."""

    def start(self, state: dict[str, Any] | None) -> None:
        """Begin, or go on from a state."""
        if state is None:
            self.begin()
        self.learner = self.kind(self.policy, self.config, self.recipe.seed)
        if state is not None:
            self.learner.load_state_dict(state["learner"])
            self.load_state_dict(state["run"])

    def inherit(self, folder: Path) -> None:
        """Let the learner go on from that of another run; RecipeError if it was of another kind."""
        found = checkpoint.checkpoints(folder / "checkpoints")
        state = checkpoint.load(found[-1])["learner"] if found else {"modules": {}}
        if state["modules"].keys() != self.learner.modules.keys():
            raise RecipeError(f"simulation.initial_policy: expected in {folder / 'checkpoints'} a learner with "
                              f"{', '.join(self.learner.modules)}, got {', '.join(state['modules']) or 'none'}. Name a run "
                              f"of {self.recipe.algorithm.name}, or a policy file to take the policy alone")
        self.learner.load_state_dict(state)

    @abstractmethod
    def advance(self) -> dict[str, float]:
        """Play and learn a little."""

    def demonstrations(self, normalise: bool = True) -> ReplayBuffer:
        """Recorded from the task's script; the observations' normalisation is taken from them, if asked for."""
        replay, collect = ReplayBuffer(self.env.spec, self.recipe.replay.capacity), self.recipe.collect
        with self.clock("demonstrate"):
            demonstrate(self.env, replay, collect.episodes, collect.first_seed)
        if normalise:
            fit_normalisation(self.policy, replay.vectors())
        return replay

    def close(self) -> None:  # noqa: B027 (most started nothing)
        """End what was started."""

    def state_dict(self) -> dict[str, Any]:
        """Counters, random states and data; episodes under way begin anew."""
        return {"steps": self.steps, "generator": self.generator.get_state(), "random": [self.random.bit_generator.state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.generator.set_state(torch.as_tensor(state["generator"]))
        self.random.bit_generator.state = state["random"][0]


class PlayingRun(Run):
    """What both have that play by themselves: a source of experience, here or on Ray, asked before or after learning."""

    player: type

    def prepare(self) -> None:
        recipe, workers = self.recipe, self.settings.workers
        if workers and self.settings.environments % workers:
            raise RecipeError(f"simulation.environments: expected a multiple of simulation.workers = {workers}, got "
                              f"{self.settings.environments}")
        self.source = OnRay(recipe, self.make, self.player, self.policy) if workers else Here(
            self.player(self.env, self.policy, recipe.seed))
        self.asked = False

    def experience(self) -> list[Any]:
        """What every player brought; pipelined, the next is asked for before this is learned from."""
        if not self.asked:
            self._ask()
        brought, seconds = self.source.take()
        for part, value in seconds.items():
            self.clock.seconds[part] += value
        self.asked = False
        if self.settings.pipelined:
            self._ask()
        return brought

    def _ask(self) -> None:
        with self.clock("transfer"):
            self.source.start(self.learner.updates if hasattr(self, "learner") else 0, **self.amount())
        self.asked = True

    @abstractmethod
    def amount(self) -> dict[str, Any]:
        """How much to ask for: the arguments of the player."""

    def close(self) -> None:
        self.source.close()


class OnPolicyRun(PlayingRun):
    """Plays rollouts and learns from each once."""

    learner: OnPolicy
    player = Collector

    def prepare(self) -> None:
        size = self.settings.environments // max(self.settings.workers, 1)
        if not hasattr(self.config, "decisions") and size % self.config.group:
            raise RecipeError(f"simulation.environments: expected a multiple of algorithm.group = {self.config.group} for "
                              f"each worker, got {size}")
        super().prepare()
        self.moments = RunningMoments(self.env.spec.vector_size)

    def begin(self) -> None:
        """One rollout is only looked at, to see what observations are like."""
        self._look_at(reduce(Rollout.beside, self.experience()), self.policy)

    def _look_at(self, rollout: Rollout, learner: Any) -> None:
        """Take what was observed into the running normalisation, which changes between rollouts only."""
        vectors = rollout.observations["vectors"]
        self.moments.update(vectors[rollout.mask.expand(vectors.shape[:2]) > 0])
        for encoder in encoders(learner):
            encoder.normalise(self.moments.mean.numpy(), self.moments.var.sqrt().numpy())

    def amount(self) -> dict[str, Any]:
        return {"count": self.config.decisions} if hasattr(self.config, "decisions") else {"group": self.config.group}

    def advance(self) -> dict[str, float]:
        rollout, count = reduce(Rollout.beside, self.experience()), 1
        while self.learner.wants_more(rollout, count):
            rollout, count = rollout.beside(reduce(Rollout.beside, self.experience())), count + 1
        self.steps += int(rollout.mask.sum()) * self.policy.config.horizon
        with self.clock("learn"):
            metrics = self.learner.update(rollout)
            self._look_at(rollout, self.learner)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"moments": dict(self.moments.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.moments.load_state_dict({name: torch.as_tensor(value) for name, value in state["moments"].items()})


class ReplayRun(PlayingRun):
    """Plays, keeps whole episodes, and learns from the replay; from demonstrations too, where the learner wants them."""

    learner: ActorCritic
    player = Player

    def prepare(self) -> None:
        super().prepare()
        self.replay, self.cloned_from = ReplayBuffer(self.env.spec, self.recipe.replay.capacity), None
        self.horizon, self.owed = self.policy.config.horizon, 0.0
        self.slice = SLICE if self.settings.workers else 1

    def begin(self) -> None:
        if self.kind.begins_cloned:
            self.cloned_from = self.demonstrations(normalise=not self.settings.initial_policy)
        if self.kind.begins_cloned and not self.settings.initial_policy:
            with self.clock("learn"):
                clone(self.policy, self.cloned_from, self.recipe.sft, self.recipe.seed, self.horizon)

    def amount(self) -> dict[str, Any]:
        return {"steps": self.slice, "by_chance": self.steps < self.settings.start_steps and not self.kind.begins_cloned}

    def advance(self) -> dict[str, float]:
        brought = self.experience()
        with self.clock("transfer"):
            for episode in (episode for episodes in brought for episode in episodes):
                self.replay.insert_episode(*episode)
        self.steps += self.settings.environments * self.slice
        return self._learn() if self.steps > self.settings.start_steps and self.replay.inserted else {}

    def _learn(self) -> dict[str, float]:
        if not self.learner.updates and not self.learner.begins_cloned:
            fit_normalisation(self.learner, self.replay.vectors())
        metrics: dict[str, float] = {}
        self.owed += self.settings.environments * self.slice * self.settings.updates_per_step
        with self.clock("learn"):
            while self.owed >= 1.0:
                metrics = self.learner.update(self._batch())
                self.owed -= 1.0
        return metrics

    def _batch(self) -> Arrays:
        size, gamma, chooses = self.config.batch_size, self.config.discount, hasattr(self.policy, "played")
        share = size // 2 if self.learner.half_demonstrations else size
        batch = self.replay.sample(share, self.random, self.horizon, gamma, aligned=chooses)
        if self.learner.half_demonstrations:
            batch = mix(batch, self.cloned_from.sample(size - share, self.random, self.horizon, gamma))
        return batch

    def state_dict(self) -> dict[str, Any]:
        more = {"demonstrations": self.cloned_from.state_dict()} if self.cloned_from else {}
        return super().state_dict() | {"replay": self.replay.state_dict()} | more

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.replay.load_state_dict(state["replay"])
        if "demonstrations" in state:
            self.cloned_from = ReplayBuffer(self.env.spec, self.recipe.replay.capacity)
            self.cloned_from.load_state_dict(state["demonstrations"])


class OfflineRun(Run):
    """Learns from demonstrations alone; steps are gradient steps."""

    def prepare(self) -> None:
        self.total, self.data = self.config.steps, None

    def begin(self) -> None:
        self.data = self.demonstrations()

    def advance(self) -> dict[str, float]:
        with self.clock("learn"):
            metrics = self.learner.update(self.data.sample(self.config.batch_size, self.random, self.policy.config.horizon,
                                                           getattr(self.config, "discount", 1.0)))
        self.steps += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"data": self.data.state_dict() if self.data else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.data = ReplayBuffer(self.env.spec, self.recipe.replay.capacity)
        self.data.load_state_dict(state["data"])


class ExpertRun(Run):
    """The policy drives, the task's script says what it would have done, and cloning goes on over everything so far.

    It begins with demonstrations: the first round is the expert's alone (Ross et al. 2011, beta_1 = 1).
    """

    def prepare(self) -> None:
        if self.policy.config.horizon > 1:
            raise RecipeError(f"policy.horizon: dagger asks the expert at every time step, expected 1, got "
                              f"{self.policy.config.horizon}")
        self.replay = ReplayBuffer(self.env.spec, self.recipe.replay.capacity)
        self.observation, self.owed = None, 0.0

    def begin(self) -> None:
        self.replay = self.demonstrations()

    def advance(self) -> dict[str, float]:
        if self.observation is None:
            self.observation, self.gather = self.env.reset(range(self.env.size)), Episodes(self.env.size)
        labels, remarks = self.env.expert(), []
        with self.clock("infer"):
            played = np.zeros_like(labels)
            for index, label in enumerate(labels):
                decide = self.learner.driver(lambda o: self.policy.act(o, True, self.random)[0], lambda o: label,  # noqa: B023
                                             self.replay.episodes, self.random)
                played[index], _, source = decide(named(self.env, self.observation, index))
                remarks.append(source)
        result = self.env.step(played)
        for _, *episode, sources in self.gather.add(self.observation, labels, result, remarks):
            self.replay.insert_episode(*episode, self.learner.learned_from(sources))
        self.observation = result.observation
        self.steps += self.env.size
        return self._learn()

    def _learn(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        self.owed += self.env.size * self.config.updates_per_step
        with self.clock("learn"):
            while self.owed >= 1.0:
                metrics = self.learner.update(self.replay.sample(self.config.batch_size, self.random))
                self.owed -= 1.0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"replay": self.replay.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.replay.load_state_dict(state["replay"])


RUNS = {ROLLOUTS: OnPolicyRun, REPLAY: ReplayRun, DEMONSTRATIONS: OfflineRun, EXPERT: ExpertRun}


def clone(policy: Any, data: ReplayBuffer, config: sft.Config, seed: int, horizon: int = 1) -> None:
    """Supervised fine-tuning before anything else."""
    cloner, random = sft.Learner(policy, config, seed), np.random.default_rng(seed)
    for _ in range(config.steps):
        cloner.update(data.sample(config.batch_size, random, horizon))


def fit_normalisation(learner: Any, vectors: np.ndarray) -> None:
    """Centre and scale observations (N, V) alike in every encoder of a learner, or of a policy."""
    for encoder in encoders(learner):
        encoder.fit_normalisation(vectors)


def encoders(learner: Any) -> Iterator[Encoder]:
    """Every encoder of a learner, or of a policy."""
    for module in [learner] if isinstance(learner, torch.nn.Module) else learner.modules.values():
        yield from (part for part in module.modules() if isinstance(part, Encoder))
