"""Settings for inference: bfloat16 layers, compiled functions, and CUDA graphs.

Learners have separate settings (``rlinf_core.algorithms.common.mixed_precision``). For one
observation, starting a kernel takes longer than running it. A graph starts all kernels at once (for
pi0: realtime-vla, arXiv 2510.26742).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.base import NetworkPolicy
from rlinf_core.policies.settings import FlowSettings
from rlinf_core.policies.torch_device import check_bfloat16, check_compiles

# sentences are padded to a multiple of this many tokens, to limit the number of graphs
TOKEN_MULTIPLE = 16
# limit per function; each number of rows and each sentence length has one graph
MAX_GRAPHS = 24
# backend of torch.compile
BACKEND = "inductor"


def prepare(
    policy: NetworkPolicy, precision: str = "float32", execution: str = "eager", key: str = ""
) -> None:
    """Set the precision and execution of a policy's inference. Do not train or save it after that.

    Args:
        policy: the policy, changed in place.
        precision: float32, or bfloat16 for the layers of its network (``layers``).
        execution: eager; graphs (recorded as CUDA graphs); or compiled (and also recorded on a CUDA
            device).
        key: prefix of both settings in messages: ``--`` or ``station.policy.``.

    Raises:
        RlinfError: the device or this kind of policy does not support the setting.
    """
    kind = policy.config.kind
    if precision == "bfloat16":
        check_bfloat16(policy.device, f"{key}precision")
        if not (modules := [*layers(policy)]):
            raise RlinfError(
                f"{key}precision: expected float32 for a policy of kind {kind}, which is small; "
                f"got bfloat16"
            )
        for layer in modules:
            vars(layer.to(torch.bfloat16))["forward"] = _in_bfloat16(layer.forward, policy.device)
    if execution == "eager":
        return
    parts = [part for part in policy.modules() if isinstance(part, NetworkPolicy)]
    names = "graph_methods" if execution == "graphs" else "compiled_methods"
    if not any(getattr(part, names) for part in parts):
        raise RlinfError(
            f"{key}execution: expected one that policy kind {kind} supports, got {execution}. "
            "Leave it eager"
        )
    if execution == "graphs" and policy.device.type != "cuda":
        raise RlinfError(
            f"{key}execution: expected a CUDA device for graphs, got {policy.device}. Leave it "
            f"eager"
        )
    if execution == "compiled":
        check_compiles(policy.device, BACKEND, f"{key}execution")
    for part in parts:
        config = part.config
        # longer sentences are cut to the flow policy's tokens
        part.token_multiple = config.tokens if isinstance(config, FlowSettings) else TOKEN_MULTIPLE
        for name in part.compiled_methods if execution == "compiled" else ():
            vars(part)[name] = torch.compile(getattr(part, name), backend=BACKEND, dynamic=False)
        for name in part.graph_methods if policy.device.type == "cuda" else ():
            vars(part)[name] = GraphedFunction(getattr(part, name))


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that stand in lists of layers."""
    for part in module.children():
        if isinstance(module, nn.ModuleList) and type(part).forward is not nn.Module.forward:
            yield part
        else:
            yield from layers(part)


def next_power_of_two(size: int) -> int:
    """Return the power of two to which this many rows are padded."""
    return 1 << (size - 1).bit_length()


def padded_sizes(most: int) -> set[int]:
    """Return all padded sizes of up to ``most`` rows."""
    return {next_power_of_two(size) for size in range(1, most + 1)}


class GraphedFunction:
    """A function of tensors (B, ...), recorded as a CUDA graph for each shape and replayed.

    There are no gradients. Rows are padded to a power of two, to keep the number of shapes small.
    The function must not synchronise with the host.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._graphs = dict[Any, tuple[Any, list[Tensor], Any]]()

    def __call__(self, *arguments: Any) -> Any:
        tensors, shape = tree_flatten(arguments)
        size = len(tensors[0])
        more = next_power_of_two(size) - size
        filled = [
            torch.cat([tensor, tensor[-1:].expand(more, *tensor.shape[1:])]) if more else tensor
            for tensor in tensors
        ]
        key = tuple((tensor.shape, tensor.dtype) for tensor in filled)
        if (recording := self._graphs.pop(key, None)) is None:
            while len(self._graphs) >= MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            recording = self._record(filled, shape)
        self._graphs[key] = recording  # the least recently used graph is dropped first
        graph, into, out = recording
        for place, tensor in zip(into, filled, strict=True):
            place.copy_(tensor)
        graph.replay()
        return tree_map(lambda tensor: tensor[:size].clone(), out)

    def _record(self, tensors: list[Tensor], shape: Any) -> tuple[Any, list[Tensor], Any]:
        into = [tensor.clone() for tensor in tensors]
        capture_stream = torch.cuda.Stream()
        capture_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(capture_stream):  # one-time setup and tuning stay out of the graph
            for _ in range(2):
                self._function(*tree_unflatten(into, shape))
        torch.cuda.current_stream().wait_stream(capture_stream)
        graph = torch.cuda.CUDAGraph()
        # other threads may run inference meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = self._function(*tree_unflatten(into, shape))
        return graph, into, out


def _in_bfloat16(forward: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Wrap a layer: bfloat16 inside, float32 outside.

    Caches of keys and values keep their dtype.
    """

    def forward_in_bfloat16(*inputs: Any, **named: Any) -> Any:
        inputs, named = tree_map(_cast_from(torch.float32, torch.bfloat16), (inputs, named))
        with torch.autocast(device.type, torch.bfloat16):
            output = forward(*inputs, **named)
        return tree_map(_cast_from(torch.bfloat16, torch.float32), output)

    return forward_in_bfloat16


def _cast_from(of: torch.dtype, to: torch.dtype) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        return value.to(to) if isinstance(value, Tensor) and value.dtype == of else value

    return cast
