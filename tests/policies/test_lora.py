"""A copy of a policy with adapters follows the policy that it was made from."""

import numpy as np
import torch

from rlinf_core.policies import lora
from tests.algorithms.learning import make


def test_a_copy_with_adapters_follows_the_normalisation_alone():
    policy = make("tanh_gaussian")
    trained = lora.with_adapters(policy, 2)
    assert dict(policy.named_buffers()).keys() <= dict(trained.named_buffers()).keys()
    weights = {name: value.clone() for name, value in trained.named_parameters()}
    size = policy.input_spec.vector_size
    policy.encoder.normalise(np.full(size, 3.0), np.full(size, 0.5))
    lora.follow_normalisation(trained, policy)
    followed = dict(trained.named_buffers())
    for name, buffer in policy.named_buffers():
        assert torch.equal(followed[name], buffer)
    assert (trained.encoder.mean == 3.0).all()
    for name, value in trained.named_parameters():
        assert torch.equal(value, weights[name])
