"""Trajectories, and the interface of sources of experience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlinf_core.algorithms.common.settings import RolloutLength

if TYPE_CHECKING:
    from rlinf_core.algorithms.common.rollout import Rollout

DEMONSTRATION = "demonstration"
TRAIN = "train"
EVALUATE = "evaluate"
IMAGINED = "imagined"


@dataclass(frozen=True)
class Trajectory:
    """An episode as training data: T transitions between T + 1 time steps.

    Attributes:
        observations: ``vectors`` (T + 1, V) and images by name (T + 1, H, W, 3).
        actions: (T, A) normalised.
        rewards: (T,).
        discounts: (T,); 0 where the task ended.
        success: whether the task succeeded.
        mode: DEMONSTRATION, TRAIN, EVALUATE, or IMAGINED for branches of a learned world.
        sources: commander of each transition: "policy", "operator" or "" for none.
        version: version of the policy.
        chunk_starts: (T,) whether a chunk began, for policies that learn latent noise.
        latents: (T, L) latent noise of the chunks of such policies.
        rollout: chunks for on-policy algorithms, if the policy has log-probabilities.
        id: identifier of the recording.
        station: station of the recording.
        interlock: fraction of the time steps without operator in which the interlock limited the
            action or held the arm.
    """

    observations: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    success: bool
    mode: str = TRAIN
    sources: Sequence[str] = ()
    version: int = 0
    chunk_starts: np.ndarray | None = None
    latents: np.ndarray | None = None
    rollout: Rollout | None = None
    id: str = ""
    station: str = ""
    interlock: float = 0.0

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def steps_to_chunk_end(self) -> np.ndarray:
        """(T,) time steps until the next chunk begins or the policy loses the command."""
        is_end = np.array(
            [source != "policy" for source in self.sources] or np.zeros(len(self)), bool
        )
        if self.chunk_starts is not None:
            is_end = is_end | self.chunk_starts
        ends = np.append(np.flatnonzero(is_end), len(self))
        steps = np.arange(len(self))
        return ends[np.searchsorted(ends, steps, side="right")] - steps

    def part(self, steps: slice) -> Trajectory:
        """Return a part of the time steps. It is truncated unless it includes the end."""
        after = slice(steps.start, steps.stop + 1)
        starts, latents = self.chunk_starts, self.latents
        return replace(
            self,
            observations={name: values[after] for name, values in self.observations.items()},
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            discounts=self.discounts[steps],
            sources=self.sources[steps],
            chunk_starts=None if starts is None else starts[steps],
            latents=None if latents is None else latents[steps],
            rollout=None,
        )

    def split_at_takeovers(self) -> list[Trajectory]:
        """Split the episode at each takeover by a person.

        The part before a takeover ends as a failure.
        """
        commanded = [
            (step, source)
            for step, source in enumerate(self.sources)
            if source in ("policy", "operator")
        ]
        cuts = [
            step + 1
            for (step, source), (_, next_source) in pairwise(commanded)
            if (source, next_source) == ("policy", "operator")
        ]
        parts = [self.part(slice(start, stop)) for start, stop in pairwise([0, *cuts, len(self)])]
        failed = [
            replace(part, discounts=np.append(part.discounts[:-1], np.float32(0.0)))
            for part in parts[:-1]
        ]
        return failed + parts[-1:]


@dataclass
class Experience:
    """New experience of a source: episodes, rollouts, and the number of their time steps."""

    trajectories: list[Trajectory] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    steps: int = 0


class Source(Protocol):
    """A source of experience (``rlinf_core.trainer.sources``).

    Attributes:
        asynchronous: it continues during updates and decides by itself how much it plays.
        report: status of the run that it reports to stations.
    """

    asynchronous: bool
    report: dict[str, Any]

    def demonstrate(self) -> Experience:
        """Return the recipe's demonstrations; empty if the source cannot make them."""
        return Experience()

    def take(self, updates: int, length: RolloutLength) -> Experience:
        """Return new experience. A synchronous source plays the length ``length``."""
        ...

    def counts(self) -> dict[str, float]:
        """Return further counters."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from; empty if it is kept elsewhere, as at stations."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``."""
        return None

    def close(self) -> None:
        """Close the source."""
        ...
