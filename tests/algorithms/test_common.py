"""The small parts that learners share, at their edges; what a learner is made of and keeps."""

import dataclasses
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithm, algorithms, crossq, iql, sft
from rlinf_core.algorithms.common import advantages
from rlinf_core.algorithms.common.gradient_checkpointing import with_recomputation
from rlinf_core.algorithms.common.image_augmentation import shift_images
from rlinf_core.algorithms.common.learner import BaseLearner, Scalar
from rlinf_core.algorithms.common.optimizer import adam, optimizer_step, skipped_steps
from rlinf_core.algorithms.common.policy_losses import masked_mean, policy_loss
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.algorithms.common.running_statistics import (
    RunningMoments,
    RunningReturn,
    update_moments,
)
from rlinf_core.algorithms.common.tensors import next_observations, to_tensors
from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError
from rlinf_core.policies import lora
from tests.algorithms.by_hand import batches
from tests.algorithms.learning import buffer_of, make
from tests.algorithms.point import expert, misled
from tests.trainer.distributed import test_group as group_tests

SLOW = {"actor", "encoder", "critics", "temperature", "target", "value_scale"}
CHECKPOINTED = {
    "sac": SLOW,
    "sac_flow": SLOW,
    "rlpd": SLOW,
    "dsrl": SLOW,
    "crossq": SLOW - {"target"},
    "dagger": {"actor"},
    "iql": {"actor", "encoder", "critics", "target", "value"},
    "sft": {"actor"},
    "ppo": {"policy", "value", "returns"},
    "async_ppo": {"policy", "value", "returns"},
    "grpo": {"policy"},
    "dapo": {"policy"},
    "reinforce": {"policy", "reference"},
}
KINDS = {
    "sac_flow": "flow",
    "dsrl": "latent_noise",
    "ppo": "gaussian",
    "async_ppo": "gaussian",
    "grpo": "gaussian",
    "dapo": "gaussian",
    "reinforce": "gaussian",
}


def test_algorithms_are_those_of_the_folders_and_of_installed_packages(monkeypatch):
    ours = algorithms()
    assert set(CHECKPOINTED) | {"recap", "residual"} == set(ours) and ours == sorted(ours)
    point = EntryPoint("mine", "tests.algorithms.toy", "rlinf.algorithms")
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == "rlinf.algorithms" else []
    )
    assert algorithms() == sorted([*ours, "mine"])
    assert algorithm("mine").__name__ == "tests.algorithms.toy"
    with pytest.raises(
        RecipeError, match="^algorithm: expected one of .*; got 'pppo' .did you mean 'ppo'"
    ):
        algorithm("pppo")


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_checkpoint_holds_all_that_learns_under_the_names_of_older_ones(name):
    policy = make(KINDS.get(name, "tanh_gaussian"))
    learner = algorithm(name).Learner(policy, algorithm(name).Config())
    state = learner.state_dict()
    assert set(state) == {"modules", "optimisers", "updates", "generator"} and state["updates"] == 0
    assert set(state["modules"]) == CHECKPOINTED[name]
    trained = (
        {"policy"}
        if "policy" in CHECKPOINTED[name]
        else {"actor"}
        if name in ("sft", "dagger")
        else {"actor", "critic", "value" if name == "iql" else "temperature"}
    )
    assert set(state["optimisers"]) == trained
    assert torch.equal(state["generator"], torch.Generator().manual_seed(0).get_state()), (
        "the seed is 0 unless said"
    )


@pytest.mark.parametrize("name", ["sac", "crossq"])
def test_an_actor_critic_goes_on_from_a_checkpoint_that_knows_no_scale_of_values(name, random):
    """The optimisers' moments belong to the same parameters, because their order is unchanged."""
    learner, other = (algorithm(name).Learner(make(), algorithm(name).Config()) for _ in range(2))
    learner.update(batches(1, random, 1)[0])
    state = learner.state_dict()
    del state["modules"]["value_scale"]
    other.value_scale.scale.fill_(7.0)
    other.load_state_dict(state)
    assert other.value_scale.scale.item() == 1.0 and other.updates == 1
    numbered = [*learner.encoder.parameters(), *learner.critics.parameters()]
    assert [
        state["optimisers"]["critic"][str(index)]["exp_avg"].shape for index in range(len(numbered))
    ] == [p.shape for p in numbered]


@pytest.mark.parametrize("name", ["sac", "crossq", "iql", "ppo"])
def test_the_seed_is_0_unless_said(name):
    module, kind = algorithm(name), KINDS.get(name, "tanh_gaussian")
    unsaid = module.Learner(make(kind), module.Config())
    zero = module.Learner(make(kind), module.Config(), 0)
    for part, mine in unsaid.modules.items():
        theirs = zero.modules[part].state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in mine.state_dict().items()), (
            part
        )


@pytest.mark.parametrize(
    "name, rate", [("sac", 1e-3), ("iql", 1e-3), ("sft", 1e-3), ("ppo", 1e-3), ("crossq", 1e-3)]
)
def test_every_optimiser_has_the_configs_rate_and_all_that_it_trains(name, rate):
    module, kind = algorithm(name), KINDS.get(name, "tanh_gaussian")
    learner = module.Learner(make(kind), module.Config(learning_rate=rate))
    groups = [
        group for optimiser in learner.optimisers.values() for group in optimiser.param_groups
    ]
    assert all(group["lr"] == rate for group in groups)
    trained = {id(p) for group in groups for p in group["params"]}
    assert trained == {
        id(p) for part, m in learner.modules.items() for p in m.parameters() if part != "target"
    }


def test_a_gradient_step_is_clipped_to_the_norm_over_all_parameters_and_says_it():
    a, b = torch.nn.Parameter(torch.tensor([0.0])), torch.nn.Parameter(torch.tensor([0.0]))
    sgd = torch.optim.SGD([{"params": [a]}, {"params": [b]}], lr=1.0)
    assert optimizer_step(sgd, 3.0 * a.sum() - 4.0 * b.sum(), 1.0) == pytest.approx(5.0)
    assert (a.item(), b.item()) == (pytest.approx(-0.6, abs=1e-5), pytest.approx(0.8, abs=1e-5))
    assert optimizer_step(sgd, 3.0 * a.sum(), 100.0) == pytest.approx(3.0), (
        "gradients of the step before are forgotten"
    )
    assert (a.item(), b.item()) == (pytest.approx(-3.6, abs=1e-5), pytest.approx(0.8, abs=1e-5))
    assert optimizer_step(sgd, 7.0 * a.sum()) == 0.0 and a.item() == pytest.approx(-10.6, abs=1e-5)


def test_a_scalar_is_kept_as_its_logarithm():
    scalar = Scalar(0.25)
    assert scalar().item() == pytest.approx(0.25) and scalar.log.item() == pytest.approx(
        np.log(0.25)
    )
    assert scalar.log.requires_grad and list(scalar.state_dict()) == ["log"]


def test_batch_renormalisation_corrects_only_so_far_and_counts_its_steps():
    norm = crossq.BatchRenorm(1, 1, momentum=0.0, warmup=1)
    with torch.no_grad():
        norm.scale.fill_(2.0)
        norm.shift.fill_(0.5)
    x = torch.tensor([[[-1.0], [1.0]]])

    def normalised(scale, offset, r, d):
        std = np.sqrt(scale**2 + 1e-3)
        return ((np.array([-1.0, 1.0]) * scale / std) * r + d) * 2.0 + 0.5

    for steps, scale, offset, r, d in (
        (1, 50.0, 90.0, 1.0, 0.0),
        (2, 50.0, 90.0, 1.0, 0.0),
        (3, 50.0, 90.0, 3.0, 5.0),
        (4, 50.0, -90.0, 3.0, -5.0),
        (5, 0.01, 0.0, 1 / 3, 0.0),
    ):
        got = norm(x * scale + offset)[0, :, 0].tolist()
        assert got == pytest.approx(normalised(scale, offset, r, d).tolist(), abs=1e-4), steps
        assert norm.steps.item() == steps
    norm.eval()
    norm.mean.fill_(3.0)
    norm.std.fill_(4.0)
    assert (
        norm(torch.tensor([[[7.0]]])).item() == pytest.approx(2.0 * 1.0 + 0.5)
        and norm.steps.item() == 5
    )


def test_normalised_critics_are_of_their_own_widths_and_momentum():
    critics = crossq.Critics(
        4, crossq.Config(critic_hidden=(8, 6), critics=3, renorm_momentum=0.25, renorm_warmup=9)
    )
    assert [tuple(w.shape) for w in critics.weights] == [(3, 4, 8), (3, 8, 6), (3, 6, 1)]
    assert [tuple(b.shape) for b in critics.biases] == [(3, 1, 8), (3, 1, 6), (3, 1, 1)]
    assert [(n.momentum, n.warmup, tuple(n.scale.shape)) for n in critics.norms] == [
        (0.25, 9, (3, 1, 4)),
        (0.25, 9, (3, 1, 8)),
        (0.25, 9, (3, 1, 6)),
    ]
    assert not any(b.any() for b in critics.biases)


def test_normalised_critics_equal_layer_after_layer(random):
    critics = crossq.Critics(4, crossq.Config(critic_hidden=(8, 6), critics=2)).eval().double()
    features = torch.tensor(random.normal(size=(5, 3)))
    action = torch.tensor(random.normal(size=(5, 1)))
    with torch.no_grad():
        for norm in critics.norms:
            for value in (norm.mean, norm.std, norm.scale, norm.shift):
                value.copy_(torch.tensor(random.uniform(0.5, 1.5, value.shape)))
        for bias in critics.biases:
            bias.copy_(torch.tensor(random.normal(size=bias.shape)))
        together = critics(features, action).numpy()
    for e in range(2):
        x = np.concatenate([features, action], axis=1)
        for layer, (norm, weight, bias) in enumerate(
            zip(critics.norms, critics.weights, critics.biases, strict=True)
        ):
            x = np.maximum(x, 0) if layer else x
            mean, std, scale, shift = (
                v.detach().numpy()[e] for v in (norm.mean, norm.std, norm.scale, norm.shift)
            )
            x = ((x - mean) / std * scale + shift) @ weight.detach().numpy()[
                e
            ] + bias.detach().numpy()[e]
        assert together[e] == pytest.approx(x[:, 0], abs=1e-9)


def test_moments_of_vectors_are_those_of_each_number_alone(random):
    moments = RunningMoments(3)
    data = random.normal([1, -2, 5], [1, 0.1, 3], (60, 3)).astype(np.float32)
    assert moments.mean.tolist() == [0, 0, 0] and moments.var.tolist() == [1, 1, 1]
    for part in np.array_split(data, 5):
        moments.update(torch.tensor(part))
    assert moments.mean.numpy() == pytest.approx(data.mean(0), abs=1e-3)
    assert moments.var.numpy() == pytest.approx(data.var(0), rel=2e-3)
    assert moments.count.item() == pytest.approx(60, abs=1e-3)
    again = RunningMoments(3)
    again.load_state_dict(moments.state_dict())
    assert sorted(moments.state_dict()) == ["count", "mean", "var"] and torch.equal(
        again.var, moments.var
    )
    moments.update(torch.zeros(0, 3))
    assert torch.equal(again.mean, moments.mean) and torch.equal(again.var, moments.var), (
        "nothing came"
    )


def test_two_means_are_put_together_by_their_counts():
    count, mean, var = torch.tensor(2.0), torch.tensor(1.0), torch.tensor(0.0)  # of 1, 1
    update_moments(count, mean, var, torch.tensor([4.0, 4.0, 4.0, 8.0]))
    numbers = np.array([1, 1, 4, 4, 4, 8.0])
    assert (count.item(), mean.item(), var.item()) == (
        6,
        pytest.approx(numbers.mean()),
        pytest.approx(numbers.var()),
    )


def test_scaled_rewards_are_bounded_and_begin_anew_with_other_environments():
    scale = RunningReturn(0.5)
    assert (
        sorted(scale.state_dict()) == ["count", "mean", "running", "var"] and scale.var.item() == 1
    )
    rewards = torch.zeros(200, 2)
    rewards[7, 0], rewards[9, 1] = 900.0, -900.0
    got = scale.scale_rewards(rewards, torch.ones(200, 2))
    assert (got.max().item(), got.min().item()) == (10.0, -10.0)
    assert scale.scale_rewards(torch.ones(3, 5), torch.zeros(3, 5)).shape == (3, 5)
    assert scale.running.tolist() == [1.75] * 5, "and the sum goes on from rollout to rollout"
    scale.scale_rewards(torch.ones(1, 5), torch.zeros(1, 5))
    assert scale.running.tolist() == [1.875] * 5
    padded, alone = RunningReturn(0.5), RunningReturn(0.5)
    some = torch.arange(1.0, 11.0)[:, None]
    mask = (torch.arange(40) < 10).float()[:, None]
    padded.scale_rewards(torch.cat([some, torch.zeros(30, 1)]), torch.ones(40, 1), mask=mask)
    alone.scale_rewards(some, torch.ones(10, 1))
    assert padded.var.item() == alone.var.item() and padded.count.item() == alone.count.item(), (
        "what fills up is no reward"
    )
    again = RunningReturn(0.5)
    again.load_state_dict(scale.state_dict())
    assert again.running.tolist() == [1.875] * 5
    with pytest.raises(ValueError):
        scale.scale_rewards(torch.ones(3, 5), torch.zeros(2, 5))


def test_what_follows_is_found_under_its_own_name():
    batch = {"vectors": 1, "next/vectors": 2, "reward": 3, "next/front": 4}
    assert next_observations(batch) == {"vectors": 2, "front": 4}


def test_tensors_share_memory_unless_they_may_not():
    mine, fixed = np.zeros(3, np.float32), np.zeros(3, np.float32)
    fixed.flags.writeable = False
    got = to_tensors({"mine": mine, "fixed": fixed, "turned": np.zeros((4, 3), np.float32).T})
    got["mine"][0], got["fixed"][0] = 1.0, 1.0
    assert mine[0] == 1.0 and fixed[0] == 0.0 and got["turned"].is_contiguous()


def test_every_image_is_moved_by_its_own_draw_with_its_edges_repeated(random):
    images = random.integers(0, 255, (30, 6, 5, 3)).astype(np.uint8)
    got = shift_images({"front": torch.as_tensor(images)}, 2, torch.Generator().manual_seed(4))[
        "front"
    ].numpy()
    draws = torch.randint(-2, 3, (2, 30, 1), generator=torch.Generator().manual_seed(4)).numpy()
    assert {-2, 2} <= set(draws[0].ravel()) and {-2, 2} <= set(draws[1].ravel())
    for image, moved, down, right in zip(images, got, *draws[..., 0], strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="edge")
        assert np.array_equal(moved, padded[2 + down : 8 + down, 2 + right : 7 + right])


@pytest.mark.parametrize("rank", [2, 5])
def test_adapters_weigh_twice_their_rank_and_are_drawn_by_their_seed(rank):
    learner = sft.Learner(make(), sft.Config(lora_rank=rank, learning_rate=0.01))
    data = buffer_of(lambda o: expert(o)[None], 4)
    before = {name: value.clone() for name, value in learner.actor.state_dict().items()}
    learner.update(data.sample(16, np.random.default_rng(0)))
    for name, layer in ((n, m) for n, m in learner.trained.named_modules() if hasattr(m, "lora_A")):
        change = learner.actor.get_submodule(name).weight - before[f"{name}.weight"]
        assert torch.allclose(
            change, 2.0 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight, atol=1e-6
        )
    unsaid, zero, other = (
        dict(lora.with_adapters(make(), rank, *seed).named_parameters())
        for seed in ((), (0,), (4,))
    )
    drawn = [name for name in zero if "lora_A" in name]
    assert drawn and all(torch.equal(unsaid[name], zero[name]) for name in drawn)
    assert not any(torch.equal(other[name], zero[name]) for name in drawn)


def test_adapting_draws_nothing_from_others_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(1)
    policy = make()
    torch.manual_seed(5)
    lora.with_adapters(policy, 2)
    assert torch.equal(torch.rand(1), expected)


def test_the_expectile_prefers_values_above(random):
    assert iql.expectile_loss(torch.tensor([2.0]), 0.9).item() == pytest.approx(0.9 * 4)
    assert iql.expectile_loss(torch.tensor([-2.0, 0.0]), 0.9).item() == pytest.approx(0.1 * 4 / 2)


def test_a_batch_that_a_learner_is_given_is_left_as_it_was(random):
    data = buffer_of(misled(random), 4).sample(16, random)
    before = {name: values.copy() for name, values in data.items()}
    for name in ("sac", "iql", "crossq"):
        algorithm(name).Learner(make(), algorithm(name).Config(critic_hidden=(8,))).update(data)
    assert all(np.array_equal(values, before[name]) for name, values in data.items())


@pytest.mark.parametrize("weight", [1.0, 0.02, 1e-4])
def test_a_masked_mean_is_one_also_of_weights_that_are_parts(weight):
    values, mask = torch.tensor([1.0, 3.0, 100.0]), torch.tensor([weight, weight, 0.0])
    assert masked_mean(values, mask).item() == pytest.approx(2.0, rel=1e-4)
    assert masked_mean(values, torch.zeros(3)).item() == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("log_ratio", [89.0, 200.0, 1e30])
def test_a_ratio_that_overflows_leaves_a_finite_gradient(log_ratio, advantage):
    now = torch.tensor([log_ratio, 0.1], requires_grad=True)
    loss = policy_loss(
        now,
        torch.zeros(2),
        torch.tensor([advantage, 1.0]),
        0.2,
        0.2,
        weights=torch.tensor([0.0, 1.0]),
    )
    loss.sum().backward()
    assert loss.isfinite().all() and now.grad.isfinite().all() and now.grad[1] != 0.0


def test_a_ratio_as_they_are_is_clipped_to_the_bit_as_before():
    draw = torch.Generator().manual_seed(0)
    now, then, advantages = (3.0 * torch.randn(1000, generator=draw) for _ in range(3))
    now.requires_grad_()
    ratio = (now - then).exp()
    expected = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.3) * advantages)
    (wanted,) = torch.autograd.grad(expected.sum(), now)
    got = policy_loss(now, then, advantages, 0.2, 0.3)
    assert torch.equal(got, expected) and torch.equal(
        torch.autograd.grad(got.sum(), now)[0], wanted
    )


@pytest.mark.parametrize("clip", [0.5, float("inf")])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_step_whose_gradient_is_not_finite_is_skipped_and_counted(wrong, clip):
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = adam([weight], lr=0.1)
    optimizer_step(optimiser, weight.sum(), clip)
    before = weight.detach().clone()
    moments = {key: value.clone() for key, value in optimiser.state[weight].items()}
    assert not np.isfinite(
        optimizer_step(optimiser, (weight * torch.tensor([1.0, wrong, 1.0])).sum(), clip)
    )
    assert torch.equal(weight, before) and skipped_steps[optimiser] == 1
    assert all(torch.equal(optimiser.state[weight][key], value) for key, value in moments.items())
    optimizer_step(optimiser, weight.sum(), clip)
    assert not torch.equal(weight, before) and skipped_steps[optimiser] == 1


def test_every_learner_reports_the_steps_that_were_skipped():
    class CustomLearner(BaseLearner):
        def __init__(self):
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.modules = {}
            self.optimisers = {"one": adam([self.weight], lr=0.1)}
            self.updates = 0

        def update(self, batch):
            optimizer_step(self.optimisers["one"], self.weight.sum() * batch)
            return {"loss": 0.0}

    learner = CustomLearner()
    assert learner.update(1.0) == {"loss": 0.0}
    assert learner.update(float("nan")) == {"loss": 0.0, "skipped_steps": 1.0}
    assert learner.update(1.0)["skipped_steps"] == 1.0


@pytest.mark.parametrize("chunks", [0, 1])
def test_advantages_of_one_chunk_or_none_are_zero(chunks):
    """One value has no deviation: it was NaN for all of them."""
    mask = torch.zeros(2, 3)
    mask[0, :chunks] = 1.0
    assert torch.equal(advantages.normalise_advantages(torch.randn(2, 3), mask), torch.zeros(2, 3))
    assert torch.equal(advantages.normalise_advantages(torch.ones(1, 1)), torch.zeros(1, 1))
    two = advantages.normalise_advantages(torch.tensor([[1.0, 3.0]]))
    assert torch.allclose(two, torch.tensor([[-1.0, 1.0]]) / 2**0.5)


def test_advantages_of_tokens_are_over_those_that_the_policy_drew():
    """The others, as those of a prompt, take no time. By hand, from the last token on."""
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0], [2.0, 5.0, 5.0, 5.0]])
    values = torch.tensor([[9.0, 0.2, 9.0, 0.4], [0.5, 7.0, 7.0, 7.0]])
    counted = torch.tensor([[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
    got = advantages.token_advantages(rewards, values, counted, gamma=0.5, lambda_=0.25)
    last = 1.0 - 0.4
    first = (0.5 * 0.4 - 0.2) + 0.5 * 0.25 * last
    assert got.tolist() == [pytest.approx([0.0, first, 0.0, last]), [1.5, 0.0, 0.0, 0.0]]


def test_a_rollout_is_the_same_of_its_state_in_tensors_or_arrays():
    names = [item.name for item in dataclasses.fields(Rollout) if item.name != "episode"]
    values = {name: torch.full((2, 3), float(index)) for index, name in enumerate(names)}
    values |= {name: {"vectors": values[name][..., None]} for name in names if "observ" in name}
    rollout = Rollout(**values)
    state = rollout.state_dict()
    assert set(state) == set(names), "what there is none of is left out"
    arrays = {
        name: {"vectors": value["vectors"].numpy()} if isinstance(value, dict) else value.numpy()
        for name, value in state.items()
    }
    for saved in (state, arrays):
        again = Rollout.from_state_dict(saved)
        assert again.episode is None
        assert torch.equal(again.observations["vectors"], values["observations"]["vectors"])
        for name in ("actions", "log_probs", "steps", "counted"):
            assert torch.equal(getattr(again, name), values[name]), name


def test_a_label_is_not_normalised_with_what_is_observed():
    learner = group_tests.alone("recap")
    random = np.random.default_rng(0)
    learner.fit_normalisation(random.normal(5.0, 3.0, (200, learner.actor.input_spec.vector_size)))
    encoders = [*learner._encoders()]
    assert len(encoders) == 3, "of the actor, the value and its target"
    for encoder in encoders:
        assert (encoder.mean[-1].item(), encoder.std[-1].item()) == (0.0, 1.0)
        assert (encoder.mean[:-1] > 4.0).all() and (encoder.std[:-1] > 2.0).all()


def test_weights_that_no_update_changes_may_be_left_out_of_a_state():
    learner = group_tests.alone("residual")
    constant_weights = learner.constant_weights()
    assert set(constant_weights) == {"actor"} and constant_weights["actor"]
    before = {key: value.clone() for key, value in learner.actor.state_dict().items()}
    for seed in range(3):
        learner.update(group_tests.batch_of("residual", np.random.default_rng(seed)))
    after = dict(learner.actor.named_parameters())
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert changed and not changed & constant_weights["actor"]
    assert changed | constant_weights["actor"] == set(after)
    complete, part = learner.state_dict(), learner.state_dict(constant_weights)
    assert (
        set(complete["modules"]["actor"]) - set(part["modules"]["actor"])
        == constant_weights["actor"]
    )
    assert set(complete["modules"]["critics"]) == set(part["modules"]["critics"])
    assert group_tests.alone("sac").constant_weights() == {"actor": set()}


def test_a_batch_goes_to_the_device_that_is_named():
    batch = {"vectors": np.zeros((4, 2), np.float32), "share": torch.ones(4)}
    assert {name: values.device.type for name, values in to_tensors(batch, "meta").items()} == {
        "vectors": "meta",
        "share": "meta",
    }
    assert to_tensors(batch)["share"] is batch["share"], "on the CPU nothing is copied"


def test_moments_that_are_given_go_to_every_encoder():
    learner = group_tests.alone("rlpd")
    size = learner.actor.input_spec.vector_size
    mean, std = np.arange(size, dtype=float), np.linspace(0.5, 2.0, size)
    learner.normalise(mean, std)
    encoders = [*learner._encoders()]
    assert len(encoders) > 2
    for encoder in encoders:
        np.testing.assert_allclose(encoder.mean, mean)
        np.testing.assert_allclose(encoder.std, std + 1e-4, rtol=1e-6)


def test_a_layer_is_computed_as_it_is_where_no_gradient_is_needed():
    calls = []

    def layer(x, *more, scale=1.0):
        calls.append(x)
        return scale * (x * x + sum(more))

    wrapped = with_recomputation(layer)
    one = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert wrapped(one, 2.0, scale=3.0).tolist() == [9.0, 9.0] and len(calls) == 1
    result = wrapped(one, 2.0, scale=3.0)
    assert result.tolist() == [9.0, 9.0] and len(calls) == 2
    result.sum().backward()
    assert one.grad.tolist() == [6.0, 6.0] and len(calls) == 3, "once more on the way back"


def test_the_share_of_a_batch_is_played_from_then_on_and_reported():
    learner, random = group_tests.alone("residual"), np.random.default_rng(0)
    batch = group_tests.batch_of("residual", random)
    metrics = learner.update(batch)
    assert metrics["share"] == pytest.approx(0.4)
    assert learner.actor.share.item() == pytest.approx(0.4)
    for share in (0.7, None):
        batch = group_tests.batch_of("residual", random)
        share_of_batch = {} if share is None else {"share": np.full(24, share, np.float32)}
        del batch["share"]
        metrics = learner.update(batch | share_of_batch)
        assert metrics.get("share") == (None if share is None else pytest.approx(0.7))
        assert learner.actor.share.item() == pytest.approx(0.7), "it stays without another"
