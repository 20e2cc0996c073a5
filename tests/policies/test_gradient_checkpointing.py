"""Layers that are computed once more on the way back: the same updates, with less kept in
between.
"""

import copy

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.settings import Computing
from rlinf_core.algorithms.sft import Config as SFTConfig
from rlinf_core.algorithms.sft import Learner as SFT
from rlinf_core.policies.inference import layers
from tests.policies import test_pi0, test_pi05
from tests.policies.bandit import paid_before_and_after
from tests.policies.test_adapter_files import KINDS

MAKERS = KINDS | {"pi05": (test_pi05.pi05, test_pi0.observation)}
AGAIN = Computing(gradient_checkpointing=True)
DEEP = test_pi0.SMALL | {
    "dit_config": test_pi0.LAYERS | {"num_hidden_layers": 6},
    "vlm_config": test_pi0.SMALL["vlm_config"]
    | {
        "text_config": test_pi0.LAYERS | {"num_hidden_layers": 6},
        "vision_config": test_pi0.VISION | {"num_hidden_layers": 6},
    },
}


def cloner(policy, computing):
    learner = SFT(policy, SFTConfig(learning_rate=1e-3, min_std=0.0, image_shift=0), seed=0)
    apply_computing(learner, computing)
    return learner


def batch_of(policy, observations):
    batch = {name: values.numpy() for name, values in policy.to_batch(observations).items()}
    return batch | {"action": np.full((len(observations), policy.action_size), 0.5, np.float32)}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("more", [{}, {"lora": {"rank": 2}}], ids=["whole", "adapters"])
def test_updates_are_the_same(kind, more):
    make, observation = MAKERS[kind]
    plain, observations = make(**more).train(), observation("push", "pull it")
    other, computed = copy.deepcopy(plain), []
    for layer in layers(other):
        layer.register_forward_hook(lambda *_: computed.append("called"))
        next(layer.children()).register_forward_pre_hook(lambda *_: computed.append("computed"))
    one, two = cloner(plain, Computing()), cloner(other, AGAIN)
    for _ in range(2):
        losses = [learner.update(batch_of(plain, observations)) for learner in (one, two)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for (name, value), again in zip(
        plain.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.allclose(value, again, atol=2e-6), name
    if not more:
        assert computed.count("computed") > computed.count("called") > 0, (
            "once more, on the way back"
        )
    computed.clear()
    other.act(observations, False)
    assert computed.count("computed") <= computed.count("called"), "what acts is computed once"


@pytest.mark.parametrize("kind", MAKERS)
def test_in_bfloat16_the_layers_are_computed_so_and_the_loss_is_near(kind):
    make, observation = MAKERS[kind]
    plain, observations = make().train(), observation("push", "pull it")
    reduced, dtypes = copy.deepcopy(plain), []
    for layer in layers(reduced):
        for part in layer.modules():
            if isinstance(part, torch.nn.Linear):
                part.register_forward_hook(lambda part, inputs, answer: dtypes.append(answer.dtype))
    one, two = cloner(plain, Computing()), cloner(reduced, Computing(precision="bfloat16"))
    for _ in range(2):
        losses = [
            learner.update(batch_of(plain, observations))["sft_loss"] for learner in (one, two)
        ]
        assert losses[1] == pytest.approx(losses[0], rel=0.03) and losses[1] != losses[0]
    assert dtypes.count(torch.bfloat16) > 0.8 * len(dtypes) > 0
    assert {value.dtype for value in reduced.parameters()} == {torch.float32}
    assert reduced.act(observations, False).actions.dtype == torch.float32


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_less_is_kept(precision):
    """The bytes kept between forward and backward pass of a pi0 with six layers in each part."""

    def saved_bytes(computing):
        policy, sizes = test_pi0.pi0(network=DEEP).train(), []
        learner = cloner(policy, computing)
        batch = batch_of(policy, test_pi0.observation(*["push"] * 8))

        def count(tensor):
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            learner.update(batch)
        return sum(sizes)

    assert saved_bytes(
        Computing(precision=precision, gradient_checkpointing=True)
    ) < 0.4 * saved_bytes(Computing(precision=precision))


def test_in_bfloat16_updates_are_the_same_too():
    plain = test_pi0.pi0().train()
    other, batch = copy.deepcopy(plain), batch_of(plain, test_pi0.observation("push", "pull it"))
    one = cloner(plain, Computing(precision="bfloat16"))
    two = cloner(other, Computing(precision="bfloat16", gradient_checkpointing=True))
    for _ in range(2):
        losses = [learner.update(batch)["sft_loss"] for learner in (one, two)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.slow
def test_ppo_learns_so_too(monkeypatch):
    """Paths are looked at again with their prefix repeated for each step."""
    make_learner, learners = algorithm("ppo").Learner, []

    def again(*arguments):
        learners.append(make_learner(*arguments))
        apply_computing(learners[-1], AGAIN)
        return learners[-1]

    monkeypatch.setattr(algorithm("ppo"), "Learner", again, raising=False)
    policy = test_pi0.pi0(sde_noise=0.5, horizon=1, flow_steps=2)
    observations = test_pi0.observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, "ppo", 18, learning_rate=5e-3)
    assert learners and before < 0.75 and after > 0.85


def test_with_compiled_networks_it_is_refused():
    with pytest.raises(ValueError, match="gradient_checkpointing: expected false with compile"):
        Computing(gradient_checkpointing=True, compile=True)
