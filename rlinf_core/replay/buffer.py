"""A ring of time steps: episodes lie one after another, so that an image is stored once and serves as two observations."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_core.errors import SpecError
from rlinf_core.specs import StationSpec

Batch = dict[str, np.ndarray]


class ReplayBuffer:
    """Uniform replay over whole episodes.

    An episode of T transitions takes T + 1 consecutive slots (its observations); the last slot is no transition's
    start. The ring overwrites the oldest slots; transitions whose observations are partly overwritten are dropped.

    Args:
        spec: the station's specs, which give every array its shape.
        capacity: slots, i.e. time steps.
    """

    def __init__(self, spec: StationSpec, capacity: int) -> None:
        self.spec, self.capacity = spec, capacity
        self._arrays: Batch = {
            "vectors": np.zeros((capacity, spec.vector_size), np.float32),
            "action": np.zeros((capacity, spec.action.dim), np.float32),
            "reward": np.zeros(capacity, np.float32),
            "discount": np.zeros(capacity, np.float32),
            "starts": np.zeros(capacity, bool),
            **{image.name: np.zeros((capacity, *image.shape), np.uint8) for image in spec.images},
        }
        self._next, self.inserted, self.episodes = 0, 0, 0
        self._valid: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self._arrays["starts"].sum())

    def insert_episode(self, observations: Batch, actions: np.ndarray, rewards: np.ndarray,
                       discounts: np.ndarray) -> int:
        """Add an episode of T transitions.

        Args:
            observations: {"vectors": (T + 1, V), image name: (T + 1, H, W, 3)}.
            actions: (T, A) normalised.
            rewards: (T,).
            discounts: (T,); 0 where the task ended, 1 at a time limit.

        Returns:
            T.
        """
        length = len(actions)
        if length == 0 or length + 1 > self.capacity:
            raise SpecError(f"episode of {length} transitions: expected 1 to {self.capacity - 1} (the replay's capacity)")
        slots = (self._next + np.arange(length + 1)) % self.capacity
        for name, values in observations.items():
            if values.shape != (length + 1, *self._arrays[name].shape[1:]):
                raise SpecError(f"episode: '{name}': expected shape {(length + 1, *self._arrays[name].shape[1:])}, "
                                f"got {values.shape}")
        self._arrays["starts"][(slots[0] - 1) % self.capacity] = False  # its next observation is overwritten
        for name, values in observations.items():
            self._arrays[name][slots] = values
        for name, values in (("action", actions), ("reward", rewards), ("discount", discounts)):
            self._arrays[name][slots[:-1]] = values
        self._arrays["starts"][slots] = True
        self._arrays["starts"][slots[-1]] = False
        self._next = int((slots[-1] + 1) % self.capacity)
        self.inserted += length
        self.episodes += 1
        self._valid = None
        return length

    def sample(self, size: int, random: np.random.Generator) -> Batch:
        """``size`` transitions, uniformly with replacement; next observations have the prefix ``next/``."""
        if self._valid is None:
            self._valid = np.flatnonzero(self._arrays["starts"])
        index = self._valid[random.integers(0, len(self._valid), size)]
        following = (index + 1) % self.capacity
        batch = {name: values[index] for name, values in self._arrays.items() if name != "starts"}
        batch |= {f"next/{name}": self._arrays[name][following] for name in ("vectors", *self._image_names)}
        return batch

    def vectors(self) -> np.ndarray:
        """(N, V) vectors of every transition's start, for normalisation."""
        return self._arrays["vectors"][self._arrays["starts"]]

    @property
    def _image_names(self) -> list[str]:
        return [image.name for image in self.spec.images]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: the arrays (only what is filled) and the counters."""
        filled = self.capacity if self.inserted + self.episodes >= self.capacity else self._next
        return {"arrays": {name: values[:filled] for name, values in self._arrays.items()},
                "next": self._next, "inserted": self.inserted, "episodes": self.episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; the capacity may not have changed."""
        for name, values in state["arrays"].items():
            self._arrays[name][:] = 0
            self._arrays[name][: len(values)] = values
        self._next, self.inserted, self.episodes = state["next"], state["inserted"], state["episodes"]
        self._valid = None


def mix(*batches: Batch) -> Batch:
    """Concatenate batches, e.g. half demonstrations and half online (symmetric sampling, RLPD)."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
