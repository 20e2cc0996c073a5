"""A flow-matching actor: noise is carried to an action along a learned velocity field.

The path has a few Euler steps. Lipman et al. 2022, arXiv 2210.02747; as a policy: pi0, arXiv
2410.24164. For training by a critic, each step is a Gaussian, so that the path has a density (Zhang
et al. 2025, SAC Flow, arXiv 2509.25756, section 4). With ``max_delay`` cloning teaches it to
continue a chunk (Black et al. 2025, Training-time action conditioning, arXiv 2512.05964): each
action has a separate time, and fixed actions are at its end.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies import sharding
from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.encoder import Encoder, Head, mlp
from rlinf_core.policies.real_time_chunking import Continuation, guide_velocity
from rlinf_core.policies.small.flow import Config
from rlinf_core.policies.small.tanh_gaussian.policy import MAX_CLONED
from rlinf_core.specs.arrays import StationSpec

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 0.0


class FlowActor(NetworkPolicy):
    """a_0 ~ N(0, 1); a_{k+1} = a_k + v(s, a_k, k / K) / K; the action is tanh(a_K).

    A chunk of H actions is flattened.
    """

    config: Config

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__(spec, config or Config())
        self.size, self.max_prefix = self.action_size, self.config.max_delay
        # number of flow times: one for all actions, or one for each action
        self.clocks = self.config.horizon if self.config.max_delay else 1
        self.encoder = Encoder(spec, self.config)
        self.field = mlp(self.encoder.size + self.size + self.clocks, self.config.hidden)
        self.head = Head(self.config.hidden[-1], 2 * self.size)

    def velocity(self, features: Tensor, point: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the field at ``point`` (B, H A) and ``time`` (B, clocks), and its log deviation.

        The deviation is that of a step from there.
        """
        outputs = self.head(self.field(torch.cat([features, point, time], dim=-1)))
        velocity, log_std = outputs.chunk(2, dim=-1)
        return velocity, LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (
            torch.tanh(log_std) + 1.0
        )

    def pad_noise(self, numbers: Tensor) -> Tensor:
        """Return the noise of each number of a chunk (B, H A) in the shape of ``decode``."""
        return numbers

    def decode(
        self, batch: Batch, noise: Tensor, continuation: Continuation | None = None
    ) -> Tensor:
        """Return the action (B, H A) at the end of the noise-free path from ``noise``."""
        features = self.encoder(batch)
        if continuation is None:
            return torch.tanh(self._path(features, noise)[0])
        goal = torch.atanh(continuation.actions.clamp(-MAX_CLONED, MAX_CLONED)).flatten(1)
        if self.config.max_delay:
            action_index = torch.arange(self.config.horizon, device=noise.device)
            is_fixed = (continuation.weights >= 1.0) & (action_index < self.config.max_delay)
            return torch.tanh(self._path(features, noise, fixed=(goal, is_fixed))[0])
        weights, point = self._per_number(continuation.weights), noise
        steps = self.config.flow_steps
        for k in range(steps):
            time = k / steps
            velocity = partial(self._reverse_velocity, features, self._times(point, time))
            point = point - guide_velocity(velocity, point, 1.0 - time, goal, weights) / steps
        return torch.tanh(point)

    def _times(self, point: Tensor, time: float) -> Tensor:
        """Return the same time for all clocks, (B, clocks)."""
        return torch.full((len(point), self.clocks), time, device=point.device)

    def _per_number(self, values: Tensor) -> Tensor:
        """Repeat values (B, H) of actions for each of their numbers, (B, H A)."""
        return values.repeat_interleave(self.spec.action.dim, dim=1)

    def _reverse_velocity(self, features: Tensor, times: Tensor, point: Tensor) -> Tensor:
        """Return the velocity from action to noise, the direction of ``guide_velocity``."""
        return -self.velocity(features, point, times)[0]

    @torch.no_grad()
    def continue_chunk(
        self,
        observation: Observation,
        continuation: Continuation,
        generator: torch.Generator | None = None,
    ) -> ActionChunk:
        """See ``ContinuesChunks``; with ``stochastic_eval`` the path begins at drawn noise."""
        shape = len(observation), self.size
        noise = (
            sharding.noise(torch.randn, shape, generator, self.device)
            if self.is_stochastic(explore=False)
            else torch.zeros(shape, device=self.device)
        )
        return self.chunk(self.decode(self.to_batch(observation), noise, continuation))

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a reparameterised action (B, H A) along a noisy path, and its log-density (B,).

        If a chunk is not played to its end, the density counts the noise of the played numbers.
        """
        features = self.encoder(batch)
        noise = sharding.noise(torch.randn, (len(features), self.size), generator, features.device)
        raw, log_path = self._path(features, noise, generator, noisy=True)
        squash = 2.0 * (np.log(2.0) - raw - F.softplus(-2.0 * raw))
        log_path = log_path + _log_normal(noise, torch.zeros_like(noise)) - squash
        return torch.tanh(raw), log_path[:, : self.executed_size].sum(dim=-1)

    def _path(
        self,
        features: Tensor,
        point: Tensor,
        generator: torch.Generator | None = None,
        noisy: bool = False,
        fixed: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the end of the path and its log-density, both (B, H A).

        ``fixed`` holds numbers (B, H A), and a mask (B, H) of the actions that have them already.
        """
        steps = self.config.flow_steps
        log_path = torch.zeros_like(point)
        for k in range(steps):
            times = self._times(point, k / steps)
            if fixed is not None:
                times = times.masked_fill(fixed[1], 1.0)
                point = torch.where(self._per_number(fixed[1]), fixed[0], point)
            velocity, log_std = self.velocity(features, point, times)
            point = point + velocity / steps
            if noisy:
                noise = sharding.noise(torch.randn, point.shape, generator, point.device)
                point = point + log_std.exp() * noise
                log_path = log_path + _log_normal(noise, log_std)
        if fixed is not None:
            point = torch.where(self._per_number(fixed[1]), fixed[0], point)
        return point, log_path

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return E |v(s, (1 - t) z + t x, t) - (x - z)|^2 for demonstrated actions (B, H A).

        Here x = atanh(a). With ``max_delay`` the first actions are fixed, and the loss counts the
        rest. Half of the chunks have ``max_delay`` fixed actions, the others a uniform number, and
        each at least the batch's number (``prefix_length``).
        """
        goal = torch.atanh(actions.clamp(-MAX_CLONED, MAX_CLONED))
        noise = sharding.noise(torch.randn, goal.shape, generator, goal.device)
        time = sharding.noise(torch.rand, (len(goal), 1), generator, goal.device)
        if not self.config.max_delay:
            point = (1.0 - time) * noise + time * goal
            velocity, _ = self.velocity(self.encoder(batch), point, time)
            return ((velocity - (goal - noise)) ** 2).mean()
        uniform = sharding.noise(torch.rand, (len(goal), 1), generator, goal.device)
        delay = uniform * 2 * (self.config.max_delay + 1)
        delay = delay.floor().clamp(max=self.config.max_delay)
        if "prefix_length" in batch:
            delay = torch.maximum(delay, batch["prefix_length"].unsqueeze(1))
        is_fixed = torch.arange(self.config.horizon, device=goal.device) < delay
        times = time.expand(is_fixed.shape).masked_fill(is_fixed, 1.0)
        number_times = self._per_number(times)
        point = (1.0 - number_times) * noise + number_times * goal
        velocity, _ = self.velocity(self.encoder(batch), point, times)
        is_free = ~self._per_number(is_fixed)
        return sharding.mean((velocity - (goal - noise))[is_free] ** 2)

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions.

        Without exploration they follow the noise-free path from zero noise.
        """
        if not self.is_stochastic(explore):
            noise = torch.zeros(len(observation), self.size, device=self.device)
            return self.chunk(self.decode(self.to_batch(observation), noise))
        action, log_probs = self.sample(self.to_batch(observation), generator)
        return self.chunk(action, log_probs=log_probs)


def _log_normal(noise: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of mean + exp(log_std) noise."""
    return -0.5 * (noise**2 + np.log(2.0 * np.pi)) - log_std


Policy = FlowActor
