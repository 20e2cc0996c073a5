"""Processes that divide the layers of a transformer learn what one process learns."""

import copy

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms import algorithm, sft
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.pretrained import tiny_checkpoint
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.distributed.group import LearnerGroup
from tests.agentic.test_language import tiny as language
from tests.policies.test_tiny_checkpoint import SPEC
from tests.trainer.distributed.test_group import Again, assert_alike, policy_of
from tests.trainer.distributed.test_vla import vla_batches

pytestmark = pytest.mark.timed

UPDATES, CLOSE = 20, 1e-5
RATE = {"learning_rate": 1e-4}


def texts(policy, rows=4, length=12):
    random = np.random.default_rng(0)
    return [
        {
            "executed": np.ones((rows, length), np.float32),
            "action": random.integers(0, policy.vocabulary_size, (rows, length, 1)),
        }
        for _ in range(UPDATES)
    ]


def conversations(policy, seed, count=8, length=10):
    random = np.random.default_rng(seed)
    lengths = random.integers(3, length + 1, count)
    counted = torch.tensor(np.arange(length) < lengths[:, None]).float()[None]
    rewards = torch.zeros(1, count, length)
    rewards[..., 0] = torch.tensor(random.normal(size=count))
    ones, nothing = torch.ones(1, count), {"vectors": torch.zeros(1, count, 0)}
    return Rollout(
        nothing,
        nothing,
        torch.tensor(random.integers(0, policy.vocabulary_size, (1, count, length, 1))),
        -5.0 * counted,
        rewards,
        counted.sum(-1),
        ones,
        ones,
        ones,
        torch.zeros(1, count),
        counted,
        torch.arange(count),
    )


def vla(kind, folder, **config):
    settings = policy_kind(kind).Config(checkpoint=str(folder), horizon=2, **config)
    return make_policy(SPEC, settings).train()


def group_of(name, policy, config, kind=Again, size=2):
    return kind(
        name,
        copy.deepcopy(policy),
        config,
        3,
        size=size,
        strategy="ddp",
        cpus=0.25,
        tensor_parallel=2,
    )


def losses(learner, batches, name="sft_loss"):
    return [learner.update(copy.deepcopy(batch))[name] for batch in batches]


def shapes(state):
    return {name: tuple(tensor.shape) for name, tensor in state["modules"]["actor"].items()}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["language", "pi0"])
def test_divided_layers_learn_what_one_process_learns_and_checkpoints_fit_both(kind, tmp_path):
    if kind == "language":
        policy = language(network={"num_attention_heads": 4, "num_key_value_heads": 2})
        batches = texts(policy)
    else:  # one head of keys serves the heads of both processes; adapters are divided, too
        folder = tiny_checkpoint.write(kind, tmp_path / "tiny", horizon=2)
        policy = vla(kind, folder, lora={"rank": 2})
        batches = vla_batches(policy) * (UPDATES // 2)
    config = sft.Config(**RATE, min_std=0.02)
    alone, group = (
        sft.Learner(copy.deepcopy(policy), config, 3),
        group_of("sft", policy, config),
    )
    expected = losses(alone, batches)
    assert losses(group, batches) == pytest.approx(expected, abs=CLOSE)
    assert abs(expected[-1] - expected[0]) > 100 * CLOSE
    state = group.state_dict()
    assert shapes(state) == shapes(alone.state_dict())
    assert {
        index: {name: value.shape for name, value in entry.items()}
        for index, entry in state["optimisers"]["actor"].items()
    } == {
        index: {name: value.shape for name, value in entry.items()}
        for index, entry in alone.state_dict()["optimisers"]["actor"].items()
    }

    one = sft.Learner(copy.deepcopy(policy), config, 4)  # on with one process, and back
    one.load_state_dict(copy.deepcopy(state))
    expected = losses(one, batches[:2])
    assert losses(group, batches[:2]) == pytest.approx(expected, abs=CLOSE)
    group.load_state_dict(one.state_dict())
    assert_alike(group._call_all("state_dict")[0], one.state_dict())
    expected = losses(one, batches[2:4])
    assert losses(group, batches[2:4]) == pytest.approx(expected, abs=CLOSE)
    group._restore()  # as where a process has died
    assert_alike(dict(group.sync().state_dict()), group.state_dict()["modules"]["actor"])


@pytest.mark.timeout(120)
def test_two_groups_of_two_divide_rows_and_layers():
    part = algorithm("grpo")
    config = part.Config(**RATE, epochs=2, minibatches=2, group=4, reference_kl=0.1)
    policy = language()
    rollouts = [conversations(policy, seed) for seed in range(3)]
    alone = part.Learner(copy.deepcopy(policy), config, 3)
    group = group_of("grpo", policy, config, LearnerGroup, size=4)
    for rollout in rollouts[:2]:
        expected = alone.update(copy.deepcopy(rollout))
        assert group.update(rollout) == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
    group.resize(2)  # one group has all rows
    assert group.update(rollouts[2]) == pytest.approx(
        alone.update(copy.deepcopy(rollouts[2])), abs=CLOSE, rel=CLOSE
    )
    with pytest.raises(RecipeError, match=r"expected a multiple of .*tensor_parallel = 2, got 1"):
        group.resize(1)
    group.close()


def test_policies_without_transformer_layers_are_refused_before_anything_starts():
    expected = "expected 1 for policy.kind tanh_gaussian, which has no decoder layers"
    with pytest.raises(RecipeError, match=expected):
        LearnerGroup(
            "sft", policy_of("sft"), sft.Config(), 0, size=2, strategy="ddp", tensor_parallel=2
        )
    with pytest.raises(RecipeError, match=r"algorithm.lora_rank, .* Use policy.lora instead"):
        LearnerGroup(
            "sft", language(), sft.Config(lora_rank=2), 0, size=2, strategy="ddp", tensor_parallel=2
        )


@pytest.mark.parametrize(
    "placement, message",
    [
        ("{tensor_parallel: 2}", "learners': expected a multiple of tensor_parallel = 2, got 0"),
        (
            "{learners: 2, tensor_parallel: 4}",
            "learners': expected a multiple of tensor_parallel = 4, got 2",
        ),
        (
            "{learners: 2, tensor_parallel: 2, strategy: fsdp}",
            "strategy': expected ddp with tensor_parallel = 2, got fsdp",
        ),
        (
            "{learners: 2, tensor_parallel: 2, offload: true}",
            "offload': expected false with tensor_parallel = 2, got true",
        ),
    ],
)
def test_a_recipe_with_more_groups_than_learners_is_refused(placement, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("text_arithmetic", [f"placement={placement}"])


def test_compiling_divided_layers_is_refused():
    with pytest.raises(RecipeError, match=r"learner.compile.*placement.tensor_parallel = 2"):
        load_recipe(
            "text_arithmetic",
            ["learner.compile=true", "placement={learners: 2, tensor_parallel: 2}"],
        )
