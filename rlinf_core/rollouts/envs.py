"""A vector of environments of one task, stepped together, and chunks played in it."""

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

Decide = Callable[[Observation], ActionChunk]


@contextlib.contextmanager
def at_step(env: str, step: int) -> Iterator[None]:
    """A SpecError of what an environment gave names the environment and the time step of its episode."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"env '{env}': {error} at time step {step}. Mend the environment: nothing is "
                        "learned from this episode") from error


@dataclass
class Steps:
    """One time step of N environments.

    Attributes:
        next_observations: what was observed after the action, before any reset, name to (N, ...).
        reward: (N,).
        terminated: the task ended, by success or failure, (N,).
        truncated: it was cut off by time, (N,).
        success: the task was done, (N,).
        observation: what to act on next: ``next_observations``, or the first observation of a new episode.
        held: where the interlock held the arm, so that what is left of a chunk is not played, (N,); None without one.
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
        """Terminated or truncated, (N,)."""
        return np.maximum(self.terminated, self.truncated)

    @property
    def failure(self) -> np.ndarray:
        """The task cannot be done any more, (N,)."""
        return self.terminated - self.success


class VectorEnv(Protocol):
    """N environments of one task; each begins its next episode by itself.

    Attributes:
        auto_reset: so it does; else it stands at its end, for films. Not where somebody else's code steps all at once.
    """

    spec: StationSpec
    size: int
    auto_reset: bool

    def reset(self, seeds: Sequence[int]) -> Arrays:
        """Begin an episode of scene ``seeds[i]`` in each; name to (N, ...), vectors under ``vectors``."""
        ...

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        """Play normalised actions (N, A) for one time step; where ``active`` (N,) is false, time stands still."""
        ...

    def expert(self) -> np.ndarray:
        """Return the action (N, A) of the task's script in each environment."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where each is in its episode; empty where that cannot be said, and a resumed run begins new ones."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be there again."""
        ...

    def render(self, index: int = 0) -> np.ndarray:
        """A picture of one of them, for people; RlinfError where none can be made."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


class BatchedEnv:
    """Base of environments that other code steps all at once.

    Attributes:
        name: the recipe's ``env``.
    """

    name: str
    size: int
    auto_reset = True

    def check_all(self, active: np.ndarray | None) -> None:
        """RlinfError where one of them would have to wait for the others."""
        if active is not None and not np.all(active):
            raise RlinfError(f"env '{self.name}' steps all of its {self.size} at once: none can wait for the others, as "
                             "learners from groups of episodes need it")

    def expert(self) -> np.ndarray:
        """There is none."""
        raise RecipeError(f"env '{self.name}' has no script that could show how it is done")

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it does not say where it is. A resumed run begins new episodes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is none."""

    def render(self, index: int = 0) -> np.ndarray:
        """Nothing: one environment alone is filmed."""
        raise RlinfError(f"env '{self.name}' is stepped with others at once, which is not filmed")


class Chunks:
    """Plays chunks in N environments, each at its own place in its own.

    Args:
        env: the environments.
        decide: is asked, in one batch, for those whose chunk is due.
        execute: actions of a chunk that are played.
        device: of the observations that ``decide`` gets.
    """

    def __init__(self, env: VectorEnv, decide: Decide, execute: int, device: torch.device | str = "cpu") -> None:
        self.env, self.decide, self.device = env, decide, device
        self.schedule = ChunkSchedule(env.size, execute)
        self.actions = self.drawn = np.zeros(0)

    def next(self, observation: Arrays) -> np.ndarray:
        """The action (N, A) of each.

        Afterwards ``chunk_starts`` (N,) marks the environments that got a new chunk, and ``drawn`` (N, ...) holds what
        it was drawn from.
        """
        self.chunk_starts = self.schedule.due
        due = np.flatnonzero(self.chunk_starts)
        if len(due):
            due_observation = {name: values[due] for name, values in observation.items()}
            chunk = self.decide(Observation.of_arrays(self.env.spec, due_observation, self.device))
            actions, drawn = chunk.actions.numpy(force=True), chunk.drawn.flatten(1).numpy(force=True)
            if not self.actions.size:
                self.actions = np.zeros((self.env.size, *actions.shape[1:]), np.float32)
                self.drawn = np.zeros((self.env.size, *drawn.shape[1:]), np.float32)
            self.actions[due], self.drawn[due] = actions, drawn
            self.schedule.replan(due)
        played = self.actions[np.arange(self.env.size), self.schedule.index]
        self.schedule.advance()
        return played

    def state_dict(self) -> dict[str, Any]:
        """What of each chunk is still to be played."""
        return {"index": self.schedule.index, "actions": self.actions, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.schedule.index[:] = state["index"]
        self.actions, self.drawn = (np.array(state[name]) for name in ("actions", "drawn"))

    def after(self, steps: Steps) -> None:
        """A chunk ends with its episode, and where the interlock held the arm."""
        self.schedule.cut(steps.done > 0)
        if steps.held is not None:
            self.schedule.cut(steps.held)


class EpisodeAccumulator:
    """Gathers the steps of N environments into whole episodes."""

    def __init__(self, size: int) -> None:
        self.steps: list[list[tuple[Arrays, tuple[np.ndarray, ...]]]] = [[] for _ in range(size)]

    def add(self, before: Arrays, actions: np.ndarray, result: Steps, *remarks: np.ndarray
            ) -> Iterator[tuple[Trajectory, list[np.ndarray]]]:
        """Take in one step of each, and remarks (N, ...) on it; yields the episodes that ended, with theirs (T, ...)."""
        for index, episode in enumerate(self.steps):
            episode.append(({name: values[index] for name, values in before.items()},
                            (actions[index], result.reward[index], 1.0 - result.terminated[index],
                             *(np.copy(remark[index]) for remark in remarks))))
            if result.done[index]:
                last = {name: values[index] for name, values in result.next_observations.items()}
                yield self._taken(episode, last, bool(result.success[index]))

    def cut(self, observation: Arrays) -> list[tuple[Trajectory, list[np.ndarray]]]:
        """The episodes that are not over, as if a time limit had ended them, with their remarks.

        Args:
            observation: the newest of each, name to (N, ...).
        """
        return [
            self._taken(episode, {name: values[index] for name, values in observation.items()}, False)
            for index, episode in enumerate(self.steps)
            if episode
        ]

    def _taken(
        self, episode: list[tuple[Arrays, tuple[np.ndarray, ...]]], last: Arrays, success: bool
    ) -> tuple[Trajectory, list[np.ndarray]]:
        """The steps of one, which are taken out, and what was observed after them."""
        observations = [observation for observation, _ in episode] + [last]
        columns = zip(*(values for _, values in episode), strict=True)
        played, rewards, discounts, *noted = (np.array(column) for column in columns)
        episode.clear()
        stacked = {name: np.stack([step[name] for step in observations]) for name in last}
        return Trajectory(stacked, played, rewards, discounts, success=success), noted

    def state_dict(self) -> dict[str, Any]:
        """The episodes that are not over."""
        return {
            str(index): {
                "seen": {
                    name: np.stack([observation[name] for observation, _ in episode])
                    for name in episode[0][0]
                },
                "noted": {
                    str(column): np.array(values)
                    for column, values in enumerate(
                        zip(*(noted for _, noted in episode), strict=True)
                    )
                },
            }
            for index, episode in enumerate(self.steps)
            if episode
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with them."""
        for index, episode in state.items():
            columns = [episode["noted"][str(column)] for column in range(len(episode["noted"]))]
            self.steps[int(index)] = [({name: values[step] for name, values in episode["seen"].items()}, noted)
                                      for step, noted in enumerate(zip(*columns, strict=True))]


def single(actions: np.ndarray) -> ActionChunk:
    """Chunks of one action, from (N, A)."""
    drawn = torch.from_numpy(np.asarray(actions, np.float32))[:, None]
    return ActionChunk(drawn, 1, drawn)
