"""The gradient of a learner group's processes, by torch's DistributedDataParallel or FSDP2.

Learners compute losses in methods of their own, not in a module's ``forward``. torch therefore
wraps, for each optimiser, a module that takes a loss and returns it. This tells torch that a
backward pass comes. Under FSDP2 each process keeps a part of gradients, moments and weights. A
large linear layer is gathered for its own forward and backward pass alone, and a large embedding
for each access to it (``sharded_tables``). The other weights are gathered for a whole update
(``update_weights``). If processes also divide layers
(``tensor_parallel``), gradients are averaged here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rlinf_core.algorithms.common.sharded_tables import shard_tables
from rlinf_core.algorithms.common.tensor_parallel import divide
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies.sharding import set_group, world_size

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

Strategy = Literal["ddp", "fsdp"]

BUCKET = 64 << 20  # bytes of gradients that are averaged together
LARGE = 1 << 20  # weights of a layer that is gathered alone: 4 MiB in float32


class HasOptimisers(Protocol):
    """A learner's modules and the optimisers that train them, each by name."""

    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]


class LossWrapper(nn.Module):
    """A module with the parameters of one optimiser, which computes the loss that it is given."""

    def __init__(self, parts: nn.ParameterList | nn.ModuleList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, loss: Callable[[], Any]) -> Any:
        return loss()


_wrapped: WeakKeyDictionary[torch.optim.Optimizer, nn.Module] = WeakKeyDictionary()
# the wrapped modules under FSDP2
_sharded_modules: WeakKeyDictionary[torch.optim.Optimizer, FSDPModule] = WeakKeyDictionary()
# the mesh (data, tensor) of optimisers of divided layers
_meshes: WeakKeyDictionary[torch.optim.Optimizer, DeviceMesh] = WeakKeyDictionary()
# True if a backward pass came since the optimiser's last step
_has_gradient: WeakKeyDictionary[torch.optim.Optimizer, bool] = WeakKeyDictionary()


def parallelise(
    learner: HasOptimisers, strategy: Strategy, large: int = LARGE, tensor_parallel: int = 1
) -> None:
    """Make every ``optimizer_step`` of the learner use the gradient of all processes.

    FSDP2 shards no scalars: an optimiser of one (a temperature) is replicated.

    Args:
        learner: its modules and optimisers.
        strategy: ddp or fsdp.
        large: linear layers and embeddings with this many weights or more are gathered one by one
            under FSDP2.
        tensor_parallel: number of neighbouring processes that divide each layer of a transformer.

    Raises:
        RecipeError: under FSDP2 an optimiser trains parts of a module.
    """
    set_group(None)
    if tensor_parallel > 1:
        _divide_layers(learner, tensor_parallel)
    for name, optimiser in learner.optimisers.items():
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        scalar = any(p.ndim == 0 for p in parameters)
        if optimiser not in _meshes:
            _wrapped[optimiser] = (
                _wrap_ddp(parameters)
                if strategy == "ddp" or scalar
                else _wrap_fsdp(learner, name, large)
            )
        _has_gradient[optimiser] = False
        optimiser.register_step_pre_hook(_check_gradient)
        optimiser.register_step_post_hook(_after_step)


def backward(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Compute the gradient of all processes."""
    if optimiser in _wrapped:
        _wrapped[optimiser].zero_grad()  # under FSDP2 the optimiser clears its own shards alone
        loss = _wrapped[optimiser](lambda: loss)
    loss.backward()
    if optimiser in _meshes:
        _average_gradients(optimiser, _meshes[optimiser])
    if optimiser in _has_gradient:
        _has_gradient[optimiser] = True


def mixes_tensors(optimiser: torch.optim.Optimizer) -> bool:
    """Return whether some parameters of an optimiser are divided and others are not."""
    return optimiser in _meshes


@contextmanager
def update_weights(learner: HasOptimisers) -> Iterator[None]:
    """Hold the weights for an update in the learner's modules within this block, under FSDP2.

    Large linear layers and embeddings stay sharded: each is gathered while it computes. Changes
    other than a step are lost.
    """
    sharded = [
        _sharded_modules[optimiser]
        for optimiser in learner.optimisers.values()
        if optimiser in _sharded_modules
    ]
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
    sharded: Any = reference
    if sharded is None or value.shape != sharded.shape or not hasattr(sharded, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(sharded.device), sharded.device_mesh, sharded.placements, src_data_rank=None
    )


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in the same memory."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _divide_layers(learner: HasOptimisers, size: int) -> None:
    """Divide the layers of all modules among ``size`` neighbouring processes."""
    from torch.distributed.device_mesh import init_device_mesh

    device = next(
        parameter for module in learner.modules.values() for parameter in module.parameters()
    ).device
    mesh = init_device_mesh(
        device.type,
        (torch.distributed.get_world_size() // size, size),
        mesh_dim_names=("data", "tensor"),
    )
    set_group(mesh.get_group("data"))
    parts: dict[nn.Parameter, nn.Parameter] = {}
    for module in learner.modules.values():
        parts |= divide(module, mesh["tensor"])
    for optimiser in learner.optimisers.values():
        for group in optimiser.param_groups:
            group["params"] = [parts.get(parameter, parameter) for parameter in group["params"]]
        _meshes[optimiser] = mesh


def _average_gradients(optimiser: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    """Average the gradients: of parts over processes with the same part, of others over all.

    A tensor without a gradient in any process stays without one.
    """
    from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

    trained = [p for group in optimiser.param_groups for p in group["params"]]
    used = torch.tensor([float(p.grad is not None) for p in trained], device=trained[0].device)
    torch.distributed.all_reduce(used)
    gradients: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter, count in zip(trained, used.tolist(), strict=True):
        if count and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if count:
            is_part = hasattr(parameter, "device_mesh")
            gradients[is_part].append(local_part(parameter.grad))
    # replicated ones are equal within a tensor group, but for the last bits on a GPU
    for tensors, group in ((gradients[True], mesh.get_group("data")), (gradients[False], None)):
        size = torch.distributed.get_world_size(group)
        for bucket in _take_tensors(tensors, BUCKET) if size > 1 else ():
            flat = _flatten_dense_tensors(bucket)
            torch.distributed.all_reduce(flat, group=group)
            for tensor, total in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
                tensor.copy_(total / size)


def _wrap_ddp(parameters: list[nn.Parameter]) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(
        LossWrapper(nn.ParameterList(parameters)), find_unused_parameters=True
    )


def _wrap_fsdp(learner: HasOptimisers, name: str, large: int) -> nn.Module:
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
    trained = LossWrapper(nn.ModuleList(modules.values()))
    if parameters != {p for p in trained.parameters() if p.requires_grad}:
        raise RecipeError(
            f"placement.strategy: fsdp shards whole modules, and optimiser '{name}' of the "
            f"algorithm trains parts of {' and '.join(modules) or 'none'}. Set it to ddp"
        )
    device = next(trained.parameters()).device
    before = dict(trained.named_parameters())
    mesh = init_device_mesh(device.type, (world_size(),))
    tables = shard_tables(trained, large, mesh)
    for layer in _large_layers(trained, large):
        layer.register_forward_hook(_clone_view)  # before the hook of FSDP2, which marks the output
        fully_shard(layer, mesh=mesh)
    _sharded_modules[optimiser] = fully_shard(trained, mesh=mesh, ignored_params=tables)
    shards = {before[name]: parameter for name, parameter in trained.named_parameters()}
    for group in optimiser.param_groups:
        group["params"] = [shards[parameter] for parameter in group["params"]]
    trained(lambda: None)  # it becomes the root of its layers, which compute before it does
    _sharded_modules[optimiser].reshard()
    return trained


def _large_layers(module: nn.Module, large: int) -> list[nn.Linear]:
    """Return the linear layers that can be gathered alone.

    A layer whose weight belongs to another module too cannot. A tied head is gathered with its
    embedding's table. Neither can a subclass
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


def _check_gradient(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    if not _has_gradient[optimiser]:
        raise RlinfError(
            "learner group: an optimiser stepped with the gradient of one process only. Let the "
            "algorithm step by rlinf_core.algorithms.common.optimizer.optimizer_step, or learn in "
            "one process"
        )


def skip_step(optimiser: torch.optim.Optimizer) -> None:
    """Skip a step in every process; the weights are in the state after a step."""
    if optimiser in _has_gradient:
        _after_step(optimiser)


def _after_step(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    _has_gradient[optimiser] = False
    if optimiser in _sharded_modules:
        _sharded_modules[optimiser].unshard()
