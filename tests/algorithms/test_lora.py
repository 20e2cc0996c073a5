"""Low-rank adapters: what they compute, what they leave alone, and that the plain policy keeps up
with them.
"""

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import sft
from rlinf_core.algorithms.common.tensors import to_tensors
from rlinf_core.policies import lora
from rlinf_core.trainer import checkpoint
from tests.algorithms.learning import buffer_of, make
from tests.algorithms.point import expert

CONFIG = sft.Config(lora_rank=4, learning_rate=1e-2)


@pytest.fixture
def data():
    return buffer_of(lambda o: expert(o)[None], 10)


@pytest.mark.parametrize("kind", ["tanh_gaussian", "flow"])
def test_the_merged_policy_is_w_plus_scaled_b_a(kind, data):
    actor, random = make(kind), np.random.default_rng(0)
    before = {name: value.clone() for name, value in actor.state_dict().items()}
    learner = sft.Learner(actor, CONFIG)
    for _ in range(5):
        learner.update(data.sample(32, random))
    layers = {
        name: module
        for name, module in learner.trained.named_modules()
        if hasattr(module, "lora_A")
    }
    assert layers
    for name, layer in layers.items():
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        assert a.shape[0] == b.shape[1] == 4
        assert torch.allclose(
            actor.get_submodule(name).weight, before[f"{name}.weight"] + 2.0 * b @ a, atol=1e-6
        )
        assert not torch.equal(actor.get_submodule(name).weight, before[f"{name}.weight"])
    changed = {f"{name}.weight" for name in layers}
    assert all(
        torch.equal(value, before[name])
        for name, value in actor.state_dict().items()
        if name not in changed
    )


def test_it_begins_as_the_policy_and_ends_as_its_adapters(data):
    actor, random = make(), np.random.default_rng(0)
    batch = to_tensors(data.sample(8, random))
    assert torch.equal(lora.with_adapters(actor, 4)(batch)[0], actor(batch)[0])
    learner = sft.Learner(actor, CONFIG)
    actor.encoder.fit_normalisation(np.random.default_rng(1).normal(3.0, 2.0, (50, 2)))
    for _ in range(5):
        learner.update(data.sample(32, random))
    assert torch.allclose(learner.trained(batch)[0], actor(batch)[0], atol=1e-5)


def test_few_weights_are_trained():
    learner = sft.Learner(make(), CONFIG)
    trained = sum(
        p.numel() for group in learner.optimisers["actor"].param_groups for p in group["params"]
    )
    assert trained == 4 * ((2 + 64) + (64 + 64) + (64 + 4))
    assert trained < 0.3 * sum(p.numel() for p in learner.actor.parameters())


def test_it_goes_on_from_a_checkpoint(data, tmp_path):
    one = sft.Learner(make(), CONFIG)
    one.update(data.sample(32, np.random.default_rng(0)))
    two = sft.Learner(make(seed=9), CONFIG, seed=9)
    two.load_state_dict(checkpoint.load(checkpoint.save(tmp_path, "updates-1", one.state_dict())))
    batch = data.sample(32, np.random.default_rng(1))
    assert one.update(batch) == two.update(batch)
    for a, b in zip(one.actor.parameters(), two.actor.parameters(), strict=True):
        assert torch.equal(a, b)
