"""What a learner learns from, filled by any source: whole episodes, or rollouts of its own policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms.parts.on_policy import OnPolicy, Rollout
from rlinf_core.algorithms.parts.running import RunningMoments
from rlinf_core.algorithms.parts.settings import EXPERT, REPLAY, ROLLOUTS
from rlinf_core.policies.policy import NetworkPolicy
from rlinf_core.recipes import Recipe
from rlinf_core.replay import ReplayBuffer, mix
from rlinf_core.trainer.experience import DEMONSTRATION, EVALUATE, Experience, Trajectory
from rlinf_core.trainer.governor import Governor

Batch = dict[str, np.ndarray]
DEMONSTRATIONS_KEPT = 50_000  # time steps at most
STALE = 1_000_000_000  # updates by which a policy of an unknown version is too old


class Data(ABC):
    """What all have.

    Args:
        recipe: says how much is kept, and how a transition of a chunk is made.
        policy: what is trained; its specs give every array its shape.
        governor: what is owed for how much, and what is too old.

    Attributes:
        steps: time steps of experience that earn updates.
        stations: by name, the episodes and time steps that came.
        versions: of published policies, to the updates that they had had.
    """

    def __init__(self, recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> None:
        self.recipe, self.config, self.policy, self.governor = recipe, recipe.algorithm, policy, governor
        self.random = np.random.default_rng(recipe.seed)
        self.chunk = {"horizon": policy.config.horizon, "execute": policy.config.executed, "gamma": recipe.algorithm.gamma}
        capacity = recipe.replay.capacity
        self.demonstrations = ReplayBuffer(policy.spec, min(capacity, DEMONSTRATIONS_KEPT))
        self.steps = 0
        self.fates: dict[str, int] = defaultdict(int)
        self.stations: dict[str, dict[str, int]] = defaultdict(lambda: {"episodes": 0, "steps": 0})
        self.versions: dict[int, int] = {}

    @property
    def longest(self) -> int:
        """Transitions of the longest episode that every buffer can hold."""
        return self.demonstrations.capacity - 1

    @property
    def buffers(self) -> tuple[ReplayBuffer, ...]:
        """Everything that is sampled from."""
        return (self.demonstrations,)

    def put(self, brought: Experience, newest: int) -> None:
        """Take what simulators brought, whose time steps count as they are played."""
        for trajectory in brought.trajectories:
            self.insert(trajectory, newest)
        self.steps += brought.steps

    def insert(self, trajectory: Trajectory, newest: int) -> str:
        """Take one episode; returns what became of it. Those of stations count when they have come."""
        if trajectory.station:
            self.stations[trajectory.station]["episodes"] += 1  # its place in the order is its number
        if trajectory.mode == EVALUATE:
            fate = "evaluation"
        elif trajectory.mode == DEMONSTRATION or self.config.any_outcome:
            fate = self._demonstrated(trajectory)
        else:
            fate = self._experienced(trajectory, newest)
        self.fates[fate] += 1
        if trajectory.station and fate == "online":
            self.stations[trajectory.station]["steps"] += len(trajectory)
            self.steps += len(trajectory)
        return fate

    def _keep(self, buffer: ReplayBuffer, trajectory: Trajectory, **more: Any) -> None:
        origin = 1 + list(self.stations).index(trajectory.station) if trajectory.station else 0
        buffer.insert_episode(trajectory.observations, trajectory.actions, trajectory.rewards, trajectory.discounts,
                              origin=origin, **more)

    def _demonstrated(self, trajectory: Trajectory) -> str:
        if not (trajectory.success or self.config.any_outcome):
            return "failed demonstration"
        self._keep(self.demonstrations, trajectory)
        return DEMONSTRATION

    @abstractmethod
    def _experienced(self, trajectory: Trajectory, newest: int) -> str:
        """Take an episode of the policy's own."""

    def normalisation(self) -> np.ndarray | None:
        """Vectors (N, V) that observations are normalised by before the first update; None to wait for more."""
        return self.demonstrations.vectors() if self.demonstrations.episodes else None

    def demonstrated(self, size: int) -> Batch:
        """A batch of demonstrations."""
        return self.demonstrations.sample(size, self.random, **self.chunk)

    def due(self, updates: int, learner: Any) -> int:
        """Updates that are owed after so many."""
        return self.governor.due(self.steps, updates)

    def accepting(self, updates: int) -> bool:
        """Whether stations may go on: false when the learner is too far behind."""
        return self.governor.accepting(self.steps, updates)

    @abstractmethod
    def order(self, learner: Any) -> dict[str, Any]:
        """How much to ask simulators for: arguments of their rollouts."""

    @abstractmethod
    def batch(self) -> Any:
        """What the learner's next update takes."""

    def learned(self, learner: Any) -> None:  # noqa: B027 (most need nothing)
        """After an update."""

    def by_station(self) -> dict[str, dict[str, int]]:
        """Episodes and time steps that came from each, and how often one of its transitions was learned from."""
        return {name: seen | {"sampled": sum(int(buffer.sampled[number]) for buffer in self.buffers)}
                for number, (name, seen) in enumerate(self.stations.items(), 1)}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"demonstrations": self.demonstrations.state_dict(), "steps": self.steps, "fates": dict(self.fates),
                "stations": [self.stations], "versions": [list(self.versions.items())],
                "random": [self.random.bit_generator.state]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.demonstrations.load_state_dict(state["demonstrations"])
        self.steps = state["steps"]
        self.fates.update(state["fates"])
        self.stations.update(state["stations"][0])
        self.versions = dict(state["versions"][0])
        self.random.bit_generator.state = state["random"][0]


class DemonstrationData(Data):
    """A fixed set, learned from so many times."""

    def _experienced(self, trajectory: Trajectory, newest: int) -> str:
        return "not learned from"

    def due(self, updates: int, learner: Any) -> int:
        return self.config.steps - updates

    def accepting(self, updates: int) -> bool:
        return True

    def order(self, learner: Any) -> dict[str, Any]:
        return {}

    def batch(self) -> Batch:
        return self.demonstrated(self.config.batch_size)


class ReplayData(Data):
    """A replay of the policy's own episodes beside the demonstrations; or, of an expert, of labelled time steps."""

    def __init__(self, recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> None:
        super().__init__(recipe, policy, governor)
        self.online = ReplayBuffer(policy.spec, recipe.replay.capacity, policy.latent_size)
        self.labelled = self.config.learns_from == EXPERT
        # Latent noise is no part of a demonstration; half of each batch is drawn from them in any case.
        self.demonstrates_too = not self.config.half_demonstrations and not policy.latent_size

    @property
    def buffers(self) -> tuple[ReplayBuffer, ...]:
        return self.demonstrations, self.online

    @property
    def longest(self) -> int:
        return min(self.online.capacity - 1, super().longest)

    def _demonstrated(self, trajectory: Trajectory) -> str:
        fate = super()._demonstrated(trajectory)
        if fate == DEMONSTRATION and self.demonstrates_too:
            self._keep(self.online, trajectory)
        return fate

    def _experienced(self, trajectory: Trajectory, newest: int) -> str:
        self._keep(self.online, trajectory, counts=self._starts(trajectory), latents=trajectory.latents)
        if trajectory.station and not self.governor.is_fresh(trajectory.version, newest):
            return "stale"
        if self.config.half_demonstrations and "operator" in trajectory.sources and trajectory.success:
            self._keep(self.demonstrations, trajectory)
        return "online"

    def _starts(self, trajectory: Trajectory) -> np.ndarray | None:
        """Time steps at which transitions may begin; None for all."""
        if self.labelled:
            return self.config.learned_from(trajectory.sources)
        return trajectory.decided if self.policy.latent_size else None

    def normalisation(self) -> np.ndarray | None:
        if self.demonstrations.episodes:
            return super().normalisation()
        return self.online.vectors() if len(self.online) else None

    def due(self, updates: int, learner: Any) -> int:
        return super().due(updates, learner) if len(self.online) else 0

    def order(self, learner: Any) -> dict[str, Any]:
        return ({"expert_share": learner.share(self.online.episodes)} if self.labelled else
                {"by_chance": self.steps < self.recipe.simulation.start_steps and not self.config.warm_start})

    def batch(self) -> Batch:
        size = self.config.batch_size
        demonstrated = size // 2 if self.config.half_demonstrations else 0
        own = self.online.sample(size - demonstrated, self.random, **self.chunk)
        return mix(own, self.demonstrated(demonstrated)) if demonstrated else own

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"online": self.online.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.online.load_state_dict(state["online"])


class RolloutData(Data):
    """Rollouts that wait to be learned from, each once; they also say how observations are normalised, as they come.

    The first one is only looked at. Normalisation changes between rollouts alone.
    """

    def __init__(self, recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> None:
        super().__init__(recipe, policy, governor)
        self.waiting: list[Rollout] = []
        self.moments = RunningMoments(policy.spec.vector_size)

    def _experienced(self, trajectory: Trajectory, newest: int) -> str:
        if trajectory.rollout is None:
            return "without log-probabilities"
        rollout = trajectory.rollout
        updates = [self.versions.get(int(version), -STALE) for version in rollout.versions.flatten()]
        self.waiting.append(replace(rollout, versions=torch.tensor(updates).view_as(rollout.versions).float()))
        return "online"

    def put(self, brought: Experience, newest: int) -> None:
        super().put(brought, newest)
        self.waiting += brought.rollouts

    def normalisation(self) -> np.ndarray | None:
        if not self.waiting:
            return None
        first, self.waiting = reduce(Rollout.beside, self.waiting), []
        self.steps = 0
        return self._seen(first).numpy()

    def accepting(self, updates: int) -> bool:
        return True

    def due(self, updates: int, learner: OnPolicy) -> int:
        if not self.waiting:
            return 0
        if self.stations:  # as many decisions as one environment's rollout has
            return int(sum(float(rollout.mask.sum()) for rollout in self.waiting) >= self.config.rollout["decisions"])
        players = max(self.recipe.simulation.workers, 1)
        return int(not learner.wants_more(reduce(Rollout.beside, self.waiting), len(self.waiting) // players))

    def order(self, learner: Any) -> dict[str, Any]:
        return self.config.rollout

    def batch(self) -> Rollout:
        self.last, self.waiting = reduce(Rollout.beside, self.waiting), []
        return self.last

    def learned(self, learner: OnPolicy) -> None:
        self._seen(self.last)
        learner.normalise(self.moments.mean.numpy(), self.moments.var.sqrt().numpy())

    def _seen(self, rollout: Rollout) -> torch.Tensor:
        vectors = rollout.observations["vectors"]
        seen = vectors[rollout.mask.expand(vectors.shape[:2]) > 0]
        self.moments.update(seen)
        return seen

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"moments": dict(self.moments.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.moments.load_state_dict({name: torch.as_tensor(value) for name, value in state["moments"].items()})


def data_for(recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> Data:
    """Room for what the recipe's algorithm learns from."""
    kinds = {ROLLOUTS: RolloutData, REPLAY: ReplayData, EXPERT: ReplayData}
    return kinds.get(recipe.algorithm.learns_from, DemonstrationData)(recipe, policy, governor)
