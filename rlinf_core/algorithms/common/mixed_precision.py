"""A learner's updates in bfloat16, compiled by torch.compile, or with gradient checkpointing.

bfloat16 and compilation end at a network's output, which is float32. Log-probabilities, advantages,
targets and losses are therefore float32 too. All three apply only during an update: inference uses
the plain network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from rlinf_core.algorithms.common.gradient_checkpointing import Forward, with_recomputation
from rlinf_core.algorithms.common.learner import BaseLearner
from rlinf_core.algorithms.common.settings import Computing
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.inference import layers
from rlinf_core.policies.settings import PretrainedSettings
from rlinf_core.policies.torch_device import check_bfloat16, check_compiles

BACKEND = "inductor"  # backend of torch.compile


def apply_computing(learner: BaseLearner, computing: Computing) -> None:
    """Compute the learner's updates with these settings from now on; ``prefetch`` is the run's.

    Raises:
        RlinfError: its device has no bfloat16, or this machine cannot compile for it.
    """
    is_reduced = computing.precision == "bfloat16"
    if is_reduced:
        check_bfloat16(learner.device)
    if computing.compile:
        check_compiles(learner.device, BACKEND)
    if not (is_reduced or computing.compile or computing.gradient_checkpointing):
        return
    forwards: dict[nn.Module, Forward] = {}
    for network in networks(learner) if is_reduced or computing.compile else ():
        forward = _compile(network.forward) if computing.compile else network.forward
        forwards[network] = _in_bfloat16(forward, learner.device) if is_reduced else forward
    for layer in _layers(learner) if computing.gradient_checkpointing else ():
        forwards[layer] = with_recomputation(forwards.get(layer, layer.forward))
    update = learner.update

    def update_with_settings(batch: Any) -> dict[str, float]:
        for network, forward in forwards.items():
            vars(network)["forward"] = forward
        try:
            return update(batch)
        finally:
            for network in forwards:
                del vars(network)["forward"]

    vars(learner)["update"] = update_with_settings


def _layers(learner: BaseLearner) -> Iterator[nn.Module]:
    for module in learner.modules.values():
        for layer in layers(module):
            if all(getattr(part, "recomputable", True) for part in layer.modules()):
                yield layer


def networks(learner: BaseLearner) -> Iterator[nn.Module]:
    """Yield the outermost called modules of a learner with at least one matrix, once each.

    For a policy made of a published network, whose parts are called from outside, its layers are
    yielded.
    """
    visited: set[nn.Module] = set()
    for module in learner.modules.values():
        published = isinstance(getattr(module, "config", None), PretrainedSettings)
        for network in layers(module) if published else _outermost_networks(module):
            if network not in visited:
                visited.add(network)
                yield network


def _outermost_networks(module: nn.Module) -> Iterator[nn.Module]:
    if type(module).forward is not nn.Module.forward:
        yield from [module] if any(parameter.ndim > 1 for parameter in module.parameters()) else []
    else:
        for part in module.children():
            yield from _outermost_networks(part)


def _compile(forward: Forward) -> Forward:
    compiled = torch.compile(forward, backend=BACKEND)

    def forward_compiled(*inputs: Any, **named: Any) -> Any:
        try:
            return compiled(*inputs, **named)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise RlinfError(
                "learner.compile: expected networks that torch.compile can compile, got: "
                f"{error}. Set learner.compile to false"
            ) from error

    return forward_compiled


def _in_bfloat16(forward: Forward, device: torch.device) -> Forward:
    def forward_in_bfloat16(*inputs: Any, **named: Any) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            outputs = forward(*inputs, **named)
        return tuple(map(_float, outputs)) if isinstance(outputs, tuple) else _float(outputs)

    return forward_in_bfloat16


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
