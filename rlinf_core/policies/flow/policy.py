"""A flow-matching actor: noise is carried to an action along a learned velocity field, in a few Euler steps.

Lipman et al. 2022, arXiv 2210.02747; as a policy: pi0, arXiv 2410.24164. To be trained by a critic, each step is made a
Gaussian, so that the path has a density (Zhang et al. 2025, SAC Flow, arXiv 2509.25756, section 4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.policies.encoder import Batch, Encoder, mlp
from rlinf_core.policies.flow.config import Config
from rlinf_core.specs import StationSpec

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 0.0


class FlowActor(nn.Module):
    """a_0 ~ N(0, 1); a_{k+1} = a_k + v(s, a_k, k / K) / K; the action is tanh(a_K), a chunk of H actions flattened."""

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__()
        self.spec, self.config = spec, config or Config()
        self.size = spec.action.dim * self.config.horizon
        self.encoder = Encoder(spec, self.config)
        self.field = mlp(self.encoder.size + self.size + 1, self.config.hidden)
        self.head = nn.Linear(self.config.hidden[-1], 2 * self.size)

    def velocity(self, features: Tensor, point: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """The field at ``point`` (B, H A) and ``time`` (B, 1), and the log deviation of a step from there."""
        outputs = self.head(self.field(torch.cat([features, point, time], dim=-1)))
        velocity, log_std = outputs.chunk(2, dim=-1)
        return velocity, LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (torch.tanh(log_std) + 1.0)

    def decode(self, batch: Batch, noise: Tensor) -> Tensor:
        """The action (B, H A) that ``noise`` is carried to, without any noise on the way."""
        return torch.tanh(self._path(self.encoder(batch), noise, None)[0])

    def sample(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A reparameterised action (B, H A) along a noisy path, and the log-density of that path (B,)."""
        features = self.encoder(batch)
        noise = torch.randn(len(features), self.size, generator=generator)
        raw, log_path = self._path(features, noise, generator)
        squash = 2.0 * (np.log(2.0) - raw - F.softplus(-2.0 * raw))
        return torch.tanh(raw), log_path + (_log_normal(noise, torch.zeros_like(noise)) - squash).sum(dim=-1)

    def _path(self, features: Tensor, point: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        steps = self.config.flow_steps
        log_path = torch.zeros(len(point))
        for k in range(steps):
            velocity, log_std = self.velocity(features, point, torch.full((len(point), 1), k / steps))
            point = point + velocity / steps
            if generator is not None:
                noise = torch.randn(point.shape, generator=generator)
                point = point + log_std.exp() * noise
                log_path = log_path + _log_normal(noise, log_std).sum(dim=-1)
        return point, log_path

    def matching_loss(self, batch: Batch, action: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """E |v(s, (1 - t) z + t x, t) - (x - z)|^2 for demonstrated actions (B, H A), x = atanh(a)."""
        goal = torch.atanh(action.clamp(-0.97, 0.97))
        noise = torch.randn(goal.shape, generator=generator)
        time = torch.rand(len(goal), 1, generator=generator)
        velocity, _ = self.velocity(self.encoder(batch), (1.0 - time) * noise + time * goal, time)
        return ((velocity - (goal - noise)) ** 2).mean()

    def act(self, observation: dict[str, np.ndarray], explore: bool, random: np.random.Generator) -> np.ndarray:
        """One observation to a chunk of normalised actions (H, A); without exploring, from the noise's middle."""
        batch = {name: torch.as_tensor(np.ascontiguousarray(observation[name]))[None] for name in self.encoder.image_names}
        batch["vectors"] = torch.as_tensor(self.spec.flatten(observation)[None])
        generator = torch.Generator().manual_seed(int(random.integers(2**31))) if explore else None
        with torch.inference_mode():
            noise = torch.randn(1, self.size, generator=generator) if explore else torch.zeros(1, self.size)
            raw, _ = self._path(self.encoder(batch), noise, generator)
        return torch.tanh(raw).reshape(self.config.horizon, -1).numpy()

    def describe(self) -> dict[str, Any]:
        """What a policy file must say to rebuild this module."""
        return {"spec": self.spec.to_dict(), "config": self.config.model_dump()}


def _log_normal(noise: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of mean + exp(log_std) noise."""
    return -0.5 * (noise ** 2 + np.log(2.0 * np.pi)) - log_std


Policy = FlowActor
