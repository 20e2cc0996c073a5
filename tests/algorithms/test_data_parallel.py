"""A group of one process: the wrapped optimisers make the updates of a learner without a group.

Groups of several processes are in tests/trainer/distributed.
"""

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from rlinf_core.algorithms.common.data_parallel import (
    _large_layers,
    backward,
    gather_full,
    match_sharding,
    parallelise,
    skip_step,
    update_weights,
)
from rlinf_core.algorithms.common.offload import Offload
from rlinf_core.algorithms.common.optimizer import optimizer_step, polyak_update
from rlinf_core.core.errors import RecipeError, RlinfError
from tests.ranks import in_ranks
from tests.trainer.distributed.test_group import alone, batch_of, policy_in


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def weights(learner):
    """All weights of a learner, complete, by name."""
    return {
        f"{name}.{key}": gather_full(value.detach()).clone()
        for name, module in learner.modules.items()
        for key, value in module.state_dict().items()
    }


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["sft", "ppo", "rlpd"])
def test_updates_of_a_group_of_one_are_those_of_a_learner_alone(name, strategy, group):
    plain, learner = alone(name), alone(name)
    parallelise(learner, strategy, large=64)
    random = np.random.default_rng(1)
    for _ in range(3):
        batch = batch_of(name, random)
        with update_weights(learner):
            metrics = learner.update(batch)
        assert metrics == pytest.approx(plain.update(batch), rel=1e-4, abs=1e-5)
    expected = weights(plain)
    for key, value in weights(learner).items():
        assert torch.allclose(value, expected[key], atol=1e-5), key
    state = learner.state_dict()
    again = alone(name)
    again.load_state_dict(state)
    batch = batch_of(name, random)
    assert again.update(batch) == pytest.approx(plain.update(batch), rel=1e-4, abs=1e-5)
    policy = policy_in(learner)
    sharded = [hasattr(value, "full_tensor") for value in policy.parameters()]
    assert all(sharded) if strategy == "fsdp" else not any(sharded)


class Two:
    """A learner of two layers with an optimiser for each of some parameters."""

    def __init__(self, **trained):
        torch.manual_seed(0)
        self.modules = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4, bias=False)}
        self.scale = nn.Parameter(torch.tensor(1.0))
        everything = {
            "one": [*self.modules["one"].parameters()],
            "two": [*self.modules["two"].parameters()],
            "part": [self.modules["one"].bias],
            "scale": [self.scale],
        }
        self.optimisers = {
            name: torch.optim.SGD([p for part in parts for p in everything[part]], lr=0.1)
            for name, parts in trained.items()
        }


def test_fsdp_shards_whole_modules(group):
    with pytest.raises(RecipeError) as refused:
        parallelise(Two(first=["part", "two"]), "fsdp")
    assert str(refused.value) == (
        "placement.strategy: fsdp shards whole modules, and optimiser 'first' of the algorithm "
        "trains parts of one and two. Set it to ddp"
    )
    parallelise(Two(first=["part", "two"]), "ddp")


def test_a_scalar_is_replicated_and_both_strategies_step_what_they_train(group):
    for strategy in ("ddp", "fsdp"):
        learner = Two(both=["one", "two"], scale=["scale"])
        before = weights(learner)
        parallelise(learner, strategy)
        x = torch.ones(2, 4)
        for number, (name, optimiser) in enumerate(learner.optimisers.items()):
            with update_weights(learner):
                loss = (learner.modules["two"](learner.modules["one"](x)) * learner.scale).sum()
                backward(optimiser, loss)
                optimiser.step()
            with pytest.raises(RlinfError, match="an optimiser stepped with the gradient of one"):
                optimiser.step()
            moved = [key for key, value in weights(learner).items() if (value - before[key]).any()]
            assert moved == ["one.weight", "one.bias", "two.weight"], name
            assert (float(learner.scale.detach()) != 1.0) == (number == 1)
        assert not hasattr(learner.scale, "full_tensor")
        sharded = hasattr(learner.modules["one"].weight, "full_tensor")
        assert sharded == (strategy == "fsdp")


def test_an_optimiser_without_a_group_is_left_alone():
    learner = Two(both=["one", "two"])
    (optimiser,) = learner.optimisers.values()
    backward(optimiser, learner.modules["two"](torch.ones(2, 4)).sum())
    assert (learner.modules["two"].weight.grad == 2.0).all()
    skip_step(optimiser)
    with update_weights(learner):
        optimiser.step()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_update_need_not_use_all_that_is_trained(strategy, group):
    learner = Two(both=["one", "two"])
    (optimiser,) = learner.optimisers.values()
    before = weights(learner)
    parallelise(learner, strategy)
    for used in ("one", "two", "one"):
        with update_weights(learner):
            optimizer_step(optimiser, learner.modules[used](torch.ones(2, 4)).sum())
    after = weights(learner)
    assert (before["one.weight"] - after["one.weight"]).mean() == pytest.approx(0.4, rel=1e-4)
    assert (before["two.weight"] - after["two.weight"]).mean() == pytest.approx(0.2, rel=1e-4)


def test_a_step_that_is_skipped_needs_another_backward_pass(group):
    learner = Two(both=["one", "two"])
    (optimiser,) = learner.optimisers.values()
    parallelise(learner, "ddp")
    loss = learner.modules["two"](learner.modules["one"](torch.ones(2, 4))).sum()
    backward(optimiser, loss)
    skip_step(optimiser)
    with pytest.raises(RlinfError, match="gradient of one process only"):
        optimiser.step()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.layer, self.small = nn.Linear(4, 8), nn.Linear(4, 7)
        self.other = nn.modules.linear.NonDynamicallyQuantizableLinear(4, 8)


def test_large_layers_are_those_that_nobody_else_uses():
    module = Tied()
    assert _large_layers(module, 32) == [module.layer]
    assert _large_layers(module, 28) == [module.layer, module.small]
    assert _large_layers(module, 33) == []


def test_a_value_is_sharded_as_its_reference_is(group):
    mesh = init_device_mesh("cpu", (1,))
    reference = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
    value = torch.arange(8.0).view(4, 2)
    sharded = match_sharding(value, reference)
    assert sharded.placements == reference.placements
    assert torch.equal(gather_full(sharded), value) and gather_full(value) is value
    for other in (None, torch.zeros(4, 2), distribute_tensor(torch.zeros(2), mesh, [Shard(0)])):
        copy = match_sharding(value, other)
        assert torch.equal(copy, value) and copy is not value and not hasattr(copy, "placements")
    assert torch.equal(match_sharding([1, 2], None), torch.tensor([1, 2]))


def test_sharded_weights_do_not_leave_their_device(group):
    learner = Two(both=["one", "two"])
    parallelise(learner, "fsdp")
    with pytest.raises(RecipeError) as refused:
        Offload(learner).off()
    assert str(refused.value) == (
        "placement.offload: expected placement.strategy ddp, got fsdp, whose weights are sharded. "
        "Set placement.strategy to ddp"
    )


def test_what_leaves_the_device_is_counted_once_and_comes_back_in_its_type():
    learner = Two(both=["one", "two"])
    learner.modules["again"] = learner.modules["one"]
    learner.modules["half"] = nn.Linear(2, 3).to(torch.bfloat16)
    learner.modules["half"].register_buffer("count", torch.tensor([7, 8]))
    learner.modules["one"](torch.ones(1, 4)).sum().backward()
    before = weights(learner)
    offload = Offload(learner, resident=learner.modules["two"])
    size = 4 * (16 + 4) + 2 * (6 + 3) + 2 * 8
    torch.set_default_device("meta")  # host memory is the CPU's, whatever the default
    try:
        assert offload.on() == 0 and offload.off() == size
    finally:
        torch.set_default_device(None)
    assert learner.modules["one"].weight.grad is None
    assert learner.modules["two"].weight.numel() == 16
    assert learner.modules["half"].weight.numel() == learner.modules["one"].bias.numel() == 0
    assert learner.modules["half"].weight.dtype == torch.bfloat16
    assert learner.modules["half"].count.dtype == torch.int64
    assert offload.off() == 0 and offload.on() == size and offload.on() == 0
    for name, value in weights(learner).items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name])
    assert offload.off() == size, "again and again"
    offload.on()


def test_an_average_of_sharded_weights_follows_part_by_part():
    """The target may be sharded like the online weights, or complete in each process."""

    def followed(rank):
        mesh = init_device_mesh("cpu", (2,))
        online = torch.arange(8.0).view(4, 2)
        sharded = distribute_tensor(online.clone(), mesh, [Shard(0)])
        target = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        complete = torch.zeros(4, 2)
        polyak_update([target, complete], [sharded, sharded], 0.25)
        return gather_full(target), complete

    for target, complete in in_ranks(2, followed):
        for average in (target, complete):
            assert torch.equal(average, 0.25 * torch.arange(8.0).view(4, 2))
