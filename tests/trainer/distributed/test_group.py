"""A learner group computes what a learner in one process computes, also when one of its processes
dies.
"""

import copy
import os
import signal
import threading

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithm, sft
from rlinf_core.algorithms.common.data_parallel import parallelise
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.settings import PLAIN, Computing
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.distributed.group import LearnerGroup
from tests.algorithms.by_hand import SEEING, SMALL
from tests.algorithms.learning import of_config
from tests.algorithms.point import SPEC
from tests.trainer.distributed.conftest import LEARNERS

pytestmark = pytest.mark.timed

CLOSE = 1e-5
CONFIGS = {
    "sft": dict(image_shift=2),
    "iql": SMALL,
    "rlpd": SMALL
    | dict(
        critics=3,
        critic_warmup=0,
        actor_every=1,
        clip_gradient=0.5,
        ema_rate=0.3,
        pessimism=0.5,
        cloning=0.5,
    ),
    "sac_flow": SMALL | dict(actor_every=1, clip_gradient=0.5),
    "crossq": SMALL | dict(actor_every=1, renorm_warmup=1),
    "ppo": dict(epochs=2, minibatches=3, scale_rewards=True),
    "async_ppo": dict(epochs=2, minibatches=3),
    "grpo": dict(epochs=2, minibatches=3, group=4, reference_kl=0.1),
    "dapo": dict(epochs=2, minibatches=3, group=4),
    "reinforce": dict(epochs=2, minibatches=3, group=4, beta=0.1),
    "sac": SMALL | dict(image_shift=2),
    "dsrl": SMALL,
    "dagger": {},
    "residual": SMALL | dict(critics=3, critic_warmup=0, actor_every=1, cloning=0.5),
    "recap": dict(value_hidden=(16,), value_steps=0),
}
ON_POLICY = ("ppo", "async_ppo", "grpo", "dapo", "reinforce")
KINDS = dict.fromkeys(ON_POLICY, "gaussian") | {
    "sac_flow": "flow",
    "dsrl": "latent_noise",
    "residual": "residual",
    "recap": "conditioned",
}
EXTRA_INPUTS = {"residual": 2, "recap": 1}  # numbers of the policy's own behind a station's vectors


class Again(LearnerGroup):
    """A group of processes that are there already: to start them takes longer than all that they
    are asked here.
    """

    spawned = LEARNERS

    def _spawn(self, rank):
        if rank == len(self.spawned):
            self.spawned.append(super()._spawn(rank))
        return self.spawned[rank]

    def close(self):
        """They stay."""


def policy_of(name):
    torch.manual_seed(0)
    kind = KINDS.get(name, "tanh_gaussian")
    sizes = dict(hidden=(16,), horizon=2 if name in ("rlpd", "sac_flow") else 1)
    policy = of_config(
        spec_of(name), policy_kind(kind).Config(**sizes, image_features=4, channels=(4,))
    )
    policy.encoder.fit_normalisation(
        np.random.default_rng(5).normal(0.4, 0.7, (50, policy.input_spec.vector_size))
    )
    return policy


def spec_of(name):
    return SEEING if name in ("sft", "sac") else SPEC


def config_of(name, **changes):
    return algorithm(name).Config(**(dict(learning_rate=3e-3) | CONFIGS[name] | changes))


def alone(name, **changes):
    return algorithm(name).Learner(policy_of(name), config_of(name, **changes), 3)


def together(name, strategy, group=Again, restarts=3, computing=PLAIN, **changes):
    return group(
        name,
        policy_of(name),
        config_of(name, **changes),
        3,
        size=2,
        strategy=strategy,
        restarts=restarts,
        cpus=0.25,
        computing=computing,
    )


def batch_of(name, random, size=24):
    """Numbers at random; rows differ much, so that it matters which process learns from which."""
    if name in ON_POLICY:
        return rollout_of(random)
    spec, width = spec_of(name), 4 if name in ("rlpd", "sac_flow") else 2
    vectors = size, spec.vector_size + EXTRA_INPUTS.get(name, 0)
    batch = {
        "vectors": random.normal(size=vectors),
        "action": random.uniform(-1, 1, (size, width)),
        "next/vectors": random.normal(size=vectors),
        "reward": 3 * random.normal(size=size),
        "discount": (random.random(size) < 0.8),
    }
    batch = {key: values.astype(np.float32) for key, values in batch.items()}
    if name == "residual":
        batch["share"] = np.full(size, 0.4, np.float32)
    pictures = {
        prefix + image.name: random.integers(0, 255, (size, *image.shape)).astype(np.uint8)
        for image in spec.images
        for prefix in ("", "next/")
    }
    return batch | pictures


def rollout_of(random, length=5, size=8):
    """Episodes that end where they like, so that no minibatch divides by two."""

    def draw(*shape):
        return torch.from_numpy(random.normal(size=(length, size, *shape)).astype(np.float32))

    ends = torch.from_numpy(random.integers(1, length + 1, size))
    mask = (torch.arange(length)[:, None] < ends).float()
    return Rollout(
        observations={"vectors": draw(2)},
        next_observations={"vectors": draw(2)},
        actions=0.3 * draw(1, 2),
        log_probs=draw(1).abs() - 2.0,
        step_rewards=3 * draw(1),
        steps=torch.ones(length, size),
        terminated=(draw() > 0.5).float(),
        done=(draw() > 0.3).float(),
        mask=mask,
        versions=torch.zeros(length, size),
    )


def assert_alike(got, expected, place=""):
    """All numbers of two states."""
    assert got.keys() == expected.keys(), place
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_alike(got[key], value, f"{place}/{key}")
        else:
            np.testing.assert_allclose(
                got[key], value, rtol=CLOSE, atol=CLOSE, err_msg=f"{place}/{key}"
            )


def both_learn(group, learner, batches):
    for batch in batches:
        expected, got = learner.update(copy.deepcopy(batch)), group.update(batch)
        assert got == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
    assert group.updates == learner.updates


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["sft", "rlpd", "sac_flow", "ppo"])
def test_two_processes_learn_what_one_learns_and_states_go_both_ways(name, strategy):
    random = np.random.default_rng(1)
    learner, group = alone(name), together(name, strategy)
    both_learn(group, learner, [batch_of(name, random) for _ in range(3)])
    state = group.state_dict()
    assert_alike(state, learner.state_dict())

    one = alone(name)  # from the group to one process, and on
    one.load_state_dict(state)
    both_learn(group, one, [batch_of(name, random) for _ in range(2)])

    learner.update(batch_of(name, random))  # and back, after another batch
    mean = np.full(policy_in(learner).spec.vector_size, 0.3)
    learner.normalise(mean, mean + 1.5)
    group.load_state_dict(learner.state_dict())
    copied = copy.deepcopy(group.checkpoint)
    learner.update(batch_of(name, random))
    assert_alike(group.state_dict(), copied)  # which is the group's own
    learner.load_state_dict(copied)
    both_learn(group, learner, [batch_of(name, random) for _ in range(2)])
    assert_alike(group.state_dict(), learner.state_dict())
    assert_alike(dict(group.sync().state_dict()), dict(policy_in(learner).state_dict()))
    one, two = copy.deepcopy(policy_in(learner)), copy.deepcopy(policy_in(learner))
    learner.ship(one)
    group.ship(two)
    assert_alike(dict(one.state_dict()), dict(two.state_dict()))
    assert (name == "rlpd") is any(
        not torch.equal(p, q)
        for p, q in zip(one.parameters(), policy_in(learner).parameters(), strict=True)
    )


def policy_in(learner):
    return learner.modules["actor"] if "actor" in learner.modules else learner.modules["policy"]


@pytest.mark.parametrize(
    "name, strategy, changes",
    [
        ("iql", "fsdp", {}),
        ("sac", "fsdp", {}),
        ("crossq", "ddp", {}),
        ("crossq", "fsdp", {}),
        ("dsrl", "fsdp", {}),
        ("sft", "fsdp", dict(lora_rank=2)),
        ("dagger", "ddp", {}),
        ("async_ppo", "ddp", {}),
        ("async_ppo", "fsdp", dict(proximal="interpolated")),
        ("grpo", "fsdp", {}),
        ("dapo", "ddp", {}),
        ("reinforce", "fsdp", {}),
        ("reinforce", "ddp", dict(baseline=True)),
        ("residual", "ddp", {}),
        ("residual", "fsdp", {}),
        ("recap", "ddp", {}),
        ("recap", "fsdp", {}),
    ],
)
def test_so_does_every_other_algorithm(name, strategy, changes):
    if changes.get("lora_rank"):
        pytest.importorskip("peft")
    random = np.random.default_rng(2)
    learner, group = alone(name, **changes), together(name, strategy, **changes)
    vectors = random.normal(2.0, 3.0, (40, policy_in(learner).input_spec.vector_size)).astype(
        np.float32
    )
    learner.fit_normalisation(vectors)
    group.fit_normalisation(vectors)
    both_learn(group, learner, [batch_of(name, random) for _ in range(4)])
    assert_alike(group.state_dict(), learner.state_dict())


def test_of_chunks_that_go_on_where_others_are_each_process_counts_what_it_has():
    """The number of given actions is random; one process draws more of them than the other."""
    random = np.random.default_rng(7)
    sizes = policy_kind("flow").Config(
        hidden=(16,), horizon=4, max_delay=3, image_features=4, channels=(4,)
    )
    torch.manual_seed(0)
    policy, config = make_policy(SPEC, sizes), config_of("sft", image_shift=0)
    learner = sft.Learner(copy.deepcopy(policy), config, 3)
    group = Again("sft", policy, config, 3, size=2, strategy="ddp", cpus=0.25)
    batches = [
        {
            "vectors": random.normal(size=(6, 2)).astype(np.float32),
            "action": random.uniform(-1, 1, (6, 8)).astype(np.float32),
        }
        for _ in range(3)
    ]
    both_learn(group, learner, batches)
    assert_alike(group.state_dict(), learner.state_dict())


def test_a_process_that_is_killed_comes_back_and_the_result_is_that_of_an_undisturbed_run(
    cluster, capfd
):
    random = np.random.default_rng(3)
    batches = [batch_of("rlpd", random) for _ in range(6)]
    learner, group = alone("rlpd"), together("rlpd", "fsdp", LearnerGroup, restarts=1)
    both_learn(group, learner, batches[:2])
    group.sync()
    both_learn(group, learner, batches[2:4])
    victim = cluster.get(group.processes[1].pid.remote())
    os.kill(victim, signal.SIGSTOP)  # the other begins to learn, and waits for this one's gradient
    threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
    both_learn(group, learner, batches[4:5])
    assert "a process died; all 2 restart and repeat 3 calls" in capfd.readouterr().out
    both_learn(group, learner, batches[5:])
    assert_alike(group.state_dict(), learner.state_dict())

    os.kill(cluster.get(group.processes[0].pid.remote()), signal.SIGKILL)
    with pytest.raises(
        RlinfError, match="a process died .* placement.restarts = 1 times all 2 were restarted"
    ):
        group.update(batches[0])


@pytest.mark.parametrize(
    "name, size, message",
    [
        ("sft", 25, "algorithm.batch_size: expected a multiple of 2, since 2 processes .* got 25"),
        (
            "rlpd",
            26,
            "algorithm.batch_size: expected a multiple of 4, .* in each of two halves; got 26",
        ),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_before_anything_starts(name, size, message):
    with pytest.raises(RecipeError, match=message):
        LearnerGroup(
            name, policy_of(name), config_of(name).but(batch_size=size), 0, size=2, strategy="ddp"
        )


def test_an_algorithm_of_ones_own_learns_in_a_group_and_what_would_split_it_is_refused(
    tmp_path, monkeypatch
):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    random, kind = np.random.default_rng(4), "mine.py"
    module = algorithm(kind)
    config = module.Config(name=kind, learning_rate=3e-3)
    learner = module.Learner(policy_of("iql"), config, 3)
    group = Again(kind, policy_of("iql"), config, 3, size=2, strategy="ddp", cpus=0.25)
    both_learn(group, learner, [batch_of("iql", random) for _ in range(2)])
    with pytest.raises(RecipeError, match="batch: expected a multiple of 2, .* got 23"):
        group.update(batch_of("iql", random, 23))
    with pytest.raises(RlinfError, match="with the gradient of one process only.*optimizer_step"):
        group.update(batch_of("iql", random) | {"by_hand": np.zeros(24, np.float32)})


MINE = """
from rlinf_core.algorithms import sft

class Config(sft.Config):
    momentum: float = 0.9

class Learner(sft.Learner):
    def update(self, batch):
        if "by_hand" in batch:
            self.optimisers["actor"].step()
        return super().update(batch)
"""


def test_an_optimiser_of_parts_of_a_module_is_refused_by_name():
    learner = sft.Learner(policy_of("iql"), sft.Config(), 0)
    learner.optimisers["actor"] = torch.optim.Adam(learner.actor.head.parameters())
    with pytest.raises(
        RecipeError,
        match="fsdp shards whole modules, and optimiser 'actor' .* trains parts of actor",
    ):
        parallelise(learner, "fsdp")


def test_a_group_that_the_cluster_has_no_room_for_says_what_there_is(monkeypatch):
    monkeypatch.setattr("rlinf_core.trainer.distributed.group.START_S", 0.5)
    with pytest.raises(
        RlinfError,
        match=r"room for 2 processes of 1 CPU, 1 GPU each .* the cluster has . CPU, 0 GPU",
    ):
        LearnerGroup(
            "sft", policy_of("sft"), config_of("sft"), 0, size=2, strategy="ddp", gpus=1, cpus=1
        )


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "name, strategy, computing, close",
    [
        ("sac", "ddp", Computing(precision="bfloat16"), 0.02),
        ("ppo", "fsdp", Computing(precision="bfloat16"), 0.02),
        pytest.param("crossq", "ddp", Computing(compile=True), 1e-4, marks=pytest.mark.slow),
    ],
)
def test_a_group_computes_in_bfloat16_and_compiled_as_one_process_does(
    name, strategy, computing, close
):
    random = np.random.default_rng(6)
    learner, group = alone(name), together(name, strategy, computing=computing)
    if not computing.compile:
        apply_computing(learner, computing)
    for _ in range(3):
        batch = batch_of(name, random)
        expected, got = learner.update(copy.deepcopy(batch)), group.update(batch)
        assert got == pytest.approx(expected, abs=close, rel=close)
    state = group.state_dict()
    assert {name: set(part) for name, part in state["modules"].items()} == {
        name: set(part) for name, part in learner.state_dict()["modules"].items()
    }
    assert {
        values.dtype
        for part in state["optimisers"].values()
        for moments in part.values()
        for values in moments.values()
    } == {torch.float32}
    alone(name).load_state_dict(state)


def test_compiling_what_fsdp_gathers_anew_is_refused_by_the_recipe():
    with pytest.raises(
        RecipeError,
        match="'learner.compile': expected false with placement.strategy = fsdp, .* got true",
    ):
        load_recipe("sim_sac", ["learner.compile=true", "placement={learners: 2, strategy: fsdp}"])
    for allowed in (
        ["learner.compile=true", "placement.strategy=fsdp"],
        ["learner.compile=true", "placement.learners=2"],
        ["learner.precision=bfloat16", "placement={learners: 2, strategy: fsdp}"],
    ):
        load_recipe("sim_sac", allowed)
