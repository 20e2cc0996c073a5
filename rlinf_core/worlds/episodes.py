"""Recorded episodes for learned worlds, and windows cut out of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlinf_core.core.errors import RlinfError, SpecError
from rlinf_core.rollouts.types import DEMONSTRATION, EVALUATE, IMAGINED, TRAIN, Trajectory
from rlinf_core.worlds.frames import check_actions

HELD_OUT_EVERY = 10  # one episode in this many is held out


@dataclass(frozen=True)
class Windows:
    """N recorded time steps, each with its past.

    Attributes:
        vectors: (N, H, V), the time step's own last; the first one is repeated before an episode's
            beginning.
        actions: (N, H - 1, A) between them; 0 before the beginning.
        steps: (N,) time steps since the episode began.
    """

    vectors: np.ndarray
    actions: np.ndarray
    steps: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)


class Episodes:
    """E episodes, one after another.

    Attributes:
        vectors: (N, V) float32, all observations.
        actions: (N, A) float32 normalised; 0 at each episode's last observation.
        bounds: (E + 1,) beginning of each episode, and the end.
        success: (E,) True for successful episodes.
        demonstrations: (E,) True for demonstrations.
    """

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self.vectors = self.actions = np.zeros((0, 0), np.float32)
        self.bounds = np.zeros(1, int)
        self.success = np.zeros(0, bool)
        self.demonstrations = np.zeros(0, bool)
        self.extend(trajectories)

    def extend(self, trajectories: Iterable[Trajectory]) -> None:
        """Add real episodes.

        Raises:
            SpecError: one was imagined, or played to judge a policy.
            RlinfError: one has damaged numbers; the message names it.
        """
        new = list(trajectories)
        for trajectory in new:
            if trajectory.mode in (IMAGINED, EVALUATE):
                raise SpecError(
                    f"a learned world: expected real episodes for training, got '{trajectory.mode}'"
                )
        new = [trajectory for trajectory in new if len(trajectory)]
        if not new:
            return
        first = self if len(self.vectors) else new[0]
        vectors_so_far = self.vectors if len(self.vectors) else new[0].observations["vectors"]
        sizes = vectors_so_far.shape[1:], first.actions.shape[1:]
        for number, trajectory in enumerate(new):
            _check(trajectory, number, *sizes)
        vectors = [trajectory.observations["vectors"].astype(np.float32) for trajectory in new]
        actions = [
            np.concatenate([trajectory.actions, np.zeros_like(trajectory.actions[:1])]).astype(
                np.float32
            )
            for trajectory in new
        ]
        before = bool(len(self.vectors))
        self.vectors = np.concatenate([self.vectors, *vectors] if before else vectors)
        self.actions = np.concatenate([self.actions, *actions] if before else actions)
        ends = self.bounds[-1] + np.cumsum([len(part) for part in vectors])
        self.bounds = np.concatenate([self.bounds, ends])
        self.success = np.append(self.success, [trajectory.success for trajectory in new])
        self.demonstrations = np.append(
            self.demonstrations, [trajectory.mode == DEMONSTRATION for trajectory in new]
        )

    def __len__(self) -> int:
        return len(self.success)

    @property
    def steps(self) -> int:
        """Number of transitions of all episodes."""
        return int(self.bounds[-1]) - len(self)

    @property
    def held_out(self) -> np.ndarray:
        """Mask (E,) of episodes kept from fitting: every tenth, or the last if there are fewer."""
        numbers = np.arange(len(self))
        return numbers % HELD_OUT_EVERY == min(HELD_OUT_EVERY, max(len(self), 2)) - 1

    def starts(self, episodes: np.ndarray, following: int = 1) -> np.ndarray:
        """Return the indices of observations with enough recorded transitions after them.

        Args:
            episodes: (E,) mask of the episodes.
            following: number of transitions.
        """
        chosen = [
            np.arange(self.bounds[index], self.bounds[index + 1] - following)
            for index in np.flatnonzero(episodes)
        ]
        return np.concatenate(chosen) if chosen else np.zeros(0, int)

    def windows(self, index: np.ndarray, history: int) -> Windows:
        """Return the windows that end at these observations (N,)."""
        first = self._first(index)
        before = index[:, None] + np.arange(1 - history, 1)
        played = before[:, :-1]
        actions = np.where(
            (played >= first[:, None])[..., None],
            self.actions[np.maximum(played, 0)],
            np.float32(0.0),
        )
        return Windows(self.vectors[np.maximum(before, first[:, None])], actions, index - first)

    def following(self, index: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the next actions (N, count, A) and the observations after them (N, count, V)."""
        after = index[:, None] + np.arange(count)
        return self.actions[after], self.vectors[after + 1]

    def trajectory(self, index: int) -> Trajectory:
        """Return one episode; its rewards are those of success."""
        part = slice(self.bounds[index], self.bounds[index + 1])
        length, success = int(part.stop - part.start) - 1, bool(self.success[index])
        rewards, discounts = np.zeros(length, np.float32), np.ones(length, np.float32)
        if success:
            rewards[-1], discounts[-1] = 1.0, 0.0
        mode = DEMONSTRATION if self.demonstrations[index] else TRAIN
        return Trajectory(
            {"vectors": self.vectors[part]},
            self.actions[part][:-1],
            rewards,
            discounts,
            success,
            mode,
        )

    def _first(self, index: np.ndarray) -> np.ndarray:
        """Return the beginning of each observation's episode, (N,)."""
        return self.bounds[np.searchsorted(self.bounds, index, side="right") - 1]


def _check(
    trajectory: Trajectory, number: int, vectors: tuple[int, ...], actions: tuple[int, ...]
) -> None:
    """Raise RlinfError if an episode's numbers are not finite or not of these sizes (V,), (A,)."""
    name = f"a learned world: episode {trajectory.id or number}"
    remedy = "Leave this episode out, or record it again"
    check_actions(trajectory.actions, (len(trajectory), *actions), name, remedy)
    observed = trajectory.observations["vectors"]
    if observed.shape != (len(trajectory) + 1, *vectors):
        raise RlinfError(
            f"{name}: expected observations of shape {(len(trajectory) + 1, *vectors)}, got "
            f"{observed.shape}. {remedy}"
        )
    if not np.isfinite(observed).all():
        row = int(np.flatnonzero(~np.isfinite(observed).all(1))[0])
        raise RlinfError(
            f"{name}: expected finite observations, got {observed[row].tolist()} at time step "
            f"{row}. {remedy}"
        )
