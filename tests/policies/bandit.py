"""A minimal task for a learner from rollouts: a first number above 0 is paid."""

import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.rollout import Rollout


def paid_before_and_after(policy, observations, name, rounds, log_probs_per_chunk=1, **config):
    """Return the paid share of a learner's first round, and after some rounds.

    Args:
        each: log-probabilities that an action has.
    """
    sizes = {"ppo": {"minibatches": 2}, "grpo": {"group": 16, "minibatches": 2}}[name]
    learner = algorithm(name).Learner(
        policy, algorithm(name).Config(epochs=2, **sizes, **config), 0
    )
    draw, one, paid = torch.Generator().manual_seed(0), torch.ones(1, len(observations)), []
    batch = {key: value.unsqueeze(0) for key, value in policy.to_batch(observations).items()}
    for _ in range(rounds + 1):
        chunk = policy.act(observations, True, draw)
        reward = (chunk.actions[:, :, 0] > 0).float()
        paid.append(reward.mean().item())
        drawn, log_probs = chunk.drawn.unsqueeze(0), chunk.log_probs.flatten(1).unsqueeze(0)
        rollout = Rollout(
            batch, batch, drawn, log_probs, reward.unsqueeze(0), one, one, one, one, 0 * one
        )
        assert (
            rollout.executed.shape
            == rollout.log_probs.shape
            == (1, len(observations), log_probs_per_chunk)
        )
        learner.update(rollout)
    return paid[0], paid[-1]
