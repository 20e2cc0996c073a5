"""A flow policy steered by a small one that chooses its noise (DSRL, arXiv 2506.15799)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.policies.encoder import Batch
from rlinf_core.policies.flow.policy import FlowActor
from rlinf_core.policies.steered.config import Config
from rlinf_core.policies.tanh_gaussian.policy import Actor
from rlinf_core.specs import StationSpec


class SteeredActor(nn.Module):
    """a = flow(s, b c) with a choice c in [-1, 1] drawn from a small tanh-Gaussian and b standard deviations."""

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__()
        self.spec, self.config = spec, config or Config()
        self.flow = FlowActor(spec, self.config.of_flow)
        self.steering = Actor(spec, self.config.of_steering)

    @property
    def encoder(self) -> nn.Module:
        """Of the observation, as the steering sees it."""
        return self.steering.encoder

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A choice in [-1, 1] of the noise (B, H A), and its log-probability (B,)."""
        return self.steering.sample(batch, generator)

    def played(self, batch: Batch, choice: Tensor) -> Tensor:
        """The action (B, H A) that a choice leads to."""
        return self.flow.decode(batch, choice * self.config.noise_bound)

    def matching_loss(self, batch: Batch, action: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Of the flow: what cloning demonstrations trains."""
        return self.flow.matching_loss(batch, action, generator)

    def act(self, observation: dict[str, np.ndarray], explore: bool, random: np.random.Generator) -> np.ndarray:
        """One observation to a chunk of normalised actions (H, A); the choice behind it is kept in ``choice`` (H A,)."""
        self.choice = self.steering.act(observation, explore, random).ravel()
        batch: dict[str, Any] = {name: torch.as_tensor(np.ascontiguousarray(observation[name]))[None]
                                 for name in self.flow.encoder.image_names}
        batch["vectors"] = torch.as_tensor(self.spec.flatten(observation)[None])
        with torch.inference_mode():
            action = self.played(batch, torch.as_tensor(self.choice, dtype=torch.float32)[None])
        return action.reshape(self.config.horizon, -1).numpy()

    def describe(self) -> dict[str, Any]:
        """What a policy file must say to rebuild this module."""
        return {"spec": self.spec.to_dict(), "config": self.config.model_dump()}


Policy = SteeredActor
