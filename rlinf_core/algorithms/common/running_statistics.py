"""Running statistics: deviation of returns, scale of values, moments of vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.policies.sharding import all_sum, world_size


class RunningReturn(nn.Module):
    """Deviation of the discounted return so far, which scales rewards.

    Engstrom et al. 2020, arXiv 2005.12729.
    """

    count: Tensor
    mean: Tensor
    var: Tensor
    running: Tensor

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        for name, value in (("count", 1e-4), ("mean", 0.0), ("var", 1.0)):
            self.register_buffer(name, torch.tensor(value))
        self.register_buffer("running", torch.zeros(0))

    def _load_from_state_dict(self, state: dict, prefix: str, *rest: object) -> None:
        self.running = torch.zeros_like(state[f"{prefix}running"])  # one number per environment
        super()._load_from_state_dict(state, prefix, *rest)

    def scale_rewards(
        self, rewards: Tensor, done: Tensor, steps: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return rewards (T, N) over the return's deviation, after an update with these rewards.

        Args:
            rewards: (T, N).
            done: (T, N).
            steps: time steps of each reward, (T, N); 1 if None.
            mask: (T, N), 0 for rewards without effect on the deviation.
        """
        gammas = self.gamma ** (torch.ones_like(rewards) if steps is None else steps)
        if len(self.running) != rewards.shape[1]:
            self.running = torch.zeros_like(rewards[0])
        returns: list[np.ndarray] = []
        running = self.running.numpy(force=True)
        rows = (values.numpy(force=True) for values in (rewards, 1.0 - done, gammas))
        # step by step: on the CPU, by NumPy
        for reward, not_done, gamma in zip(*rows, strict=True):
            returns.append(running * gamma + reward)
            running = returns[-1] * not_done
        self.running = torch.from_numpy(running).to(self.running)
        return_tensor = torch.from_numpy(np.stack(returns)).to(rewards)
        update_moments(
            self.count,
            self.mean,
            self.var,
            return_tensor.flatten() if mask is None else return_tensor[mask > 0],
        )
        return (rewards / (self.var + 1e-8).sqrt()).clamp(-10.0, 10.0)


class RunningScale(nn.Module):
    """The root of the recent mean square of numbers, at least 1."""

    RATE = 0.01
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0))

    def update(self, values: Tensor) -> float:
        """Update with a batch, or this process's shard of it; return the scale."""
        mean_square = all_sum((values**2).mean()) / world_size()
        self.scale.lerp_(mean_square.sqrt().to(self.scale.dtype), self.RATE).clamp_(min=1.0)
        return self.scale.item()


class RunningMoments(nn.Module):
    """Count, mean and variance (V,) of all vectors so far."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        for name, value in (
            ("count", torch.tensor(1e-4)),
            ("mean", torch.zeros(size)),
            ("var", torch.ones(size)),
        ):
            self.register_buffer(name, value)

    def update(self, vectors: Tensor) -> None:
        """Update with vectors (N, V)."""
        update_moments(self.count, self.mean, self.var, vectors)


def update_moments(count: Tensor, mean: Tensor, var: Tensor, values: Tensor) -> None:
    """Update count, mean and variance with values (B, ...), in place (Chan et al. 1983).

    An empty batch changes nothing.
    """
    if not (size := float(len(values))):
        return
    delta = values.mean(dim=0) - mean
    total = count + size
    var.copy_(
        (var * count + values.var(dim=0, unbiased=False) * size + delta**2 * count * size / total)
        / total
    )
    mean.copy_(mean + delta * size / total)
    count.copy_(total)
