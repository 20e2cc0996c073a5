"""Embeddings whose table stays in parts: each access to the weight gathers it, for FSDP2.

A module that shares the weight (a tied head) gathers it in the same way. FSDP2 itself cannot shard
a weight with two owners alone, and not one that other modules read without a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard_tables(module: nn.Module, large: int, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Divide the rows of large embeddings among the processes of a mesh; return the parts.

    Args:
        module: its embeddings and all modules that share their weights.
        large: embeddings with this many weights or more are divided.
        mesh: the processes, in one dimension.
    """
    from torch.distributed.tensor import Shard, distribute_tensor

    tables = {
        part.weight
        for part in module.modules()
        if isinstance(part, nn.Embedding) and part.weight.numel() >= large
    }
    parts = {
        table: nn.Parameter(
            distribute_tensor(table.detach(), mesh, [Shard(0)], src_data_rank=None),
            requires_grad=table.requires_grad,
        )
        for table in tables
    }
    for owner in module.modules():
        shared = {
            name: parts[weight]
            for name, weight in owner._parameters.items()
            if weight is not None and weight in parts
        }
        owner._parameters.update(shared)
        if shared:
            _gather_at_access(owner, list(shared))
    return set(parts.values())


def gather_table(part: Tensor) -> Tensor:
    """Return the full table. Its gradient flows back to the parts, averaged over processes."""
    full: Tensor = _Gather.apply(part)
    return full


class _Gather(torch.autograd.Function):
    """All-gather forward, reduce-scatter backward."""

    @staticmethod
    def forward(ctx: Any, part: Any) -> Tensor:
        ctx.mesh, ctx.placements = part.device_mesh, part.placements
        full: Tensor = part.full_tensor()
        return full

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Partial

        total = DTensor.from_local(gradients[0], ctx.mesh, [Partial()], run_check=False)
        return total.redistribute(placements=ctx.placements) / ctx.mesh.size()


def _gather_at_access(owner: nn.Module, names: list[str]) -> None:
    """Make the weights of a module properties that gather them. Their names stay the same."""

    def gathered(name: str) -> property:
        return property(lambda module: gather_table(module._parameters[name]))

    kind = type(owner)
    owner.__class__ = type(kind.__name__, (kind,), {name: gathered(name) for name in names})
