"""Shared parts of policies with an action expert, which carries noise to actions along a velocity.

The expert computes v(images, sentence, state, a, t), integrated in Euler steps; t = 1 is noise, t
= 0 an action (pi0, Black et al. 2024, arXiv 2410.24164). With noise on the way, the draw has a
density: Flow-SDE and Flow-Noise (pi_RL, arXiv 2510.25889). ``ExpertFlowMatching`` is the base of
policies with a network of this project: LeRobot's sizes, and an expert that attends to a
``Prefix``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.core.errors import SpecError
from rlinf_core.policies import sharding
from rlinf_core.policies.base import ActionChunk, Batch, Observation
from rlinf_core.policies.encoder import Head, mlp
from rlinf_core.policies.lora import inject_adapters
from rlinf_core.policies.normalization import BOUND, Normalisation
from rlinf_core.policies.pretrained.action_expert import Prefix
from rlinf_core.policies.pretrained.base import VisionLanguagePolicy
from rlinf_core.policies.pretrained.dataset_statistics import (
    ActionUnits,
    FixedNormalisation,
    Kind,
    load_statistics,
)
from rlinf_core.policies.pretrained.tokenization import Tokenizer
from rlinf_core.policies.real_time_chunking import Continuation, guide_velocity
from rlinf_core.policies.settings import FlowSettings
from rlinf_core.specs.arrays import StationSpec

_WIDTHS = (64, 64)


class NoiseNetwork(nn.Module):
    """The noise's deviation for each action number, from state, point and time.

    Flow-Noise (pi_RL, arXiv 2510.25889; ReinFlow, arXiv 2505.22094). The deviation begins in the
    middle of its bounds, on a logarithmic scale. The network is unused without exploration.
    """

    def __init__(self, state: int, numbers: int, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self.body, self.head = mlp(state + numbers + 1, _WIDTHS), Head(_WIDTHS[-1], numbers)
        self.low, self.high = map(math.log, bounds)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, state: Tensor, point: Tensor, time: Tensor) -> Tensor:
        """Map states (B, V), points (B, H, A) and times (B,) to deviations (B, H, A)."""
        inputs = torch.cat([state, point.flatten(1), time[:, None]], dim=1)
        share = 0.5 * (1.0 + torch.tanh(self.head(self.body(inputs))))
        return torch.exp(self.low + (self.high - self.low) * share).view_as(point)


_LOG_2_PI = math.log(2.0 * math.pi)


class TimeSampling(NamedTuple):
    """The times of training: scale Beta(alpha, 1) + offset."""

    alpha: float
    scale: float
    offset: float


class FlowMatching(VisionLanguagePolicy):
    """a_1 ~ N(0, 1); from t = 1 to 0, a -= v dt; chunks of H normalised actions.

    A subclass defines the network.

    Attributes:
        max_state_dim: the network's largest number of observed numbers.
        max_action_dim: the network's largest number of numbers in an action.
        time_sampling: distribution of the times in training.
        statistics_kind: the data set statistics behind the published checkpoints' training.
        state_divisor: divisor of a normalised state.
    """

    config: FlowSettings
    max_state_dim: int
    max_action_dim: int
    time_sampling: TimeSampling
    statistics_kind: ClassVar[Kind] = "deviations"
    state_divisor: ClassVar[float] = 1.0
    graph_methods: ClassVar[tuple[str, ...]] = ("integrate",)
    compiled_methods: ClassVar[tuple[str, ...]] = ("_velocity",)

    def __init__(
        self,
        spec: StationSpec,
        config: FlowSettings,
        network: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(spec, config, network, tokenizer)
        has_statistics = bool(config.statistics)
        self.normalisation = (FixedNormalisation if has_statistics else Normalisation)(spec)
        self.units = ActionUnits(spec.action, has_statistics)
        self.read_sizes()
        self._check_sizes()
        if network is None and has_statistics:
            kinds = (
                self.checkpoint_info.state_statistics or self.statistics_kind,
                self.checkpoint_info.action_statistics or self.statistics_kind,
            )
            load_statistics(
                Path(config.statistics),
                kinds,
                spec,
                (self.max_state_dim, self.max_action_dim),
                self.normalisation,
                self.units,
                self.state_divisor,
            )
        inject_adapters(self.network, config.lora)
        numbers = config.horizon * spec.action.dim
        self.spread = (
            NoiseNetwork(spec.vector_size, numbers, config.learned_noise)
            if config.learned_noise
            else None
        )
        if config.frozen:
            self.vlm.requires_grad_(False)
        frozen_parameters = {*self.vlm.parameters()} if config.frozen else set()
        self._frozen = frozenset(
            name for name, parameter in self.named_parameters() if parameter in frozen_parameters
        )

    def is_frozen(self, name: str) -> bool:
        """See ``NetworkPolicy``: the weights under adapters, and a frozen vision-language model."""
        return name in self._frozen or super().is_frozen(name)

    @abstractmethod
    def read_sizes(self) -> None:
        """Set ``max_state_dim``, ``max_action_dim`` and ``time_sampling`` from the network.

        Raises:
            SpecError: the network is unsupported, or does not fit the station.
        """

    @property
    @abstractmethod
    def vlm(self) -> nn.Module:
        """The vision-language model."""

    @abstractmethod
    def _prefix(self, inputs: Batch) -> Prefix:
        """Return the keys and values of images and sentences, for the action expert."""

    @abstractmethod
    def _velocity(self, inputs: Batch, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        """Return the velocity at a point (B, H, M) and time (B,); M is ``max_action_dim``."""

    def _check_sizes(self) -> None:
        """Raise SpecError if the task has more numbers than the network."""
        for dimension, actual, most in (
            ("observed numbers", self.spec.vector_size, self.max_state_dim),
            ("numbers an action", self.spec.action.dim, self.max_action_dim),
        ):
            if actual > most:
                raise SpecError(
                    f"policy.kind: expected at most {most} {dimension} for {self.name} of this "
                    f"size, got {actual}. Take another task, or a larger network"
                )

    def encoder_state(self) -> dict[str, Tensor]:
        """See ``OnPolicyActor``: its normalisation."""
        return self.normalisation.state_dict()

    def tokenize(self, sentences: Tensor) -> list[list[int]]:
        """Return the tokens of sentences (B, bytes), cut to ``policy.tokens``."""
        return [tokens[: self.config.tokens] for tokens in super().tokenize(sentences)]

    def padded_state(self, batch: Batch) -> Tensor:
        """Return the observed vectors, normalised and padded with zeros."""
        state = self.normalisation.normalize(batch["vectors"])
        return F.pad(state, (0, self.max_state_dim - state.shape[-1]))

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw a noisy path; return its points (B, K + 1, H, M) and log-densities (B, H).

        M is the network's number of numbers in an action. dx = v dt keeps all marginals if noise of
        standard deviation g(t) is added and the score draws it back: x' = x - v d + g^2 s d / 2 + g
        sqrt(d) e, with s = -(x + (1 - t) v) / t (Flow-GRPO, Liu et al. 2025, arXiv 2505.05470; for
        pi0: pi_RL, arXiv 2510.25889). ``sde_schedule`` selects g = sde_noise sqrt(t), which is
        nowhere singular, or pi_RL's g = sde_noise sqrt(t / (1 - t)), in which the first of K steps
        takes 1 - t as 1 / K. With ``learned_noise`` x' = x - v d + s e, with s from a small network
        for each number. Numbers of the network beyond the spec's get no noise.
        """
        inputs = self.inputs(batch)
        prefix, size = self._prefix(inputs), len(batch["vectors"])
        points = [self.noise(size, generator)]
        log_probs: list[Tensor] = []
        for time in self._step_times(size):
            mean, std = self._step(
                batch, points[-1], self._velocity(inputs, prefix, points[-1], time), time
            )
            drawn = mean + std * self._zero_unused(self.noise(size, generator))
            log_probs.append(self._density(drawn, mean, std))
            points.append(drawn)
        return torch.stack(points, dim=1), sum(log_probs, torch.zeros_like(log_probs[0]))

    def log_probs(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy of paths (B, 1, ...) drawn by ``act``, both (B, E)."""
        steps, size = self.config.flow_steps, len(actions)
        points = actions.reshape(size, steps + 1, self.config.horizon, -1)
        inputs = self.inputs(batch)
        prefix = self._prefix(inputs).repeat(steps)
        repeated = {name: value.repeat_interleave(steps, dim=0) for name, value in inputs.items()}
        before, after = points[:, :-1].flatten(0, 1), points[:, 1:].flatten(0, 1)
        time = torch.stack(self._step_times(size), dim=1).flatten()
        state_batch = {"vectors": batch["vectors"].repeat_interleave(steps, dim=0)}
        mean, std = self._step(
            state_batch, before, self._velocity(repeated, prefix, before, time), time
        )
        entropy = (
            0.5
            + 0.5 * _LOG_2_PI
            + std[..., : self.spec.action.dim]
            .log()
            .expand(-1, self.config.horizon, self.spec.action.dim)
        ).sum(dim=-1)
        log_probs, entropy = (
            part.view(size, steps, -1).sum(dim=1)[:, : self.config.executed]
            for part in (self._density(after, mean, std), entropy)
        )
        return log_probs, entropy

    def _step_times(self, size: int) -> list[Tensor]:
        """Return the time (B,) at the beginning of each step."""
        steps = self.config.flow_steps
        return [torch.full((size,), 1.0 - k / steps, device=self.device) for k in range(steps)]

    def _step(
        self, batch: Batch, point: Tensor, velocity: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the mean (B, H, M) of the next point and its deviation.

        The standard deviation is (B, 1, 1), or (B, H, M) if learned.
        """
        if self.spread is not None:
            state = self.normalisation.normalize(batch["vectors"]).clamp(-BOUND, BOUND)
            spread = self.spread(state, point[..., : self.spec.action.dim], time)
            return point - velocity / self.config.flow_steps, F.pad(
                spread, (0, point.shape[-1] - spread.shape[-1])
            )
        time, d, scale = time[:, None, None], 1.0 / self.config.flow_steps, self.config.sde_noise
        # g / sqrt(t)
        noise = (
            scale * (1.0 - time).clamp(min=d).rsqrt()
            if self.config.sde_schedule == "pi_rl"
            else scale
        )
        back = 0.5 * noise**2 * d * (point + (1.0 - time) * velocity)
        return point - d * velocity - self._zero_unused(back), noise * (time * d).sqrt()

    def _zero_unused(self, values: Tensor) -> Tensor:
        """Set the numbers of (B, H, M) beyond the spec's to zero."""
        action_dim = self.spec.action.dim
        return F.pad(values[..., :action_dim], (0, values.shape[-1] - action_dim))

    def _density(self, point: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Return the log-density (B, H) of each action, over the spec's numbers."""
        action_dim = self.spec.action.dim
        std = std[..., :action_dim]
        off = ((point - mean)[..., :action_dim] / std) ** 2
        return -0.5 * (off + 2.0 * std.log() + _LOG_2_PI).sum(dim=-1)

    def pad_noise(self, numbers: Tensor) -> Tensor:
        """Pad a noise number per action number (B, H A) with zeros, in the shape of ``decode``."""
        action_dim = self.spec.action.dim
        return F.pad(numbers.unflatten(-1, (-1, action_dim)), (0, self.max_action_dim - action_dim))

    def decode(
        self, batch: Batch, noise: Tensor, continuation: Continuation | None = None
    ) -> Tensor:
        """Return the actions (B, H A) at the end of the flow from noise (B, H, M)."""
        inputs = self.inputs(batch)
        point = (
            self.integrate(inputs, noise)
            if continuation is None
            else self._integrate(inputs, noise, continuation)
        )
        return self.to_actions(point).flatten(1)

    def to_actions(self, point: Tensor) -> Tensor:
        """Convert the end of the flow (B, H, M) to normalised actions (B, H, A), clipped."""
        return self.units.to_actions(point[..., : self.spec.action.dim])

    def to_point(self, actions: Tensor) -> Tensor:
        """Convert normalised actions (B, H, A) to the end of a flow (B, H, M)."""
        return F.pad(
            self.units.to_network(actions), (0, self.max_action_dim - self.spec.action.dim)
        )

    def integrate(self, inputs: Batch, noise: Tensor) -> Tensor:
        """Return the end of the flow from noise (B, H, M)."""
        return self._integrate(inputs, noise)

    def _integrate(
        self, inputs: Batch, noise: Tensor, continuation: Continuation | None = None
    ) -> Tensor:
        prefix, point = self._prefix(inputs), noise
        # A guided step needs gradients. A compiled function would be recompiled for them while an
        # arm waits.
        field = self._velocity if continuation is None else partial(type(self)._velocity, self)
        for time in self._step_times(len(noise)):
            velocity = partial(field, inputs, prefix, time=time)
            point = (
                point
                - self._guided_velocity(velocity, point, time, continuation)
                / self.config.flow_steps
            )
        return point

    def _guided_velocity(
        self,
        velocity: Callable[[Tensor], Tensor],
        point: Tensor,
        time: Tensor,
        continuation: Continuation | None,
    ) -> Tensor:
        """Return the velocity, guided to the actions in play.

        Numbers beyond the spec's dimensions are not guided.
        """
        if continuation is None:
            return velocity(point)
        goal = self.to_point(continuation.actions)
        weights = self._zero_unused(continuation.weights.unsqueeze(-1).expand_as(goal))
        return guide_velocity(velocity, point, float(time[0]), goal, weights)

    def noise(self, size: int, generator: torch.Generator | None) -> Tensor:
        """Return noise for this many chunks, in the network's size (B, H, M)."""
        return sharding.noise(
            torch.randn, (size, self.config.horizon, self.max_action_dim), generator, self.device
        )

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return E |v(t z + (1 - t) a, t) - (z - a)|^2 for demonstrated actions (B, H A).

        Times near noise are sampled more often.
        """
        alpha, scale, offset = self.time_sampling
        dim = self.spec.action.dim
        noise = self.noise(len(actions), generator)
        uniform = sharding.noise(torch.rand, (len(actions),), generator, actions.device)
        # Beta(alpha, 1) has the quantiles u^(1 / alpha)
        time = uniform ** (1.0 / alpha) * scale + offset
        goal = self.to_point(actions.unflatten(-1, (-1, dim)))
        mixed = time[:, None, None] * noise + (1.0 - time[:, None, None]) * goal
        inputs = self.inputs(batch)
        velocity = self._velocity(inputs, self._prefix(inputs), mixed, time)
        return ((velocity - (noise - goal))[..., :dim] ** 2).mean()

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions from drawn noise, or from zero noise if nothing is to be drawn.

        If it explores with a density, ``drawn`` is the path (B, 1, ...).
        """
        if explore and self.config.has_density:
            path, log_probs = self.sample(self.to_batch(observation), generator)
            return self.chunk(self.to_actions(path[:, -1]), path.flatten(1).unsqueeze(1), log_probs)
        noise = self.noise(len(observation), generator)
        return self.chunk(
            self.decode(
                self.to_batch(observation),
                noise if self.is_stochastic(explore) else torch.zeros_like(noise),
            )
        )

    @torch.no_grad()
    def continue_chunk(
        self,
        observation: Observation,
        continuation: Continuation,
        generator: torch.Generator | None = None,
    ) -> ActionChunk:
        """See ``ContinuesChunks``."""
        noise = self.noise(len(observation), generator)
        noise = noise if self.is_stochastic(explore=False) else torch.zeros_like(noise)
        return self.chunk(self.decode(self.to_batch(observation), noise, continuation))


class ExpertFlowMatching(FlowMatching):
    """Shared parts of pi0.5 and SmolVLA."""

    def read_sizes(self) -> None:
        """See ``FlowMatching``. SmolVLA's times are fixed; old policy files also lack them."""
        config = self.network.config
        self.max_state_dim = config["max_state_dim"]
        self.max_action_dim = config["max_action_dim"]
        self.time_sampling = TimeSampling(
            config.get("time_sampling_beta_alpha", 1.5),
            config.get("time_sampling_scale", 0.999),
            config.get("time_sampling_offset", 0.001),
        )

    @property
    def vlm(self) -> nn.Module:
        """See ``FlowMatching``."""
        vlm: nn.Module = self.network.vlm
        return vlm

    def _prefix(self, inputs: Batch) -> Prefix:
        prefix: Prefix = self.network.prefix(**inputs)
        return prefix

    def _velocity(self, inputs: Batch, prefix: Prefix, point: Tensor, time: Tensor) -> Tensor:
        velocity: Tensor = self.network.velocity(prefix, point, time)
        return velocity
