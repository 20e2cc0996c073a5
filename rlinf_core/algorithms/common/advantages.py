"""Advantages of a rollout: generalised (GAE), per token, relative to a group, and returns to go."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    done: Tensor,
    gamma: float | Tensor,
    lambda_: float,
) -> Tensor:
    """Return generalised advantages (T, N) (Schulman et al. 2015, arXiv 1506.02438, equation 16).

    Args:
        rewards, values: (T, N).
        next_values: value of the next observation, before any reset, (T, N).
        terminated: 1 if the task ended there, so that no value follows, (T, N).
        done: terminated or cut off by time: the sum over the future stops there, (T, N). After a
            mere time limit the next value still counts.
        gamma: discount of each step, a number or (T, N): gamma to the power of a chunk's time
            steps.
        lambda_: decay of the advantages.
    """
    gamma = gamma * torch.ones_like(rewards)
    delta = rewards + gamma * next_values * (1.0 - terminated) - values
    advantages, later = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        later = delta[t] + gamma[t] * lambda_ * (1.0 - done[t]) * later
        advantages[t] = later
    return advantages


def token_advantages(
    rewards: Tensor, values: Tensor, counted: Tensor, gamma: float, lambda_: float
) -> Tensor:
    """Return ``gae`` over the tokens (N, E) of rows that count; the others take no time.

    Args:
        rewards: (N, E).
        values: value of the state before each token, (N, E).
        counted: 1 for tokens that the policy drew, (N, E).
        gamma, lambda_: discount and decay per counted token.
    """
    advantages = torch.zeros_like(values)
    later, next_value = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        is_counted = counted[:, t] > 0
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        later = torch.where(is_counted, delta + gamma * lambda_ * later, later)
        next_value = torch.where(is_counted, values[:, t], next_value)
        advantages[:, t] = later * counted[:, t]
    return advantages


def normalise_advantages(
    advantages: Tensor, mask: Tensor | None = None, floor: float = 1e-8
) -> Tensor:
    """Normalise to zero mean and unit deviation over the mask; zeros for fewer than two values."""
    exact = advantages.double()
    valid = exact if mask is None else exact[mask > 0]
    if valid.numel() < 2:  # no deviation
        return torch.zeros_like(advantages)
    return ((exact - valid.mean()) / (valid.std() + floor)).to(advantages.dtype)


def group_advantages(returns: Tensor, group: int, scale: bool = True) -> Tensor:
    """Return returns (N,) of episodes relative to their group's mean (and deviation).

    Groups lie one after another. GRPO: DeepSeekMath, arXiv 2402.03300, section 4.1.2. The
    computation is in double precision. In single precision, the rounding error of the mean in a
    group of equal returns would be taken for its deviation, and all of its chunks would be praised
    or blamed.
    """
    grouped = returns.double().view(-1, group)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (
        (centred / (grouped.std(dim=1, keepdim=True) + EPSILON) if scale else centred)
        .flatten()
        .to(returns.dtype)
    )


def rewards_to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Return the sum of rewards from each step on, (T, N)."""
    result, later = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        later = (rewards[t] + gamma * later) * mask[t]
        result[t] = later
    return result
