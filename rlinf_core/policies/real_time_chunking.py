"""Real-time chunking: a new chunk continues the last one, by in-painting the begun actions.

Black, Galliker, Levine 2025, arXiv 2506.07339: the last chunk goes on while the next one is
computed. The actions that will have begun by then are given, like the pixels around a hole, and the
flow is guided to them. Each step is corrected by the gradient of the distance between its predicted
actions and the given ones (PiGDM, Song et al. 2023; Pokle et al. 2023, arXiv 2310.04432).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlinf_core.policies.chunking import continuation_weights

STRONGEST = 5.0  # limit of the guidance; beyond it, few steps overshoot (section IV of the paper)


@dataclass(frozen=True)
class Continuation:
    """The actions in play at the time steps of the next chunks of B stations.

    Attributes:
        actions: (B, H, A) normalised, in [-1, 1]; arbitrary if the weight is 0.
        weights: (B, H) 1 for actions that will have begun, then falling, 0 without a planned
            action.
    """

    actions: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, left: np.ndarray, frozen: int, horizon: int, device: torch.device | str = "cpu"
    ) -> Continuation:
        """Build the continuation of one station.

        Args:
            left: (L, A) the remaining actions of its last chunk.
            frozen: number of them that will have begun.
            horizon: H, the length of the next chunk.
            device: device of the tensors.
        """
        left = left[:horizon]
        actions = np.zeros((1, horizon, left.shape[1]), np.float32)
        weights = np.zeros((1, horizon), np.float32)
        actions[0, : len(left)], weights[0, : len(left)] = (
            left,
            continuation_weights(len(left), frozen),
        )
        return cls(torch.from_numpy(actions).to(device), torch.from_numpy(weights).to(device))


def guide_velocity(
    velocity: Callable[[Tensor], Tensor], point: Tensor, time: float, goal: Tensor, weights: Tensor
) -> Tensor:
    """Return the velocity da/dt (B, H, M) at ``point`` and ``time``, guided to a goal.

    Time 1 is noise, 0 an action. From here the flow leads in one step to a = x - t v. This is drawn
    to the goal by the gradient of |W^(1/2) (goal - a)|^2 / 2, times min(5, (t^2 + (1 - t)^2) / (t
    (1 - t))) (equations 2 to 4, with their time 1 - t).

    Args:
        velocity: the flow's velocity at a point.
        point: (B, H, M).
        time: time of the step.
        goal: (B, H, M).
        weights: (B, H, M); 0 without a goal.
    """
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        flow = velocity(point)
        reached = point - time * flow
        off = (weights * (goal - reached)).detach()
        (pull,) = torch.autograd.grad(reached, point, off)
    most = (
        STRONGEST
        if time >= 1.0
        else min(STRONGEST, (time**2 + (1.0 - time) ** 2) / (time * (1.0 - time)))
    )
    return flow.detach() - most * pull
