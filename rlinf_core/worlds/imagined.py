"""A learned world as a vector of environments, with short branches from recorded time steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.rollouts.envs import Steps
from rlinf_core.rollouts.types import Trajectory
from rlinf_core.specs.arrays import Arrays
from rlinf_core.worlds.episodes import Episodes, Windows
from rlinf_core.worlds.frames import check_actions
from rlinf_core.worlds.model import WorldModel, WorldState

SUCCESS_SHARE = 0.5  # share of branches that begin in a successful episode, if there is one


class ImaginedEnv:
    """N branches of a world, each followed by the next: a ``rlinf_core.rollouts.envs.VectorEnv``.

    Args:
        world: the predicting model.
        episodes: branches begin in their time steps; half of them in successful episodes.
        size: N.
        horizon: time steps of a branch; 0 for the world's useful horizon.
        gated: True to limit a branch to the useful horizon, and to end it (like a time limit) if
            the members disagree beyond the world's threshold, or if one of them does not succeed
            with the actions of a success (``WorldModel.confirms``).
        full_episodes: True if branches begin at the beginning of episodes. They follow the mean of
            all members.

    Attributes:
        branch_count: number of branches so far.
        flagged: number of branches in which the members disagreed beyond the world's threshold, or
            about a success.
    """

    auto_reset = True

    def __init__(
        self,
        world: WorldModel,
        episodes: Episodes,
        size: int,
        horizon: int = 0,
        gated: bool = True,
        full_episodes: bool = False,
    ) -> None:
        if world.spec.images:
            raise RecipeError(
                "a learned world predicts numbers: expected a policy without cameras, got "
                f"{', '.join(image.name for image in world.spec.images)}. Leave "
                "station.observe_cameras empty"
            )
        self.world = world
        self.episodes = episodes
        self.spec = world.spec
        self.size = size
        self.horizon, self.gated, self.full_episodes = horizon, gated, full_episodes
        self.flagged = self.branch_count = 0

    @property
    def length(self) -> int:
        """Largest number of time steps of a branch; raises RlinfError if the world is off."""
        if not self.gated:
            return self.horizon
        if self.world.usable:
            return min(self.horizon or self.world.check.horizon, self.world.check.horizon)
        raise RlinfError(
            "a learned world: expected a better prediction than no change, got one whose error "
            "after one time step is more than half of persistence's. Record more episodes, then "
            "`rlinf world fit RUN`; `rlinf world check RUN` shows the errors"
        )

    def reset(self, seeds: Sequence[int]) -> Arrays:
        length = self.length
        self._random = [np.random.default_rng(int(seed)) for seed in seeds]
        self._find_starts()
        self.first = np.zeros(self.size, int)
        self.played = np.zeros((self.size, length, self.spec.action.dim), np.float32)
        self.state = self._start_branches(np.arange(self.size))
        self.age, self.peak = np.zeros(self.size, int), np.zeros(self.size)
        return self._observed()

    def _find_starts(self) -> None:
        """Find the starts of branches: in all episodes, and in the successful ones."""
        self._all_starts = self._starts_in(np.ones(len(self.episodes), bool))
        self._successful_starts = self._starts_in(self.episodes.success)
        if not len(self._all_starts):
            raise RlinfError(
                "a learned world: expected recorded episodes to begin branches in, got none"
            )

    def _starts_in(self, chosen: np.ndarray) -> np.ndarray:
        """Return the time steps of chosen episodes (E,) bool in which a branch may begin."""
        if self.full_episodes:
            return self.episodes.bounds[:-1][chosen]
        return self.episodes.starts(chosen)

    def _start_branches(self, rows: np.ndarray) -> WorldState:
        """Begin the next branch of each row."""
        self.branch_count += len(rows)
        self.first[rows] = [self._sample_start(self._random[row]) for row in rows]
        windows = self.episodes.windows(self.first[rows], self.world.settings.history)
        members = torch.tensor(
            [int(self._random[row].integers(self.world.settings.members)) for row in rows]
        )
        if self.full_episodes:  # the mean errs less over many time steps than one member
            members = torch.full_like(members, -1)
        return self.world.begin(windows, members)

    def _sample_start(self, random: np.random.Generator) -> int:
        """Draw a branch's first time step, half of the time from a successful episode."""
        starts = self._all_starts
        if (
            not self.full_episodes
            and len(self._successful_starts)
            and random.random() < SUCCESS_SHARE
        ):
            starts = self._successful_starts
        return int(starts[random.integers(len(starts))])

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Steps:
        rows = np.arange(self.size) if active is None else np.flatnonzero(active)
        terminated, truncated, success, reward = (np.zeros(self.size) for _ in range(4))
        played, size = np.asarray(actions)[rows], (len(rows), self.spec.action.dim)
        check_actions(played, size, "the policy in a learned world", "Correct the policy")
        before = self._part(rows)
        if self.gated:
            self.played[rows, self.age[rows]] = played
        after, reward[rows], terminated[rows], disagreement = self.world.step(before, played)
        self.age[rows] += 1
        unsure = disagreement > self.world.check.threshold
        self.flagged += int((unsure & (self.peak[rows] <= self.world.check.threshold)).sum())
        self.peak[rows] = np.maximum(self.peak[rows], disagreement)
        cut = unsure & self.gated
        for number in np.flatnonzero([result.success for result in after.results]):
            if self.gated and not cut[number] and not self._confirms(rows[number]):
                cut[number] = True
                self.flagged += int(self.peak[rows[number]] <= self.world.check.threshold)
        terminated[rows] *= ~cut  # a success on which the members disagree does not count
        reward[rows] = np.where(cut, 0.0, reward[rows])
        over = (
            np.array([result.truncated for result in after.results])
            | (self.age[rows] >= self.length)
            | cut
        )
        success[rows] = np.array([result.success for result in after.results]) * ~cut
        truncated[rows] = over & (terminated[rows] == 0.0)
        self._put(rows, after)
        next_observations = self._observed()
        done = (
            np.flatnonzero(np.maximum(terminated, truncated))
            if self.auto_reset
            else np.zeros(0, int)
        )
        if len(done):
            self._put(done, self._start_branches(done))
            self.age[done], self.peak[done] = 0, 0.0
        return Steps(
            next_observations,
            reward,
            terminated,
            truncated,
            success,
            self._observed() if len(done) else next_observations,
        )

    def _confirms(self, row: int) -> bool:
        """Return whether all members succeed with the actions of a branch."""
        windows = self.episodes.windows(self.first[[row]], self.world.settings.history)
        return self.world.confirms(windows, self.played[row, : self.age[row]])

    def _part(self, rows: np.ndarray) -> WorldState:
        state, index = self.state, torch.from_numpy(rows)
        return WorldState(
            state.vectors[index],
            state.actions[index],
            state.members[index],
            state.steps[rows],
            [state.results[row] for row in rows],
        )

    def _put(self, rows: np.ndarray, part: WorldState) -> None:
        state, index = self.state, torch.from_numpy(rows)
        state.vectors[index] = part.vectors
        state.actions[index] = part.actions
        state.members[index] = part.members
        state.steps[rows] = part.steps
        for row, result in zip(rows, part.results, strict=True):
            state.results[row] = result

    def _observed(self) -> Arrays:
        return {"vectors": self.state.vectors[:, -1].numpy().copy()}

    def demonstrations(self) -> list[Trajectory]:
        """Return the real demonstrations that the world was fitted to."""
        episodes = self.episodes
        return [
            episodes.trajectory(index)
            for index in np.flatnonzero(episodes.demonstrations & episodes.success)
        ]

    def expert(self) -> np.ndarray:
        """Raise RecipeError, because there is no expert."""
        raise RecipeError(
            "a learned world has no script for demonstrations: expected recorded ones (rlinf "
            "world fit keeps those of its run)"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each branch."""
        state = self.state
        return {
            "vectors": state.vectors,
            "actions": state.actions,
            "members": state.members,
            "steps": state.steps,
            "age": self.age,
            "first": self.first,
            "played": self.played,
            "peak": self.peak,
            "random": [random.bit_generator.state for random in self._random],
            "looked_done": np.array([result.looked_done for result in state.results]),
            "counted": np.array([self.branch_count, self.flagged]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of each branch."""
        windows = Windows(
            np.array(state["vectors"]), np.array(state["actions"]), np.array(state["steps"])
        )
        self._random = [np.random.default_rng() for _ in state["random"]]
        for random, random_state in zip(self._random, state["random"], strict=True):
            random.bit_generator.state = random_state
        self._find_starts()
        self.state = self.world.begin(windows, torch.from_numpy(np.array(state["members"])))
        for row, looked_done in enumerate(state["looked_done"]):
            self.state.results[row] = replace(self.state.results[row], looked_done=int(looked_done))
        self.age, self.peak = np.array(state["age"]), np.array(state["peak"])
        if "first" in state:
            self.first, earlier = np.array(state["first"]), np.array(state["played"])
            # the world may have another horizon since
            length = max(self.length, earlier.shape[1])
            self.played = np.zeros((self.size, length, self.spec.action.dim), np.float32)
            self.played[:, : earlier.shape[1]] = earlier
        else:  # a checkpoint of an older version: its branches end, and the next ones begin
            self.first = np.zeros(self.size, int)
            self.played = np.zeros((self.size, self.length, self.spec.action.dim), np.float32)
            self._put(np.arange(self.size), self._start_branches(np.arange(self.size)))
            self.age, self.peak = np.zeros(self.size, int), np.zeros(self.size)
        self.branch_count, self.flagged = (int(count) for count in state["counted"])

    def render(self, index: int = 0) -> np.ndarray:
        """Raise RlinfError, because a world predicts numbers."""
        raise RlinfError(
            "a learned world predicts numbers and has no picture. rlinf world check draws its "
            "errors"
        )

    def close(self) -> None:
        """Do nothing, because nothing was started."""
