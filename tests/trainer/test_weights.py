"""Weights that are sent as changes are those of the sender, whatever changed."""

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_core.trainer.distributed.weights import WeightSender, receive


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.large = nn.Linear(300, 300)
        self.small = nn.Linear(3, 1)
        self.odd = nn.Parameter(torch.zeros(5))
        self.sixteen = nn.Parameter(torch.zeros(7, dtype=torch.bfloat16).float().half())
        self.register_buffer("count", torch.zeros((), dtype=torch.long))


def never(name):
    return False


def alike(one, other):
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("scattered", [True, False])
def test_a_hundredth_that_changed_is_all_that_travels(scattered):
    torch.manual_seed(0)
    net, worker, sender = Net(), Net(), WeightSender(never)
    update = sender.changes(net.state_dict())
    assert update.base == 0 and update.nbytes == sum(
        tensor.nbytes for tensor in net.state_dict().values()
    )
    receive(worker, update)
    assert alike(net, worker)
    with torch.no_grad():
        flat = net.large.weight.view(-1)
        flat[torch.randperm(len(flat))[:900] if scattered else slice(0, 900)] += 1.0
        net.odd[2] = float("nan")
        net.count += 1
    update = sender.changes(net.state_dict())
    assert update.nbytes < 0.05 * net.large.weight.nbytes + 100 and not {
        "small.weight",
        "large.bias",
    } & {*update.full, *update.parts}
    receive(worker, update)
    net.odd.data[2] = worker.odd.data[2] = 0.0
    assert alike(net, worker)


def test_many_random_changes_arrive_and_a_newcomer_gets_everything():
    random, net, worker = np.random.default_rng(0), Net(), Net()
    sender = WeightSender(never)
    for _ in range(30):
        with torch.no_grad():
            for tensor in net.state_dict().values():
                if random.random() < 0.5 and tensor.ndim:
                    flat = tensor.view(-1)
                    flat[
                        torch.from_numpy(random.random(len(flat)) < random.choice([0.01, 0.5]))
                    ] += 1
        receive(worker, sender.changes(net.state_dict()))
        assert alike(net, worker)
    newcomer = Net()
    receive(newcomer, sender.full_update())
    assert alike(net, newcomer)


def test_weights_without_a_counted_change_are_not_compared_once_the_counts_are_trusted():
    net, worker, sender = Net(), Net(), WeightSender(never)
    compared, compare = [], sender._compare
    sender._compare = lambda name, *others: compared.append(name) or compare(name, *others)
    for _ in range(5):
        compared.clear()
        with torch.no_grad():
            net.small.weight += 1.0
        receive(worker, sender.changes(net.state_dict()))
        assert alike(net, worker)
    assert compared == ["small.weight"]


@pytest.mark.parametrize("request_number", [1, 10])
def test_a_write_that_torch_does_not_count_arrives_and_ends_the_trust(request_number):
    """Such writes are ``tensor.data`` and CUDA graphs; twenty requests are the limit."""
    net, worker, sender = Net(), Net(), WeightSender(never)
    arrived = []
    for number in range(45):
        if number in (request_number, 30):
            net.large.weight.data[0, 0] += 1.0
            assert alike(net, worker) is False
        receive(worker, sender.changes(net.state_dict()))
        arrived.append(alike(net, worker))
    assert all(arrived[:request_number]) and all(arrived[20:]) and not sender.trusts_counters
    assert arrived[1] or request_number != 1


def test_frozen_weights_are_not_compared_until_torch_counts_a_change():
    net, sender = Net(), WeightSender(lambda name: name.startswith("large"))
    sender.changes(net.state_dict())
    compared, compare = [], sender._compare
    sender._compare = lambda name, *more: (compared.append(name), compare(name, *more))
    assert sender.changes(net.state_dict()).nbytes == 0
    assert "large.weight" not in compared and "small.weight" in compared
    nn.init.normal_(net.large.weight)
    assert "large.weight" in sender.changes(net.state_dict()).full
