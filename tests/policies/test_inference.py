"""Inference: bfloat16, compiled, and without host operations in a recorded graph."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_unflatten

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RlinfError
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies import inference, make_policy, policy_kind
from rlinf_core.policies.real_time_chunking import Continuation
from rlinf_core.policies.serialization import save_policy
from tests.policies.test_pi0 import SPEC, observation

CUDA = torch.cuda.is_available()
FLOWS = ("pi0", "pi05", "smolvla", "groot", "xvla")
KINDS = {kind: {"kind": kind, "horizon": 4, "flow_steps": 3} for kind in FLOWS} | {
    "openvla": {"kind": "openvla"},
    "openvla_parallel": {"kind": "openvla", "decoding": "parallel", "horizon": 2},
    "openvla_oft": {"kind": "openvla", "decoding": "regression", "horizon": 2, "state": True},
}
SYNCHRONISING = (
    "_local_scalar_dense",
    "nonzero",
    "lift_fresh",
    "masked_select",
    "unique",
    "equal",
    "item",
)


class DispatchCounter(TorchDispatchMode):
    """Counts operations that a graph cannot hold: waits for the device, and transfers to it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        to = (kwargs or {}).get("device")
        moved = (
            name == "_to_copy" and to is not None and torch.device(to).type != args[0].device.type
        )
        masked = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        empty = name == "lift_fresh" and not args[0].numel()
        if masked or moved or name in SYNCHRONISING and not empty:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def policy_of(name):
    config = dict(KINDS[name])
    torch.manual_seed(0)
    policy = make_policy(SPEC, policy_kind(config.pop("kind")).Config(**config)).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    return policy


@pytest.mark.parametrize("name", KINDS)
def test_what_is_recorded_asks_the_host_for_nothing(name, monkeypatch):
    # it asks for less then
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    policy = policy_of(name)
    inputs = {
        key: value.to("meta")
        for key, value in policy.inputs(policy.to_batch(observation("go left", "go right"))).items()
    }
    policy = policy.to("meta")  # a device without numbers: whatever is made on another shows
    for method in policy.graph_methods:
        if (
            method == "regress"
            and policy.action_head is None
            or method == "likeliest_bins"
            and "oft" in name
        ):
            continue
        more = [policy.noise(2, None)] if method == "integrate" else []
        with torch.no_grad(), DispatchCounter() as dispatch:
            getattr(policy, method)(inputs, *more)
        assert dispatch.names == []


def acted(policy, *sentences):
    return policy.act(observation(*sentences), explore=False).actions.numpy(force=True)


@pytest.mark.parametrize("name", KINDS)
def test_bfloat16_does_nearly_what_float32_does(name):
    policy, reduced = policy_of(name), policy_of(name)
    inference.prepare(reduced, precision="bfloat16")
    assert {
        parameter.dtype for layer in inference.layers(reduced) for parameter in layer.parameters()
    } == {torch.bfloat16}
    with torch.no_grad():
        plain, other = (
            reader.inputs(reader.to_batch(observation("go left", "go right")))
            for reader in (policy, reduced)
        )
        if name in FLOWS:
            noise = policy.noise(2, torch.Generator().manual_seed(0))
            plain, other = policy.integrate(plain, noise), reduced.integrate(other, noise)
        else:
            plain = policy.head(policy.embed_prompt(plain).embeds)
            other = reduced.head(reduced.embed_prompt(other).embeds)
    off = (other - plain).norm() / plain.norm()
    assert 1e-5 < off < 0.02
    assert acted(reduced, "go left").shape == acted(policy, "go left").shape


@pytest.mark.parametrize(
    "name", ["pi0", *(pytest.param(name, marks=pytest.mark.slow) for name in FLOWS[1:])]
)
def test_compiled_does_what_eager_does(name, monkeypatch):
    """Only the compiler's tracer runs, because its code for a CPU takes minutes."""
    monkeypatch.setattr(inference, "BACKEND", "eager")
    policy, compiled = policy_of(name), policy_of(name)
    inference.prepare(compiled, execution="compiled")
    assert compiled.token_multiple == policy.config.tokens
    for sentences in (("go left",), ("go left", "to the other side")):
        torch.testing.assert_close(
            acted(compiled, *sentences), acted(policy, *sentences), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    "name", ["pi0", *(pytest.param(name, marks=pytest.mark.slow) for name in FLOWS[1:])]
)
def test_a_chunk_that_goes_on_where_the_last_one_is_waits_for_no_compiler(name, monkeypatch):
    """With gradients the warm-up would differ, and the compiler would run while an arm waits."""
    graphs = []
    monkeypatch.setattr(
        inference, "BACKEND", lambda graph, examples: graphs.append(graph) or graph.forward
    )
    policy, compiled = policy_of(name), policy_of(name)
    inference.prepare(compiled, execution="compiled")
    acted(compiled, "go left")
    before = len(graphs)
    assert before > 1, "more than what was tried"
    held = Continuation.from_remaining(np.full((3, 2), 0.5), 2, 4)
    observations = observation("go left")
    chunks = [
        actor.continue_chunk(observations, held, torch.Generator().manual_seed(0)).actions
        for actor in (compiled, policy)
    ]
    torch.testing.assert_close(*chunks, rtol=1e-4, atol=1e-5)
    assert len(graphs) == before


@pytest.mark.parametrize("name", ["pi05", "openvla", "openvla_oft"])
def test_sentences_that_are_filled_up_say_the_same(name):
    policy, filled = policy_of(name), policy_of(name)
    filled.token_multiple = inference.TOKEN_MULTIPLE
    lengths = [
        reader.inputs(reader.to_batch(observation("go left")))["ids"].shape[1]
        for reader in (policy, filled)
    ]
    assert lengths[0] % inference.TOKEN_MULTIPLE and lengths[1] % inference.TOKEN_MULTIPLE == 0
    torch.testing.assert_close(
        acted(filled, "go left"), acted(policy, "go left"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.skipif(
    not CUDA, reason="CUDA graphs need a CUDA device; last run on one: benchmarks/results/README.md"
)
@pytest.mark.parametrize(
    "name, execution", [(name, "graphs") for name in KINDS] + [(name, "compiled") for name in FLOWS]
)
def test_what_is_recorded_is_what_is_computed(name, execution):
    policy, recorded = policy_of(name).cuda(), policy_of(name).cuda()
    inference.prepare(recorded, execution=execution)
    for seed, sentences in enumerate(
        [("go left",), ("go right", "go left", "go there"), ("go left",)]
    ):
        observations = observation(*sentences, seed=seed).to("cuda")
        on_replay, here = (
            actor.act(observations, explore=False).actions for actor in (recorded, policy)
        )
        torch.testing.assert_close(on_replay, here, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "settings, named",
    [
        (dict(precision="bfloat16"), "expected float32 for a policy of kind tanh_gaussian"),
        (
            dict(execution="graphs"),
            "expected one that policy kind tanh_gaussian supports, got graphs",
        ),
        (
            dict(execution="compiled"),
            "expected one that policy kind tanh_gaussian supports, got compiled",
        ),
    ],
)
def test_what_a_small_policy_has_not_is_refused(settings, named):
    with pytest.raises(RlinfError, match=f"^--{next(iter(settings))}: {named}"):
        inference.prepare(
            make_policy(SPEC, policy_kind("tanh_gaussian").Config()), **settings, key="--"
        )


def test_few_numbers_of_rows_are_recorded():
    assert inference.padded_sizes(1) == {1} and inference.padded_sizes(5) == inference.padded_sizes(
        8
    ) == {1, 2, 4, 8}


def test_what_is_served_is_prepared_and_warmed_up(tmp_path):
    prepared = []
    save_policy(policy_of("pi0"), tmp_path / "policy.safetensors")
    weights = Weights(
        tmp_path / "policy.safetensors",
        prepare=lambda policy: (
            prepared.append(policy) or inference.prepare(policy, precision="bfloat16")
        ),
    )
    assert prepared == [weights.newest.policy]
    assert {
        value.dtype for layer in inference.layers(prepared[0]) for value in layer.parameters()
    } == {torch.bfloat16}


def test_graphs_without_a_cuda_device_are_refused():
    with pytest.raises(
        RlinfError,
        match=r"^--execution: expected a CUDA device for graphs, got cpu. Leave it eager",
    ):
        inference.prepare(policy_of("pi0"), execution="graphs", key="--")


class Again(inference.GraphedFunction):
    """Instead of a graph: computes again where a graph would."""

    def __init__(self, function):
        super().__init__(function)
        self.shapes = []

    def _record(self, tensors, shape):
        into = [tensor.clone() for tensor in tensors]
        self.shapes.append(tuple(into[0].shape))

        def computed():
            return self._function(*tree_unflatten(into, shape))

        out = computed()
        return SimpleNamespace(replay=lambda: out.copy_(computed())), into, out


def test_each_shape_is_recorded_once_and_the_one_that_was_not_played_for_longest_is_forgotten(
    monkeypatch,
):
    monkeypatch.setattr(inference, "MAX_GRAPHS", 2)
    twice = Again(lambda x, named: 2.0 * x + named["y"])

    def play(rows, width=2, start=0.0):
        x = torch.arange(rows * width).reshape(rows, width) + start
        result = twice(x, {"y": torch.ones(rows, width)})
        assert torch.equal(result, 2.0 * x + 1.0)
        return result

    first = play(3)
    assert twice.shapes == [(4, 2)]
    first_copy = first.clone()
    play(4, start=5.0)
    play(3, start=7.0)
    assert twice.shapes == [(4, 2)] and torch.equal(first, first_copy), (
        "what was said stays as it was"
    )
    play(1)
    play(3)
    play(2)
    assert twice.shapes == [(4, 2), (1, 2), (2, 2)]
    play(4)
    assert len(twice.shapes) == 3, "it was played after (1, 2)"
    play(1)
    assert twice.shapes[3:] == [(1, 2)]


@pytest.mark.parametrize(
    "kind, words, error",
    [
        (
            "pi0",
            ["--execution", "graphs"],
            "--execution: expected a CUDA device for graphs, got cpu",
        ),
        (
            "tanh_gaussian",
            ["--precision", "bfloat16"],
            "--precision: expected float32 for a policy of kind tanh_gaussian",
        ),
    ],
)
def test_the_command_says_what_cannot_be(tmp_path, capsys, kind, words, error):
    policy = policy_of("pi0") if kind == "pi0" else make_policy(SPEC, policy_kind(kind).Config())
    save_policy(policy, tmp_path / "policy-00000001.safetensors")
    assert main(["serve", str(tmp_path), "--device", "cpu", "--port", "0", *words]) == 2
    assert error in capsys.readouterr().err
