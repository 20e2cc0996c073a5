"""Move a learner's weights and moments off its device while rollouts need the memory.

Each tensor is copied to host memory (pinned for CUDA), and its memory on the device is freed.
No tensor is on the device twice. On a CPU, tensors move between two places of host memory: this
tests the results, and frees nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import RecipeError

if TYPE_CHECKING:
    from rlinf_core.algorithms.common.data_parallel import HasOptimisers


class Offload:
    """Moves a learner off its device and back.

    Args:
        learner: the learner, with modules and optimisers.
        resident: a module that stays, because rollouts in the same process use it; None for none.

    Raises:
        RecipeError: at the first move, if a weight is sharded.
    """

    def __init__(self, learner: HasOptimisers, resident: nn.Module | None = None) -> None:
        self.learner, self.resident = learner, resident
        self.stored: list[tuple[Tensor, Tensor]] = []  # on the device, and its copy in host memory

    def off(self) -> int:
        """Free the device; return the bytes that left it. A second call changes nothing."""
        if self.stored:
            return 0
        moved: dict[int, Tensor] = {}
        for tensor in self._tensors():
            if hasattr(tensor, "device_mesh"):
                raise RecipeError(
                    "placement.offload: expected placement.strategy ddp, got fsdp, whose "
                    "weights are sharded. Set placement.strategy to ddp"
                )
            moved.setdefault(id(tensor), tensor)
        for tensor in moved.values():
            copy = torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
            )
            copy.copy_(tensor.detach())
            self.stored.append((tensor, copy))
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        if any(tensor.is_cuda for tensor, _ in self.stored):
            torch.cuda.empty_cache()  # for other processes on the device
        return sum(copy.nbytes for _, copy in self.stored)

    def on(self) -> int:
        """Bring everything back; return the bytes. Without a move before, nothing changes."""
        size = 0
        for tensor, copy in self.stored:
            tensor.data = copy.to(tensor.device)
            size += copy.nbytes
        self.stored = []
        return size

    def _tensors(self) -> Iterator[Tensor]:
        stays = (
            set()
            if self.resident is None
            else {id(tensor) for tensor in (*self.resident.parameters(), *self.resident.buffers())}
        )
        for module in self.learner.modules.values():
            for tensor in (*module.parameters(), *module.buffers()):
                if id(tensor) not in stays:
                    yield tensor
        for optimiser in self.learner.optimisers.values():
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            for entry in optimiser.state.values():
                yield from (
                    value for value in entry.values() if isinstance(value, Tensor) and value.ndim
                )
