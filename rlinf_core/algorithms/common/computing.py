"""A learner's computing: in bfloat16, compiled, or with gradient checkpointing.

The first two end at a network's output, which is float32. All that algorithms compute from it
(log-probabilities, advantages, targets, losses) is therefore float32 too. All three end with the
update: inference uses the plain network. Gradient checkpointing (Chen et al. 2016, arXiv
1604.06174) is torch's own: layers are recomputed in the backward pass. A layer writes into a cache
of keys and values, such as the prefix of an action expert, the first time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlinf_core.algorithms.common.learner import Checkpointed
from rlinf_core.algorithms.common.settings import Computing
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.inference import layers
from rlinf_core.policies.settings import PretrainedSettings
from rlinf_core.policies.torch_device import check_bfloat16, check_compiles

CACHE = "past_key_values"  # transformers' name
Forward = Callable[..., Any]


def recomputing(forward: Forward) -> Forward:
    """Wrap ``forward`` to keep only its inputs for the backward pass."""

    def called(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        if named.get(CACHE) is not None:
            named[CACHE] = WrittenOnce(named[CACHE])
            return checkpoint(
                _again, forward, named.pop(CACHE), *inputs, use_reentrant=False, **named
            )
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    return called


def _again(forward: Forward, cache: WrittenOnce, *inputs: Any, **named: Any) -> Any:
    cache.begin()
    return forward(*inputs, **named, **{CACHE: cache})


class WrittenOnce:
    """A cache for one layer that keeps only the first addition.

    Later additions are joined to the earlier content without being stored.
    """

    def __init__(self, cache: Any) -> None:
        self._cache, self._times = cache, 0
        self._before: dict[int, tuple[Tensor, Tensor] | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def begin(self) -> None:
        """Begin the layer's computation, or its recomputation."""
        self._times += 1

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *more: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values of a layer, the new ones last, like transformers'
        ``Cache``.
        """
        if self._times == 1:
            self._before[layer] = self._cached(layer)
            joined: tuple[Tensor, Tensor] = self._cache.update(keys, values, layer, *more, **named)
            return joined
        before = self._before[layer]
        if before is None:
            return keys, values
        return torch.cat([before[0], keys], dim=-2), torch.cat([before[1], values], dim=-2)

    def _cached(self, layer: int) -> tuple[Tensor, Tensor] | None:
        if layer >= len(self._cache.layers) or not self._cache.get_seq_length(layer):
            return None
        layer_cache = self._cache.layers[layer]
        return layer_cache.keys, layer_cache.values


BACKEND = "inductor"  # backend of torch.compile


def compute(learner: Checkpointed, computing: Computing) -> None:
    """Compute the learner's updates with these settings from now on; ``prefetch`` is the run's.

    Raises:
        RlinfError: its device has no bfloat16, or this machine cannot compile for it.
    """
    reduced = computing.precision == "bfloat16"
    if reduced:
        check_bfloat16(learner.device)
    if computing.compile:
        check_compiles(learner.device, BACKEND)
    if not (reduced or computing.compile or computing.gradient_checkpointing):
        return
    forwards: dict[nn.Module, Forward] = {}
    for network in networks(learner) if reduced or computing.compile else ():
        forward = _compiled(network.forward) if computing.compile else network.forward
        forwards[network] = _reduced(forward, learner.device) if reduced else forward
    for layer in _layers(learner) if computing.gradient_checkpointing else ():
        forwards[layer] = recomputing(forwards.get(layer, layer.forward))
    update = learner.update

    def within(batch: Any) -> dict[str, float]:
        for network, forward in forwards.items():
            vars(network)["forward"] = forward
        try:
            return update(batch)
        finally:
            for network in forwards:
                del vars(network)["forward"]

    vars(learner)["update"] = within


def _layers(learner: Checkpointed) -> Iterator[nn.Module]:
    for module in learner.modules.values():
        for layer in layers(module):
            if all(getattr(part, "recomputable", True) for part in layer.modules()):
                yield layer


def networks(learner: Checkpointed) -> Iterator[nn.Module]:
    """Yield the outermost called modules of a learner with at least one matrix, once each.

    For a policy made of a published network, whose parts are called from outside, its layers are
    yielded.
    """
    visited: set[nn.Module] = set()
    for module in learner.modules.values():
        published = isinstance(getattr(module, "config", None), PretrainedSettings)
        for network in layers(module) if published else _called(module):
            if network not in visited:
                visited.add(network)
                yield network


def _called(module: nn.Module) -> Iterator[nn.Module]:
    if type(module).forward is not nn.Module.forward:
        yield from [module] if any(parameter.ndim > 1 for parameter in module.parameters()) else []
    else:
        for part in module.children():
            yield from _called(part)


def _compiled(forward: Forward) -> Forward:
    compiled = torch.compile(forward, backend=BACKEND)

    def called(*inputs: Any, **named: Any) -> Any:
        try:
            return compiled(*inputs, **named)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise RlinfError(
                f"learner.compile: expected networks that torch.compile can compile, got: {error}. "
                f"Set "
                "learner.compile to false"
            ) from error

    return called


def _reduced(forward: Forward, device: torch.device) -> Forward:
    def reduced(*inputs: Any, **named: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            outputs = forward(*inputs, **named)
        return tuple(map(_float, outputs)) if isinstance(outputs, tuple) else _float(outputs)

    return reduced


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
