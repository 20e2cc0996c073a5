"""Evaluations: what is drawn in them is theirs alone."""

import torch

from rlinf_core.policies import make_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.rollouts.evaluate import evaluate
from tests.algorithms.point import Points


def test_what_a_sampled_policy_draws_is_the_same_for_the_same_scenes_and_disturbs_nobody():
    env = Points(4)
    torch.manual_seed(0)
    policy = make_policy(env.spec, tanh_gaussian.Config(hidden=(16,), stochastic_eval=True))
    before = torch.get_rng_state()
    first, again, others = (
        evaluate(env, policy, scenes) for scenes in (range(8), range(8), range(8, 16))
    )
    assert first == again and [result.value for result in first] != [
        result.value for result in others
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert evaluate(env, policy, []) == []
