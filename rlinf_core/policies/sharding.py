"""A process's part of a batch if several learn as one (``rlinf_core.trainer.distributed.group``).

Every process gets the whole batch and keeps every N-th row. The first half of a batch is therefore
in the first half of each shard. Gradients and metrics are averaged over the processes. A mean over
shards of equal size needs nothing more. With one process, these functions do nothing. Processes
that divide the layers among them (tensor parallelism) count as one here and keep the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

_AVAILABLE = dist.is_available()  # cached, because each step needs it
Rows = TypeVar("Rows", Tensor, np.ndarray)
# the processes with other rows than this one; None if all have
_group: dist.ProcessGroup | None = None


def set_group(group: dist.ProcessGroup | None) -> None:
    """Set the processes that divide the rows of a batch; None for all processes."""
    global _group
    _group = group


def world_size() -> int:
    """Return the number of processes that divide the rows of a batch."""
    return dist.get_world_size(_group) if _AVAILABLE and dist.is_initialized() else 1


def shard(values: Rows, dim: int = 0) -> Rows:
    """Return this process's rows of the whole batch."""
    size = world_size()
    if size == 1:
        return values
    rows = (*[slice(None)] * dim, slice(dist.get_rank(_group), None, size))
    return values[rows]


def noise(
    draw: Callable[..., Tensor],
    shape: Sequence[int],
    generator: torch.Generator | None,
    device: torch.device,
    dim: int = 0,
) -> Tensor:
    """Return random numbers of this shape for a shard: those that one process would draw for it.

    Args:
        draw: torch.randn, torch.rand, ...
        shape: shape of the shard.
        generator: equal in all processes; each draws for the whole batch and keeps its rows.
        device: device of the numbers.
        dim: dimension of the rows.
    """
    processes = world_size()
    if processes == 1:
        return draw(tuple(shape), generator=generator, device=device)
    full_shape = [size * processes if axis == dim else size for axis, size in enumerate(shape)]
    return shard(draw(full_shape, generator=generator, device=device), dim)


def all_sum(values: Tensor) -> Tensor:
    """Sum over the processes; gradients flow back to all of them."""
    if world_size() == 1:
        return values
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(values, group=_group or dist.group.WORLD)


def gather_rows(values: Tensor) -> Tensor:
    """Gather the values (B,) of the complete batch from all processes, without gradients."""
    size = world_size()
    if size == 1:
        return values
    rows = values.new_zeros(size * len(values))
    rows[dist.get_rank(_group) :: size] = values.detach()
    return all_sum(rows)


def mean(values: Tensor) -> Tensor:
    """Return the mean over all elements of all shards, once the processes' results are averaged.

    The shards may be of unequal size.
    """
    if world_size() == 1:
        return values.mean()
    return (
        values.sum()
        * world_size()
        / all_sum(torch.tensor(float(values.numel()), device=values.device))
    )
