"""Training data of a run: episodes and rollouts of a source become batches for the learner.

``RolloutData`` serves on-policy algorithms, ``DemonstrationData`` imitation, ``ReplayData``
off-policy algorithms and ``LabelledData`` algorithms with an expert.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from rlinf_core.algorithms.common.learner import Learner
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.running_statistics import RunningMoments
from rlinf_core.algorithms.common.settings import (
    EXPERT,
    REPLAY,
    ROLLOUTS,
    ActorCriticSettings,
    DemonstrationSettings,
    ExpertSettings,
    OnPolicySettings,
    RolloutLength,
)
from rlinf_core.core.errors import RecipeError
from rlinf_core.data.replay import MAX_ORIGIN, ReplayBuffer, mix
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.normalization import STD_FLOOR, Normalisation, floor_std
from rlinf_core.recipes import Recipe
from rlinf_core.recipes.sources import initial_source
from rlinf_core.rollouts.types import DEMONSTRATION, IMAGINED, TRAIN, Experience, Trajectory
from rlinf_core.specs.arrays import Arrays
from rlinf_core.trainer.base_data import Data, Replay
from rlinf_core.trainer.governor import Governor

STALE = 1_000_000_000  # age in updates of a policy with an unknown version


def contiguous_segments(selected: np.ndarray, margin: int) -> list[slice]:
    """Return slices that cover the selected time steps, each extended by up to ``margin`` steps."""
    steps = np.flatnonzero(selected)
    parts = np.split(steps, np.flatnonzero(np.diff(steps) > margin) + 1)
    return [
        slice(int(part[0]), min(int(part[-1]) + margin, len(selected)))
        for part in parts
        if len(part)
    ]


def valid_chunk_starts(
    learnable: np.ndarray, executed: int, max_prefix: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the time steps at which a training chunk may begin.

    A chunk may begin at a step if its ``executed`` actions are learnable, or all up to the end of
    the episode. Up to ``max_prefix`` actions before them need not be: a person who takes over
    continues a chunk that the policy began.

    Args:
        learnable: (T,) bool, whether the action of a time step is to be learned.
        executed: actions of a chunk that are executed.
        max_prefix: maximum number of first actions that condition the chunk.

    Returns:
        (T,) bool, whether a chunk may begin, and (T,) int, the length of its prefix.
    """
    full_windows = np.lib.stride_tricks.sliding_window_view(
        np.append(learnable, [True] * (executed - 1)), executed
    ).all(axis=1)
    steps = np.arange(len(full_windows))
    never = 2 * len(full_windows) + max_prefix
    starts = np.append(np.flatnonzero(full_windows), never)
    prefix_lengths = starts[np.searchsorted(starts, steps)] - steps
    return prefix_lengths <= max_prefix, prefix_lengths


class RolloutData(Data):
    """Rollouts for on-policy algorithms. Each is trained on once and updates the normalisation.

    The first rollout only fits the normaliser; it is not trained on. The normalisation changes
    only between rollouts.
    """

    config: OnPolicySettings

    def __init__(self, recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> None:
        super().__init__(recipe, policy, governor)
        self.waiting: list[Rollout] = []
        self.rounds = 0  # rounds of rollouts in ``waiting``; each round has one rollout per worker
        self.moments = RunningMoments(policy.spec.vector_size)
        self.floors = True
        start = initial_source(recipe)
        # the run continues the learner of another run, which has its normalisation
        self.has_inherited_learner = start is not None and start.is_dir()
        # mean and std of a policy that the run begins with
        self.initial_normalisation = next(
            (
                (part.mean.numpy(force=True).copy(), part.std.numpy(force=True) - STD_FLOOR)
                for part in policy.modules()
                if start and isinstance(part, Normalisation)
            ),
            None,
        )

    def _insert_experience(self, trajectory: Trajectory, newest: int) -> str:
        if trajectory.rollout is None:
            return "without log-probabilities"
        rollout = trajectory.rollout
        updates = [
            self.versions.get(int(version), -STALE) for version in rollout.versions.flatten()
        ]
        self.waiting.append(
            replace(rollout, versions=torch.tensor(updates).view_as(rollout.versions).float())
        )
        return "online"

    def put(self, experience: Experience, newest: int) -> None:
        super().put(experience, newest)
        self.waiting += experience.rollouts
        self.rounds += bool(experience.rollouts)

    def normalisation(self) -> np.ndarray | None:
        if not self.waiting:
            return None
        first = reduce(Rollout.concatenate, self.waiting)
        self.waiting = []
        self.rounds = 0
        self.steps = 0
        return self._update_moments(first).numpy(force=True)

    def accepting(self, updates: int) -> bool:
        """Return whether stations may play on.

        Besides the chunks of the next update, the chunks of ``max_lag_episodes`` episodes may wait.
        """
        if not self.stations:
            return True
        governor = self.governor
        lag = governor.max_lag_episodes * governor.steps_per_episode / self.policy.config.executed
        return self._waiting_chunks(updates) <= self.config.rollout["chunks"] + lag

    def _waiting_chunks(self, updates: int) -> float:
        """Return the number of waiting chunks from policies within the staleness bound."""
        return sum(self._fresh_chunks(rollout, updates) for rollout in self.waiting)

    def _fresh_chunks(self, rollout: Rollout, updates: int) -> float:
        return float((rollout.mask * (updates - rollout.versions <= self.config.staleness)).sum())

    def due(self, updates: int, learner: Learner) -> int:
        # drop stale rollouts
        fresh = [rollout for rollout in self.waiting if self._fresh_chunks(rollout, updates)]
        self.statuses["stale"] += len(self.waiting) - len(fresh)
        self.waiting = fresh
        if not fresh:
            return 0
        if self.stations:  # an update needs the chunks of one environment's rollout
            return int(self._waiting_chunks(updates) >= self.config.rollout["chunks"])
        return int(
            not learner.needs_more_rollouts(reduce(Rollout.concatenate, self.waiting), self.rounds)
        )

    def rollout_length(self) -> RolloutLength:
        return self.config.rollout

    def batch(self) -> Rollout:
        self.last = reduce(Rollout.concatenate, self.waiting)
        self.waiting = []
        self.rounds = 0
        return self.last

    def after_update(self, learner: Learner) -> None:
        self._update_moments(self.last)
        if self.has_inherited_learner:  # it keeps its normalisation
            return
        mean, std = self.moments.mean.numpy(force=True), self.moments.var.sqrt().numpy(force=True)
        if self.floors:
            std = floor_std(std, np.abs(mean))
        learner.normalise(*(self.initial_normalisation or (mean, std)))

    def _update_moments(self, rollout: Rollout) -> torch.Tensor:
        vectors = rollout.observations["vectors"]
        valid = vectors[rollout.mask.expand(vectors.shape[:2]) > 0]
        if valid.shape[-1]:
            self.moments.to(valid.device).update(valid)
        return valid

    def state_dict(self) -> dict[str, Any]:
        first = reduce(Rollout.concatenate, self.waiting).state_dict() if self.waiting else {}
        return super().state_dict() | {
            "moments": dict(self.moments.state_dict()),
            "waiting": first,
            "rounds": self.rounds,
            "floors": self.floors,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.moments.load_state_dict(
            {name: torch.as_tensor(value) for name, value in state["moments"].items()}
        )
        self.floors = state.get("floors", False)  # older runs keep their normalisation
        self.waiting = [Rollout.from_state_dict(state["waiting"])] if state["waiting"] else []
        # older checkpoints count the rollouts of all workers instead
        workers = max(self.recipe.placement.workers, 1)
        self.rounds = state.get("rounds", state.get("taken", 0) // workers)
        if self.waiting:
            self.rounds = max(1, self.rounds)


class DemonstrationData(Data):
    """A fixed set of demonstrations for a fixed number of updates."""

    config: DemonstrationSettings

    def _insert_experience(self, trajectory: Trajectory, newest: int) -> str:
        return "not used for training"

    def due(self, updates: int, learner: Learner) -> int:
        return self.config.steps - updates

    def accepting(self, updates: int) -> bool:
        return True

    def rollout_length(self) -> RolloutLength:
        return {}

    def batch(self) -> Arrays:
        replay = self.demonstrations
        present = (
            (replay.present_by_origin() > 0).astype(float)
            if self.governor.balance_stations and not self._robots
            else np.zeros(0)
        )
        return self._sample(replay, self.config.batch_size, present if present.sum() > 1 else None)


class ReplayData(Data):
    """Replay buffers of off-policy algorithms: the policy's own episodes beside the demonstrations.

    Attributes:
        online: episodes of the policy.
        imitated: its successful episodes, if the algorithm imitates itself.
        imagined: branches of a learned world, from at most two refits.
    """

    config: ActorCriticSettings | ExpertSettings

    def __init__(self, recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> None:
        super().__init__(recipe, policy, governor)
        self.online = _make_replay(recipe, policy)
        self.share = recipe.algorithm.share
        capacity = (
            self.demonstrations.capacity
            if self.config.half_demonstrations and self.config.imitates_itself
            else 1
        )
        self.imitated = self._buffer(capacity)
        world = recipe.world
        self.imagined = self._buffer(
            2 * world.refit_every * (world.horizon + 1) if world.share else 1
        )
        # a policy of an earlier run is already fitted to all robots
        self._all_contributed = not self._robots or initial_source(recipe) is not None
        # time steps from before all robots had data; they earn no updates
        self._unearning_steps = 0
        # Demonstrations have no latent noise. With half_demonstrations, half of each batch is drawn
        # from them anyway.
        self.also_replays_demonstrations = (
            not self.config.half_demonstrations and not policy.latent_size
        )

    @property
    def buffers(self) -> tuple[Replay, ...]:
        return self.demonstrations, self.online, self.imitated, self.imagined

    @property
    def max_transitions(self) -> int:
        return min(self.online.capacity - 1, super().max_transitions)

    def _insert_demonstration(self, trajectory: Trajectory) -> str:
        status = super()._insert_demonstration(trajectory)
        if status == DEMONSTRATION and self.also_replays_demonstrations:
            self._store(self.online, trajectory)
        return status

    def _insert_experience(self, trajectory: Trajectory, newest: int) -> str:
        if self.policy.latent_size and trajectory.latents is None:
            return "without latent noise"
        fails = isinstance(self.config, ActorCriticSettings) and self.config.takeover_fails
        for segment in trajectory.split_at_takeovers() if fails else [trajectory]:
            self._store_experience(segment)
        corrected = np.array([source == "operator" for source in trajectory.sources])
        # an episode that a person drove from start to end says nothing of the policy
        if self.share is not None and not (corrected.size and corrected.all()):
            self.share.record_outcome(trajectory.success and not corrected.any())
        if self.config.half_demonstrations and corrected.any():
            self._store_corrections(trajectory, corrected)
        if self._is_stale(trajectory, newest):
            return "stale"
        if (
            self.config.half_demonstrations
            and self.config.imitates_itself
            and trajectory.success
            and not corrected.any()
        ):
            self._store(self.imitated, trajectory)
        return "online"

    def _store_corrections(self, trajectory: Trajectory, corrected: np.ndarray) -> None:
        """Store the time steps (T,) that a person ``corrected`` as demonstrations."""
        starts, _ = valid_chunk_starts(corrected, self.policy.config.executed, 0)
        for part in contiguous_segments(starts, self._transition_span):
            self._store(self.demonstrations, trajectory.part(part), start_mask=starts[part])

    def _is_stale(self, trajectory: Trajectory, newest: int) -> bool:
        """Return whether a station played an episode with a policy that is too old."""
        by_policy = trajectory.version >= 0 or "operator" not in trajectory.sources
        return (
            bool(trajectory.station)
            and by_policy
            and not self.governor.is_fresh(trajectory.version, newest, trajectory.station)
        )

    def _insert_imagined(self, trajectory: Trajectory) -> str:
        if not self.recipe.world.share:
            return "not used for training"
        self._store(self.imagined, trajectory)
        return IMAGINED

    def real_episodes(self) -> list[Trajectory]:
        """Return the real episodes for a world model: demonstrations, then the policy's own."""
        if not (
            isinstance(self.online, ReplayBuffer) and isinstance(self.demonstrations, ReplayBuffer)
        ):
            raise RecipeError(
                "world.share: expected placement.replay_shards 0, as a learned world reads the "
                f"replay of this process, got {self.recipe.placement.replay_shards}"
            )
        demonstrations = (
            []
            if self.also_replays_demonstrations
            else self.demonstrations.trajectories(DEMONSTRATION)
        )
        return demonstrations + self.online.trajectories(TRAIN)

    @property
    def _transition_span(self) -> int:
        """Number of time steps that a transition spans."""
        return max(self.policy.config.horizon, self.config.n_return_steps)

    def _store_experience(self, trajectory: Trajectory) -> None:
        """Store an episode of the policy, with valid transition starts and latent noise."""
        if not self.policy.latent_size:
            self._store(self.online, trajectory)
            return
        self._store(
            self.online,
            trajectory,
            start_mask=trajectory.chunk_starts,
            latents=trajectory.latents,
            steps_to_chunk_end=trajectory.steps_to_chunk_end,
        )

    @property
    def has_all_robots(self) -> bool:
        """Whether every robot has contributed data. It stays true afterwards.

        Earlier time steps earn no updates. Otherwise their updates would all fall due at once, with
        a single episode of the last robot.
        """
        # several robots always have a replay in this process
        if not self._all_contributed and isinstance(self.online, ReplayBuffer):
            demonstrated = self.demonstrations.episodes_by_robot(self._robots)
            if (demonstrated + self.online.episodes_by_robot(self._robots)).all():
                self._all_contributed = True
                self._unearning_steps = max(0, self.steps - self.governor.min_transitions)
        return self._all_contributed

    def normalisation(self) -> np.ndarray | None:
        if (
            self.demonstrations.episodes
            and self.demonstrations.episodes_by_robot(self._robots).all()
        ):
            return super().normalisation()
        if not (self.has_all_robots and len(self.online)):
            return None
        return np.concatenate([self.demonstrations.vectors(), self.online.vectors()])

    def due(self, updates: int, learner: Learner) -> int:
        if not (len(self.online) and self.has_all_robots):
            return 0
        return self.governor.due(self.steps - self._unearning_steps, updates)

    def accepting(self, updates: int) -> bool:
        if not (len(self.online) and self.has_all_robots):  # without data the stations must play
            return True
        return self.governor.accepting(self.steps - self._unearning_steps, updates)

    def rollout_length(self) -> RolloutLength:
        return {
            "random_warmup": self.steps < self.recipe.simulation.start_steps
            and not self.config.warm_start
        }

    def batch(self) -> Arrays:
        size = self.config.batch_size
        demonstrated = size // 2 if self.config.half_demonstrations else 0
        imagined = int(self.recipe.world.share * (size - demonstrated)) if len(self.imagined) else 0
        batch = self._sample(self.online, size - demonstrated - imagined, self._weights())
        if imagined:
            batch = mix(batch, self._sample(self.imagined, imagined))
        if demonstrated:
            batch = mix(batch, self.demonstration_batch(demonstrated))
        if self.share is not None:
            batch = batch | {"share": np.full(size, self.share.value, np.float32)}
        return batch

    def _weights(self) -> np.ndarray | None:
        """Return sampling weights by station; None for uniform sampling."""
        replay, governor = self.online, self.governor
        if not (governor.balance_stations or governor.max_samples):
            return None
        return governor.weights(
            replay.present_by_origin(),
            replay.inserted_by_origin,
            replay.sampled,
            self._equal_robot_weights(replay),
        )

    def waiting_reasons(self, updates: int) -> dict[str, str]:
        min_samples, replay = self.governor.min_samples, self.online
        if not (min_samples and self.governor.due(self.steps - self._unearning_steps, updates)):
            return {}
        places = {name: min(number, MAX_ORIGIN) for number, name in enumerate(self.stations, 1)}
        drawn = {
            name: (int(replay.inserted_by_origin[k]), int(replay.sampled[k]))
            for name, k in places.items()
        }
        return {
            name: f"station '{name}' waits for the learner: of its transitions, "
            f"{sampled / inserted:.3g} samples per insert were drawn, expected at least "
            f"{min_samples:g} (online.min_samples_per_insert)"
            for name, (inserted, sampled) in drawn.items()
            if self.governor.must_wait(inserted, sampled)
        }

    def demonstration_batch(self, size: int) -> Arrays:
        """Return a batch of demonstrations and imitated episodes, uniform over transitions."""
        imitated = len(self.imitated)
        if not imitated:
            return super().demonstration_batch(size)
        fraction = imitated / (imitated + len(self.demonstrations))
        weights: list[np.ndarray | None] = [None, None]
        if robots := self._robots:  # equal shares of all robots, whatever their success rates
            imitated_by_robot = self.imitated.present_by_robot(robots)
            total = self.demonstrations.present_by_robot(robots) + imitated_by_robot
            imitated_share = imitated_by_robot / np.maximum(total, 1)
            fraction = float(imitated_share[total > 0].mean())
            weights = [
                self.demonstrations.robot_weights(robots, 1.0 - imitated_share),
                self.imitated.robot_weights(robots, imitated_share),
            ]
        imitated_size = int(self.random.binomial(size, fraction))
        demonstration_weights, imitated_weights = weights
        draws = (
            (self.demonstrations, size - imitated_size, demonstration_weights),
            (self.imitated, imitated_size, imitated_weights),
        )
        return mix(
            *(self._sample(buffer, count, weight) for buffer, count, weight in draws if count)
        )

    def counts(self) -> dict[str, float]:
        counts = super().counts() | {"imitated": float(self.imitated.episodes)}
        if self.share is not None:
            counts |= {"share": self.share.value, "base_success": self.share.base_success}
        if self.recipe.world.share:
            counts |= {"imagined": float(self.imagined.inserted)}
        return counts

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "online": self.online.state_dict(),
            "imitated": self.imitated.state_dict(),
            **({"imagined": self.imagined.state_dict()} if self.recipe.world.share else {}),
            **({} if self.share is None else {"share": self.share.state_dict()}),
            "met": self._all_contributed,
            "unearned": self._unearning_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.online.load_state_dict(state["online"])
        self.imitated.load_state_dict(state["imitated"])
        if "imagined" in state and self.recipe.world.share:
            self.imagined.load_state_dict(state["imagined"])
        if self.share is not None:
            self.share.load_state_dict(state["share"])
        # older runs lack these values
        self._all_contributed = state.get("met", True)
        self._unearning_steps = state.get("unearned", 0)


def _make_replay(recipe: Recipe, policy: NetworkPolicy) -> Replay:
    """Return a replay buffer in this process, or shards in several processes on Ray."""
    arguments = (
        policy.policy_spec,
        recipe.replay.capacity,
        policy.latent_size,
        policy.reads_instructions,
        bool(policy.max_prefix),
    )
    placement = recipe.placement
    if not placement.replay_shards:
        return ReplayBuffer(*arguments)
    from rlinf_core.trainer.distributed.replay_shards import ReplayShards

    return ReplayShards(*arguments, shards=placement.replay_shards, address=placement.ray)


class LabelledData(ReplayData):
    """Replay buffers of actions that an expert labelled (DAgger).

    Unlabelled time steps are stored only as far as a labelled transition spans them.
    """

    config: ExpertSettings

    def _insert_experience(self, trajectory: Trajectory, newest: int) -> str:
        status = super()._insert_experience(trajectory, newest)
        return "unlabelled" if self._lacks_labels(trajectory) else status

    def _lacks_labels(self, trajectory: Trajectory) -> bool:
        """Return whether an episode is a recording without an expert label for each time step."""
        return bool(trajectory.id) and not self.config.warm_start

    def _store_experience(self, trajectory: Trajectory) -> None:
        labelled = self.config.learning_mask(trajectory.sources)
        if self._lacks_labels(trajectory):  # a person's actions are their own labels
            labelled &= np.array([source == "operator" for source in trajectory.sources], bool)
        config = self.policy.config
        starts, prefixes = valid_chunk_starts(labelled, config.executed, self.policy.max_prefix)
        for part in contiguous_segments(starts, self._transition_span):
            self._store(
                self.online,
                trajectory.part(part),
                start_mask=starts[part],
                prefix_lengths=prefixes[part],
            )

    def rollout_length(self) -> RolloutLength:
        return {
            "expert_fraction": self.config.expert_fraction(
                self.statuses["online"] + self.statuses["stale"]
            )
        }


def make_data(recipe: Recipe, policy: NetworkPolicy, governor: Governor) -> Data:
    """Return the training data of the kind that the recipe's algorithm learns from."""
    kinds: dict[str, type[Data]] = {ROLLOUTS: RolloutData, REPLAY: ReplayData, EXPERT: LabelledData}
    return kinds.get(recipe.algorithm.learns_from, DemonstrationData)(recipe, policy, governor)
