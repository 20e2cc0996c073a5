"""A policy gives a value function the weights that its encoder begins with."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.policies import make_policy, policy_kind
from tests.agentic.test_language import tiny as language
from tests.algorithms.learning import make
from tests.policies.test_pi0 import SPEC


def test_a_gaussian_gives_all_of_its_encoder():
    policy = make("gaussian")
    state = policy.encoder_state()
    assert state.keys() == policy.encoder.state_dict().keys() and state
    assert all(
        torch.equal(value, policy.encoder.state_dict()[name]) for name, value in state.items()
    )
    assert policy.value_network() is None


def test_a_flow_gives_its_normalisation():
    policy = make_policy(SPEC, policy_kind("pi0").Config(horizon=2, flow_steps=2))
    size = policy.normalisation.mean.shape[0]
    policy.normalisation.set_statistics(np.arange(size) + 1.0, np.full(size, 0.5))
    state = policy.encoder_state()
    assert state["mean"].tolist() == [number + 1.0 for number in range(size)]
    assert state.keys() == policy.normalisation.state_dict().keys()
    assert policy.value_network() is None


def test_tokens_give_nothing_and_a_language_model_a_value_of_each_token():
    policy = make_policy(SPEC, policy_kind("openvla").Config())
    assert policy.encoder_state() == {} and policy.value_network() is None
    model = language()
    assert model.encoder_state() == {}
    value = model.value_network()
    batch = {"executed": torch.ones(2, 5), "actions": torch.arange(10).reshape(2, 5, 1)}
    with torch.no_grad():
        assert torch.equal(value(batch), torch.zeros(2, 5))
    assert {id(p) for p in value.parameters()}.isdisjoint(id(p) for p in model.parameters())
