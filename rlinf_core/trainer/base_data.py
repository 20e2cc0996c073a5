"""Base class of training data: demonstrations, counters by station, and due updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from safetensors import SafetensorError

from rlinf_core.algorithms.common.learner import Learner
from rlinf_core.algorithms.common.settings import DEMONSTRATIONS, AlgorithmSettings, RolloutLength
from rlinf_core.data.replay import MAX_ORIGIN, ReplayBuffer
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.policy_folder import policy_files, policy_version, read_info
from rlinf_core.recipes import Recipe
from rlinf_core.rollouts.types import (
    DEMONSTRATION,
    EVALUATE,
    IMAGINED,
    TRAIN,
    Experience,
    Trajectory,
)
from rlinf_core.specs.arrays import Arrays
from rlinf_core.specs.embodiment import JointSpec
from rlinf_core.trainer.governor import Governor

if TYPE_CHECKING:
    from rlinf_core.trainer.distributed.replay_shards import ReplayShards

Replay: TypeAlias = "ReplayBuffer | ReplayShards"
MAX_DEMONSTRATION_STEPS = 50_000  # capacity for demonstrations beside a replay buffer
RECENT_EPISODES = 50  # episodes in the intervention rate that the terminal shows


class Data(ABC):
    """Base class of training data.

    Args:
        recipe: recipe of the run; it sets capacities and the transitions of chunks.
        policy: policy that is trained; its specs set the shapes of all arrays.
        governor: ratio of updates to data, and staleness bounds.

    Attributes:
        demonstrations_by_robot: (R,) number of demonstrations of each robot, if several share the
            policy.
        steps: time steps of experience that earn updates.
        stations: number of received episodes and time steps by station.
        versions: updates at publication, by published version.
    """

    config: AlgorithmSettings

    def __init__(self, recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> None:
        self.recipe = recipe
        self.config = recipe.algorithm
        self.policy = policy
        self.governor = governor
        self.random = np.random.default_rng(recipe.seed)
        capacity = recipe.replay.capacity
        if self.config.learns_from != DEMONSTRATIONS:  # another buffer shares the memory
            capacity = min(capacity, MAX_DEMONSTRATION_STEPS)
        self.demonstrations = self._buffer(capacity)
        self.demonstrations_by_robot = np.zeros(self._robots, np.int64)
        self.steps = 0
        self.statuses: dict[str, int] = defaultdict(int)
        self.stations: dict[str, dict[str, int]] = defaultdict(lambda: {"episodes": 0, "steps": 0})
        self.operator_steps: dict[str, deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=RECENT_EPISODES)
        )
        self.versions: dict[int, int] = {}

    def _buffer(self, capacity: int) -> ReplayBuffer:
        policy = self.policy
        return ReplayBuffer(
            policy.policy_spec,
            capacity,
            instructions=policy.reads_instructions,
            prefixes=bool(policy.max_prefix),
        )

    @property
    def max_transitions(self) -> int:
        """Transitions of the longest episode that every buffer can hold."""
        return self.demonstrations.capacity - 1

    @property
    def buffers(self) -> tuple[Replay, ...]:
        """All buffers that batches are drawn from."""
        return (self.demonstrations,)

    def put(self, experience: Experience, newest: int) -> None:
        """Insert the experience of simulators, which play the newest policy."""
        for trajectory in experience.trajectories:
            self.insert(replace(trajectory, version=newest), newest)
        self.steps += experience.steps

    def insert(self, trajectory: Trajectory, newest: int) -> str:
        """Insert one episode and return its status. Time steps of stations count here."""
        if trajectory.station:
            # the position of a station in this dict is its origin in the replay
            self.stations[trajectory.station]["episodes"] += 1
            if trajectory.mode == TRAIN:
                commanded = sum(source == "operator" for source in trajectory.sources)
                self.operator_steps[trajectory.station].append((commanded, len(trajectory)))
        status = self._insert_by_mode(trajectory, newest)
        self.statuses[status] += 1
        if trajectory.station and status == "online":
            self.stations[trajectory.station]["steps"] += len(trajectory)
            self.steps += len(trajectory)
        return status

    def _insert_by_mode(self, trajectory: Trajectory, newest: int) -> str:
        if trajectory.mode == EVALUATE:
            return "evaluation"
        trajectory = replace(trajectory, observations=self.policy.annotate(trajectory.observations))
        if trajectory.mode == IMAGINED:
            return self._insert_imagined(trajectory)
        if trajectory.mode == DEMONSTRATION or self.config.include_failures:
            return self._insert_demonstration(trajectory)
        return self._insert_experience(trajectory, newest)

    def _store(self, buffer: Replay, trajectory: Trajectory, **more: Any) -> None:
        """Insert an episode into a buffer. ``more`` are arguments of ``insert_episode``."""
        if buffer is self.demonstrations and self._robots:
            robot = trajectory.observations["vectors"][0, : self._robots].argmax()
            self.demonstrations_by_robot[robot] += 1
        origin = 1 + list(self.stations).index(trajectory.station) if trajectory.station else 0
        buffer.insert_episode(
            trajectory.observations,
            trajectory.actions,
            trajectory.rewards,
            trajectory.discounts,
            origin=origin,
            **more,
        )

    def _insert_demonstration(self, trajectory: Trajectory) -> str:
        if not (trajectory.success or self.config.include_failures):
            return "failed demonstration"
        self._store(self.demonstrations, trajectory)
        return DEMONSTRATION

    @abstractmethod
    def _insert_experience(self, trajectory: Trajectory, newest: int) -> str:
        """Insert an episode of the policy and return its status."""

    def _insert_imagined(self, trajectory: Trajectory) -> str:
        """Insert a branch of a learned world, which earns no updates, and return its status."""
        return "not used for training"

    def real_episodes(self) -> list[Trajectory]:
        """Return the stored episodes of stations, to fit a world model; empty if none are kept."""
        return []

    def normalisation(self) -> np.ndarray | None:
        """Return vectors (N, V) to fit the normalisation with; None if too few are there yet."""
        return self.demonstrations.vectors() if self.demonstrations.episodes else None

    @property
    def has_all_robots(self) -> bool:
        """Whether every robot that shares the policy has contributed data."""
        return True

    @property
    def demonstration_count(self) -> int:
        """Number of demonstrations; with several robots, the smallest number of any."""
        if self._robots:
            return int(self.demonstrations_by_robot.min())
        return self.demonstrations.episodes

    @property
    def _robots(self) -> int:
        """Number of robots that share the policy; 0 for a single robot."""
        return len(self.policy.spec.robots) if isinstance(self.policy.spec, JointSpec) else 0

    def demonstration_batch(self, size: int) -> Arrays:
        """Return a batch of demonstrations, in equal shares of all robots and of their stations."""
        return self._sample(self.demonstrations, size)

    def _sample(self, buffer: Replay, size: int, weights: np.ndarray | None = None) -> Arrays:
        chunk = self.policy.config
        if weights is None:
            weights = self._equal_robot_weights(buffer)
        return buffer.sample(
            size,
            self.random,
            chunk.horizon,
            self.config.gamma,
            chunk.executed,
            self.config.n_return_steps,
            weights,
        )

    def _equal_robot_weights(self, buffer: Replay) -> np.ndarray | None:
        """Return sampling weights for equal shares of robots and of their stations.

        It is None for one robot.
        """
        if self._robots and isinstance(buffer, ReplayBuffer):
            return buffer.robot_weights(self._robots)
        return None

    @abstractmethod
    def due(self, updates: int, learner: Learner) -> int:
        """Return the updates that are due after ``updates`` updates."""

    @abstractmethod
    def accepting(self, updates: int) -> bool:
        """Return whether stations may play on; False if the learner is too far behind."""

    def waiting_reasons(self, updates: int) -> dict[str, str]:
        """Return the reasons why single stations must wait, by name."""
        return {}

    def admission(self, updates: int) -> dict[str, Any]:
        """Return the fields of a report that say which stations may play on."""
        return {"accepting": self.accepting(updates), "waiting": self.waiting_reasons(updates)}

    @abstractmethod
    def rollout_length(self) -> RolloutLength:
        """Return the length of the next rollout of simulators."""

    @abstractmethod
    def batch(self) -> Any:
        """Return the learner's next batch."""

    def after_update(self, learner: Learner) -> None:  # noqa: B027 (most need nothing)
        """Update the data after an update of the learner."""

    def counts(self) -> dict[str, float]:
        """Return counts of all data, in total and by station."""
        by_station = {
            f"{station}/{name}": float(value)
            for station, counts in self.by_station().items()
            for name, value in counts.items()
        }
        return {
            "steps": float(self.steps),
            "demonstrations": float(self.demonstrations.episodes),
            "stale": float(self.statuses["stale"]),
            "evaluations": float(self.statuses["evaluation"]),
            **by_station,
        }

    def intervention_rate(self, station: str) -> float | None:
        """Return the share of time steps in which a person commanded a station.

        The last RECENT_EPISODES training episodes count. It is None before the first one.
        """
        recent = self.operator_steps.get(station)
        if not recent:
            return None
        return sum(commanded for commanded, _ in recent) / sum(steps for _, steps in recent)

    def by_station(self) -> dict[str, dict[str, int]]:
        """Return episodes, time steps and drawn samples of each station."""
        return {
            name: counts
            | {
                "sampled": sum(
                    int(buffer.sampled[min(number, MAX_ORIGIN)]) for buffer in self.buffers
                )
            }
            for number, (name, counts) in enumerate(self.stations.items(), 1)
        }

    def register_published(self, version: int, folder: Path, updates: int) -> int:
        """Register policies in ``folder`` that were published after the checkpoint.

        Args:
            version: version of the checkpoint.
            folder: folder of the published policies.
            updates: updates of the checkpoint.

        Returns:
            The newest version. The next policy needs a larger one, because stations ignore older
            ones.
        """
        for path in policy_files(folder):
            if policy_version(path) > version:
                version = policy_version(path)
                # An unreadable file was never played.
                with suppress(SafetensorError, OSError, ValueError, TypeError, AttributeError):
                    self.versions[version] = min(read_info(path).get("updates", updates), updates)
        return version

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "demonstrations": self.demonstrations.state_dict(),
            "shown_of": self.demonstrations_by_robot,
            "steps": self.steps,
            "statuses": dict(self.statuses),
            "stations": [self.stations],
            "versions": [list(self.versions.items())],
            "random": [self.random.bit_generator.state],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self.demonstrations.load_state_dict(state["demonstrations"])
        robots = self._robots
        self.demonstrations_by_robot = np.array(
            state.get("shown_of", self.demonstrations.episodes_by_robot(robots)), np.int64
        )
        self.steps = state["steps"]
        self.statuses.update(state["statuses"])
        self.stations.update(state["stations"][0])
        self.versions = dict(state["versions"][0])
        self.random.bit_generator.state = state["random"][0]
