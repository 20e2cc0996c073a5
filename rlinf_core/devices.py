"""Where networks live: the device that a recipe names, or the best there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.errors import RlinfError

if TYPE_CHECKING:
    import torch

AUTO = "auto"


def device_of(name: str) -> torch.device:
    """The device of that name as torch writes it (cpu, cuda, cuda:1, mps, ...); ``auto``: an accelerator, if there is one.

    Raises:
        RlinfError: there is no such device here, with those that are.
    """
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == AUTO:
        return accelerator or torch.device("cpu")
    known = ["cpu"] + ([f"{accelerator.type}:{i}" for i in range(torch.accelerator.device_count())] if accelerator else [])
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.type if device.index is None else str(device)) not in {*known, *(
            each.partition(":")[0] for each in known)}:
        raise RlinfError(f"device: expected auto or one of {', '.join(known)}, which this machine has; got '{name}'")
    return device
