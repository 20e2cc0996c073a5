"""A replay buffer in several processes (shards) on Ray, with episodes spread over all of them.

A dead shard is restarted with its content: Ray's object store holds its state at the last
checkpoint and the episodes since then. The run then continues as an undisturbed one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from rlinf_core.core.errors import IngestError, RecipeError, RlinfError, is_transient
from rlinf_core.data.replay import ReplayBuffer, mix
from rlinf_core.specs.arrays import Arrays, StationSpec
from rlinf_core.trainer.distributed.ray_cluster import (
    check_started,
    connect,
    is_ray_error,
    lost_errors,
)

RESTARTS = 10  # maximum restarts of shards in a run
SEEDS = 2**63


@contextlib.contextmanager
def _as_ingest_errors() -> Iterator[None]:
    """Turn Ray's exceptions into IngestError, since no episode causes them.

    A shard's own errors pass.
    """
    from ray import exceptions

    try:
        yield
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, RlinfError):
            raise error.cause from None
        if is_transient(error.cause) or is_ray_error(error.cause):
            raise _no_room_error(error) from error
        raise
    except exceptions.RayError as error:
        raise _no_room_error(error) from error


def _no_room_error(error: Exception) -> IngestError:
    return IngestError(
        f"replay shards: expected room in their processes and in Ray's store, got: {error}. The "
        "last checkpoint is valid. Reduce replay.capacity or add memory; the same command then "
        "continues"
    )


class Shard(ReplayBuffer):
    """Ray actor: a replay buffer with a part of the episodes."""

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def put(self, episode: dict[str, Any]) -> tuple[int, np.ndarray]:
        """Insert an episode. Returns the number of transitions, in total and by origin (256,)."""
        self.insert_episode(**episode)
        return len(self), self.present_by_origin()

    def draw(self, size: int, seed: int, options: dict[str, Any]) -> tuple[Arrays, np.ndarray]:
        """Return a batch of this shard, and its number of transitions by origin (256,)."""
        before = self.sampled.copy()
        return self.sample(size, np.random.default_rng(seed), **options), self.sampled - before

    def restore(self, state: dict[str, Any]) -> tuple[int, np.ndarray]:
        """Restore a state. Returns the number of transitions, in total and by origin (256,)."""
        self.load_state_dict(state)
        return len(self), self.present_by_origin()


class ReplayShards:
    """A replay buffer in shards, with the interface and distribution of ``ReplayBuffer``.

    The first five arguments are those of ``ReplayBuffer``, for all shards together.

    Args:
        shards: number of processes.
        address: address of the cluster; empty for a local one.
    """

    def __init__(
        self,
        spec: StationSpec,
        capacity: int,
        latent: int = 0,
        instructions: bool = False,
        prefixes: bool = False,
        *,
        shards: int,
        address: str = "",
    ) -> None:
        self.ray = connect(address)
        self.spec = spec
        self.shards = shards
        self.buffer_arguments = spec, capacity // shards, latent, instructions, prefixes
        self.capacity = capacity // shards  # the longest episode must fit into one shard
        self.inserted, self.episodes, self.died = 0, 0, 0
        self.sampled, self.inserted_by_origin = np.zeros(256, np.int64), np.zeros(256, np.int64)
        self._actors = [self._spawn() for _ in range(shards)]
        self._checkpoints: list[Any] = [None] * shards  # states in Ray's store, and
        self._since: list[list[Any]] = [[] for _ in range(shards)]  # episodes after them
        # by shard: the number of transitions, and that of each origin
        self._present = [(0, np.zeros(256, np.int64))] * shards

    def __len__(self) -> int:
        return sum(count for count, _ in self._present)

    def present_by_origin(self) -> np.ndarray:
        """Return the number of transitions that can be sampled, by origin (256,)."""
        return np.sum([origins for _, origins in self._present], axis=0)

    @_as_ingest_errors()
    def insert_episode(
        self,
        observations: Arrays,
        actions: np.ndarray,
        rewards: np.ndarray,
        discounts: np.ndarray,
        start_mask: np.ndarray | None = None,
        latents: np.ndarray | None = None,
        origin: int = 0,
        steps_to_chunk_end: np.ndarray | None = None,
        prefix_lengths: np.ndarray | None = None,
    ) -> int:
        """Insert an episode as ``ReplayBuffer`` does; the shards take turns.

        Raises:
            IngestError: shards died too often, or Ray's store is full.
        """
        number = self.episodes % self.shards
        episode = self.ray.put(
            dict(
                observations=observations,
                actions=actions,
                rewards=rewards,
                discounts=discounts,
                start_mask=start_mask,
                latents=latents,
                origin=origin,
                steps_to_chunk_end=steps_to_chunk_end,
                prefix_lengths=prefix_lengths,
            )
        )
        self._present[number] = self._call(number, partial(_put, episode))
        self._since[number].append(episode)
        self.episodes += 1
        self.inserted += len(actions)
        self.inserted_by_origin[min(origin, 255)] += (
            len(actions) if start_mask is None else int(np.sum(start_mask))
        )
        return len(actions)

    @_as_ingest_errors()
    def sample(
        self,
        size: int,
        random: np.random.Generator,
        horizon: int = 1,
        gamma: float = 1.0,
        execute: int | None = None,
        n_step: int = 1,
        weights: np.ndarray | None = None,
    ) -> Arrays:
        """Sample a batch as ``ReplayBuffer`` does.

        A multinomial draw sets the size of each shard's part.
        """
        share = self._shard_probabilities(weights)
        sizes = random.multinomial(size, share / share.sum())
        options: dict[str, Any] = {
            "horizon": horizon,
            "gamma": gamma,
            "execute": execute,
            "n_step": n_step,
        }
        pending = []
        for number in np.flatnonzero(sizes):
            shard_weights = (
                None
                if weights is None
                else self._weights_in_shard(weights, self._present[number][1])
            )
            pending.append(
                (
                    int(number),
                    int(sizes[number]),
                    int(random.integers(SEEDS)),
                    options | {"weights": shard_weights},
                )
            )
        answers = [self._actors[number].draw.remote(*arguments) for number, *arguments in pending]
        drawn = [self._drawn_batch(answers[k], *pending[k]) for k in range(len(pending))]
        self.sampled += np.sum([origins for _, origins in drawn], axis=0)
        return mix(*(batch for batch, _ in drawn))

    def _shard_probabilities(self, weights: np.ndarray | None) -> np.ndarray:
        """Return the unnormalised probability of each shard."""
        if weights is None:
            return np.array([count for count, _ in self._present], float)
        return np.array(
            [self._weights_in_shard(weights, origins).sum() for _, origins in self._present]
        )

    def _weights_in_shard(self, weights: np.ndarray, origins: np.ndarray) -> np.ndarray:
        """Return the weights by origin (256,) in a shard with ``origins`` transitions of each."""
        everywhere = self.present_by_origin()
        return np.where(everywhere > 0, weights * origins / np.maximum(everywhere, 1), 0.0)

    def _drawn_batch(self, answer: Any, number: int, *arguments: Any) -> tuple[Arrays, np.ndarray]:
        """Return the shard's batch, or that of its replacement, which draws the same one."""
        try:
            drawn: tuple[Arrays, np.ndarray] = self.ray.get(answer)
            return drawn
        except lost_errors() as error:
            self._replace(number, error)
            return self._call(number, lambda shard: shard.draw.remote(*arguments))

    @_as_ingest_errors()
    def vectors(self) -> np.ndarray:
        """Return the vectors (N, V) at the start of each transition, to fit the normalisation."""
        return np.concatenate(self._call_all(lambda shard: shard.vectors.remote()))

    @_as_ingest_errors()
    def state_dict(self) -> dict[str, Any]:
        """Return the state of all shards."""
        states = self._call_all(lambda shard: shard.state_dict.remote())
        for number, state in enumerate(states):
            self._checkpoints[number], self._since[number] = self.ray.put(state), []
        return {
            "shards": {str(number): state for number, state in enumerate(states)},
            "inserted": self.inserted,
            "episodes": self.episodes,
            "sampled": self.sampled,
            "inserted_of": self.inserted_by_origin,
        }

    @_as_ingest_errors()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises RecipeError for another number of shards."""
        if (got := len(state.get("shards", ()))) != self.shards:
            raise RecipeError(
                f"placement.replay_shards: expected {got}, the number in the checkpoint, got "
                f"{self.shards}. Continue with {got}, or begin another run"
            )
        for number in range(self.shards):
            self._checkpoints[number] = self.ray.put(state["shards"][str(number)])
            self._since[number] = []
            self._present[number] = self._call(number, self._restore_call(number))
        self.inserted, self.episodes = state["inserted"], state["episodes"]
        self.sampled, self.inserted_by_origin = (
            np.array(state["sampled"]),
            np.array(state["inserted_of"]),
        )

    def close(self) -> None:
        """End the processes."""
        for actor in self._actors:
            self.ray.kill(actor)

    def _spawn(self) -> Any:
        return self.ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Shard).remote(
            *self.buffer_arguments
        )

    def _restore_call(self, number: int) -> Callable[[Any], Any]:
        return lambda shard: shard.restore.remote(self._checkpoints[number])

    def _call_all(self, call: Callable[[Any], Any]) -> list[Any]:
        return [self._call(number, call) for number in range(self.shards)]

    def _call(self, number: int, call: Callable[[Any], Any]) -> Any:
        """Return a shard's answer; a dead shard is replaced and called again."""
        while True:
            try:
                return self.ray.get(call(self._actors[number]))
            except lost_errors() as error:
                self._replace(number, error)

    def _replace(self, number: int, error: Exception) -> None:
        """Start a replacement with the shard's content; repeat if it dies, too."""
        while True:
            self._count_death(number, error)
            actor = self._actors[number] = self._spawn()
            try:
                if self._checkpoints[number] is not None:
                    self._present[number] = self.ray.get(
                        actor.restore.remote(self._checkpoints[number])
                    )
                for episode in self._since[number]:
                    self._present[number] = self.ray.get(actor.put.remote(episode))
                return
            except lost_errors() as again:
                error = again

    def _count_death(self, number: int, error: Exception) -> None:
        """Count a dead shard. Raises IngestError beyond RESTARTS."""
        check_started("replay shards", error)
        self.died += 1
        if self.died > RESTARTS:
            raise IngestError(
                f"replay shards died {self.died} times, the last by: {error}. The last checkpoint "
                "is valid. A smaller replay.capacity or more placement.replay_shards reduce the "
                "memory of each shard"
            ) from error
        print(
            f"replay shard {number} died and is restarted with {len(self._since[number])} "
            f"episodes since its last state ({self.died} of {RESTARTS})",
            flush=True,
        )


def _put(episode: Any, shard: Any) -> Any:
    return shard.put.remote(episode)
