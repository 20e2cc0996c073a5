"""Each process keeps every N-th row, and sums and means are those of the whole batch."""

import numpy as np
import pytest
import torch

from rlinf_core.policies import sharding
from tests.ranks import in_ranks


def test_one_process_has_all_rows():
    values = torch.arange(6.0)
    assert sharding.world_size() == 1
    for function in (sharding.shard, sharding.all_sum, sharding.gather_rows):
        assert function(values) is values
    assert sharding.mean(values).item() == 2.5
    drawn = sharding.noise(
        torch.randn, (2, 3), torch.Generator().manual_seed(0), torch.device("cpu")
    )
    assert torch.equal(drawn, torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
    on_meta = sharding.noise(torch.rand, (2,), None, torch.device("meta"))
    assert on_meta.device.type == "meta" and on_meta.shape == (2,)


def test_each_process_has_every_nth_row():
    table = np.arange(12).reshape(6, 2)

    def shards(rank):
        return (
            sharding.world_size(),
            sharding.shard(table).tolist(),
            sharding.shard(torch.tensor(table), dim=1).tolist(),
        )

    assert in_ranks(2, shards) == [
        (2, [[0, 1], [4, 5], [8, 9]], [[0], [2], [4], [6], [8], [10]]),
        (2, [[2, 3], [6, 7], [10, 11]], [[1], [3], [5], [7], [9], [11]]),
    ]


@pytest.mark.parametrize("dim", [0, 1])
def test_noise_of_a_shard_is_what_one_process_would_draw_for_it(dim):
    def drawn(rank):
        generator = torch.Generator().manual_seed(4)
        where = {} if dim == 0 else {"dim": 1}
        return sharding.noise(torch.randn, (2, 3), generator, torch.device("cpu"), **where)

    parts = in_ranks(3, drawn)
    shape = [(6, 3), (2, 9)][dim]
    full = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    for rank, part in enumerate(parts):
        assert torch.equal(part, full[rank::3] if dim == 0 else full[:, rank::3])


def test_a_sum_has_the_gradient_of_all_processes():
    def summed(rank):
        values = torch.tensor([1.0, 10.0]) * (rank + 1)
        values.requires_grad_()
        total = sharding.all_sum(values)
        (total * (rank + 1)).sum().backward()
        return total.tolist(), values.grad.tolist()

    assert in_ranks(2, summed) == [([3.0, 30.0], [3.0, 3.0])] * 2


def test_values_of_rows_come_back_in_their_order():
    def gathered(rank):
        values = torch.tensor([0.0, 3.0, 6.0], requires_grad=True) + rank
        rows = sharding.gather_rows(values)
        return rows.tolist(), rows.requires_grad

    assert in_ranks(3, gathered) == [([*map(float, range(9))], False)] * 3


def test_a_mean_over_unequal_shards_is_that_of_all_elements():
    parts = [[1.0, 2.0, 3.0], [10.0]]
    means = in_ranks(2, lambda rank: sharding.mean(torch.tensor(parts[rank])).item())
    assert means == [3.0, 5.0] and sum(means) / 2 == 4.0, "of 1, 2, 3, 10"


def test_processes_that_divide_layers_count_as_one():
    def shards(rank):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        sharding.set_group(mesh.get_group("data"))
        return sharding.world_size(), sharding.shard(torch.arange(3)).tolist()

    assert in_ranks(2, shards) == [(1, [0, 1, 2])] * 2
    assert sharding.world_size() == 1
