"""Whole updates of IQL, RECAP and SFT beside the papers' losses, written once more, and DAgger's
labels.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rlinf_core.algorithms import iql, recap, sft
from rlinf_core.algorithms.recap.learner import two_hot
from rlinf_core.rollouts.collect import ExpertRollouts
from tests.algorithms.by_hand import SMALL, Adam, assert_alike, batches, parts, prepared, twin
from tests.algorithms.learning import make
from tests.algorithms.point import Points, expert


@pytest.mark.parametrize("horizon", [1, 2])
def test_five_updates_of_iql_equal_the_papers(horizon, random):
    """Kostrikov et al. 2021: equations 5 to 7. Where an episode has ended, nothing follows."""
    config = iql.Config(
        steps=4,
        expectile=0.8,
        temperature=5.0,
        weight_limit=2.0,
        discount=0.9,
        target_rate=0.2,
        **SMALL,
    )
    learner = iql.Learner(prepared(horizon=horizon), config, seed=1)
    reference = twin(learner)
    critic = Adam([*reference.encoder.parameters(), *reference.critics.parameters()], 3e-3)
    value = Adam(reference.value.parameters(), 3e-3)
    actor = Adam(reference.actor.parameters(), 3e-3)
    for number, batch in enumerate(batches(5, random, horizon)):
        here, next_observations = parts(batch)
        assert 0 < (here["discount"] == 0).sum() < len(here["discount"])
        with torch.no_grad():
            q = reference.target[1](reference.target[0](here), here["action"]).amin(0)
        u = q - reference.value(here)
        value_loss = (torch.where(u > 0, 0.8, 0.2) * u**2).mean()
        value.optimizer_step(value_loss)
        steps = here["steps"] if horizon > 1 else torch.ones(len(q))
        ahead = torch.where(here["discount"] == 0, 0.0, reference.value(next_observations).detach())
        target = here["reward"] + 0.9**steps * ahead
        values = reference.critics(reference.encoder(here), here["action"])
        critic_loss = sum(F.mse_loss(values[e], target) for e in range(2))
        critic.optimizer_step(critic_loss)
        with torch.no_grad():
            for slow, quick in zip(reference.target.parameters(), critic.parameters, strict=True):
                slow.copy_(0.8 * slow + 0.2 * quick)
        weights = (5.0 * u.detach()).exp().clamp(max=2.0)
        mean, log_std = reference.actor(here)
        normal = torch.distributions.Normal(mean, log_std.exp())
        tanh = torch.distributions.TransformedDistribution(
            normal, torch.distributions.TanhTransform(cache_size=1)
        )
        raw = torch.atanh(here["action"].clamp(-0.97, 0.97))
        actor_loss = -(weights * tanh.log_prob(torch.tanh(raw)).sum(1)).mean()
        actor.rate = 3e-3 * (1 + np.cos(np.pi * min(number / 4, 1))) / 2
        actor.optimizer_step(actor_loss)
        got = learner.update(batch)
        assert got == pytest.approx(
            {
                "value_loss": value_loss.item(),
                "critic_loss": critic_loss.item(),
                "actor_loss": actor_loss.item(),
                "q": q.mean().item(),
            },
            rel=1e-4,
            abs=1e-5,
        )
        assert_alike(learner, reference, atol=2e-5)
    assert learner.updates == 5


def test_iql_begins_as_its_actor_says():
    actor = prepared(horizon=2)
    learner, again = (iql.Learner(actor, iql.Config(**SMALL), seed=seed) for seed in (3, 4))
    for encoder in (learner.encoder, learner.value.encoder, learner.target[0]):
        assert torch.equal(encoder.mean, actor.encoder.mean) and torch.equal(
            encoder.std, actor.encoder.std
        )
    assert not any(p.requires_grad for p in learner.target.parameters())
    assert learner.critics(torch.zeros(5, 2), torch.zeros(5, 4)).shape == (2, 5)
    assert learner.value.head[0].out_features == 16, "the value is as wide as the critics"
    assert not torch.equal(learner.critics.weights[0], again.critics.weights[0])


def labelled(batch, label=1.0):
    """Return a batch whose vectors end with a label."""
    columns = {
        name: np.column_stack([batch[name], np.full(len(batch[name]), label, np.float32)])
        for name in ("vectors", "next/vectors")
    }
    return batch | columns


@pytest.mark.parametrize("horizon", [1, 2])
def test_six_updates_of_recap_equal_their_definition(horizon, random):
    config = recap.Config(
        steps=6,
        value_steps=2,
        value_hidden=(12,),
        bins=5,
        discount=0.9,
        target_rate=0.2,
        positive_share=0.3,
        label_dropout=0.25,
        min_std=0.2,
        learning_rate=3e-3,
    )
    learner = recap.Learner(make("conditioned", horizon=horizon, hidden=(16,)), config, seed=1)
    learner.fit_normalisation(np.random.default_rng(5).normal(0.4, 0.7, (50, 3)))
    reference = twin(learner)
    value = Adam(reference.value.parameters(), 3e-3)
    actor = Adam(reference.actor.parameters(), 3e-3)
    support = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    assert torch.equal(reference.value.support, support)
    for number, batch in enumerate(map(labelled, batches(6, random, horizon))):
        here, following = parts(batch)
        steps = here["steps"] if horizon > 1 else torch.ones(len(here["reward"]))
        with torch.no_grad():
            ahead = (reference.target(following).softmax(1) * support).sum(1)
        returns = here["reward"] + 0.9**steps * here["discount"] * ahead
        goals = torch.zeros(len(returns), 5)
        for row, value_row in enumerate(returns.clamp(0.0, 1.0)):  # the mean of two neighbours
            nearness = 1.0 - (support - value_row).abs() / 0.25
            goals[row] = nearness.clamp(min=0.0)
        logits = reference.value(here)
        value_loss = -(goals * logits.log_softmax(1)).sum(1).mean()
        advantages = returns - (logits.detach().softmax(1) * support).sum(1)
        value.optimizer_step(value_loss)
        with torch.no_grad():
            for slow, quick in zip(reference.target.parameters(), value.parameters, strict=True):
                slow.copy_(0.8 * slow + 0.2 * quick)
        expected = {
            "value_loss": value_loss.item(),
            "value": returns.mean().item(),
            "advantage": advantages.numpy().std(ddof=1),
        }
        if number >= 2:
            best = advantages >= np.quantile(advantages.numpy(), 0.7)
            label = torch.where(best, 1.0, -1.0)
            label[torch.rand(label.shape, generator=reference.generator) < 0.25] = 0.0
            shown = here | {"vectors": torch.cat([here["vectors"][:, :-1], label[:, None]], 1)}
            action = here["action"]
            action = action + 0.2 * torch.randn(action.shape, generator=reference.generator)
            goal = torch.atanh(action.clamp(-0.97, 0.97))
            mean, log_std = reference.actor(shown)
            density = torch.distributions.Normal(mean, log_std.exp()).log_prob(goal)
            loss = -(density - torch.log(1 - torch.tanh(goal) ** 2)).sum(1).mean()
            actor.rate = 3e-3 * (1 + np.cos(np.pi * (number - 1) / 4)) / 2
            actor.optimizer_step(loss)
            expected["actor_loss"] = loss.item()
        assert learner.update(batch) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert_alike(learner, reference, atol=2e-5)
    assert learner.updates == 6


def test_recap_begins_as_its_actor_and_its_config_say():
    actor = make("conditioned", hidden=(16,))
    config = recap.Config(value_hidden=(12, 10), bins=7, learning_rate=0.01)
    learner, again = (recap.Learner(actor, config, seed=seed) for seed in (3, 4))
    assert learner.modules.keys() == {"actor", "value", "target"} and learner.updates == 0
    for encoder in (learner.value.encoder, learner.target.encoder):
        for name, weight in actor.encoder.state_dict().items():
            assert torch.equal(encoder.state_dict()[name], weight)
    assert not any(p.requires_grad for p in learner.target.parameters())
    assert learner.value.head.out_features == 7 and learner.value.head.in_features == 10
    assert not torch.equal(learner.value.head.weight, again.value.head.weight)
    rates = {name: part.param_groups[0]["lr"] for name, part in learner.optimisers.items()}
    assert rates == {"value": 0.01, "actor": 0.01}


@pytest.mark.parametrize(
    ("value", "shares"),
    [
        (0.0, [1, 0, 0, 0, 0]),
        (0.3, [0, 0.8, 0.2, 0, 0]),
        (0.5, [0, 0, 1, 0, 0]),
        (0.95, [0, 0, 0, 0.2, 0.8]),
        (1.0, [0, 0, 0, 0, 1]),
        (-3.0, [1, 0, 0, 0, 0]),
        (1.7, [0, 0, 0, 0, 1]),
    ],
)
def test_a_return_is_shared_by_its_two_nearest_bins(value, shares):
    assert two_hot(torch.tensor([value]), 5)[0].tolist() == pytest.approx(shares, abs=1e-6)


@pytest.mark.parametrize("kind", ["tanh_gaussian", "flow"])
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_three_updates_of_cloning_equal_its_definition(kind, floor, random):
    learner = sft.Learner(prepared(kind), sft.Config(min_std=floor, learning_rate=3e-3), seed=2)
    reference = twin(learner)
    adam = Adam(reference.actor.parameters(), 3e-3)
    for batch in batches(3, random):
        here, _ = parts(batch)
        action = here["action"]
        if floor:
            action = action + floor * torch.randn(action.shape, generator=reference.generator)
        goal = torch.atanh(action.clamp(-0.97, 0.97))
        if kind == "flow":
            noise = torch.randn(goal.shape, generator=reference.generator)
            time = torch.rand(len(goal), 1, generator=reference.generator)
            velocity, _ = reference.actor.velocity(
                reference.actor.encoder(here), time * goal + (1 - time) * noise, time
            )
            loss = F.mse_loss(velocity, goal - noise)
        else:
            mean, log_std = reference.actor(here)
            squash = torch.log(1 - torch.tanh(goal) ** 2)
            loss = (
                -(torch.distributions.Normal(mean, log_std.exp()).log_prob(goal) - squash)
                .sum(1)
                .mean()
            )
        adam.optimizer_step(loss)
        assert learner.update(batch) == pytest.approx({"sft_loss": loss.item()}, rel=1e-4)
        assert_alike(learner, reference)
    assert learner.updates == 3


def test_clonings_rate_falls_along_a_cosine_where_the_recipe_says_so(random):
    learner = sft.Learner(prepared(), sft.Config(learning_rate=1e-2, anneal_steps=4))
    rates = []
    for batch in batches(6, random):
        before = torch.nn.utils.parameters_to_vector(learner.actor.parameters()).detach().clone()
        learner.update(batch)
        rates.append(learner.optimisers["actor"].param_groups[0]["lr"])
        moved = (
            (torch.nn.utils.parameters_to_vector(learner.actor.parameters()) - before)
            .abs()
            .max()
            .item()
        )
        assert moved == pytest.approx(rates[-1], rel=0.5, abs=1e-12), (
            "Adam's step is about the rate"
        )
    assert rates == pytest.approx([1e-2, 0.85355e-2, 0.5e-2, 0.14645e-2, 0.0, 0.0], rel=1e-4)


def test_the_expert_drives_its_share_of_the_time_steps_and_labels_all_of_them():
    for fraction in (0.5, 0.1):
        played = (
            ExpertRollouts(Points(50), make(), seed=3)
            .play(40, expert_fraction=fraction)
            .trajectories
        )
        drivers = np.concatenate([episode.sources for episode in played]) == "operator"
        assert 0.7 * fraction < drivers.mean() < 1.3 * fraction
        for episode in played:
            observation = {"offset": episode.observations["vectors"][0]}
            assert episode.actions[0] == pytest.approx(expert(observation), abs=1e-6)
