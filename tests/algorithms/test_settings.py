"""Settings of algorithms that contradict each other are refused, and say what they learn from."""

import pytest
from pydantic import ValidationError

from rlinf_core.algorithms import algorithm, algorithms
from rlinf_core.algorithms.common.settings import Computing, is_offline
from rlinf_core.core.errors import RecipeError


def config(name, **keys):
    return algorithm(name).Config(**keys)


def test_algorithms_are_the_folders_with_a_learner():
    assert sorted(algorithms()) == [
        *("async_ppo", "crossq", "dagger", "dapo", "dsrl", "grpo", "iql", "ppo", "recap"),
        *("reinforce", "residual", "rlpd", "sac", "sac_flow", "sft"),
    ]
    with pytest.raises(RecipeError, match=r"algorithm.*'rpld'.*rlpd"):
        algorithm("rpld")


def test_compiling_plans_the_memory_itself():
    with pytest.raises(
        ValidationError, match="gradient_checkpointing: expected false with compile"
    ):
        Computing(compile=True, gradient_checkpointing=True)
    assert Computing(compile=True).compile and Computing(gradient_checkpointing=True)


@pytest.mark.parametrize("value, accepted", [(0.0, True), (1.01, True), (1.0, False), (0.5, False)])
def test_a_dual_clip_is_above_one(value, accepted):
    if accepted:
        assert config("ppo", dual_clip=value).dual_clip == value
    else:
        with pytest.raises(ValidationError, match="expected 0 or a number above 1"):
            config("ppo", dual_clip=value)


@pytest.mark.parametrize(
    "keys, message",
    [
        (dict(weighting="constant"), "got 0 with constant"),
        (dict(constant_length=5), "got 5 with episode"),
        (
            dict(level="chunk", correction="token_mask"),
            "expected sequence_truncate or sequence_mask with level chunk, a ratio of whole "
            "chunks, got token_mask",
        ),
        (dict(level="mean", correction="token_truncate"), "with level mean"),
    ],
)
def test_settings_of_grpo_fit_together(keys, message):
    with pytest.raises(ValidationError, match=message):
        config("grpo", **keys)


@pytest.mark.parametrize(
    "keys",
    [
        dict(weighting="constant", constant_length=5),
        dict(level="chunk", correction="sequence_mask"),
        dict(level="chunk"),
        dict(correction="token_mask"),
    ],
)
def test_settings_of_grpo_that_fit_are_accepted(keys):
    assert config("grpo", **keys).rollout == {"group": 8}


@pytest.mark.parametrize(
    "name, source, needs, fixed",
    [
        ("sft", "demonstrations", True, True),
        ("iql", "demonstrations", True, True),
        ("recap", "demonstrations", True, True),
        ("dagger", "an expert", True, False),
        ("rlpd", "replay", True, False),
        ("residual", "replay", True, False),
        ("dsrl", "replay", True, False),
        ("sac", "replay", False, False),
        ("crossq", "replay", False, False),
        ("sac_flow", "replay", False, False),
        ("ppo", "rollouts", False, False),
        ("grpo", "rollouts", False, False),
    ],
)
def test_what_an_algorithm_learns_from(name, source, needs, fixed):
    settings = config(name)
    assert (settings.name, settings.learns_from) == (name, source)
    assert settings.needs_demonstrations is needs and is_offline(settings) is fixed


def test_properties_that_the_trainer_reads():
    ppo, sac, rlpd = config("ppo", chunks=7), config("sac", discount=0.9), config("rlpd")
    assert ppo.rollout == {"chunks": 7} and sac.rollout == {}
    assert (sac.gamma, config("ppo", discount=0.8).gamma, config("sft").gamma) == (0.9, 0.8, 1.0)
    assert config("async_ppo", max_staleness=3).staleness == 3 and ppo.staleness == float("inf")
    assert rlpd.imitates_itself and not config("rlpd", self_imitation=False).imitates_itself
    assert not sac.imitates_itself and not sac.warm_start and rlpd.warm_start
    assert config("sac", ema_rate=0.5).averages and not sac.averages and not ppo.averages
    assert config("sac", n_step=4).n_return_steps == 4 and ppo.n_return_steps == 1
    assert config("recap", n_step=6).n_return_steps == 6
    assert config("sac", batch_size=32).transitions_per_batch == 32
    assert config("sft", batch_size=16).transitions_per_batch == 16
    assert ppo.transitions_per_batch is None and ppo.utd_ratio is None and sac.share is None
    assert config("sac", learning_rate=0.1).critic_lr == 0.1
    assert config("sac", learning_rate=0.1, critic_learning_rate=0.2).critic_lr == 0.2


def test_dsrl_returns_span_the_chunk():
    assert config("dsrl", n_step=1).n_step == 1
    with pytest.raises(ValidationError, match="expected 1 for dsrl"):
        config("dsrl", n_step=2)
