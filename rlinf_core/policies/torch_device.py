"""The device of networks: the one that a recipe names, or the best there is."""

from __future__ import annotations

import ctypes
import math
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rlinf_core.core.errors import RecipeError, RlinfError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
# the names in settings
Device = Annotated[str, Field(pattern=r"^(auto|cpu|(cuda|hpu|mps|mtia|npu|xpu)(:\d+)?)$")]


def device_of(name: str) -> torch.device:
    """Return the device of a name in torch's form (cpu, cuda, cuda:1, mps, ...).

    ``auto`` is an accelerator, if there is one.

    Raises:
        RlinfError: this machine lacks the device; the message lists the others.
    """
    import torch

    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    if name == AUTO:
        return accelerator or torch.device("cpu")
    names = ["cpu"] + (
        [f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())]
        if accelerator
        else []
    )
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.type if device.index is None else str(device)) not in {
        *names,
        *(device_name.partition(":")[0] for device_name in names),
    }:
        raise RlinfError(
            f"device: expected auto or one of {', '.join(names)} on this machine, got '{name}'"
        )
    return device


def restore(generator: torch.Generator, state: Any, seed: int) -> None:
    """Restore a generator's state; reseed it if the state is of another kind of device."""
    import torch

    state_tensor = torch.as_tensor(state)
    if state_tensor.shape == generator.get_state().shape:
        generator.set_state(state_tensor)
    else:
        generator.manual_seed(seed)


def gpus() -> float:
    """Return the largest possible number of GPUs of this machine, without torch.

    The result is infinity if there may be some that are not NVIDIA's.
    """
    count = ctypes.c_uint()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() == 0:
            nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            nvml.nvmlShutdown()
    except OSError:  # no driver
        pass
    if not count.value and any(Path("/dev", name).exists() for name in ("kfd", "dri")):
        return math.inf
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        count.value
        if visible is None
        else min(count.value, len([index for index in visible.split(",") if index]))
    )


def check_device(key: str, name: str) -> None:
    """Raise RecipeError if this machine lacks the CUDA device of a recipe's ``key``."""
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= (here := gpus()):
        raise RecipeError(
            f"{key}: expected auto, cpu, or one of the {here:g} GPUs of this machine, got '{name}'"
        )


def check_bfloat16(device: torch.device, key: str = "learner.precision") -> None:
    """Check that a device multiplies in bfloat16 without emulation.

    Args:
        device: the device.
        key: the setting that requires it, for messages.

    Raises:
        RlinfError: the check failed; the message has the result.
    """
    import torch

    try:
        if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise RuntimeError("it would emulate it, which is slower than float32")
        matrix = torch.ones(2, 2, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16):
            product = matrix @ matrix
        product.sum().backward()
        if product.dtype != torch.bfloat16:
            raise RuntimeError(f"it answered in {product.dtype}")
    except Exception as error:  # backends raise many kinds
        raise RlinfError(
            f"{key}: expected a device that can do bfloat16 (a CPU, an NVIDIA GPU from Ampere "
            f"on), got {device}: {_first_line(error)}. Set {key} to float32, or device to another"
        ) from error


@cache
def check_compiles(device: torch.device, backend: str, key: str = "learner.compile") -> None:
    """Check that torch.compile works for a device, forward and backward; this takes seconds.

    Args:
        device: the device.
        backend: backend of torch.compile.
        key: the setting that requires it, for messages.

    Raises:
        RlinfError: the check failed; the message has the result.
    """
    import torch

    try:
        value = torch.ones(8, device=device, requires_grad=True)
        torch.compile(lambda x: (x.sin() * 2.0).sum(), backend=backend)(value).backward()
    except Exception as error:  # compilers raise many kinds
        needed = "a C++ compiler (g++)" if device.type == "cpu" else "the package triton"
        off = "false" if key == "learner.compile" else "eager"
        raise RlinfError(
            f"{key}: expected a machine on which torch.compile works, which needs {needed} for "
            f"{device}; got: {_first_line(error)}. Install that, or set {key} to {off}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
