import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rlinf_core.algorithms import rlpd, sft
from rlinf_core.algorithms.common import actor_critic
from rlinf_core.algorithms.common.image_augmentation import shift_images
from rlinf_core.algorithms.common.tensors import to_tensors
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.policies.small.tanh_gaussian.policy import Actor, cloning_loss
from rlinf_core.trainer import checkpoint
from tests.algorithms import toy

SMALL = dict(critic_hidden=(64, 64), batch_size=64, critics=3)


@pytest.fixture
def demonstrations(random):
    buffer = ReplayBuffer(toy.SPEC, 5000)
    while buffer.episodes < 12:
        episode = toy.play(toy.clumsy(random), random)
        if episode[2][-1] > 0:
            buffer.insert_episode(*episode)
    return buffer


@pytest.fixture
def actor(demonstrations):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    actor = Actor(toy.SPEC, tanh_gaussian.Config(hidden=(64, 64)))
    actor.encoder.fit_normalisation(demonstrations.vectors())
    return actor


def test_a_batch_has_two_halves():
    with pytest.raises(ValidationError, match="batch_size\n.*greater than 1"):
        rlpd.Config(batch_size=1)  # nothing demonstrated would be in it, and its mean is no number


def test_critic_target_and_losses_equal_an_independent_computation(random):
    values = random.normal(size=(3, 5))
    reward = random.normal(size=5)
    discount = np.array([1, 1, 0, 1, 0.0])
    bonus = random.normal(size=5)
    target = actor_critic.critic_target(
        *map(torch.tensor, (reward, discount, values)), 0.9, torch.tensor(bonus)
    ).numpy()
    by_hand = [
        reward[i] + 0.9 * discount[i] * (min(values[e][i] for e in range(3)) - bonus[i])
        for i in range(5)
    ]
    assert target == pytest.approx(by_hand, abs=1e-12)
    loss = actor_critic.critic_loss(torch.tensor(values), torch.tensor(target)).item()
    assert loss == pytest.approx(
        sum(np.mean((values[e] - target) ** 2) for e in range(3)), abs=1e-12
    )
    log_probs = random.normal(size=5)
    loss = actor_critic.actor_loss(
        torch.tensor(values.mean(axis=0)), torch.tensor(log_probs), torch.tensor(0.3)
    ).item()
    assert loss == pytest.approx(np.mean(0.3 * log_probs - values.mean(axis=0)), abs=1e-7)


def test_the_batched_ensemble_equals_each_critic_by_itself(random):
    torch.manual_seed(0)
    critics = actor_critic.Critics(6, (8, 8), 3).double()
    features = torch.tensor(random.normal(size=(4, 4)))
    action = torch.tensor(random.normal(size=(4, 2)))
    together = critics(features, action).detach().numpy()
    for e in range(3):
        x = np.concatenate([features, action], axis=1)
        for layer, (w, b) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            x = x @ w[e].detach().numpy() + b[e].detach().numpy()
            if layer < 2:
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
                x = np.maximum(x, 0)
        assert together[e] == pytest.approx(x[:, 0], abs=1e-9)


def test_targets_follow_by_the_stated_rate(actor, demonstrations, random):
    learner = rlpd.Learner(actor, rlpd.Config(**SMALL, target_rate=0.25))
    before = [p.clone() for p in learner.target.parameters()]
    learner.update(demonstrations.sample(64, random))
    online = [*learner.encoder.parameters(), *learner.critics.parameters()]
    for old, new, source in zip(before, learner.target.parameters(), online, strict=True):
        assert torch.allclose(new, 0.75 * old + 0.25 * source, atol=1e-6)


def test_the_cloning_loss_is_the_likelihood_of_the_demonstrated_action(
    actor, demonstrations, random
):
    batch = to_tensors(demonstrations.sample(16, random))
    mean, log_std = actor(batch)
    raw = torch.atanh(batch["action"].clamp(-0.97, 0.97))
    normal = torch.distributions.Normal(mean, log_std.exp())
    by_torch = torch.distributions.TransformedDistribution(
        normal, torch.distributions.TanhTransform()
    )
    expected = -by_torch.log_prob(torch.tanh(raw)).sum(-1).mean()
    assert sft.loss(actor, batch, 0.0).item() == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("size, shown", [(8, 4), (7, 3)])
def test_of_an_odd_batch_the_smaller_half_is_what_was_demonstrated(
    actor, demonstrations, random, size, shown
):
    learner = rlpd.Learner(actor, rlpd.Config(**SMALL, cloning_noise=0.0), seed=1)
    batch = to_tensors(demonstrations.sample(size, random))
    _, _, proposal = learner.actor_proposal(batch)
    _, metrics = learner.regularise(batch, proposal)
    assert metrics["cloning"] == pytest.approx(
        cloning_loss(batch["action"][-shown:], *proposal[:, -shown:]).item(), rel=1e-5
    )


def test_going_on_from_a_saved_state_gives_the_same_updates(actor, demonstrations, tmp_path):
    config = rlpd.Config(**SMALL, critic_warmup=3)
    one = rlpd.Learner(actor, config, seed=1)
    for seed in range(6):
        one.update(demonstrations.sample(64, np.random.default_rng(seed)))
    folder = checkpoint.save(tmp_path, "updates-1", one.state_dict())
    torch.manual_seed(99)
    two = rlpd.Learner(Actor(toy.SPEC, actor.config), config, seed=5)
    two.load_state_dict(checkpoint.load(folder))
    for seed in range(6, 14):
        batch = demonstrations.sample(64, np.random.default_rng(seed))
        assert one.update(batch) == two.update(batch)
    for a, b in zip(one.actor.parameters(), two.actor.parameters(), strict=True):
        assert torch.equal(a, b)


def test_shifted_images_are_the_same_picture_elsewhere():
    images = torch.zeros(64, 9, 9, 1, dtype=torch.uint8)
    images[:, 4, 4] = 200
    moved = shift_images(
        {"front": images, "vectors": torch.ones(64, 3)}, 2, torch.Generator().manual_seed(0)
    )
    places = {tuple(place) for place in torch.nonzero(moved["front"])[:, 1:3].tolist()}
    assert moved["front"].dtype == torch.uint8 and (moved["front"].amax(dim=(1, 2, 3)) == 200).all()
    assert len(places) > 15 and all(2 <= row <= 6 and 2 <= column <= 6 for row, column in places)
    edge = shift_images({"front": torch.full((8, 5, 5, 3), 7)}, 3, torch.Generator())["front"]
    assert (edge == 7).all(), "edges are repeated, not filled with black"
    assert torch.equal(shift_images({"front": images}, 0, torch.Generator())["front"], images)


def test_the_actor_climbs_a_lower_bound_of_the_ensemble(actor, random):
    values = random.normal(size=(3, 5))
    by_hand = [np.mean(values[:, i]) - 1.5 * np.std(values[:, i]) for i in range(5)]
    for pessimism, expected in ((0.0, values.mean(axis=0)), (1.5, by_hand)):
        learner = rlpd.Learner(actor, rlpd.Config(**SMALL, pessimism=pessimism))
        assert learner.value(torch.tensor(values)).numpy() == pytest.approx(expected, abs=1e-12)


def test_what_is_shipped_is_the_actors_moving_average(actor, demonstrations, random):
    learner = rlpd.Learner(
        actor, rlpd.Config(**SMALL, ema_rate=0.25, critic_warmup=2, actor_every=2)
    )
    by_hand, shipped = [p.detach().clone() for p in actor.parameters()], copy.deepcopy(actor)
    for update in range(1, 9):
        learner.update(demonstrations.sample(64, random))
        if update > 2 and update % 2 == 0:
            by_hand = [
                0.75 * old + 0.25 * new.detach()
                for old, new in zip(by_hand, actor.parameters(), strict=True)
            ]
    learner.ship(shipped)
    for p, q, newest in zip(by_hand, shipped.parameters(), actor.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6) and not torch.equal(q, newest)
    assert torch.equal(shipped.encoder.mean, actor.encoder.mean)
    newest = rlpd.Learner(actor, rlpd.Config(**SMALL, ema_rate=1.0))
    before = [p.clone() for p in shipped.parameters()]
    newest.ship(shipped)
    assert all(torch.equal(p, q) for p, q in zip(before, shipped.parameters(), strict=True)), (
        "there is no average"
    )
