"""One episode as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_core.interlock.takeover import takeover


@dataclass(frozen=True)
class PlayedChunks:
    """The D chunks of the policy that were played in an episode of T transitions, in their order.

    A chunk counts if its first action was played in the time step that it answers, with nobody else
    commanding. A chunk that came too late, or was never played, does not count; its time steps
    belong to no chunk.

    Attributes:
        starts: (D,) the time step that each answers.
        lengths: (D,) number of its actions played, 1 to ``execute``. Playing ends when the next
            chunk begins, somebody else commands, the arm is held or the episode ends.
        execute: number of a chunk's actions that are meant to be played.
        drawn: (D, L) float32, the draw behind each chunk: its actions as drawn, one after another,
            or latent noise.
        log_probs: (D, execute) of those actions, (D, 1) of the whole draw, or None if the policy
            recorded none.
        versions: (D,) version of the policy that made each.
    """

    starts: np.ndarray
    lengths: np.ndarray
    execute: int
    drawn: np.ndarray
    log_probs: np.ndarray | None
    versions: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def chunk_starts(self, length: int) -> np.ndarray:
        """Return a mask (T,) of the time steps at which a chunk began.

        Args:
            length: number of time steps T.
        """
        return np.isin(np.arange(length), self.starts)

    def latents(self, length: int) -> np.ndarray:
        """Return the noise drawn for the chunk of each time step, (T, L); zeros without a chunk."""
        latents = np.zeros((length, self.drawn.shape[1]), np.float32)
        latents[self.starts] = self.drawn
        return latents


@dataclass(frozen=True)
class Episode:
    """T transitions between T + 1 time steps.

    Attributes:
        observations: name to (T + 1, ...) arrays, in the station's specs' shapes and dtypes.
        requested: (T, A) requested actions, SI units.
        executed: (T, A) set-point motion that the interlock allowed, SI units.
        success, failure, truncated: how it ended: the task was done, could not be done any more, or
            ran out of time.
        sources: commander of each transition: policy, operator, or "" without one.
        instructions: (T + 1,) the instruction at each time step; the operator may change it within
            an episode.
        limits: names of the limits active in each transition.
        rewards: (T,).
        discounts: (T,); 0 at the end of the task, 1 otherwise, a time limit included.
        stamps_ns: (T + 1,) times of the time steps.
        arms: their names, sorted, if the station has several.
        chunks: the policy's chunks with their draws; None without recorded draws, like in
            demonstrations and old recordings.

    Example:
        >>> episode = read_episode("tests/previous_version/station_a-1")
        >>> isinstance(episode, Episode), episode.executed.shape
        (True, (5, 3))
    """

    id: str
    station: str
    mode: str
    seed: int
    success: bool
    failure: bool
    truncated: bool
    policy_version: int
    spec_hash: str
    limits_hash: str
    instructions: tuple[str, ...]
    observations: dict[str, np.ndarray]
    requested: np.ndarray
    executed: np.ndarray
    sources: tuple[str, ...]
    limits: tuple[tuple[str, ...], ...]
    rewards: np.ndarray
    discounts: np.ndarray
    stamps_ns: np.ndarray
    chunks: PlayedChunks | None = None
    arms: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def instruction(self) -> str:
        """The first instruction."""
        return self.instructions[0]

    @property
    def takeovers(self) -> np.ndarray:
        """The takeover state in each transition (T,), as numbers of
        ``interlock.takeover.Takeover``.
        """
        return np.array([takeover(source) for source in self.sources], int)
