"""Playing policies in vectors of environments: chunk after chunk, episodes kept whole, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlinf_core.errors import RlinfError
from rlinf_core.policies.chunks import ChunkSchedule
from rlinf_core.policies.policy import ActionChunk, Observation, Policy
from rlinf_core.replay import ReplayBuffer
from rlinf_core.training.vector import Arrays, Steps, VectorEnv

Decide = Callable[[Observation], ActionChunk]


@dataclass(frozen=True)
class Episode:
    """What came of one episode: its scene, whether it succeeded or failed (or neither: it was cut off by time), its
    undiscounted return and its time steps."""

    scene: int
    success: bool
    failure: bool
    value: float
    steps: int

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        return "success" if self.success else "failure" if self.failure else "time limit"


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

        Afterwards ``decided`` (N,) says for which a chunk was made, and ``drawn`` (N, ...) holds what that was made of.
        """
        self.decided = self.schedule.due
        asked = np.flatnonzero(self.decided)
        if len(asked):
            seen = {name: values[asked] for name, values in observation.items()}
            chunk = self.decide(Observation.of_arrays(self.env.spec, seen, self.device))
            actions, drawn = chunk.actions.numpy(force=True), chunk.drawn.flatten(1).numpy(force=True)
            if not self.actions.size:
                self.actions = np.zeros((self.env.size, *actions.shape[1:]), np.float32)
                self.drawn = np.zeros((self.env.size, *drawn.shape[1:]), np.float32)
            self.actions[asked], self.drawn[asked] = actions, drawn
            self.schedule.decided(asked)
        played = self.actions[np.arange(self.env.size), self.schedule.index]
        self.schedule.advance()
        return played

    def after(self, steps: Steps) -> None:
        """A chunk ends with its episode, and where the interlock held the arm."""
        self.schedule.cut(steps.ended > 0)
        if steps.held is not None:
            self.schedule.cut(steps.held)


class Episodes:
    """Gathers the steps of N environments into whole episodes."""

    def __init__(self, size: int) -> None:
        self.steps: list[list[tuple]] = [[] for _ in range(size)]

    def add(self, before: Arrays, actions: np.ndarray, result: Steps, *remarks: Sequence) -> Iterator[tuple]:
        """Take in one step of each; yields (index, observations, actions, rewards, discounts, *remarks) of what ended."""
        for index, episode in enumerate(self.steps):
            episode.append(({name: values[index] for name, values in before.items()}, actions[index], result.reward[index],
                            1.0 - result.terminated[index], *(np.copy(remark[index]) for remark in remarks)))
            if result.ended[index]:
                last = {name: values[index] for name, values in result.following.items()}
                seen = [step[0] for step in episode] + [last]
                arrays = [np.array(column) for column in list(zip(*episode, strict=True))[1:]]
                episode.clear()
                yield index, {name: np.stack([arrays_[name] for arrays_ in seen]) for name in last}, *arrays


def evaluate(env: VectorEnv, policy: Policy, scenes: Sequence[int], watch: Callable[[], None] = lambda: None
             ) -> list[Episode]:
    """One episode of every scene, without exploring; of each chunk, ``policy.config.executed`` actions are played.

    ``watch`` is called before every time step.
    """
    return play(env, lambda observation: policy.act(observation, explore=False), policy.config.executed, scenes, watch,
                policy.device)


def play(env: VectorEnv, decide: Decide, execute: int, scenes: Sequence[int], watch: Callable[[], None] = lambda: None,
         device: torch.device | str = "cpu") -> list[Episode]:
    """One episode of every scene by ``decide``, as in ``Chunks``."""
    results = []
    for start in range(0, len(scenes), env.size):
        group = list(scenes[start:start + env.size])
        observation = env.reset(group + group[:1] * (env.size - len(group)))
        chunks, zero = Chunks(env, decide, execute, device), np.zeros(env.size)
        returns, lengths, ended, solved, failed = (zero.copy() for _ in range(5))
        while not ended[:len(group)].all():
            watch()
            steps = env.step(chunks.next(observation))
            returns += steps.reward * (1 - ended)
            solved = np.maximum(solved, steps.success * (1 - ended))
            failed = np.maximum(failed, steps.failure * (1 - ended))
            lengths += 1 - ended
            ended = np.maximum(ended, steps.ended)
            chunks.after(steps)
            observation = steps.observation
        results += [Episode(scene, bool(solved[i]), bool(failed[i]), float(returns[i]), int(lengths[i]))
                    for i, scene in enumerate(group)]
    return results


def single(actions: np.ndarray) -> ActionChunk:
    """Chunks of one action, from (N, A)."""
    drawn = torch.from_numpy(np.asarray(actions, np.float32))[:, None]
    return ActionChunk(drawn, 1, drawn)


def demonstrate(env: VectorEnv, replay: ReplayBuffer, episodes: int, first_scene: int) -> int:
    """Record so many successful episodes of the task's script; returns how many were tried.

    Raises:
        RlinfError: too few of them succeed.
    """
    observation, gather = env.reset(range(first_scene, first_scene + env.size)), Episodes(env.size)
    tried, begun = 0, replay.episodes
    while replay.episodes < begun + episodes:
        actions = env.expert()
        result = env.step(actions)
        for _, observations, taken, rewards, discounts, success in gather.add(observation, actions, result, result.success):
            tried += 1
            if success[-1] and replay.episodes < begun + episodes:
                replay.insert_episode(observations, taken, rewards, discounts)
        observation = result.observation
        solved = replay.episodes - begun
        if tried >= 20 and solved < tried // 10:
            raise RlinfError(f"demonstrations: the task's script solved {solved} of {tried} episodes; expected one in ten "
                             "at least. Is it the script of this task (its file's 'script')?")
    return tried
