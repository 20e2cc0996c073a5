"""Transformer layers that are divided among processes (tensor parallelism), by torch's DTensor.

Shoeybi et al. 2019, arXiv 1909.08053. Each process computes some heads of an attention and some
columns of a perceptron. An all-reduce adds up the results. The decoder layers of transformers are
divided, also those with adapters. Embeddings, vision towers, norms and heads are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlinf_core.core.errors import RecipeError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
PERCEPTRON = ("gate_proj", "up_proj", "down_proj")


def decoder_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the names and modules of the layers that can be divided."""
    for name, part in module.named_modules():
        attention, perceptron = getattr(part, "self_attn", None), getattr(part, "mlp", None)
        if all(hasattr(attention, key) for key in ATTENTION) and all(
            hasattr(perceptron, key) for key in PERCEPTRON
        ):
            yield name, part


def check_divisible(policy: nn.Module, size: int) -> None:
    """Check that the layers of a policy divide among ``size`` processes.

    Raises:
        RecipeError: they do not; the message names the layer and the numbers.
    """
    if size == 1:
        return
    layers = list(decoder_layers(policy))
    if not layers:
        kind = getattr(getattr(policy, "config", None), "kind", type(policy).__name__)
        raise RecipeError(
            f"placement.tensor_parallel: expected 1 for policy.kind {kind}, which has no decoder "
            f"layers of transformers ({', '.join((*ATTENTION, *PERCEPTRON))}), got {size}"
        )
    for name, layer in layers:
        attention = layer.self_attn
        heads, shared, width = _heads(attention)
        inner = layer.mlp.up_proj.out_features
        for count, noun in ((heads, "attention heads"), (inner, "columns of the perceptron")):
            if count % size:
                raise _refusal(name, f"{count} {noun}", size)
        cross = getattr(attention, "cross", False)
        if shared % size and (shared > 1 or cross):
            heads_of_keys = f"{shared} heads of keys and values"
            raise _refusal(name, heads_of_keys + " in a cross-attention" * cross, size)
        for key, parameter in attention.named_parameters():
            if not key.startswith(ATTENTION) and parameter.numel() != width:
                raise _refusal(name, f"self_attn.{key}, which spans all heads", size)


def _heads(attention: Any) -> tuple[int, int, int]:
    """Return the numbers of heads of queries and of keys, and the width of a head."""
    width: int = attention.head_dim if hasattr(attention, "head_dim") else attention.size
    config = getattr(attention, "config", None)
    heads = getattr(config, "num_attention_heads", attention.q_proj.out_features // width)
    return heads, attention.k_proj.out_features // width, width


def _refusal(layer: str, property_name: str, size: int) -> RecipeError:
    return RecipeError(
        f"placement.tensor_parallel: expected a number of processes that divides each layer, got "
        f"{size}: layer {layer} has {property_name}"
    )


def divide(module: nn.Module, mesh: DeviceMesh) -> dict[nn.Parameter, nn.Parameter]:
    """Divide the decoder layers of a module among the processes of a mesh of one dimension.

    Returns:
        The new parameters by the old ones.
    """
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    size = mesh.size()
    before = dict(module.named_parameters(remove_duplicate=False))
    for _, layer in decoder_layers(module):
        attention = layer.self_attn
        one_head = _heads(attention)[1] % size > 0  # of keys, for the queries of all processes
        plan: dict[str, Any] = {}
        for name in ("q_proj", "k_proj", "v_proj"):
            part = getattr(attention, name)
            if name != "q_proj" and one_head:
                part.register_forward_hook(_sum_gradients_of_output(mesh))
                continue
            if name != "q_proj" and getattr(attention, "cross", False):
                part.register_forward_pre_hook(
                    _gather_input(mesh)
                )  # it reads keys of divided layers
            plan |= _styles(f"self_attn.{name}", part, "lora_B", ColwiseParallel)
        for name in ("gate_proj", "up_proj"):
            plan |= _styles(f"mlp.{name}", getattr(layer.mlp, name), "lora_B", ColwiseParallel)
        plan |= _styles("self_attn.o_proj", attention.o_proj, "lora_A", RowwiseParallel)
        plan |= _styles("mlp.down_proj", layer.mlp.down_proj, "lora_A", RowwiseParallel)
        parallelize_module(layer, mesh, plan)
        if one_head and hasattr(attention, "num_key_value_groups"):
            attention.num_key_value_groups //= size
        for name, parameter in attention.named_parameters():
            if not name.startswith(ATTENTION) and parameter.requires_grad:
                parameter.register_hook(_sum_gradient(mesh))  # a norm of this process's heads
    after = dict(module.named_parameters(remove_duplicate=False))
    return {old: after[name] for name, old in before.items() if after[name] is not old}


def _styles(name: str, part: nn.Module, adapter: str, style: Callable[[], Any]) -> dict[str, Any]:
    """Return the style of a linear layer, or of its base and one half of its adapter."""
    if not hasattr(part, "base_layer"):
        return {name: style()}
    halves = [f"{name}.{adapter}.{key}" for key in getattr(part, adapter)]
    return {key: style() for key in (f"{name}.base_layer", *halves)}


def _sum_gradients_of_output(mesh: DeviceMesh) -> Callable[..., Tensor]:
    """Return a hook whose output's gradient is the sum of all processes' gradients."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    def hook(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        everywhere = DTensor.from_local(output, mesh, (Replicate(),), run_check=False)
        return everywhere.to_local(grad_placements=(Partial(),))

    return hook


def _gather_input(mesh: DeviceMesh) -> Callable[..., tuple[Tensor]]:
    """Return a hook that gathers the parts of an input's last dimension."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def hook(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        part = DTensor.from_local(inputs[0], mesh, (Shard(inputs[0].ndim - 1),), run_check=False)
        return (part.redistribute(placements=(Replicate(),)).to_local(),)

    return hook


def _sum_gradient(mesh: DeviceMesh) -> Callable[[Tensor], Tensor]:
    """Return a hook that adds up the gradients of all processes."""
    group = mesh.get_group()

    def hook(gradient: Tensor) -> Tensor:
        total = gradient.clone()
        torch.distributed.all_reduce(total, group=group)
        return total

    return hook
