"""Tensors are created on the policy's device, whatever torch's default device is."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies import kinds, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.policies.torch_device import device_of
from rlinf_core.rollouts.collect import ChunkRollouts, EpisodeRollouts
from tests.algorithms.by_hand import SEEING, pictures
from tests.algorithms.learning import CONFIGS, SMALL, buffer_of, make, of_config
from tests.algorithms.point import SPEC, Points, misled

MUST_SEE = (
    "groot",
    "groot_n1_6",
    "groot_n1_7",
    "openvla",
    "pi0",
    "pi05",
    "pi0_fast",
    "qwen_vl",
    "smolvla",
    "xvla",
)
# a mask, a state, places, tokens: there are none on this device
READ_NUMBERS = (
    *("groot", "groot_n1_6", "groot_n1_7", "openvla", "pi05", "pi0_fast", "qwen_vl", "smolvla"),
    "xvla",
)
# one has no actions of a robot, the other no network here: tests/agentic,
# tests/policies/test_lerobot_kind.py
OTHERS = ("language", "lerobot")


@contextmanager
def elsewhere():
    """Make a device the default whose tensors cannot be combined with others."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in (*MUST_SEE, *OTHERS)])
def test_policies_act_and_are_played_where_they_are(kind):
    policy = make(kind, horizon=3, n_action_steps=2)
    with elsewhere():
        with pytest.raises(RuntimeError):
            torch.ones(2) + torch.ones(2, device="cpu")
        for explore in (False, True):
            chunk = policy.act(
                Observation.from_arrays(SPEC, Points(4).reset(range(4)), policy.device),
                explore,
                torch.Generator(policy.device),
            )
            assert chunk.actions.device == chunk.drawn.device == policy.device
        assert EpisodeRollouts(Points(2), policy).play(60).trajectories
        inputs = torch.ones(4, policy.input_spec.vector_size, device="cpu")
        loss = policy.imitation_loss({"vectors": inputs}, torch.ones(4, 6, device="cpu"))
        assert loss.device == policy.device


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in (*READ_NUMBERS, *OTHERS)])
def test_a_policy_goes_where_it_is_sent_with_all_it_needs(kind):
    seeing = dict(hidden=(8,), image_features=4, channels=(4,), horizon=1)
    policy = of_config(SEEING, policy_kind(kind).Config(**seeing)).to("meta")
    assert policy.device.type == "meta"
    assert {part.device.type for part in (*policy.parameters(), *policy.buffers())} == {"meta"}
    batch = {"vectors": np.zeros((3, 1), np.float32), "front": np.zeros((3, 8, 8, 3), np.uint8)}
    chunk = policy.act(
        Observation.from_arrays(SEEING, batch, instruction="push").to(policy.device), explore=False
    )
    assert chunk.actions.device.type == "meta" and chunk.actions.shape == (3, 1, 2)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("sac", "tanh_gaussian"),
        ("crossq", "tanh_gaussian"),
        ("rlpd", "tanh_gaussian"),
        ("iql", "tanh_gaussian"),
        ("sac_flow", "flow"),
        ("sft", "tanh_gaussian"),
        ("sft", "flow"),
    ],
)
def test_learners_of_batches_learn_where_their_policy_is(name, kind, random):
    module, policy = algorithm(name), make(kind)
    batch = buffer_of(misled(random), 8).sample(32, random)
    config = {} if name == "sft" else SMALL | ({} if name == "iql" else CONFIGS[name])
    learner = module.Learner(policy, module.Config(**config), 0)
    with elsewhere():
        assert learner.device == learner.generator.device == policy.device
        metrics = [learner.update(batch) for _ in range(3)][-1]
    assert np.isfinite(list(metrics.values())).all()


@pytest.mark.parametrize("name", ["ppo", "async_ppo", "grpo", "dapo", "reinforce"])
def test_learners_of_rollouts_learn_where_their_policy_is(name):
    module, policy = algorithm(name), make("gaussian", horizon=2)
    learner = module.Learner(policy, module.Config(**CONFIGS[name]), 0)
    with elsewhere():
        metrics = learner.update(
            *ChunkRollouts(Points(16), policy).play(**learner.config.rollout).rollouts
        )
    assert np.isfinite(list(metrics.values())).all()


def test_pictures_are_shifted_where_they_are(random):
    from tests.algorithms.by_hand import seeing

    policy, batch = seeing(), pictures(random)
    with elsewhere():
        sft = algorithm("sft")
        assert np.isfinite(sft.Learner(policy, sft.Config(), 0).update(batch)["sft_loss"])


def test_a_device_that_is_not_there_is_refused_with_those_that_are():
    assert device_of("cpu") == torch.device("cpu")
    best = (
        torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    )
    assert device_of("auto").type == best
    for name in ("cuda:99", "gpu", "meta"):
        with pytest.raises(
            RlinfError, match=f"device: expected auto or one of cpu.* on this machine, got '{name}'"
        ):
            device_of(name)
