"""Adam, the gradient step with gradient clipping, learning-rate annealing and Polyak averages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.algorithms.common.data_parallel import (
    backward,
    gather_full,
    local_part,
    mixes_tensors,
    skip_step,
)

# one pass over all of a parameter, in a third of the time
adam = partial(torch.optim.Adam, fused=True)


def anneal(optimiser: torch.optim.Optimizer, rate: float, done: float) -> None:
    """Set the learning rate on a cosine from ``rate`` to 0, after the fraction ``done``."""
    for group in optimiser.param_groups:
        group["lr"] = rate * 0.5 * (1.0 + np.cos(np.pi * min(done, 1.0)))


# steps that were skipped because their gradient was not finite
skipped_steps: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()


def optimizer_step(optimiser: torch.optim.Optimizer, loss: Tensor, clip: float = np.inf) -> float:
    """Make one step down ``loss`` with a clipped gradient; return the gradient's norm.

    The norm is that of this optimiser's parameters alone. In a learner group loss, gradient and
    norm are those of the full batch. A step with a gradient that is not finite is skipped and
    counted, because it would make every weight NaN. Weights and moments stay.
    """
    trained = [p for group in optimiser.param_groups for p in group["params"]]
    for p in trained:
        p.grad = None  # like zero_grad, in a tenth of its time
    backward(optimiser, loss)
    with _mixed_tensors() if mixes_tensors(optimiser) else nullcontext():
        return _clipped_step(optimiser, trained, clip)


def _clipped_step(
    optimiser: torch.optim.Optimizer, trained: list[nn.Parameter], clip: float
) -> float:
    """Clip the gradient and step; return the gradient's norm."""
    parameters = [p for p in trained if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    full_norm = gather_full(norm)
    if not full_norm.isfinite():
        skipped_steps[optimiser] = skipped_steps.get(optimiser, 0) + 1
        skip_step(optimiser)
        return float(full_norm)
    if not np.isfinite(clip):
        optimiser.step()
        return 0.0
    if (
        norm.device.type != "cpu" or not full_norm <= clip
    ):  # other devices would have to be waited for
        nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    optimiser.step()
    return float(full_norm)


def polyak_update(target: Iterable[Tensor], online: Iterable[Tensor], rate: float) -> None:
    """Move target parameters towards the online ones: t + rate (o - t).

    An online parameter may be sharded (FSDP2); then all processes call this together.
    """
    with torch.no_grad():
        pairs = [
            (local_part(old), local_part(new) if hasattr(old, "device_mesh") else gather_full(new))
            for old, new in zip(target, online, strict=True)
        ]
        torch._foreach_lerp_([old for old, _ in pairs], [new for _, new in pairs], rate)


def _mixed_tensors() -> AbstractContextManager[None]:
    """Return a context in which an operation may take divided and whole tensors together."""
    from torch.distributed.tensor.experimental import implicit_replication

    return implicit_replication()
