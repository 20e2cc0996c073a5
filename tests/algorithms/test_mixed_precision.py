"""In bfloat16 or compiled, an update computes what it computes in float32, nearly; and what acts
stays as it is.
"""

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithms
from rlinf_core.algorithms.common import mixed_precision
from rlinf_core.algorithms.common.mixed_precision import apply_computing, networks
from rlinf_core.algorithms.common.settings import Computing
from rlinf_core.core.errors import RlinfError
from rlinf_core.policies.base import Observation
from rlinf_core.policies.encoder import Head
from rlinf_core.policies.torch_device import check_bfloat16, check_compiles
from tests.algorithms.learning import make, off_policy, on_policy
from tests.trainer.distributed.test_group import alone, batch_of, policy_in, spec_of

REDUCED, COMPILED = Computing(precision="bfloat16"), Computing(compile=True)


@pytest.fixture
def dynamo():
    """Other tests' compiled networks do not count; what is compiled too often is an error, instead
    of eager.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def pair(name, how, **changes):
    """Return the same learner as it is, and computed so."""
    plain, other = alone(name, **changes), alone(name, **changes)
    apply_computing(other, how)
    return plain, other


def acted(learner, random):
    policy, spec = policy_in(learner), spec_of(learner.config.name)
    arrays = {
        "vectors": random.normal(size=(5, spec.vector_size)).astype(np.float32),
        **{
            image.name: random.integers(0, 255, (5, *image.shape)).astype(np.uint8)
            for image in spec.images
        },
    }
    return policy.act(Observation.from_arrays(spec, arrays), True, torch.Generator().manual_seed(1))


def assert_near(got, expected, tolerance):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("name", algorithms())
def test_in_bfloat16_losses_are_near_and_all_but_the_layers_is_float32(name, monkeypatch):
    plain, learner = pair(name, REDUCED)
    layers, answers, losses = set(), set(), set()
    for module in learner.modules.values():
        for part in module.modules():
            if isinstance(part, torch.nn.Linear | torch.nn.Conv2d) and not isinstance(part, Head):
                part.register_forward_hook(lambda part, inputs, answer: layers.add(answer.dtype))
            if isinstance(part, Head):
                part.register_forward_hook(lambda part, inputs, answer: answers.add(answer.dtype))
    for network in networks(learner):
        network.register_forward_hook(
            lambda part, inputs, answer: answers.update(
                part_answer.dtype
                for part_answer in (answer if isinstance(answer, tuple) else (answer,))
            )
        )
    backward = torch.Tensor.backward
    monkeypatch.setattr(
        torch.Tensor,
        "backward",
        lambda loss, *rest: losses.add(loss.dtype) or backward(loss, *rest),
    )
    batch = batch_of(name, np.random.default_rng(1))
    assert_near(learner.update(batch), expected := plain.update(batch), 0.02)
    assert (layers, answers, losses) == ({torch.bfloat16}, {torch.float32}, {torch.float32})
    assert any(
        not torch.equal(p, q)
        for p, q in zip(policy_in(plain).parameters(), policy_in(learner).parameters(), strict=True)
    ), "it made no difference"
    tensors = [
        *(p for module in learner.modules.values() for p in module.parameters()),
        *(
            value
            for optimiser in learner.optimisers.values()
            for moments in optimiser.state.values()
            for value in moments.values()
        ),
    ]
    assert {value.dtype for value in tensors} == {torch.float32} and expected
    layers.clear()
    chunk = acted(learner, np.random.default_rng(2))
    assert layers == {torch.float32} and chunk.actions.dtype == torch.float32


@pytest.mark.parametrize("name", algorithms())
def test_what_learned_in_bfloat16_goes_on_in_float32_and_the_other_way_round(name):
    plain, learner = pair(name, REDUCED)
    batches = [batch_of(name, np.random.default_rng(seed)) for seed in range(2)]
    learner.update(batches[0])
    plain.load_state_dict(learner.state_dict())
    again = alone(name)
    again.load_state_dict(learner.state_dict())
    apply_computing(again, REDUCED)
    assert_near(plain.update(batches[1]), expected := learner.update(batches[1]), 0.02)
    assert again.update(batches[1]) == expected, "a resumed run makes the same updates"


@pytest.mark.parametrize(
    "run, settings",
    [
        pytest.param(off_policy, dict(name="sac"), id="SAC", marks=pytest.mark.slow),
        pytest.param(on_policy, dict(name="ppo"), id="PPO"),
    ],
)
def test_it_learns_in_bfloat16(run, settings):
    """The thresholds of tests/algorithms/test_learning.py."""
    assert run(**settings, computing=REDUCED).learned


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("sac", "ppo", "sft") else pytest.mark.slow)
        for name in algorithms()
    ],
)
def test_traced_losses_are_those_of_eager_ones(name, monkeypatch, dynamo):
    """Only the tracing of torch.compile runs, without a compiler."""
    monkeypatch.setattr(mixed_precision, "BACKEND", "aot_eager")
    assert_compiled(name, COMPILED, 1e-5)


def test_what_is_compiled_alone_stays_float32(monkeypatch, dynamo):
    """The tracer's graphs run as they are."""
    graphs = []
    monkeypatch.setattr(
        mixed_precision, "BACKEND", lambda graph, inputs: graphs.append(graph) or graph.forward
    )
    monkeypatch.setattr(mixed_precision, "check_compiles", lambda *_: None)
    plain, learner = pair("sft", COMPILED)
    batch = batch_of("sft", np.random.default_rng(1))
    assert_near(learner.update(batch), plain.update(batch), 1e-5)
    assert graphs and all("forward" not in vars(network) for network in networks(learner))


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "name, how, tolerance",
    [("sac", COMPILED, 1e-4), ("ppo", COMPILED, 1e-4), ("sft", REDUCED.but(compile=True), 0.05)],
)
def test_so_are_compiled_ones(name, how, tolerance, dynamo):
    try:
        check_compiles(torch.device("cpu"), mixed_precision.BACKEND)
    except RlinfError as error:
        pytest.skip(str(error))
    assert_compiled(name, how, tolerance)


def assert_compiled(name, how, tolerance):
    random = np.random.default_rng(1)
    plain, learner = pair(name, how)
    ran = []
    for network in networks(learner):
        network.register_forward_hook(lambda network, *_: ran.append("forward" in vars(network)))
    for _ in range(2):
        batch = batch_of(name, random)
        assert_near(learner.update(batch), plain.update(batch), tolerance)
    assert ran and all(ran)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    state = learner.state_dict()
    assert {key: set(part) for key, part in state["modules"].items()} == {
        key: set(part) for key, part in plain.state_dict()["modules"].items()
    }
    again = alone(name)
    again.load_state_dict(state)
    apply_computing(again, how)
    batch = batch_of(name, random)
    assert_near(again.update(batch), learner.update(batch), 1e-6)
    ran.clear()
    acted(learner, random)
    assert not any(ran), "what acts is not compiled"


def test_networks_are_the_outermost_modules_that_are_called_each_once():
    rlpd, dsrl, ppo = alone("rlpd"), alone("dsrl"), alone("ppo")
    averaged = rlpd.modules["averaged"]
    assert [*networks(rlpd)] == [rlpd.actor, rlpd.critics, averaged, rlpd.target[1]], (
        "without pictures an encoder has no matrix"
    )
    flow = dsrl.actor.flow
    assert [*networks(dsrl)] == [
        flow.field,
        flow.head,
        dsrl.actor.noise_policy,
        dsrl.critics,
        dsrl.target[1],
    ]
    assert [*networks(ppo)] == [ppo.policy, ppo.value]
    ppo.modules["twice"] = ppo.value
    assert [*networks(ppo)] == [ppo.policy, ppo.value]
    seeing = alone("sac")
    assert [*networks(seeing)] == [seeing.actor, seeing.encoder, seeing.critics, *seeing.target]


def test_what_counts_batches_is_not_computed_once_more():
    plain, other = pair("crossq", Computing(gradient_checkpointing=True), renorm_warmup=1)
    random = np.random.default_rng(0)
    for _ in range(3):
        batch = batch_of("crossq", random)
        assert other.update(batch) == pytest.approx(plain.update(batch))
    for (name, value), again in zip(
        plain.state_dict()["modules"]["critics"].items(),
        other.state_dict()["modules"]["critics"].values(),
        strict=True,
    ):
        assert torch.allclose(value, again), name


def test_without_either_nothing_is_touched():
    learner = alone("sac")
    apply_computing(learner, Computing())
    assert "update" not in vars(learner)


def test_an_update_that_fails_leaves_the_networks_as_they_were():
    _, learner = pair("sac", REDUCED)
    with pytest.raises(KeyError):
        learner.update({"vectors": np.zeros((4, 2), np.float32)})
    assert all("forward" not in vars(network) for network in networks(learner))


def test_a_device_without_bfloat16_is_refused_in_words(monkeypatch):
    check_bfloat16(torch.device("cpu"))
    with pytest.raises(
        RlinfError,
        match="learner.precision: expected a device .* bfloat16 .*, got meta: .* to float32",
    ):
        check_bfloat16(torch.device("meta"))
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    with pytest.raises(
        RlinfError, match="got cuda:0: it would emulate it, .* Set learner.precision to float32"
    ):
        check_bfloat16(torch.device("cuda:0"))
    learner = alone("sft")
    learner.device = torch.device("meta")
    with pytest.raises(RlinfError, match="learner.precision"):
        apply_computing(learner, REDUCED)


def test_a_machine_that_cannot_compile_is_refused_in_words(monkeypatch, dynamo):
    import torch._inductor.config as inductor

    check_compiles.cache_clear()
    with monkeypatch.context() as patch, inductor.patch(force_disable_caches=True):
        patch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
        with pytest.raises(
            RlinfError, match=r"learner.compile: .* needs a C\+\+ compiler \(g\+\+\) for cpu; got"
        ):
            apply_computing(alone("sft"), COMPILED)
    monkeypatch.setattr(mixed_precision, "BACKEND", "no_such_backend")
    with pytest.raises(
        RlinfError, match="learner.compile: .*no_such_backend.* set learner.compile to false"
    ):
        apply_computing(alone("sft"), COMPILED)


def test_the_device_of_the_learner_is_the_one_that_must_compile(monkeypatch, dynamo):
    check_compiles.cache_clear()
    monkeypatch.setattr(mixed_precision, "BACKEND", "no_such_backend")
    learner = alone("sft")
    learner.device = torch.device("meta")
    with pytest.raises(RlinfError, match="learner.compile: .* needs the package triton for meta"):
        apply_computing(learner, COMPILED)


def test_a_network_that_cannot_be_compiled_says_so(monkeypatch, dynamo):
    def broken(graph, inputs):
        raise ValueError("no")

    monkeypatch.setattr(mixed_precision, "BACKEND", broken)
    monkeypatch.setattr(mixed_precision, "check_compiles", lambda *_: None)
    learner = alone("sft")
    apply_computing(learner, COMPILED)
    with pytest.raises(
        RlinfError,
        match="networks that torch.compile can compile, got: (.|\n)* learner.compile to false",
    ):
        learner.update(batch_of("sft", np.random.default_rng(1)))


def test_heads_are_float32_where_layers_before_them_are_not():
    torch.manual_seed(0)
    head, x = Head(64, 3), torch.randn(10, 64)
    with torch.autocast("cpu", torch.bfloat16):
        got, rounded = head(x), torch.nn.functional.linear(x, head.weight, head.bias)
    assert got.dtype == torch.float32 and rounded.dtype == torch.bfloat16
    assert torch.equal(got, torch.nn.functional.linear(x, head.weight, head.bias))
    heads = (make("flow").head, make("tanh_gaussian").head, make("gaussian").mean[-1])
    assert {type(layer) for layer in heads} == {Head}
