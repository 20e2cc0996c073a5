"""Real-time chunking: a new chunk continues the last one, by in-painting the begun actions.

Black, Galliker, Levine 2025, arXiv 2506.07339. The robot plays the last chunk while the policy
computes the next one. The next chunk must begin with the actions that are played meanwhile. The
flow is therefore guided to them, like in-painting is guided to the pixels around a hole. Each step
is corrected by the gradient of the distance between its predicted actions and those (PiGDM, Song et
al. 2023; Pokle et al. 2023, arXiv 2310.04432).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlinf_core.policies.chunking import continuation_weights

# limit of the guidance; a stronger one overshoots with few steps (section IV of the paper)
MAX_GUIDANCE = 5.0


@dataclass(frozen=True)
class Continuation:
    """The actions in play at the time steps of the next chunks of B stations.

    Attributes:
        actions: (B, H, A) normalised, in [-1, 1]; arbitrary where the weight is 0.
        weights: (B, H), 1 for actions that begin before the chunk arrives, then falling, 0 behind
            the last chunk's end.
    """

    actions: Tensor
    weights: Tensor

    @classmethod
    def from_remaining(
        cls, remaining: np.ndarray, frozen: int, horizon: int, device: torch.device | str = "cpu"
    ) -> Continuation:
        """Build the continuation of one station.

        Args:
            remaining: (L, A) the remaining actions of its last chunk.
            frozen: number of them that begin before the next chunk arrives.
            horizon: H, the length of the next chunk.
            device: device of the tensors.
        """
        remaining = remaining[:horizon]
        count = len(remaining)
        actions = np.zeros((1, horizon, remaining.shape[1]), np.float32)
        weights = np.zeros((1, horizon), np.float32)
        actions[0, :count] = remaining
        weights[0, :count] = continuation_weights(count, frozen)
        return cls(torch.from_numpy(actions).to(device), torch.from_numpy(weights).to(device))


def guide_velocity(
    velocity: Callable[[Tensor], Tensor], point: Tensor, time: float, goal: Tensor, weights: Tensor
) -> Tensor:
    """Return the velocity da/dt (B, H, M) at ``point`` and ``time``, guided to a goal.

    Time 1 is noise, 0 an action. One step from here leads to a = x - t v. The gradient of
    |W^(1/2) (goal - a)|^2 / 2, times min(5, (t^2 + (1 - t)^2) / (t (1 - t))), pulls a to the goal
    (equations 2 to 4, with their time 1 - t).

    Args:
        velocity: the flow's velocity at a point.
        point: (B, H, M).
        time: time of the step.
        goal: (B, H, M).
        weights: (B, H, M); 0 without a goal.
    """
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        free_velocity = velocity(point)
        predicted = point - time * free_velocity
        error = (weights * (goal - predicted)).detach()
        (pull,) = torch.autograd.grad(predicted, point, error)
    guidance = MAX_GUIDANCE
    if time < 1.0:
        guidance = min(guidance, (time**2 + (1.0 - time) ** 2) / (time * (1.0 - time)))
    return free_velocity.detach() - guidance * pull
