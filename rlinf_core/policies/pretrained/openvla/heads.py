"""OpenVLA-OFT's additions: an action head, a projector of the state, and their files.

Kim et al. 2025, arXiv 2502.19645. The files stand beside the network:
``action_head--<step>_checkpoint.pt`` and ``proprio_projector--<step>_checkpoint.pt``. The key names
are those of the files.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.huggingface import check_finite, load_into, refuse_pointer
from rlinf_core.policies.pretrained.openvla import Config

HEAD, PROJECTOR = "action_head", "proprio_projector"
_PARALLEL = "module."  # prefix of each name if DistributedDataParallel wrote the file


class ActionHead(nn.Module):
    """Hidden states (B, H A, D) at the positions of a chunk's tokens, to its numbers (B, H A)."""

    def __init__(self, width: int, action_size: int) -> None:
        super().__init__()
        self.size = action_size
        self.model = nn.ModuleDict(
            {
                "layer_norm1": nn.LayerNorm(width * action_size),
                "fc1": nn.Linear(width * action_size, width),
                "mlp_resnet_blocks": nn.ModuleList(Block(width) for _ in range(2)),
                "layer_norm2": nn.LayerNorm(width),
                "fc2": nn.Linear(width, action_size),
            }
        )

    def forward(self, hidden: Tensor) -> Tensor:
        actions = hidden.reshape(len(hidden), hidden.shape[1] // self.size, -1)
        x = F.relu(self.model["fc1"](self.model["layer_norm1"](actions)))
        for block in self.model["mlp_resnet_blocks"].children():
            x = block(x)
        return self.model["fc2"](self.model["layer_norm2"](x)).flatten(1)


class Block(nn.Module):
    """One layer with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


class ProprioProjector(nn.Module):
    """The state (B, V) in [-1, 1] to one more vector (B, D) for the language model."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, width), nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(state)))


def load_parts(folder: Path, config: Config, parts: dict[str, nn.Module | None]) -> None:
    """Load the folder's parts; without any in the folder, all begin with random weights.

    Raises:
        PolicyFileError: the folder has a part that the config excludes, has one part and not the
            other, lacks this one, or has an unsupported one.
    """
    if others := [
        file.name
        for file in sorted(folder.glob("*--*.pt"))
        if file.name.partition("--")[0] not in parts
    ]:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected {' and '.join(parts)} alone beside the "
            f"network, found {', '.join(others[:5])}: FiLM and OpenVLA-OFT's diffusion are not "
            "known here"
        )
    files = {name: _file(folder, name) for name in parts}
    if not any(files.values()):
        return
    required = {
        HEAD: "policy.decoding: expected regression",
        PROJECTOR: "policy.state: expected true",
    }
    for name, part in parts.items():
        if files[name] and part is None:
            raise PolicyFileError(
                f"{required[name]}, as the checkpoint {folder} was trained with ({name}--*.pt), "
                "got another"
            )
        if part is not None and not files[name]:
            raise PolicyFileError(
                f"policy.checkpoint {folder}: expected {name}--*.pt beside the other part of its "
                f"policy, found none. Copy it there, or leave {required[name].partition(':')[0]} "
                "as it was trained"
            )
    for name, part in parts.items():
        if part is not None and (file := files[name]):
            _load(file, part)


def _file(folder: Path, name: str) -> Path | None:
    files = sorted(folder.glob(f"{name}--*.pt"))
    if len(files) > 1:
        raise PolicyFileError(
            f"policy.checkpoint {folder}: expected one {name}--*.pt, found {len(files)}: "
            f"{', '.join(file.name for file in files[:5])}. Leave the one that goes with the "
            f"network"
        )
    return files[0] if files else None


def _load(file: Path, part: nn.Module) -> None:
    """Load tensors by name and run no code in the file (torch's weights_only)."""
    try:
        refuse_pointer(file)
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        weights = {name.removeprefix(_PARALLEL): tensor.float() for name, tensor in tensors.items()}
    except PolicyFileError:
        raise
    except Exception as error:  # torch raises many kinds
        raise PolicyFileError(
            f"policy.checkpoint {file}: expected a whole file of tensors by name, got: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error
    check_finite(weights, file)
    load_into(part, weights, file)


def save_parts(folder: Path, step: int, parts: dict[str, nn.Module | None]) -> None:
    """Write the parts in their published format."""
    for name, part in parts.items():
        if part is not None:
            torch.save(
                {_PARALLEL + key: value for key, value in part.state_dict().items()},
                folder / f"{name}--{step}_checkpoint.pt",
            )
