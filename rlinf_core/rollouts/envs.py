"""Vectorised environments of one task, and the chunks and episodes that are played in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from rlinf_core.core.errors import RecipeError, RlinfError, SpecError
from rlinf_core.policies.base import ActionChunk, Observation
from rlinf_core.policies.chunking import ChunkSchedule
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.specs.arrays import Arrays, StationSpec

ActFunction = Callable[[Observation], ActionChunk]


@contextlib.contextmanager
def at_step(env: str, step: int) -> Iterator[None]:
    """Add the environment and the time step to a SpecError about its values."""
    try:
        yield
    except SpecError as error:
        raise SpecError(
            f"env '{env}': {error} at time step {step}. Correct the environment. This episode is "
            "not used for training"
        ) from error


@dataclass
class Steps:
    """One time step of N environments.

    Attributes:
        next_observations: observation after the action and before a reset, by name, (N, ...).
        reward: (N,).
        terminated: (N,), 1 where the task ended by success or failure.
        truncated: (N,), 1 where the time limit ended the episode.
        success: (N,), 1 where the task succeeded.
        observation: observation to act on next: ``next_observations``, or the first one of a new
            episode.
        held: (N,), whether the interlock held the arm, which ends the chunk; None without an
            interlock.
    """

    next_observations: Arrays
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray
    observation: Arrays
    held: np.ndarray | None = None

    @property
    def done(self) -> np.ndarray:
        """(N,), 1 where the episode is terminated or truncated."""
        return np.maximum(self.terminated, self.truncated)

    @property
    def failure(self) -> np.ndarray:
        """(N,), 1 where the episode is terminated without success."""
        return self.terminated - self.success


class VectorEnv(Protocol):
    """N environments of one task.

    Attributes:
        spec: observation and action spec.
        size: N.
        auto_reset: start the next episode after an end. False keeps the final state, for films;
            ``BatchedEnv`` supports only True.
    """

    spec: StationSpec
    size: int
    auto_reset: bool

    def reset(self, seeds: Sequence[int]) -> Arrays:
        """Start an episode of scene ``seeds[i]`` in environment i.

        Returns ``vectors`` (N, V) and images by name.
        """
        ...

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        """Execute normalised actions (N, A) for one time step.

        Skip environments where ``active`` (N,) is False.
        """
        ...

    def expert(self) -> np.ndarray:
        """Return the action (N, A) of the task's script in each environment."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all episodes.

        It is empty if unsupported; a resumed run then starts new episodes.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        ...

    def render(self, index: int = 0) -> np.ndarray:
        """Return an RGB image (H, W, 3) of one environment.

        Raises RlinfError if it cannot be rendered.
        """
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class BatchedEnv:
    """Base of environments whose simulator steps all of them at once.

    Attributes:
        name: value of the recipe's ``env``.
    """

    name: str
    size: int
    auto_reset = True

    def check_all_active(self, active: np.ndarray | None) -> None:
        """Raise RlinfError if not all environments are to be stepped."""
        if active is not None and not np.all(active):
            raise RlinfError(
                f"env '{self.name}' steps all of its {self.size} at once. One cannot wait for the "
                "others, as learners with groups of episodes require"
            )

    def expert(self) -> np.ndarray:
        """Raise RecipeError: there is no script."""
        raise RecipeError(f"env '{self.name}' has no script for demonstrations")

    def state_dict(self) -> dict[str, Any]:
        """Return no state: a resumed run starts new episodes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def render(self, index: int = 0) -> np.ndarray:
        """Raise RlinfError: only single environments are rendered."""
        raise RlinfError(f"env '{self.name}' is stepped together with others and cannot be filmed")


class ChunkExecutor:
    """Executes chunks in N environments, each at its own index of its own chunk.

    Args:
        env: environments.
        act: returns new chunks for a batch of environments.
        execute: number of executed actions of a chunk.
        device: device of the observations for ``act``.
    """

    def __init__(
        self, env: VectorEnv, act: ActFunction, execute: int, device: torch.device | str = "cpu"
    ) -> None:
        self.env = env
        self.act = act
        self.device = device
        self.schedule = ChunkSchedule(env.size, execute)
        self.actions = self.drawn = np.zeros(0)

    def next(self, observation: Arrays) -> np.ndarray:
        """Return the next actions (N, A).

        Sets ``chunk_starts`` (N,), which marks environments with a new chunk, and ``drawn`` (N,
        ...), the sample of the policy that each chunk comes from.
        """
        self.chunk_starts = self.schedule.due
        due = np.flatnonzero(self.chunk_starts)
        if len(due):
            due_observation = {name: values[due] for name, values in observation.items()}
            chunk = self.act(Observation.from_arrays(self.env.spec, due_observation, self.device))
            actions = chunk.actions.numpy(force=True)
            drawn = chunk.drawn.flatten(1).numpy(force=True)
            if not self.actions.size:
                self.actions = np.zeros((self.env.size, *actions.shape[1:]), np.float32)
                self.drawn = np.zeros((self.env.size, *drawn.shape[1:]), np.float32)
            self.actions[due], self.drawn[due] = actions, drawn
            self.schedule.replan(due)
        played = self.actions[np.arange(self.env.size), self.schedule.index]
        self.schedule.advance()
        return played

    def state_dict(self) -> dict[str, Any]:
        """Return all chunks and their indices."""
        return {"index": self.schedule.index, "actions": self.actions, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        self.schedule.index[:] = state["index"]
        self.actions, self.drawn = (np.array(state[name]) for name in ("actions", "drawn"))

    def after(self, steps: Steps) -> None:
        """End chunks where the episode ended or the interlock held the arm."""
        self.schedule.cut(steps.done > 0)
        if steps.held is not None:
            self.schedule.cut(steps.held)


class EpisodeAccumulator:
    """Collects the steps of N environments into complete episodes."""

    def __init__(self, size: int) -> None:
        self.steps: list[list[tuple[Arrays, tuple[np.ndarray, ...]]]] = [[] for _ in range(size)]

    def add(
        self, before: Arrays, actions: np.ndarray, result: Steps, *extras: np.ndarray
    ) -> Iterator[tuple[Trajectory, list[np.ndarray]]]:
        """Add one step of each environment and yield the episodes that ended.

        Args:
            before: observation before the step.
            actions: (N, A).
            result: result of the step.
            extras: further values (N, ...) of the step; they are returned as (T, ...).
        """
        for index, episode in enumerate(self.steps):
            episode.append(
                (
                    {name: values[index] for name, values in before.items()},
                    (
                        actions[index],
                        result.reward[index],
                        1.0 - result.terminated[index],
                        *(np.copy(extra[index]) for extra in extras),
                    ),
                )
            )
            if result.done[index]:
                last = {name: values[index] for name, values in result.next_observations.items()}
                yield self._pop_trajectory(episode, last, bool(result.success[index]))

    def cut(self, observation: Arrays) -> list[tuple[Trajectory, list[np.ndarray]]]:
        """Return the unfinished episodes, truncated here, with their extras.

        Args:
            observation: newest observation by name, (N, ...).
        """
        return [
            self._pop_trajectory(
                episode, {name: values[index] for name, values in observation.items()}, False
            )
            for index, episode in enumerate(self.steps)
            if episode
        ]

    def _pop_trajectory(
        self, episode: list[tuple[Arrays, tuple[np.ndarray, ...]]], last: Arrays, success: bool
    ) -> tuple[Trajectory, list[np.ndarray]]:
        """Remove an episode's steps and return them as a trajectory, with their extras."""
        observations = [observation for observation, _ in episode] + [last]
        columns = zip(*(values for _, values in episode), strict=True)
        played, rewards, discounts, *extras = (np.array(column) for column in columns)
        episode.clear()
        stacked = {name: np.stack([step[name] for step in observations]) for name in last}
        return Trajectory(stacked, played, rewards, discounts, success=success), extras

    def state_dict(self) -> dict[str, Any]:
        """Return the unfinished episodes."""
        return {
            str(index): {
                "seen": {
                    name: np.stack([observation[name] for observation, _ in episode])
                    for name in episode[0][0]
                },
                "noted": {
                    str(column): np.array(values)
                    for column, values in enumerate(
                        zip(*(extras for _, extras in episode), strict=True)
                    )
                },
            }
            for index, episode in enumerate(self.steps)
            if episode
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        for index, episode in state.items():
            columns = [episode["noted"][str(column)] for column in range(len(episode["noted"]))]
            self.steps[int(index)] = [
                ({name: values[step] for name, values in episode["seen"].items()}, extras)
                for step, extras in enumerate(zip(*columns, strict=True))
            ]


def single_action_chunks(actions: np.ndarray) -> ActionChunk:
    """Return chunks of one action from actions (N, A)."""
    drawn = torch.from_numpy(np.asarray(actions, np.float32))[:, None]
    return ActionChunk(drawn, 1, drawn)
