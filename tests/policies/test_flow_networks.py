"""The flow's network: its path and its densities."""

import pytest
import torch

from tests.algorithms.toy import acted
from tests.policies.test_networks import SEEING, STATE, alone, batch, observation, observed, policy


def euler(actor, inputs, point):
    """K steps along the field, by hand."""
    features = actor.encoder(inputs)
    for k in range(actor.config.flow_steps):
        time = torch.full((len(point), 1), k / actor.config.flow_steps)
        outputs = actor.head(actor.field(torch.cat([features, point, time], 1)))
        point = point + outputs[:, : actor.size] / actor.config.flow_steps
    return torch.tanh(point)


@pytest.mark.parametrize("spec", [STATE, SEEING], ids=["state", "pictures"])
def test_a_flow_carries_noise_along_its_field(spec, random):
    actor, inputs, one = policy("flow", spec, flow_steps=3), batch(random), observation(random)
    noise = torch.tensor(random.normal(size=(6, 4)), dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(actor.decode(inputs, noise), euler(actor, inputs, noise), atol=1e-6)
        middle = euler(actor, alone(one), torch.zeros(1, 4)).view(2, 2).numpy()
        assert acted(actor, one) == pytest.approx(middle, abs=1e-5)
        drawn = actor.sample(alone(one), torch.Generator().manual_seed(6))[0].view(2, 2).numpy()
    assert acted(actor, one, True, torch.Generator().manual_seed(6)) == pytest.approx(
        drawn, abs=1e-5
    )


def test_the_deviation_of_a_flows_steps_lies_between_its_bounds(random):
    actor = policy("flow")
    features = actor.encoder(batch(random))
    point = torch.zeros(6, 4)
    time = torch.full((6, 1), 0.25)
    velocity, log_std = actor.velocity(features, point, time)
    outputs = actor.head(actor.field(torch.cat([features, point, time], 1)))
    assert torch.equal(velocity, outputs[:, :4])
    assert torch.allclose(log_std, -5.0 + 2.5 * (torch.tanh(outputs[:, 4:]) + 1.0))


def test_a_flows_density_is_torchs_step_by_step(random):
    actor, inputs = policy("flow"), batch(random)
    with torch.no_grad():
        action, log_prob = actor.sample(inputs, torch.Generator().manual_seed(8))
        draw = torch.Generator().manual_seed(8)
        features, point = actor.encoder(inputs), torch.randn(6, 4, generator=draw)
        expected = torch.distributions.Normal(0.0, 1.0).log_prob(point).sum(-1)
        for k in range(4):
            velocity, log_std = actor.velocity(features, point, torch.full((6, 1), k / 4))
            normal = torch.distributions.Normal(point + velocity / 4, log_std.exp())
            point = normal.mean + normal.stddev * torch.randn(6, 4, generator=draw)
            expected = expected + normal.log_prob(point).sum(-1)
    squash = torch.log1p(-(torch.tanh(point.double()) ** 2)).sum(-1)
    near = (point.abs() < 3).all(1)
    assert near.any() and torch.allclose(action, torch.tanh(point), atol=1e-6)
    assert torch.allclose(log_prob[near].double(), (expected - squash)[near], atol=1e-3)


def test_the_matching_loss_is_the_distance_to_the_straight_line(random):
    """Lipman et al. 2022, with noise at time 0 and the action at time 1."""
    actor, inputs = policy("flow"), batch(random)
    action = torch.tensor(random.uniform(-1.3, 1.3, (6, 4)), dtype=torch.float32)
    got = actor.imitation_loss(inputs, action, torch.Generator().manual_seed(2))
    draw = torch.Generator().manual_seed(2)
    goal = torch.atanh(action.clamp(-0.97, 0.97))
    noise, time = torch.randn(6, 4, generator=draw), torch.rand(6, 1, generator=draw)
    velocity, _ = actor.velocity(actor.encoder(inputs), noise + time * (goal - noise), time)
    assert got.item() == pytest.approx(((velocity - (goal - noise)) ** 2).mean().item(), rel=1e-5)


@pytest.mark.parametrize("spec", [STATE, SEEING], ids=["state", "pictures"])
def test_a_steered_policy_plays_what_its_choice_of_noise_leads_to(spec, random):
    actor, one = policy("latent_noise", spec, noise_bound=0.7), observation(random)
    for explore in (False, True):
        chunk = actor.act(observed(spec, one), explore, torch.Generator().manual_seed(2))
        noise = actor.noise_policy.act(
            observed(spec, one), explore, torch.Generator().manual_seed(2)
        ).actions.view(1, 4)
        assert torch.equal(chunk.drawn, noise) and actor.latent_size == 4
        with torch.no_grad():
            expected = euler(actor.flow, alone(one), 0.7 * noise)
        assert chunk.actions.numpy() == pytest.approx(expected.view(1, 2, 2).numpy(), abs=1e-5)
    assert actor.encoder is actor.noise_policy.encoder
    inputs, draw = batch(random), torch.Generator().manual_seed(1)
    choices, density = actor.sample(inputs, draw)
    again = actor.noise_policy.sample(inputs, torch.Generator().manual_seed(1))
    assert torch.equal(choices, again[0]) and torch.equal(density, again[1])
    wanted = torch.zeros(6, 4)
    losses = [
        part.imitation_loss(inputs, wanted, torch.Generator().manual_seed(3))
        for part in (actor, actor.flow)
    ]
    assert torch.equal(*losses)
