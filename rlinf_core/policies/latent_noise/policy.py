"""A flow policy whose latent noise a small policy chooses (DSRL, arXiv 2506.15799)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlinf_core.policies.flow.policy import FlowActor
from rlinf_core.policies.latent_noise.config import Config
from rlinf_core.policies.policy import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.tanh_gaussian.policy import Actor
from rlinf_core.specs import StationSpec


class LatentNoiseActor(NetworkPolicy):
    """a = flow(s, b w) with latent noise w in [-1, 1] drawn from a small tanh-Gaussian and b standard deviations."""

    config: Config

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__(spec, config or Config())
        self.latent_size = self.action_size  # every number of the noise matters for every action
        self.flow = FlowActor(spec, self.config.of_flow)
        self.noise_policy = Actor(spec, self.config.of_noise_policy)

    @property
    def encoder(self) -> nn.Module:
        """Of the observation, as the noise policy sees it."""
        return self.noise_policy.encoder

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Latent noise in [-1, 1] (B, H A), and its log-probability (B,)."""
        return self.noise_policy.sample(batch, generator)

    def decode(self, batch: Batch, latent: Tensor) -> Tensor:
        """The action (B, H A) that latent noise leads to."""
        return self.flow.decode(batch, latent * self.config.noise_bound)

    @torch.no_grad()
    def act(self, observation: Observation, explore: bool, generator: torch.Generator | None = None) -> ActionChunk:
        """Chunks of actions; ``drawn`` holds the latent noise behind them (B, H A)."""
        noise = self.noise_policy.act(observation, self.draws(explore), generator)
        latent = noise.actions.flatten(1)
        return self.chunk(self.decode(self.seen(observation), latent), latent, noise.log_probs)

    def imitation_loss(self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Of the flow: what cloning demonstrations trains."""
        return self.flow.imitation_loss(batch, actions, generator)


Policy = LatentNoiseActor
