"""Low-rank adapters (LoRA) by the library peft.

LoRA is W + (alpha / rank) B A (Hu et al. 2021, arXiv 2106.09685): W is frozen, B (out, rank) begins
at zero, A (rank, in) at random. Published networks are saved with their adapters (``policy.lora``).
A small policy's adapters (``with_adapters``) are merged into a plain policy, which is played and
saved.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.extras import require
from rlinf_core.policies.settings import Lora

if TYPE_CHECKING:
    from torch import nn

# prefix of an adapted network's weights, and the mark of an adapter's weights
NETWORK, ADAPTER = "network.", ".lora_"


def inject_adapters(network: Any, lora: Lora, seed: int = 0) -> None:
    """Add adapters to every linear layer except the vocabulary's.

    Only the adapters are trained. They begin without any effect.
    """
    if not lora.rank:
        return
    require("vla", "policy.lora")
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    layers = [
        name
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head")
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        alpha: Any = lora.alpha  # peft declares an int, and accepts any number
        inject_adapter_in_model(
            LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=layers), network
        )


def is_base_weight(name: str) -> bool:
    """Return True if adapters freeze the weight of this name, in a policy with adapters."""
    return name.startswith(NETWORK) and ADAPTER not in name


P = TypeVar("P", bound="nn.Module")


def with_adapters(policy: P, rank: int, seed: int = 0) -> P:
    """Return a copy of the policy with trainable adapters on every linear layer.

    Their alpha is twice the rank. All other weights are frozen.
    """
    if any(".lora_" in name for name in policy.state_dict()):
        raise RlinfError(
            "algorithm.lora_rank: expected 0 for a policy with its own adapters (policy.lora), "
            f"got {rank}. Leave one of them out"
        )
    trained = copy.deepcopy(policy)
    inject_adapters(trained, Lora(rank=rank, alpha=2.0 * rank), seed)
    return trained


def merge_adapters(trained: nn.Module, policy: nn.Module) -> None:
    """Write the adapters' effect into the weights of the plain policy that they were made from."""
    import torch
    from peft.tuners.lora import Linear

    plain = {
        name: module
        for name, module in policy.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    with torch.no_grad():
        for name, module in trained.named_modules():
            if isinstance(module, Linear):
                plain[name].weight.copy_(module.weight + module.get_delta_weight("default"))


def copy_buffers(trained: nn.Module, policy: nn.Module) -> None:
    """Copy the policy's buffers, because its normalisation may have changed since."""
    import torch

    buffers = dict(policy.named_buffers())
    with torch.no_grad():
        for name, buffer in trained.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
