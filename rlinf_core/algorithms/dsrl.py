"""DSRL: a frozen flow (or diffusion) policy is steered by choosing its noise, with soft actor-critic over the noise.

Wagenmaker et al. 2025, arXiv 2506.15799. The frozen policy is only asked to carry noise to an action: its weights, its size
and how it was trained do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.algorithms import sac
from rlinf_core.algorithms.parts.actor_critic import ActorCritic
from rlinf_core.policies.actor import Actor, Batch, PolicyConfig
from rlinf_core.policies.flow import FlowActor


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    """Hyper-parameters of DSRL: those of SAC, and

    Attributes:
        noise_bound: largest noise that may be chosen, in standard deviations.
        hidden: widths of the steering actor's layers.
    """

    noise_bound: float = 1.5
    hidden: tuple[int, ...] = (128, 128)
    initial_temperature: float = 0.1
    target_entropy: float = -0.5


class SteeredActor(nn.Module):
    """A small tanh-Gaussian over the noise of a frozen flow."""

    def __init__(self, flow: FlowActor, config: Config) -> None:
        super().__init__()
        self.spec, self.bound = flow.spec, config.noise_bound
        self.config = replace(flow.config, kind="flow")
        self.flow = flow.requires_grad_(False)
        self.steering = Actor(flow.spec, PolicyConfig(hidden=config.hidden, horizon=flow.config.horizon,
                                                      image_features=flow.config.image_features))
        self.steering.encoder.load_state_dict(flow.encoder.state_dict())
        self.encoder = self.steering.encoder

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A choice in [-1, 1] of the noise (B, H A), and its log-probability (B,)."""
        return self.steering.sample(batch, generator)

    def act(self, observation: dict[str, np.ndarray], explore: bool, random: np.random.Generator) -> np.ndarray:
        """One observation to a chunk of normalised actions (H, A); the choice behind it is kept in ``choice`` (H A,)."""
        self.choice = self.steering.act(observation, explore, random).ravel()
        batch: dict[str, Any] = {name: torch.as_tensor(np.ascontiguousarray(observation[name]))[None]
                                 for name in self.flow.encoder.image_names}
        batch["vectors"] = torch.as_tensor(self.spec.flatten(observation)[None])
        with torch.inference_mode():
            noise = torch.as_tensor(self.choice * self.bound, dtype=torch.float32)[None]
            action = self.flow.decode(batch, noise)
        return action.reshape(self.config.horizon, -1).numpy()


class Learner(ActorCritic):
    """Learns a ``SteeredActor``; the ``action`` of its batches is the choice of noise, not what the robot did."""

    config: Config
