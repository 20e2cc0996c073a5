"""Under FSDP2 an embedding and its tied head keep a part of the table in each process, and gather
it one access at a time.
"""

import weakref

import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing import start_processes

from rlinf_core.algorithms.common import sharded_tables
from rlinf_core.algorithms.common.data_parallel import gather_full, parallelise, update_weights
from rlinf_core.algorithms.common.optimizer import adam, optimizer_step
from rlinf_core.policies.sharding import shard

pytestmark = pytest.mark.timed

WORDS, WIDTH = 101, 8  # an odd number of rows


class TinyLanguageModel(nn.Module):
    """An embedding, a layer, and a head that may share the embedding's weight."""

    def __init__(self, tied, frozen):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.words.weight.requires_grad_(not frozen)

    def loss(self, tokens):
        hidden = self.norm(torch.tanh(self.layer(self.words(tokens[:, :-1]))))
        hidden = hidden + self.words.weight[0]  # read without a call
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


class TinyLearner:
    def __init__(self, tied, frozen):
        self.actor = TinyLanguageModel(tied, frozen)
        self.modules = {"actor": self.actor}
        trained = [p for p in self.actor.parameters() if p.requires_grad]
        self.optimisers = {"actor": adam(trained, lr=1e-2)}

    def update(self, tokens):
        optimizer_step(self.optimisers["actor"], self.actor.loss(shard(tokens)), clip=1.0)


def batches():
    random = torch.Generator().manual_seed(1)
    return [torch.randint(WORDS, (6, 5), generator=random) for _ in range(4)]


def sharded_updates(rank, address, file, tied, frozen):
    """One of two processes: updates, and the largest sum of bytes of gathered tables."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    learner = TinyLearner(tied, frozen)
    gather, live, peaks = sharded_tables.gather_table, [0], [0]

    def counted(part):
        full = gather(part)
        size = full.untyped_storage().nbytes()
        live[0] += size
        peaks.append(live[0])
        weakref.finalize(full, lambda: live.__setitem__(0, live[0] - size))
        return full

    sharded_tables.gather_table = counted
    parallelise(learner, "fsdp", large=WORDS * WIDTH)
    local_weights = sum(p.to_local().numel() for p in learner.actor.parameters())
    for tokens in batches():
        with update_weights(learner):
            assert not any(
                isinstance(p, nn.Parameter) and p.numel() >= WORDS * WIDTH
                for p in learner.actor.parameters()
                if not hasattr(p, "device_mesh")
            ), "no table is gathered for the whole update"
            learner.update(tokens)
    weights = {name: gather_full(value) for name, value in learner.actor.state_dict().items()}
    learner.actor.load_state_dict(learner.actor.state_dict())
    if rank == 0:
        torch.save((local_weights, max(peaks), live[0], weights), file)
    distributed.destroy_process_group()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("tied, frozen", [(True, False), (False, False), (False, True)])
def test_two_processes_with_parts_of_the_table_learn_as_one_with_all(tied, frozen, tmp_path):
    alone = TinyLearner(tied, frozen)
    before = alone.actor.words.weight.detach().clone()
    for tokens in batches():
        alone.update(tokens)
    arguments = (f"file://{tmp_path}/meeting", tmp_path / "result", tied, frozen)
    start_processes(sharded_updates, arguments, nprocs=2, start_method="spawn")
    local_weights, peak, left, weights = torch.load(tmp_path / "result")
    expected = alone.actor.state_dict()
    assert torch.equal(before, expected["words.weight"]) == frozen
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=0)
    total = sum(p.numel() for p in alone.actor.parameters())
    assert local_weights <= 0.55 * total, "each process keeps half"
    table = (WORDS + 1) * WIDTH * 4  # a gathered table has as many rows of each process
    assert peak == table and left == 0, "one table at a time, and none after the update"
