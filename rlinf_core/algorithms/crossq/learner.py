"""CrossQ: SAC without target networks, which batch-renormalised critics make stable.

Bhatt et al., ICLR 2024, arXiv 1902.05605. Critics see (s, a) and (s', a') in one batch, so that both are normalised
alike.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlinf_core.algorithms.common.actor_critic import ActorCritic, critic_loss
from rlinf_core.algorithms.common.learner import optimizer_step
from rlinf_core.algorithms.common.tensors import next_observations
from rlinf_core.algorithms.crossq.config import Config
from rlinf_core.policies.encoder import Batch, unreduced
from rlinf_core.sharding import all_sum, world_size


class BatchRenorm(nn.Module):
    """Batch normalisation that leans on its running statistics, per critic: (E, B, F) (Ioffe 2017, arXiv 1702.03275)."""

    R_MAX, D_MAX = 3.0, 5.0
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
    """Mean and variance (E, 1, F) of a batch (E, B, F), over all of its shards."""
    mine = x.mean(dim=1, keepdim=True)
    mean = all_sum(mine) / world_size()
    return mean, all_sum(x.var(dim=1, keepdim=True, unbiased=False) + (mine - mean) ** 2) / world_size()


class Critics(nn.Module):
    """As ``common.actor_critic.Critics``, normalised over the batch before and after every layer."""

    def __init__(self, inputs: int, config: Config) -> None:
        super().__init__()
        widths = (inputs, *config.critic_hidden, 1)
        self.weights, self.biases, self.norms = nn.ParameterList(), nn.ParameterList(), nn.ModuleList()
        for fan_in, fan_out in zip(widths, widths[1:], strict=False):
            bound = fan_in ** -0.5
            self.norms.append(BatchRenorm(config.critics, fan_in, config.renorm_momentum, config.renorm_warmup))
            self.weights.append(nn.Parameter(torch.empty(config.critics, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.zeros(config.critics, 1, fan_out)))

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([features, action], dim=-1).expand(self.weights[0].shape[0], -1, -1)
        *before, (last, weights, biases) = zip(self.norms, self.weights, self.biases, strict=True)
        for norm, weight, bias in before:
            x = F.relu(torch.baddbmm(bias, norm(x), weight))
        with unreduced(x):
            return torch.baddbmm(biases, last(x), weights).squeeze(-1)


class Learner(ActorCritic):
    """SAC with joint batches and without targets."""

    config: Config

    def make_critics(self, inputs: int) -> nn.Module:
        return Critics(inputs, self.config)

    def update_critics(self, batch: Batch) -> dict[str, float]:
        next_batch = next_observations(batch)
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(next_batch, self.generator)
        features = torch.cat([self.encoder(batch), self.encoder(next_batch)])
        self.critics.train()
        actions = torch.cat([self.executed(batch, batch["action"]), self.executed(next_batch, next_action)])
        values, next_values = self.critics(features, actions).chunk(2, dim=1)
        with torch.no_grad():
            target = self.target_from(batch, next_values, next_log_prob)
        loss = critic_loss(values, target)
        optimizer_step(self.optimisers["critic"], loss, self.config.clip_gradient)
        return {"critic_loss": loss.item(), "q": values.mean().item()}

    def q_values(self, batch: Batch, action: Tensor) -> Tensor:
        self.critics.eval()
        return super().q_values(batch, action)
