"""What every learner keeps in a checkpoint, and one safe gradient step."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.policies.encoder import Encoder


class Checkpointed(ABC):
    """Saves ``modules``, ``optimisers``, ``updates`` and the random state; a subclass fills them in."""

    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]
    device: torch.device
    generator: torch.Generator
    updates: int

    def place(self, device: torch.device, seed: int) -> None:
        """Every module goes where the policy is, and noise comes from there. Optimisers are made afterwards."""
        for module in self.modules.values():
            module.to(device)
        self.device, self.generator = device, torch.Generator(device).manual_seed(seed)

    def fit_normalisation(self, vectors: np.ndarray) -> None:
        """Centre and scale observations (N, V) alike in every encoder."""
        for encoder in self._encoders():
            encoder.fit_normalisation(vectors)

    def normalise(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set mean and deviation (V,) of observations in every encoder."""
        for encoder in self._encoders():
            encoder.normalise(mean, std)

    def _encoders(self) -> Iterator[Encoder]:
        for module in self.modules.values():
            yield from (part for part in module.modules() if isinstance(part, Encoder))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the data, as nested dicts of tensors and numbers."""
        return {"modules": {name: dict(module.state_dict()) for name, module in self.modules.items()},
                "optimisers": {name: _moments(optimiser) for name, optimiser in self.optimisers.items()},
                "updates": self.updates, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if nothing had happened."""
        for name, module in self.modules.items():
            module.load_state_dict({key: torch.as_tensor(value) for key, value in state["modules"][name].items()})
        for name, optimiser in self.optimisers.items():
            moments = {int(index): {key: torch.as_tensor(value) for key, value in entry.items()}
                       for index, entry in state["optimisers"][name].items()}
            optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
        self.updates = state["updates"]
        self.generator.set_state(torch.as_tensor(state["generator"]))


class Scalar(nn.Module):
    """One positive number that is learned, kept as its logarithm (SAC's temperature)."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(np.log(value))))

    def forward(self) -> Tensor:
        return self.log.exp()


def descend(optimiser: torch.optim.Optimizer, loss: Tensor, clip: float = np.inf) -> float:
    """One step down ``loss``, with the gradient's norm clipped over this optimiser's parameters alone; returns the norm."""
    optimiser.zero_grad()
    loss.backward()
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, clip) if np.isfinite(clip) else 0.0
    optimiser.step()
    return float(norm)


def follow(target: Iterable[Tensor], online: Iterable[Tensor], rate: float) -> None:
    """Move target parameters towards the online ones: t + rate (o - t)."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target), list(online), rate)


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """By the number of their parameter; the settings come from the config."""
    return {str(index): dict(moments) for index, moments in optimiser.state_dict()["state"].items()}
