"""A tanh-Gaussian actor: encoder, trunk and head, with its own normalisation.

It acts from vectors alone (a spec without images), or also from images (an encoder per camera).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlinf_core.policies.base import ActionChunk, Batch, NetworkPolicy, Observation
from rlinf_core.policies.encoder import Encoder, Head, mlp
from rlinf_core.policies.sharding import noise
from rlinf_core.policies.small.tanh_gaussian import Config
from rlinf_core.specs.arrays import StationSpec

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 1.0
MAX_CLONED = 0.97  # cloned actions are clipped here, where the inverse of tanh is still small
# the constants of log N(x; mean, std) and of log(1 - tanh(x)^2)
_LOG_CONSTANT = 0.5 * float(np.log(2.0 * np.pi)) + 2.0 * float(np.log(2.0))
_MIDDLE, _HALF_RANGE = 0.5 * (LOG_STD_HIGH + LOG_STD_LOW), 0.5 * (LOG_STD_HIGH - LOG_STD_LOW)


class Actor(NetworkPolicy):
    """pi(a | s) = tanh(N(mean(s), std(s))) over normalised actions in [-1, 1].

    Haarnoja et al. 2018, appendix C.
    """

    def __init__(self, spec: StationSpec, config: Config | None = None) -> None:
        super().__init__(spec, config or Config())
        self.encoder = Encoder(self.input_spec, self.config)
        self.trunk = mlp(self.encoder.size, self.config.hidden)
        self.head = Head(self.config.hidden[-1], 2 * self.action_size)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before the tanh, each (B, H A)."""
        mean, log_std = self._outputs(batch)
        return mean, _MIDDLE + _HALF_RANGE * torch.tanh(log_std)

    def _outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean, and the input of the deviation."""
        mean, log_std = self.head(self.trunk(self.encoder(batch))).chunk(2, dim=-1)
        return mean, log_std

    def sample(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a reparameterised action (B, H A), and its played part's log-probability (B,)."""
        mean, log_std = self(batch)
        return sample_squashed(mean, log_std, generator, self.executed_size, self.robot_mask(batch))

    @torch.no_grad()
    def act(
        self, observation: Observation, explore: bool, generator: torch.Generator | None = None
    ) -> ActionChunk:
        """Return chunks of actions, the most likely ones unless it explores."""
        if not self.is_stochastic(explore):
            return self.chunk(torch.tanh(self._outputs(self.to_batch(observation))[0]))
        action, log_probs = self.sample(self.to_batch(observation), generator)
        return self.chunk(action, log_probs=log_probs)

    def imitation_loss(
        self, batch: Batch, actions: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return -E log pi(a | s) of demonstrated actions (B, H A)."""
        mean, log_std = self(batch)
        return cloning_loss(actions, mean, log_std, self.robot_mask(batch))


def sample_squashed(
    mean: Tensor,
    log_std: Tensor,
    generator: torch.Generator | None = None,
    executed: int | None = None,
    robot_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a reparameterised sample (B, A) of the tanh-Gaussian, and its log-probability (B,).

    Args:
        mean, log_std: (B, A) of the tanh-Gaussian.
        generator: source of the noise.
        executed: count of leading numbers in the log-probability; all if None.
        robot_mask: (B, A) mask of the robot's own numbers.
    """
    deviations = noise(torch.randn, mean.shape, generator, mean.device)
    raw = torch.addcmul(mean, log_std.exp(), deviations)
    mask = None if robot_mask is None else robot_mask[:, :executed]
    log_prob = _log_density(
        deviations[:, :executed], raw[:, :executed], log_std[:, :executed], mask
    )
    return torch.tanh(raw), log_prob


def cloning_loss(
    actions: Tensor,
    mean: Tensor,
    log_std: Tensor,
    robot_mask: Tensor | None = None,
    counts: Tensor | float = 1.0,
) -> Tensor:
    """Return -E log pi(a | s) of actions (B, A), clipped just inside the tanh's range.

    ``counts`` (B,) are weights.
    """
    raw = torch.atanh(actions.clamp(-MAX_CLONED, MAX_CLONED))
    return -(counts * squashed_log_prob(raw, mean, log_std, robot_mask)).mean()


def squashed_log_prob(
    raw: Tensor, mean: Tensor, log_std: Tensor, robot_mask: Tensor | None = None
) -> Tensor:
    """Return the log-density (B,) of tanh(raw) under the tanh-Gaussian, in a stable form.

    ``robot_mask`` (B, A), 0 or 1, leaves out numbers of other robots.
    """
    return _log_density((raw - mean) / log_std.exp(), raw, log_std, robot_mask)


def _log_density(
    deviations: Tensor, raw: Tensor, log_std: Tensor, robot_mask: Tensor | None
) -> Tensor:
    """Return the log-density (B,) of tanh(raw), for ``raw`` at this many deviations from the mean.

    All are (B, A), before the tanh. The density is the Gaussian's, less log(1 -
    tanh(raw)^2) = 2 (log 2 - raw - softplus(-2 raw)).
    """
    gaussian = torch.addcmul(-_LOG_CONSTANT - log_std, deviations, deviations, value=-0.5)
    density = torch.add(gaussian, raw + F.softplus(-2.0 * raw), alpha=2.0)
    return (density if robot_mask is None else density * robot_mask).sum(dim=-1)


Policy = Actor
