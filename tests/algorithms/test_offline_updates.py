"""Whole updates of IQL and SFT, and what DAgger labels, beside the papers' losses written once
more.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rlinf_core.algorithms import iql, sft
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
