"""CrossQ: SAC without target networks, stable by batch-renormalised critics.

Bhatt et al., ICLR 2024, arXiv 1902.05605. Critics see (s, a) and (s', a') in one batch, so that
both are normalised equally.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.algorithms.common import actor_critic
from rlinf_core.algorithms.common.tensors import next_observations
from rlinf_core.algorithms.crossq import Config
from rlinf_core.policies.encoder import Batch, full_precision
from rlinf_core.policies.sharding import all_sum, world_size


class BatchRenorm(nn.Module):
    """Batch normalisation corrected by running statistics, per critic: (E, B, F).

    Ioffe 2017, arXiv 1702.03275.
    """

    R_MAX, D_MAX = 3.0, 5.0
    recomputable = False  # recomputing would count a batch twice
    mean: Tensor
    std: Tensor
    steps: Tensor

    def __init__(self, critics: int, features: int, momentum: float, warmup: int) -> None:
        super().__init__()
        self.momentum, self.warmup = momentum, warmup
        self.scale = nn.Parameter(torch.ones(critics, 1, features))
        self.shift = nn.Parameter(torch.zeros(critics, 1, features))
        self.register_buffer("mean", torch.zeros(critics, 1, features))
        self.register_buffer("std", torch.ones(critics, 1, features))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.scale.dtype)
        if not self.training:
            return (x - self.mean) / self.std * self.scale + self.shift
        mean, var = moments(x)
        std = (var + 1e-3).sqrt()
        r, d = torch.ones_like(std), torch.zeros_like(mean)
        if self.steps > self.warmup:
            r = (std.detach() / self.std).clamp(1.0 / self.R_MAX, self.R_MAX)
            d = ((mean.detach() - self.mean) / self.std).clamp(-self.D_MAX, self.D_MAX)
        with torch.no_grad():
            self.mean.lerp_(mean, self.momentum)
            self.std.lerp_(std, self.momentum)
            self.steps += 1
        return ((x - mean) / std * r + d) * self.scale + self.shift


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (E, 1, F) of a batch (E, B, F), over all of its shards."""
    local_mean = x.mean(dim=1, keepdim=True)
    mean = all_sum(local_mean) / world_size()
    return mean, all_sum(
        x.var(dim=1, keepdim=True, unbiased=False) + (local_mean - mean) ** 2
    ) / world_size()


class Critics(actor_critic.Critics):
    """SAC's critics with a normalisation over the batch before and after every layer."""

    def __init__(self, inputs: int, config: Config) -> None:
        super().__init__(inputs, config.critic_hidden, config.critics)
        rest = config.renorm_momentum, config.renorm_warmup
        self.norms = nn.ModuleList(
            [BatchRenorm(config.critics, weight.shape[1], *rest) for weight in self.weights]
        )

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([features, action], dim=1).expand(self.weights[0].shape[0], -1, -1)
        *before, (last, weights, biases) = zip(self.norms, self.weights, self.biases, strict=True)
        for norm, weight, bias in before:
            x = F.relu(torch.baddbmm(bias, norm(x), weight))
        with full_precision(x):
            return actor_critic.ensemble_layer(last(x), weights, biases)


class Learner(actor_critic.ActorCritic):
    """SAC with joint batches and without targets."""

    config: Config

    def make_critics(self, inputs: int) -> Critics:
        return Critics(inputs, self.config)

    def update_critics(self, batch: Batch) -> dict[str, float]:
        next_batch = next_observations(batch)
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(next_batch, self.generator)
        features = torch.cat([self.encoder(batch), self.encoder(next_batch)])
        self.critics.train()
        actions = torch.cat(
            [self.executed(batch, batch["action"]), self.executed(next_batch, next_action)]
        )
        values, next_values = self.critics(features, actions).chunk(2, dim=1)
        with torch.no_grad():
            target = self.bootstrap_targets(batch, next_values, next_log_prob)
        return self.step_critics(values, target)

    def q_values(self, batch: Batch, action: Tensor) -> Tensor:
        self.critics.eval()
        return super().q_values(batch, action)
