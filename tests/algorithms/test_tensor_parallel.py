"""Layers that several ranks divide compute, and have the gradients of, whole ones."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from torch.distributed.device_mesh import init_device_mesh

from rlinf_core.algorithms.common import data_parallel
from rlinf_core.algorithms.common.data_parallel import (
    backward,
    gather_full,
    mixes_tensors,
    parallelise,
)
from rlinf_core.algorithms.common.optimizer import adam, optimizer_step
from rlinf_core.algorithms.common.tensor_parallel import (
    _gather_input,
    _heads,
    _sum_gradient,
    _sum_gradients_of_output,
    check_divisible,
    decoder_layers,
    divide,
)
from rlinf_core.core.errors import RecipeError
from tests.agentic.test_language import tiny as language
from tests.algorithms.learning import make
from tests.ranks import in_ranks

ROWS = torch.arange(24).reshape(4, 6) * 7 % 50


def logits_of(policy, rows):
    return policy.network(rows).logits


def loss_of(policy, rows):
    return logits_of(policy, rows).log_softmax(-1).square().mean()


def gradients_of(policy):
    return {
        name: gather_full(parameter.grad).clone()
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None
    }


def gathered(policy):
    """Return copies of all weights, each one complete."""
    return {
        name: gather_full(parameter.detach()).clone()
        for name, parameter in policy.named_parameters()
    }


def learner_of(policy):
    """A learner of one module and one optimiser."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    return SimpleNamespace(
        modules={"actor": policy}, optimisers={"actor": torch.optim.SGD(trained, lr=0.1)}
    )


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "network, settings",
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, {}),
        ({"num_attention_heads": 4, "num_key_value_heads": 1}, {}),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, {"lora": {"rank": 2}}),
    ],
    ids=["heads of keys", "one head of keys", "adapters"],
)
def test_two_ranks_divide_each_layer_and_pairs_of_them_the_rows(network, settings, size):
    policy = language(network=network, **settings)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:  # they begin with zeros, which would hide the other half
            torch.nn.init.normal_(parameter, std=0.1)
    expected = logits_of(policy, ROWS).detach()
    copies = [copy.deepcopy(policy) for _ in range(size)]
    loss_of(policy, ROWS).backward()

    def updated(rank):
        learner = learner_of(copies[rank])
        (optimiser,) = learner.optimisers.values()
        previous = {id(parameter) for parameter in copies[rank].parameters()}
        parallelise(learner, "ddp", tensor_parallel=2)
        assert mixes_tensors(optimiser)
        rows = ROWS[rank // 2 :: size // 2]
        logits = logits_of(copies[rank], rows).detach()
        backward(optimiser, loss_of(copies[rank], rows))
        trained = {id(p) for group in optimiser.param_groups for p in group["params"]}
        current = {id(p) for p in copies[rank].parameters() if p.requires_grad}
        divided = [name for name, p in copies[rank].named_parameters() if hasattr(p, "device_mesh")]
        assert trained == current != previous, "the optimiser steps the parts"
        return logits, gradients_of(copies[rank]), divided

    plain = gradients_of(policy)
    for rank, (logits, gradients, divided) in enumerate(in_ranks(size, updated)):
        assert torch.allclose(logits, expected[rank // 2 :: size // 2], atol=1e-5)
        assert gradients.keys() == plain.keys()
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, plain[name], atol=1e-6), name
        parts = {name.split(".layers.0.")[1] for name in divided if ".layers.0." in name}
        names = {part.split(".")[1] for part in parts}
        shared = set() if network["num_key_value_heads"] == 1 else {"k_proj", "v_proj"}
        assert names == shared | {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize("clip", [1e-3, 100.0, float("inf")])
def test_a_step_of_divided_layers_is_that_of_whole_ones(clip):
    policy = language(network={"num_attention_heads": 4, "num_key_value_heads": 2})
    copies = [copy.deepcopy(policy) for _ in range(2)]
    before = gathered(policy)

    def stepped(trained):
        learner = SimpleNamespace(
            modules={"actor": trained}, optimisers={"actor": adam(trained.parameters(), lr=0.01)}
        )
        (optimiser,) = learner.optimisers.values()
        if trained is not policy:
            parallelise(learner, "ddp", tensor_parallel=2)
        norms = [optimizer_step(optimiser, loss_of(trained, ROWS), clip) for _ in range(2)]
        return norms, gathered(trained)

    norms, weights = stepped(policy)
    assert (norms[0] > 1e-3) == (clip < float("inf"))
    for part_norms, part_weights in in_ranks(2, lambda rank: stepped(copies[rank])):
        assert part_norms == pytest.approx(norms, rel=1e-4)
        for name, weight in weights.items():
            assert torch.allclose(part_weights[name], weight, atol=1e-4), name
    assert any((weights[name] - before[name]).abs().max() > 0.005 for name in weights)


@pytest.mark.parametrize(
    "network, size, message",
    [
        ({}, 4, r"got 4: layer network.model.layers.0 has 2 attention heads"),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 2},
            4,
            "layer network.model.layers.0 has 2 heads of keys and values$",
        ),
        ({"intermediate_size": 33}, 2, "has 33 columns of the perceptron"),
        (
            {"model_type": "olmo2"},
            2,
            "layer network.model.layers.0 has self_attn.q_norm.weight, which spans all heads",
        ),
    ],
)
def test_layers_that_do_not_divide_are_refused_by_name(network, size, message):
    policy = language(network=network)
    with pytest.raises(RecipeError, match=message):
        check_divisible(policy, size)
    check_divisible(policy, 1)


@pytest.mark.parametrize(
    "network, size",
    [
        ({}, 2),
        ({"num_attention_heads": 4, "num_key_value_heads": 1}, 4),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, 4),
        ({"model_type": "qwen3"}, 2),
    ],
    ids=["two heads", "one head of keys", "four heads", "norms of a head"],
)
def test_layers_that_divide_are_accepted(network, size):
    check_divisible(language(network=network), size)


def test_one_head_of_keys_does_not_divide_in_a_cross_attention():
    policy = language(network={"num_attention_heads": 4, "num_key_value_heads": 1})
    for _, layer in decoder_layers(policy):
        layer.self_attn.cross = True
    with pytest.raises(RecipeError, match="has 1 heads of keys and values in a cross-attention$"):
        check_divisible(policy, 2)


def test_decoder_layers_are_found_by_their_parts():
    policy = language()
    layers = dict(decoder_layers(policy))
    assert [*layers] == ["network.model.layers.0", "network.model.layers.1"]
    assert layers["network.model.layers.0"] is policy.network.model.layers[0]
    del layers["network.model.layers.0"].self_attn.o_proj
    del layers["network.model.layers.1"].mlp.up_proj
    assert [*decoder_layers(policy)] == []


def test_a_policy_without_decoder_layers_is_refused_with_its_kind():
    check_divisible(make("tanh_gaussian"), 1)
    with pytest.raises(RecipeError) as refused:
        check_divisible(make("tanh_gaussian"), 2)
    assert str(refused.value) == (
        "placement.tensor_parallel: expected 1 for policy.kind tanh_gaussian, which has no decoder "
        "layers of transformers (q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj), "
        "got 2"
    )
    with pytest.raises(RecipeError, match="expected 1 for policy.kind Linear, which has"):
        check_divisible(torch.nn.Linear(2, 2), 2)


def test_heads_are_those_of_the_config_or_of_the_layers():
    """A layer may compute more than its heads, like a gate of each."""
    layers = {"q_proj": torch.nn.Linear(8, 32), "k_proj": torch.nn.Linear(8, 16)}
    config = SimpleNamespace(num_attention_heads=2)
    assert _heads(SimpleNamespace(head_dim=8, config=config, **layers)) == (2, 2, 8)
    assert _heads(SimpleNamespace(head_dim=8, config=object(), **layers)) == (4, 2, 8)
    assert _heads(SimpleNamespace(size=4, **layers)) == (8, 4, 4)


def test_parts_of_keys_are_gathered_and_gradients_are_summed():
    def hooked(rank):
        mesh = init_device_mesh("cpu", (2,))
        part = torch.full((3, 2, 4), float(rank), requires_grad=True)
        (gathered_input,) = _gather_input(mesh)(None, (part,))
        (gathered_input * torch.arange(8.0)).sum().backward()
        gradient = torch.full((2,), rank + 1.0)
        total = _sum_gradient(mesh)(gradient)
        output = torch.full((2,), 5.0, requires_grad=True)
        (_sum_gradients_of_output(mesh)(None, None, output) * (rank + 1.0)).sum().backward()
        return gathered_input.detach(), part.grad, gradient, total, output.grad

    for rank, (full_input, slope, gradient, total, output_slope) in enumerate(in_ranks(2, hooked)):
        assert full_input.shape == (3, 2, 8)
        assert full_input[0, 0].tolist() == [0.0] * 4 + [1.0] * 4
        assert slope[0, 0].tolist() == [float(4 * rank + column) for column in range(4)]
        assert total.tolist() == output_slope.tolist() == [3.0, 3.0], "of both ranks"
        assert gradient.tolist() == [rank + 1.0] * 2, "it is left alone"


def test_processes_that_divide_layers_keep_the_same_rows(monkeypatch):
    policy = language(network={"num_attention_heads": 4, "num_key_value_heads": 2})
    copies = [copy.deepcopy(policy) for _ in range(4)]
    rows = {rank: [] for rank in range(4)}

    def note(group):
        if group is not None:
            rows[dist.get_rank()] = dist.get_process_group_ranks(group)

    monkeypatch.setattr(data_parallel, "set_group", note)
    in_ranks(4, lambda rank: parallelise(learner_of(copies[rank]), "ddp", tensor_parallel=2))
    assert rows == {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}


def crossed():
    """Return a decoder layer whose attention reads keys of 8 numbers that another layer made."""
    torch.manual_seed(0)
    attention, perceptron, layer = torch.nn.Module(), torch.nn.Module(), torch.nn.Module()
    attention.head_dim, attention.cross = 4, True
    attention.q_proj, attention.o_proj = torch.nn.Linear(6, 16), torch.nn.Linear(16, 6)
    attention.k_proj, attention.v_proj = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    perceptron.gate_proj, perceptron.up_proj = torch.nn.Linear(6, 10), torch.nn.Linear(6, 10)
    perceptron.down_proj = torch.nn.Linear(10, 6)
    layer.self_attn, layer.mlp = attention, perceptron
    return torch.nn.ModuleList([layer])


def test_a_cross_attention_gathers_the_keys_that_other_ranks_made():
    x, keys = torch.randn(2, 3, 6), torch.randn(2, 3, 8)
    complete, copies = crossed()[0].self_attn, [crossed() for _ in range(2)]

    def projected(rank):
        divide(copies[rank], init_device_mesh("cpu", (2,)))
        attention, part = copies[rank][0].self_attn, keys[..., 4 * rank : 4 * rank + 4]
        queries = attention.q_proj(x)
        outputs = [queries, attention.k_proj(part), attention.v_proj(part)]
        return [output.detach() for output in (*outputs, attention.o_proj(queries))]

    ranks = in_ranks(2, projected)
    for index, expected in enumerate(
        (complete.q_proj(x), complete.k_proj(keys), complete.v_proj(keys))
    ):
        joined = torch.cat([outputs[index] for outputs in ranks], dim=-1)
        assert torch.allclose(joined, expected, atol=1e-6)
    for outputs in ranks:
        assert torch.allclose(outputs[3], complete.o_proj(complete.q_proj(x)), atol=1e-6)
