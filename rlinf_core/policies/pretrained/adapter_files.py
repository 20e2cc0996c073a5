"""LoRA adapters in the files of the library peft.

The files are ``adapter_config.json`` and ``adapter_model.safetensors``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_core.core.errors import PolicyFileError, SpecError, escape_ascii
from rlinf_core.core.extras import require
from rlinf_core.policies.pretrained.huggingface import (
    ADAPTER_CONFIG,
    ADAPTERS,
    check_finite,
    read_json,
    refuse_pointer,
)

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.policies.settings import Lora

BASE = "base_model.model."  # prefix of each name
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
INJECTED = ".lora_A.default.weight"  # suffix in the names of a network with adapters
EXPECTED = {"peft_type": "LORA", "bias": "none"}
REFUSED = (
    "use_dora",
    "fan_in_fan_out",
    "lora_bias",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "use_qalora",
    "megatron_config",
    "exclude_modules_from_merge",
)


class PublishedNames(Protocol):
    """The names of a network's weights and modules in published files (``NetworkFactory``)."""

    def rename_weights(
        self, weights: dict[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]: ...

    def module_name(self, name: str, network: Any) -> str: ...

    def adapter_name(self, name: str, network: Any) -> str: ...


def merge(folder: Path, network: Any, names: PublishedNames) -> None:
    """Add adapters to the weights that they were trained on.

    The sum is W + (alpha / rank) B A, or alpha / sqrt(rank) with rslora. Fully trained modules
    (``modules_to_save``) replace the network's.

    Args:
        folder: folder with peft's two files.
        network: the network, with the weights of the base model.
        names: published names of the network's weights and modules.

    Raises:
        PolicyFileError: a file is missing or damaged, or the adapters are of another kind or model.
    """
    where, config = f"policy.adapters {folder}", read_json(folder / ADAPTER_CONFIG)
    for key, value in EXPECTED.items():
        if config.get(key) != value:
            raise PolicyFileError(
                f"{where}: expected {key} of {value} in {ADAPTER_CONFIG}, got {config.get(key)!r}"
            )
    if odd := [key for key in REFUSED if config.get(key)]:
        raise PolicyFileError(
            f"{where}: expected plain LoRA in {ADAPTER_CONFIG}, got {odd[0]}: "
            f"{escape_ascii(config[odd[0]])[:60]}. Merge it with peft, and take the merged model"
        )
    weights, expected = _weights(folder), network.state_dict()
    changes = {
        name.removesuffix(DOWN) + ".weight": _delta(name, weights, config, where)
        for name in weights
        if name.endswith(DOWN)
    }
    replaced = {name: tensor for name, tensor in weights.items() if not name.endswith((DOWN, UP))}
    added, set_weight = (
        _renamed(tensors, expected, names, where) for tensors in (changes, replaced)
    )
    network.load_state_dict(
        expected | {name: expected[name] + tensor for name, tensor in added.items()} | set_weight
    )


def save(network: Any, lora: Lora, names: PublishedNames, base: str, folder: Path) -> Path:
    """Write a network's adapters for ``PeftModel.from_pretrained`` of the published model.

    Args:
        network: the network with adapters.
        lora: the policy's adapter settings.
        names: published names of the network's weights and modules.
        base: the published model's name or folder.
        folder: folder to write to; made if missing.

    Raises:
        SpecError: the network has no adapters.
    """
    require("vla", "adapters")
    from peft import LoraConfig
    from safetensors.torch import save_file

    state = network.state_dict()
    modules = [name.removesuffix(INJECTED) for name in state if name.endswith(INJECTED)]
    if not modules:
        raise SpecError(
            "policy.lora: expected a policy with adapters, got one without. Train with "
            "policy.lora.rank"
        )
    published = {module: names.module_name(module, network) for module in modules}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            f"{BASE}{names.adapter_name(module, network)}.lora_{part}.weight": state[
                f"{module}.lora_{part}.default.weight"
            ].contiguous()
            for module in modules
            for part in "AB"
        },
        folder / ADAPTERS,
        {"format": "pt"},
    )
    alpha: Any = lora.alpha  # peft declares an int, and accepts any number
    LoraConfig(
        r=lora.rank,
        lora_alpha=alpha,
        target_modules=sorted(published.values()),
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(str(folder))
    return folder


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / ADAPTERS
    try:
        refuse_pointer(path)
        weights = {
            name.removeprefix(BASE): tensor.float() for name, tensor in load_file(path).items()
        }
    except (SafetensorError, OSError) as error:
        raise PolicyFileError(
            f"policy.adapters {path}: expected a whole safetensors file, got: {error}. "
            "Copy it again"
        ) from error
    check_finite(weights, path)
    return weights


def _delta(
    name: str, weights: Mapping[str, Tensor], config: Mapping[str, Any], where: str
) -> Tensor:
    """Return (alpha / rank) B A of one module, (out, in)."""
    module, down = name.removesuffix(DOWN), weights[name]
    up = weights.get(module + UP)
    if up is None or down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise PolicyFileError(
            f"{where}: expected lora_A (rank, in) and lora_B (out, rank) of {module}, got shapes "
            f"{tuple(down.shape)} and {None if up is None else tuple(up.shape)}"
        )
    rank, patterns = len(down), config.get("alpha_pattern") or {}
    alpha = next(
        (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module)),
        config.get("lora_alpha"),
    )
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise PolicyFileError(
            f"{where}: expected a number as lora_alpha in {ADAPTER_CONFIG}, got {alpha!r}"
        )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank) * up @ down


def _renamed(
    tensors: dict[str, Tensor], expected: Mapping[str, Tensor], names: PublishedNames, where: str
) -> dict[str, Tensor]:
    """Rename tensors to the network's names; raise PolicyFileError if a name or shape is unknown.

    ``names`` may add weights that a published file lacks; these are left out.
    """
    tensor_ids = {id(tensor) for tensor in tensors.values()}
    renamed = {
        name: tensor
        for name, tensor in names.rename_weights(dict(tensors), expected).items()
        if id(tensor) in tensor_ids
    }
    wrong = [
        name
        for name, tensor in renamed.items()
        if name not in expected or expected[name].shape != tensor.shape
    ]
    if wrong:
        raise PolicyFileError(
            f"{where}: expected adapters of this network, got {len(wrong)} for other weights, "
            f"among them {', '.join(sorted(wrong)[:3])}. Take the checkpoint that they were "
            "trained on"
        )
    return renamed
