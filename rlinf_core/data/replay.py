"""Replay buffer: a ring of time steps, in which each image serves as two observations."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from rlinf_core.core.errors import RlinfError, SpecError
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.specs.arrays import (
    INSTRUCTION,
    INSTRUCTION_BYTES,
    Arrays,
    StationSpec,
    encode_instructions,
)

MAX_ORIGIN = 255  # number of distinct stations; later ones count as the last
LARGE_BYTES = 1 << 20  # a smaller array costs nothing to allocate
MAX_ARRAYS = 16  # largest number of arrays that the memory of batches refers to
# names in checkpoints, at each time step: length of the prefix of a chunk from there on; time steps
# until the chunk ends; time steps until the instruction changes
PREFIX, CHUNK_END, INSTRUCTION_END = "given", "played", "asked"


class BatchMemory:
    """Memory of earlier batches, which later batches use again.

    The images of a batch take tens of megabytes. The kernel clears each page of fresh memory, which
    takes as long as the copy of the images. An array is used again when nothing else refers to it.
    Views and tensors hold a reference to their array, so a batch stays unchanged while a
    part of it is in use.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array with any content."""
        size = int(np.prod(shape)) * dtype.itemsize
        if size < LARGE_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            free = [
                k
                for k in range(len(self._arrays))
                # two references: the list and the argument of getrefcount
                if sys.getrefcount(self._arrays[k]) == 2
            ]
            fitting = [k for k in free if size <= len(self._arrays[k]) <= 2 * size]
            if fitting:
                memory = self._arrays[min(fitting, key=lambda k: len(self._arrays[k]))]
            else:
                if len(self._arrays) >= MAX_ARRAYS:
                    del self._arrays[min(free, default=0)]
                memory = np.empty(size, np.uint8)
                self._arrays.append(memory)
            return memory[:size].view(dtype).reshape(shape)

    def take(self, source: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return ``source[index]`` for an index (B,) within the array."""
        out = self.array((len(index), *source.shape[1:]), source.dtype)
        # with mode "raise" NumPy would fill a buffer first, and copy that
        return np.take(source, index, axis=0, out=out, mode="clip")

    def concatenate(self, parts: list[np.ndarray]) -> np.ndarray:
        """Return ``np.concatenate(parts)``."""
        first = parts[0]
        if any(part.dtype != first.dtype or part.shape[1:] != first.shape[1:] for part in parts):
            return np.concatenate(parts)
        shape = (sum(map(len, parts)), *first.shape[1:])
        return np.concatenate(parts, out=self.array(shape, first.dtype))


MEMORY = BatchMemory()


class ReplayBuffer:
    """Uniform replay over whole episodes.

    An episode of T transitions takes T + 1 consecutive slots (its observations); the last slot is
    no transition's start. The ring overwrites the oldest slots; transitions with partly overwritten
    observations are dropped.

    Args:
        spec: the station's specs, which give every array its shape.
        capacity: slots, i.e. time steps.
        latent: size of the latent noise that is learned instead of actions
            (``Policy.latent_size``).
        instructions: True to keep the instruction at every time step; the station's own, if an
            episode has none.
        prefixes: True to keep the length of the prefix of a chunk from each time step on
            (``NetworkPolicy.max_prefix``).
    """

    def __init__(
        self,
        spec: StationSpec,
        capacity: int,
        latent: int = 0,
        instructions: bool = False,
        prefixes: bool = False,
    ) -> None:
        self.spec, self.capacity = spec, capacity
        self._arrays: Arrays = {
            "vectors": np.zeros((capacity, spec.vector_size), np.float32),
            "action": np.zeros((capacity, spec.action.dim), np.float32),
            "reward": np.zeros(capacity, np.float32),
            "discount": np.zeros(capacity, np.float32),
            "starts": np.zeros(capacity, bool),  # whether a transition may begin
            "final": np.zeros(capacity, bool),  # holds an episode's last observation
            "origin": np.zeros(capacity, np.uint8),
        }
        if latent:
            self._arrays["latent"] = np.zeros((capacity, latent), np.float32)
            self._arrays[CHUNK_END] = np.zeros(capacity, np.int32)
        if prefixes:
            self._arrays[PREFIX] = np.zeros(capacity, np.float32)
        for image in spec.images:
            self._arrays[image.name] = np.zeros((capacity, *image.shape), np.uint8)
        if instructions:
            self._arrays[INSTRUCTION] = np.zeros((capacity, INSTRUCTION_BYTES), np.uint8)
            self._arrays[INSTRUCTION_END] = np.full(capacity, capacity, np.int32)
        self._next = 0
        self.inserted = 0
        self.episodes = 0
        self.sampled = np.zeros(256, np.int64)  # sampled transitions, by origin
        # inserted transitions that may be sampled, by origin
        self.inserted_by_origin = np.zeros(256, np.int64)
        self._valid: np.ndarray | None = None
        self._origin_groups: tuple[np.ndarray, np.ndarray] | None = None
        self._equal_weights: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self._arrays["starts"].sum())

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
        """Add an episode of T transitions.

        Args:
            observations: {"vectors": (T + 1, V), image name: (T + 1, H, W, 3), "instruction": (T +
                1, INSTRUCTION_BYTES)}; others are not kept.
            actions: (T, A) normalised.
            rewards: (T,).
            discounts: (T,); 0 at the end of the task, 1 at a time limit.
            start_mask: (T,) time steps at which transitions may begin; all by default. For a
                policy that learns latent noise: the steps at which its chunks began.
            latents: (T, L) the noise behind the chunk that began at each time step.
            origin: number of the station of origin, up to 255; ``sampled`` counts by it.
            steps_to_chunk_end: (T,) used with latents.
            prefix_lengths: (T,) number of first actions of a chunk from each step that are not
                learned; 0 by default.

        Returns:
            T.
        """
        length = len(actions)
        if length == 0 or length + 1 > self.capacity:
            raise SpecError(
                f"episode of {length} transitions: expected 1 to {self.capacity - 1} (the replay's "
                f"capacity)"
            )
        slots = (self._next + np.arange(length + 1)) % self.capacity
        observations = {name: observations[name] for name in self._observed if name in observations}
        if INSTRUCTION in self._arrays and INSTRUCTION not in observations:
            observations[INSTRUCTION] = np.repeat(
                encode_instructions([self.spec.instruction]), length + 1, axis=0
            )
        self._check(observations, length + 1)
        steps: dict[str, Any] = {"action": actions, "reward": rewards, "discount": discounts}
        if "latent" in self._arrays:
            steps |= {
                "latent": latents,
                CHUNK_END: np.full(length, self.capacity)
                if steps_to_chunk_end is None
                else steps_to_chunk_end,
            }
        if PREFIX in self._arrays:
            steps[PREFIX] = np.zeros(length) if prefix_lengths is None else prefix_lengths
        if INSTRUCTION in self._arrays:
            instructions = observations[INSTRUCTION][:-1]
            steps[INSTRUCTION_END] = _steps_until_change(instructions, self.capacity)
        self._check(steps, length)
        for name, values in observations.items():
            self._arrays[name][slots] = values
        for name, values in steps.items():
            self._arrays[name][slots[:-1]] = values
        self._arrays["starts"][slots[:-1]] = True if start_mask is None else start_mask
        self._arrays["starts"][slots[-1]] = False
        self._arrays["origin"][slots] = min(origin, MAX_ORIGIN)
        self._arrays["final"][slots] = np.arange(length + 1) == length
        self._next = int((slots[-1] + 1) % self.capacity)
        self.inserted += length
        self.inserted_by_origin[min(origin, MAX_ORIGIN)] += (
            length if start_mask is None else int(np.sum(start_mask))
        )
        self.episodes += 1
        self._valid = self._origin_groups = self._equal_weights = None
        return length

    def _check(self, arrays: Arrays, length: int) -> None:
        """Check shapes, dtypes and finite numbers, so that an invalid episode changes nothing."""
        for name, values in arrays.items():
            if values is None or values.shape != (length, *self._arrays[name].shape[1:]):
                raise SpecError(
                    f"episode: '{name}': expected shape {(length, *self._arrays[name].shape[1:])}, "
                    f"got {getattr(values, 'shape', None)}"
                )
            if self._arrays[name].dtype == np.uint8 and values.dtype != np.uint8:
                raise SpecError(
                    f"episode: '{name}': expected uint8, got {values.dtype}. A conversion would "
                    "hide fractions and NaN. Correct its source"
                )
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values).reshape(length, -1).all(1))[0])
                raise SpecError(
                    f"episode: '{name}': expected finite values, got others at time step {row}. "
                    "Correct its source"
                )

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
        """Return ``size`` transitions, uniformly with replacement.

        Next observations have the prefix ``next/``. A transition begins at any time step and spans
        ``execute`` steps (``horizon`` by default), or ``n_step`` if that is more, fewer at the end
        of its episode. Its reward is sum_i gamma^i r_i. Its next observation is the one after
        ``steps`` time steps, and the next value counts gamma^steps. Its discount is the last
        step's. Its actions (B, H A) are those played from there on, by any commander: a takeover
        does not cut it. After the episode's end the last action is repeated.

        A transition also ends if the instruction changes: a policy with instructions then begins
        another chunk, whose value counts. For a policy that learns latent noise, ``action`` is the
        noise (B, L), and a transition ends with its chunk. A replay with ``prefixes`` returns
        ``prefix_length`` (B,), the number of first actions that are not learned.

        Args:
            size: B, the number of transitions.
            random: source of the draws.
            horizon: H, actions in a chunk.
            gamma: discount per time step.
            execute: time steps of a transition.
            n_step: smallest number of rewards in a transition.
            weights: (256,) of origins; an origin is drawn first, and then one of its transitions.
        """
        execute = horizon if execute is None else execute
        index = self._draw(size, random, weights)
        longest = max(execute, n_step)
        left = self._steps_left(index) if max(horizon, longest) > 1 else np.ones(size, int)
        if INSTRUCTION_END in self._arrays:  # actions for another instruction do not count
            left = np.minimum(left, self._arrays[INSTRUCTION_END][index])
        if CHUNK_END in self._arrays:  # the latent noise did not cause later steps
            left = np.minimum(left, self._arrays[CHUNK_END][index])
        spans = np.minimum(left, longest)
        self.sampled += np.bincount(self._arrays["origin"][index], minlength=256)
        last, following = (index + spans - 1) % self.capacity, (index + spans) % self.capacity
        batch = {name: MEMORY.take(self._arrays[name], index) for name in self._observed}
        batch |= {
            f"next/{name}": MEMORY.take(self._arrays[name], following) for name in self._observed
        }
        batch["discount"] = self._arrays["discount"][last]
        if PREFIX in self._arrays:
            batch["prefix_length"] = self._arrays[PREFIX][index]
        if max(horizon, longest) == 1:
            batch |= {name: self._arrays[name][index] for name in ("action", "reward")}
        else:
            offsets = np.arange(max(horizon, longest))
            slots = (index[:, None] + np.minimum(offsets, left[:, None] - 1)) % self.capacity
            rewards = self._arrays["reward"][slots] * (offsets < spans[:, None]) * gamma**offsets
            batch |= {
                "action": self._arrays["action"][slots[:, :horizon]].reshape(size, -1),
                "reward": rewards.sum(axis=1).astype(np.float32),
                "steps": spans.astype(np.float32),
            }
        if "latent" in self._arrays:
            batch["action"] = self._arrays["latent"][index]
        return batch

    def _draw(
        self, size: int, random: np.random.Generator, weights: np.ndarray | None
    ) -> np.ndarray:
        """Draw slots of transitions (B,)."""
        if self._valid is None:
            self._valid = np.flatnonzero(self._arrays["starts"])
        if weights is None:
            return self._valid[random.integers(0, len(self._valid), size)]
        slots, ends = self._by_origin(self._valid)
        sizes = np.diff(ends, prepend=0)
        weights = np.where(sizes > 0, weights, 0.0)
        origins = random.choice(len(weights), size, p=weights / weights.sum())
        return slots[ends[origins] - sizes[origins] + random.integers(sizes[origins])]

    def _by_origin(self, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return slots of transitions, grouped by origin, and the end of each group (256,)."""
        if self._origin_groups is None:
            origins = self._arrays["origin"][valid]
            self._origin_groups = (
                valid[np.argsort(origins, kind="stable")],
                np.cumsum(np.bincount(origins, minlength=256)),
            )
        return self._origin_groups

    def present_by_origin(self) -> np.ndarray:
        """Return the number of transitions that may be sampled now, by origin (256,)."""
        return np.bincount(self._arrays["origin"][self._arrays["starts"]], minlength=256)

    def present_by_robot(self, robots: int) -> np.ndarray:
        """Return the number of transitions that may be sampled now, by robot (R,)."""
        return self._arrays["vectors"][self._arrays["starts"], :robots].sum(axis=0)

    def robot_weights(self, robots: int, shares: np.ndarray | None = None) -> np.ndarray:
        """Return weights (256,) of origins that draw each robot equally, and its origins too.

        The vectors' first numbers name the robot (``rlinf_core.specs.embodiment``).

        Args:
            robots: R, the number of robots.
            shares: (R,) weight of each robot; equal if None.
        """
        if self._equal_weights is None:
            starts = np.flatnonzero(self._arrays["starts"])
            robot_of_start = self._arrays["vectors"][starts, :robots].argmax(axis=1)
            belongs = np.zeros((256, robots), bool)  # whether an origin is a robot's
            belongs[self._arrays["origin"][starts], robot_of_start] = True
            self._equal_weights = belongs / np.maximum(belongs.sum(axis=0), 1.0)
        return self._equal_weights.sum(axis=1) if shares is None else self._equal_weights @ shares

    def episodes_by_robot(self, robots: int) -> np.ndarray:
        """Return the number of present episodes of each robot (R,)."""
        return self._arrays["vectors"][self._arrays["final"], :robots].sum(axis=0)

    def _steps_left(self, index: np.ndarray) -> np.ndarray:
        """Return the number of transitions from each slot to the end of its episode."""
        ends = np.flatnonzero(self._arrays["final"])
        return (ends[np.searchsorted(ends, index) % len(ends)] - index) % self.capacity

    def vectors(self) -> np.ndarray:
        """Return the vectors (N, V) of every transition's start, for normalisation."""
        return self._arrays["vectors"][self._arrays["starts"]]

    def trajectories(self, mode: str) -> list[Trajectory]:
        """Return the stored episodes, oldest first, without images.

        Partly overwritten episodes are left out.
        """
        oldest = (self._next + np.arange(self.capacity)) % self.capacity
        ends = np.flatnonzero(self._arrays["final"][oldest])
        if not len(ends):
            return []
        filled = self.inserted + self.episodes
        first = self.capacity - min(filled, self.capacity)  # earlier slots were never written
        if filled > self.capacity:  # the oldest episode may have lost its beginning
            first, ends = int(ends[0]) + 1, ends[1:]
        parts = []
        for begin, end in zip([first, *(int(end) + 1 for end in ends[:-1])], ends, strict=True):
            slots = oldest[begin : end + 1]
            rewards = self._arrays["reward"][slots[:-1]]
            discounts = self._arrays["discount"][slots[:-1]]
            success = bool(discounts[-1] == 0.0 and rewards[-1] > 0.0)
            observations = self._arrays["vectors"][slots]
            actions = self._arrays["action"][slots[:-1]]
            parts.append(
                Trajectory({"vectors": observations}, actions, rewards, discounts, success, mode)
            )
        return parts

    @property
    def _observed(self) -> list[str]:
        names = ["vectors", *(image.name for image in self.spec.images), INSTRUCTION]
        return [name for name in names if name in self._arrays]

    def state_dict(self) -> dict[str, Any]:
        """Return the replay's state: the arrays (only the filled part) and the counters."""
        filled = self.capacity if self.inserted + self.episodes >= self.capacity else self._next
        return {
            "arrays": {name: values[:filled] for name, values in self._arrays.items()},
            "next": self._next,
            "inserted": self.inserted,
            "episodes": self.episodes,
            "sampled": self.sampled,
            "inserted_of": self.inserted_by_origin,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; raise RlinfError if it does not fit."""
        arrays = state.get("arrays")
        if not arrays or max(map(len, arrays.values())) > self.capacity:
            raise RlinfError(
                f"replay: expected a saved state of at most {self.capacity} time steps in one "
                "process, got another. Use the run's first values of replay.capacity, "
                "placement.replay_shards and algorithm.self_imitation, or choose another --out"
            )
        for name in (CHUNK_END, INSTRUCTION_END):
            if name in self._arrays and name not in arrays:  # an older state
                self._arrays[name][:] = self.capacity
        for name, values in arrays.items():
            if name not in self._arrays:  # images that are no longer used
                continue
            self._arrays[name][:] = 0
            self._arrays[name][: len(values)] = values
        self._next = state["next"]
        self.inserted = state["inserted"]
        self.episodes = state["episodes"]
        self.sampled = np.array(state["sampled"])
        self._valid = self._origin_groups = self._equal_weights = None
        self.inserted_by_origin = np.array(
            state["inserted_of"] if "inserted_of" in state else self.present_by_origin()
        )


def _steps_until_change(positions: np.ndarray, forever: int) -> np.ndarray:
    """Return the number of time steps (T,) until the instruction (T, INSTRUCTION_BYTES) changes."""
    ends = np.append(np.flatnonzero((positions[1:] != positions[:-1]).any(axis=1)) + 1, forever)
    steps = np.arange(len(positions))
    return ends[np.searchsorted(ends, steps, side="right")] - steps


def mix(*batches: Arrays) -> Arrays:
    """Concatenate batches, e.g. half demonstrations and half online (symmetric sampling, RLPD)."""
    return {name: MEMORY.concatenate([batch[name] for batch in batches]) for name in batches[0]}
