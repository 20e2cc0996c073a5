"""A flow policy with latent noise chosen by a small policy (DSRL, arXiv 2506.15799)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.encoder import Encoder
from rlinf_core.policies.normalization import Normalisation
from rlinf_core.policies.pretrained.flow_matching import FlowMatching
from rlinf_core.policies.small.flow.policy import FlowActor
from rlinf_core.policies.small.latent_noise import Config
from rlinf_core.policies.small.tanh_gaussian.policy import Actor
from rlinf_core.specs.arrays import StationSpec


class LatentNoiseActor(NetworkPolicy):
    """a = flow(s, b w) with latent noise w in [-1, 1] from a small tanh-Gaussian, b deviations.

    The flow may be a vision-language-action model (``config.flow``). Its weights are frozen, and
    stored and sent once (``is_frozen``).
    """

    uses_images = True  # because its flow may
    config: Config

    def __init__(
        self,
        spec: StationSpec,
        config: Config | None = None,
        flow: FlowActor | FlowMatching | None = None,
    ) -> None:
        super().__init__(spec, config or Config())
        self.flow = cast(
            FlowActor | FlowMatching, flow or make_policy(spec, self.config.flow_settings)
        )
        self.noise_policy = Actor(spec, self.config.noise_policy_settings)
        # every number of the noise matters for every action
        self.latent_size = self.noise_policy.action_size
        if self.flow.reads_instructions:
            self.reads_instructions = self.needs_instruction = True

    @classmethod
    def around(cls, config: Config, flow: FlowActor | FlowMatching) -> LatentNoiseActor:
        """Return the policy around a trained flow; the noise policy gets its normalisation."""
        actor = cls(flow.spec, config, flow)
        normalisation = next(part for part in flow.modules() if isinstance(part, Normalisation))
        actor.encoder.mean.copy_(normalisation.mean)
        actor.encoder.std.copy_(normalisation.std)
        return actor

    @classmethod
    def rebuild(
        cls, spec: StationSpec, config: Any, described: Mapping[str, Any]
    ) -> LatentNoiseActor:
        """See ``NetworkPolicy``."""
        flow_settings = config.flow_settings
        return cls(
            spec,
            config,
            policy_kind(flow_settings.kind).Policy.rebuild(spec, flow_settings, described),
        )

    def describe(self) -> dict[str, Any]:
        """Return the description with that of its flow."""
        return self.flow.describe() | super().describe()

    def is_frozen(self, name: str) -> bool:
        """See ``NetworkPolicy``: the network of a large flow."""
        return name.startswith("flow.network.")

    @property
    def encoder(self) -> Encoder:
        """The noise policy's encoder of the observation."""
        return self.noise_policy.encoder

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return latent noise in [-1, 1] (B, H A) and its log-probability (B,).

        With ``same_noise`` it is (B, A), equal for all actions.
        """
        return self.noise_policy.sample(batch, generator)

    def decode(self, batch: Batch, latent: Tensor) -> Tensor:
        """Return the action (B, H A) that latent noise leads to."""
        noise = latent * self.config.noise_bound
        if self.config.same_noise:
            noise = noise.repeat(1, self.config.horizon)
        return self.flow.decode(batch, self.flow.pad_noise(noise))

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions.

        ``drawn`` holds their latent noise, in the shape of ``sample``.
        """
        noise = self.noise_policy.act(observation, self.is_stochastic(explore), generator)
        latent = noise.actions.flatten(1)
        return self.chunk(self.decode(self.to_batch(observation), latent), latent, noise.log_probs)

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the flow's loss; cloning trains the flow."""
        return self.flow.imitation_loss(batch, actions, generator)


Policy = LatentNoiseActor
