"""A learner that leaves its device between updates learns what one learns that stays there."""

import numpy as np
import pytest
import torch

from rlinf_core.algorithms.common.offload import Offload
from tests.trainer.distributed.test_group import alone, assert_alike, batch_of, policy_in


@pytest.mark.parametrize("name", ["rlpd", "ppo", "sac"])
@pytest.mark.parametrize("shares_policy", [True, False])
def test_it_learns_the_same_and_holds_no_memory_meanwhile(name, shares_policy):
    random, other = (np.random.default_rng(4) for _ in range(2))
    learner, moved = alone(name), alone(name)
    offload = Offload(moved, policy_in(moved) if shares_policy else None)
    for _ in range(3):
        size = offload.off()
        stays = {id(tensor) for tensor in policy_in(moved).state_dict(keep_vars=True).values()}
        left = [
            tensor
            for module in moved.modules.values()
            for tensor in module.state_dict(keep_vars=True).values()
            if tensor.numel()
        ]
        assert size > 0 and offload.off() == 0
        assert {id(tensor) for tensor in left} <= (stays if shares_policy else set())
        assert not any(
            value.numel()
            for optimiser in moved.optimisers.values()
            for entry in optimiser.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor) and value.ndim
        )
        assert offload.on() == size and offload.on() == 0
        assert moved.update(batch_of(name, other)) == learner.update(batch_of(name, random))
    assert_alike(moved.state_dict(), learner.state_dict())


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: its memory is not measured"
)
def test_the_memory_of_a_gpu_is_freed():
    torch.manual_seed(0)

    class Large:
        modules = {"policy": torch.nn.Linear(4096, 4096).cuda()}
        optimisers = {"policy": torch.optim.Adam(modules["policy"].parameters())}

    before = torch.cuda.memory_allocated()
    offload = Offload(Large)
    size = offload.off()
    assert before - torch.cuda.memory_allocated() >= 0.99 * size
    offload.on()
    assert torch.cuda.memory_allocated() == before
