"""Action units: a network's numbers to a task's, [-1, 1] over its scales, and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlinf_core.specs.arrays import ActionSpec


class ActionUnits(nn.Module):
    """Units of actions: a network's numbers to a task's, [-1, 1] over its scales, and back.

    A constant of the data set keeps its value, whatever the network's output; its learning target
    is 0.

    Args:
        action: the task's action spec.
        given: True if a checkpoint's statistics set the units; else both are the same.
    """

    offset: Tensor
    gain: Tensor

    def __init__(self, action: ActionSpec, given: bool) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(action.dim), persistent=given)
        self.register_buffer("gain", torch.ones(action.dim), persistent=given)

    def played(self, numbers: Tensor) -> Tensor:
        """Convert a network's numbers (..., A) to normalised actions, clipped to their range."""
        return (self.offset + self.gain * numbers).clamp(-1.0, 1.0)

    def to_network(self, actions: Tensor) -> Tensor:
        """Convert normalised actions (..., A) to a network's numbers."""
        constant = self.gain == 0.0
        return ((actions - self.offset) / (self.gain + constant)).masked_fill(constant, 0.0)
