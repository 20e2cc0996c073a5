"""A vision-language-action model in a learner group: what one process learns, and only what is
learned travels.
"""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.multiprocessing import start_processes

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.algorithms import sft
from rlinf_core.algorithms.common.data_parallel import parallelise, update_weights
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.settings import Computing
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.policies.pretrained import tiny_checkpoint
from tests.policies.test_tiny_checkpoint import SPEC, observation
from tests.trainer.distributed.test_group import Again, assert_alike, both_learn

pytestmark = pytest.mark.timed

SFT = sft.Config(learning_rate=3e-4, min_std=0.02, image_shift=2)
LORA = {"lora": {"rank": 2}}
OTHER = {"pi0": LORA, "smolvla": {"frozen": True}, "openvla": LORA | {"decoding": "parallel"}}


def learning(kind, folder):
    return make_policy(
        SPEC, policy_kind(kind).Config(checkpoint=str(folder), horizon=2, **OTHER[kind])
    ).train()


def batch_of(seed):
    random = np.random.default_rng(seed)
    observations = observation("push", "pull it", "push", "go", "left", "push")
    vectors = observations.vectors + random.normal(size=observations.vectors.shape).astype(
        np.float32
    )
    return Observation(vectors, observations.images, observations.instruction), random.uniform(
        -1, 1, (6, 4)
    ).astype(np.float32)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind, strategy, recompute",
    [("pi0", "fsdp", True), ("smolvla", "ddp", False), ("openvla", "fsdp", False)],
)
def test_two_processes_learn_what_one_learns_and_only_that_travels(
    kind, strategy, recompute, tmp_path
):
    folder = tiny_checkpoint.write(kind, tmp_path / "tiny", horizon=2)
    computing = Computing(gradient_checkpointing=recompute)
    alone = sft.Learner(learning(kind, folder), SFT, 3)
    apply_computing(alone, computing)
    policy = learning(kind, folder)
    shutil.rmtree(folder)  # the processes, which may be elsewhere, are told all
    group = Again("sft", policy, SFT, 3, size=2, strategy=strategy, cpus=0.25, computing=computing)
    batches = []
    for seed in range(5):
        observations, actions = batch_of(seed)
        batches.append(
            {name: values.numpy() for name, values in policy.to_batch(observations).items()}
            | {"action": actions}
        )
    both_learn(group, alone, batches[:2])
    group_state = group.state_dict()  # all of it once
    both_learn(group, alone, batches[2:4])
    assert_alike(group.state_dict(), alone.state_dict())
    travelled = group._call_all("state_dict", False)[0]["modules"]["actor"]
    constant_weights = alone.constant_weights()["actor"]
    trained = {
        name for name, parameter in alone.actor.named_parameters() if parameter.requires_grad
    }
    assert (
        trained <= travelled.keys() == group_state["modules"]["actor"].keys() - constant_weights
        and len(constant_weights) > len(travelled) / 2
    )
    assert all(
        np.array_equal(
            group_state["modules"]["actor"][name], group.checkpoint["modules"]["actor"][name]
        )
        for name in constant_weights
    )

    state = alone.state_dict()
    for name in constant_weights:  # another base than the group has begun with
        state["modules"]["actor"][name].add_(0.01)
    group.load_state_dict(state)
    both_learn(group, alone, batches[4:])
    assert_alike(group.state_dict(), alone.state_dict())
    group._restore()  # as where a process has died
    assert_alike(group._call_all("state_dict")[0], alone.state_dict())
    assert_alike(dict(group.sync().state_dict()), dict(alone.actor.state_dict()))


def sharded_updates(rank, address, folder, file):
    """One of two processes: updates with layers that are gathered one by one."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    learner = sft.Learner(learning("smolvla", Path(folder)), SFT, 3)
    parallelise(learner, "fsdp", large=64)
    layers = [part for part in learner.actor.modules() if isinstance(part, FSDPModule)]
    full = []

    def count(*_):
        full.append(sum(not hasattr(layer.weight, "full_tensor") for layer in layers))

    for layer in layers:
        layer.register_forward_pre_hook(count)
    for batch in vla_batches(learner.actor):
        with update_weights(learner):
            learner.update(batch)
    weights = learner.state_dict()["modules"]["actor"]
    if rank == 0:
        torch.save((len(layers), max(full), weights), file)
    distributed.destroy_process_group()


def vla_batches(policy):
    return [
        {name: values.numpy() for name, values in policy.to_batch(observations).items()}
        | {"action": actions}
        for observations, actions in map(batch_of, range(2))
    ]


@pytest.mark.timeout(300)
def test_an_update_gathers_one_large_layer_at_a_time_and_equals_that_of_one_process(tmp_path):
    folder = tiny_checkpoint.write("smolvla", tmp_path / "tiny", horizon=2)
    alone = sft.Learner(learning("smolvla", folder), SFT, 3)
    before = copy.deepcopy(alone.state_dict()["modules"]["actor"])
    for batch in vla_batches(alone.actor):
        alone.update(batch)
    address, file = f"file://{tmp_path}/meeting", tmp_path / "result"
    start_processes(sharded_updates, (address, folder, file), nprocs=2, start_method="spawn")
    layers, full, weights = torch.load(file)
    assert layers > 40 and full == 1
    expected = alone.state_dict()["modules"]["actor"]
    assert any(not torch.equal(before[key], expected[key]) for key in expected)
    differ = [~torch.isclose(weights[key], expected[key], atol=1e-5) for key in expected]
    # Adam turns a gradient near 0 into a full step in either direction
    assert sum(int(mask.sum()) for mask in differ) <= 3
