"""The data of a rollout, for on-policy learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.encoder import Batch


@dataclass
class Rollout:
    """T action chunks of N environments, each with the E actions played before the next one.

    Attributes:
        observations: name to (T, N, ...).
        next_observations: observations after the chunk, before any reset.
        actions: as drawn, (T, N, E, A).
        log_probs: under the policy that drew them, (T, N, E); or of the K tokens of each,
            (T, N, E K).
        step_rewards: of every time step, 0 after the episode's end, (T, N, E).
        steps: number of played time steps, E unless the episode ended or the arm was held before,
            (T, N).
        terminated: 1 if the task ended, (T, N).
        done: 1 if terminated, or cut off by time, (T, N).
        mask: 0 after an environment's only episode, (T, N).
        versions: version of the policy that drew them, (T, N).
        counted: 1 for the elements that the policy drew, in the shape of ``log_probs``; None if
            these are the first ``steps`` of each chunk. In a conversation, tokens of tools stand
            between them.
        episode: number of each environment's episode, (N,), counted from 0; None if each
            environment has a separate one. Several rows of a conversation (a rewritten history, a
            sub-agent) belong to one episode.
    """

    observations: Batch
    next_observations: Batch
    actions: Tensor
    log_probs: Tensor
    step_rewards: Tensor
    steps: Tensor
    terminated: Tensor
    done: Tensor
    mask: Tensor
    versions: Tensor
    counted: Tensor | None = None
    episode: Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors by name, those of observations one level below."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Rollout:
        """Build a rollout from the result of ``state_dict``, of tensors or of arrays."""

        def tensors(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: torch.as_tensor(part) for name, part in value.items()}
            return torch.as_tensor(value)

        return cls(**{name: tensors(value) for name, value in state.items()})

    @property
    def rewards(self) -> Tensor:
        """Undiscounted reward of each chunk, (T, N)."""
        return self.step_rewards.sum(dim=-1)

    def discounted_rewards(self, gamma: float) -> Tensor:
        """Return sum_i gamma^i r_i over the time steps of each chunk, (T, N)."""
        return (self.step_rewards * gamma**self._step_index).sum(dim=-1)

    @property
    def _step_index(self) -> Tensor:
        return torch.arange(self.step_rewards.shape[-1], device=self.step_rewards.device)

    @property
    def executed(self) -> Tensor:
        """1 for played actions, or their tokens, in the shape of ``log_probs``."""
        if self.counted is not None:
            return self.counted
        played = (self._step_index < self.steps.unsqueeze(-1)).float()
        return played.repeat_interleave(self.log_probs.shape[-1] // played.shape[-1], dim=-1)

    @property
    def returns(self) -> Tensor:
        """Undiscounted return of each episode, (M,): one per environment unless rows share one."""
        return self.per_episode((self.rewards * self.mask).sum(dim=0))

    def per_episode(self, values: Tensor) -> Tensor:
        """Return sums (M,) over the rows of each episode, of values (N,) of rows."""
        if self.episode is None:
            return values
        sums = values.new_zeros(int(self.episode.max()) + 1)
        return sums.index_add(0, self.episode, values)

    def per_row(self, values: Tensor) -> Tensor:
        """Return the value of each row's episode, (N,), of values (M,) of episodes."""
        return values if self.episode is None else values[self.episode]

    def to(self, device: torch.device) -> Rollout:
        """Return the same rollout on another device."""
        return combine([self], lambda parts: parts[0].to(device))

    def concatenate(self, other: Rollout) -> Rollout:
        """Return the environments of both; the shorter is padded with chunks without weight."""
        length = max(len(self.mask), len(other.mask))

        def pad_and_join(parts: list[Tensor]) -> Tensor:
            return torch.cat(
                [F.pad(part, [0, 0] * (part.ndim - 1) + [0, length - len(part)]) for part in parts],
                dim=1,
            )

        parts = [self, other]
        if self.counted is not None and other.counted is not None:
            longest = max(self.log_probs.shape[-1], other.log_probs.shape[-1])
            parts = [part._pad_elements(longest) for part in parts]
        episodes = None
        if self.episode is not None and other.episode is not None:
            episodes = torch.cat([self.episode, other.episode + self.episode.max() + 1])
        return replace(
            combine([replace(part, episode=None) for part in parts], pad_and_join), episode=episodes
        )

    def _pad_elements(self, longest: int) -> Rollout:
        """Pad each chunk to ``longest`` elements of one number; the new ones do not count."""
        more = longest - self.log_probs.shape[-1]
        filled: dict[str, Any] = {
            name: F.pad(getattr(self, name), [0, more])
            for name in ("log_probs", "step_rewards", "counted")
        }
        return replace(self, actions=F.pad(self.actions, [0, 0, 0, more]), **filled)


def combine(rollouts: Sequence[Rollout], join: Callable[[list[Tensor]], Tensor]) -> Rollout:
    """Return one rollout whose tensors are joined from those of several."""

    def combine_field(values: list[Any]) -> Any:
        if values[0] is None:
            return None
        if isinstance(values[0], dict):
            return {key: join([value[key] for value in values]) for key in values[0]}
        return join(values)

    return Rollout(
        **{
            item.name: combine_field([getattr(rollout, item.name) for rollout in rollouts])
            for item in fields(Rollout)
        }
    )
