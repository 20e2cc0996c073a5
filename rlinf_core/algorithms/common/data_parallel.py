"""The gradient of a learner group's processes, by torch's DistributedDataParallel or FSDP2.

Learners compute losses in methods of their own, not in a module's ``forward``. torch therefore
wraps, for each optimiser, a module that takes a loss and returns it. This tells torch that a
backward pass comes. Under FSDP2 each process keeps a part of gradients, moments and weights. A
large linear layer is gathered for its own forward and backward pass alone. The other weights are
gathered for a whole update (``update_weights``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies.sharding import world_size

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Strategy = Literal["ddp", "fsdp"]

LARGE = 1 << 20  # weights of a linear layer that is gathered alone: 4 MiB in float32


class Optimised(Protocol):
    """A learner's modules and the optimisers that train them, each by name."""

    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]


class Trained(nn.Module):
    """The parameters, or complete modules, of one optimiser."""

    def __init__(self, parts: nn.ParameterList | nn.ModuleList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, loss: Callable[[], Any]) -> Any:
        return loss()


_wrapped: WeakKeyDictionary[torch.optim.Optimizer, nn.Module] = WeakKeyDictionary()
# the wrapped modules under FSDP2
_cut: WeakKeyDictionary[torch.optim.Optimizer, FSDPModule] = WeakKeyDictionary()
# True if a backward pass came since the optimiser's last step
_backward: WeakKeyDictionary[torch.optim.Optimizer, bool] = WeakKeyDictionary()


def parallelise(learner: Optimised, strategy: Strategy, large: int = LARGE) -> None:
    """Make every ``optimizer_step`` of the learner use the gradient of all processes.

    FSDP2 shards no scalars: an optimiser of one (a temperature) is replicated.

    Args:
        learner: its modules and optimisers.
        strategy: ddp or fsdp.
        large: linear layers with this many weights or more are gathered one by one under FSDP2.

    Raises:
        RecipeError: under FSDP2 an optimiser trains parts of a module.
    """
    for name, optimiser in learner.optimisers.items():
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        scalar = any(p.ndim == 0 for p in parameters)
        _wrapped[optimiser] = (
            _replicated(parameters)
            if strategy == "ddp" or scalar
            else _sharded(learner, name, large)
        )
        _backward[optimiser] = False
        optimiser.register_step_pre_hook(_check)
        optimiser.register_step_post_hook(_stepped)


def synchronised(optimiser: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Return the loss, whose backward pass gives the gradient of all processes."""
    if optimiser not in _wrapped:
        return loss
    _backward[optimiser] = True
    _wrapped[optimiser].zero_grad()  # under FSDP2 the optimiser clears its own shards alone
    return _wrapped[optimiser](lambda: loss)


@contextmanager
def update_weights(learner: Optimised) -> Iterator[None]:
    """Hold the weights for an update in the learner's modules within this block, under FSDP2.

    Large linear layers stay sharded: each is gathered while it computes. Changes other than a step
    are lost.
    """
    sharded = [_cut[optimiser] for optimiser in learner.optimisers.values() if optimiser in _cut]
    for module in sharded:
        module.unshard()
    yield
    for module in sharded:
        module.reshard()


def gather_full(tensor: Tensor) -> Tensor:
    """Return a full tensor; this process may hold a part. All processes must call it together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def match_sharding(value: Any, reference: Tensor | None) -> Tensor:
    """Return a copy of ``value``, sharded like ``reference`` if that is sharded."""
    value = value.clone() if isinstance(value, Tensor) else torch.tensor(value)
    if (
        reference is None
        or value.shape != reference.shape
        or not (hasattr(reference, "device_mesh") and hasattr(reference, "placements"))
    ):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(reference.device), reference.device_mesh, reference.placements, src_data_rank=None
    )


def _replicated(parameters: list[nn.Parameter]) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        Trained(nn.ParameterList(parameters)), find_unused_parameters=True
    )


def _sharded(learner: Optimised, name: str, large: int) -> nn.Module:
    """Shard the modules that an optimiser trains, and let it step the shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    optimiser = learner.optimisers[name]
    parameters = {p for group in optimiser.param_groups for p in group["params"]}
    modules = {
        key: module
        for key, module in learner.modules.items()
        if parameters & {*module.parameters()}
    }
    trained = Trained(nn.ModuleList(modules.values()))
    if parameters != {p for p in trained.parameters() if p.requires_grad}:
        raise RecipeError(
            f"placement.strategy: fsdp shards whole modules, and optimiser '{name}' of the "
            f"algorithm trains parts of {' and '.join(modules) or 'none'}. Set it to ddp"
        )
    device = next(trained.parameters()).device
    before = dict(trained.named_parameters())
    mesh = init_device_mesh(device.type, (world_size(),))
    for layer in _large_layers(trained, large):
        layer.register_forward_hook(_clone_view)  # before the hook of FSDP2, which marks the output
        fully_shard(layer, mesh=mesh)
    _cut[optimiser] = fully_shard(trained, mesh=mesh)
    shards = {before[name]: parameter for name, parameter in trained.named_parameters()}
    for group in optimiser.param_groups:
        group["params"] = [shards[parameter] for parameter in group["params"]]
    trained(lambda: None)  # it becomes the root of its layers, which compute before it does
    _cut[optimiser].reshard()
    return trained


def _large_layers(module: nn.Module, large: int) -> list[nn.Linear]:
    """Return the linear layers that can be gathered alone.

    A layer whose weight belongs to another module too (a tied head) cannot. Neither can a subclass
    of ``nn.Linear``, because other modules use its weight without calling it.
    """
    owners = Counter(
        id(weight) for part in module.modules() for weight in part.parameters(recurse=False)
    )
    return [
        part
        for part in module.modules()
        if type(part) is nn.Linear
        and part.weight.numel() >= large
        and all(owners[id(weight)] == 1 for weight in part.parameters())
    ]


def _clone_view(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Return an output that is no view: ``+=`` on a view would remove the hook of FSDP2."""
    return output if output._base is None else output.clone()


def _check(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    if not _backward[optimiser]:
        raise RlinfError(
            "learner group: an optimiser stepped with the gradient of one process only. Let the "
            "algorithm step by rlinf_core.algorithms.common.optimizer.optimizer_step, or learn in "
            "one process"
        )


def skip_step(optimiser: torch.optim.Optimizer) -> None:
    """Skip a step in every process; the weights are in the state after a step."""
    if optimiser in _wrapped:
        _stepped(optimiser)


def _stepped(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    _backward[optimiser] = False
    if optimiser in _cut:
        _cut[optimiser].unshard()
