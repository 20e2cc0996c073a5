"""Low-rank adapters (LoRA) by the library peft.

They are for published networks and for a small policy's linear layers. A file with adapters holds
no other weights of the network. Those are in ``base-<hash>.safetensors`` beside it, written once.
Each later version is therefore small. The same holds for a policy that chooses the noise of a
frozen network. LoRA is W + (alpha / rank) B A (Hu et al. 2021, arXiv 2106.09685): W is frozen, B
(out, rank) begins at zero, A (rank, in) at random. A small policy's adapters (``with_adapters``)
are merged into a plain policy, and that one is played and saved.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf_core.core.atomic_io import write_atomically
from rlinf_core.core.errors import PolicyFileError, RlinfError
from rlinf_core.core.extras import require
from rlinf_core.policies.settings import Lora

if TYPE_CHECKING:
    from torch import Tensor, nn

    Weights = dict[str, Tensor]

# prefix of an adapted network's weights, and the mark of an adapter's weights
NETWORK, ADAPTER = "network.", ".lora_"


def inject(network: Any, lora: Lora, seed: int = 0) -> None:
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


def save_base(frozen: Weights, metadata: dict[str, str], folder: Path) -> str:
    """Write frozen weights and their metadata, unless the file exists, and return their hash."""
    from safetensors.torch import save_file

    digest = _digest(frozen, metadata)
    path = _path(folder, digest)
    if not path.exists():
        write_atomically(path, lambda temporary: save_file(frozen, temporary, metadata))
    return digest


def load_base(policy: Path, digest: str) -> tuple[Weights, dict[str, str]]:
    """Load the weights with this hash, and their metadata, from beside the policy's file.

    Raises:
        PolicyFileError: the file is missing, damaged or changed.
    """
    from safetensors import SafetensorError, safe_open

    path = _path(policy.parent, digest)
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            weights: Weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise PolicyFileError(
            f"policy {policy}: expected its unchanged base weights in {path.name} of the same "
            "folder, found none. Copy them once from the run's policies/, for all versions"
        ) from error
    except (SafetensorError, OSError) as error:
        raise PolicyFileError(
            f"policy {policy}: {path.name}: expected an intact safetensors file, got a truncated "
            f"or damaged one ({error}). Copy it again, or delete it and restart the station"
        ) from error
    if (actual := _digest(weights, metadata)) != digest:
        raise PolicyFileError(
            f"policy {policy}: {path.name}: expected weights of hash {digest[:16]}, got "
            f"{actual[:16]}. It was damaged or changed. Copy it again, or delete it and restart "
            "the station"
        )
    return weights, metadata


def base_name(digest: str) -> str:
    """Return the name of the file with the weights of this hash, beside policy files."""
    return f"base-{digest[:16]}.safetensors"


def _path(folder: Path, digest: str) -> Path:
    return folder / base_name(digest)


def _digest(weights: Weights, metadata: dict[str, str]) -> str:
    """Return the SHA-256 of names, types, shapes, numbers and metadata."""
    hashed = hashlib.sha256()
    for key, text in sorted(metadata.items()):
        hashed.update(f"{key} {len(text)} {text}\n".encode())
    for name, tensor in sorted(weights.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(
            tensor.detach().cpu().contiguous().numpy().data.cast("B") if tensor.numel() else b""
        )
    return hashed.hexdigest()


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
    inject(trained, Lora(rank=rank, alpha=2.0 * rank), seed)
    return trained


def merge(trained: nn.Module, policy: nn.Module) -> None:
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


def follow_normalisation(trained: nn.Module, policy: nn.Module) -> None:
    """Copy the policy's buffers, because its normalisation may have changed since."""
    import torch

    buffers = dict(policy.named_buffers())
    with torch.no_grad():
        for name, buffer in trained.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])
