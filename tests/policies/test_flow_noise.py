"""Noise on the way from noise to action, by formula or learned: densities, marginals, and that RL
learns from them.
"""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra vla: transformers has none for Python 3.10")

from rlinf_core.policies.pretrained.pi0 import Config
from rlinf_core.policies.serialization import load_policy, save_policy
from tests.policies.bandit import paid_before_and_after
from tests.policies.test_pi0 import SPEC, observation, pi0


@pytest.fixture
def precise():
    """Computed in float64, so that nothing but the formula is compared."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("precise")
def test_with_noise_on_the_way_the_log_densities_are_those_of_the_formula():
    """Step by step and number by number, from the network's own velocities."""
    policy = pi0(sde_noise=0.7).double()
    batch = policy.to_batch(observation("push", "pull it"))
    with torch.no_grad():
        path, log_probs = policy.sample(batch, torch.Generator().manual_seed(2))
    assert (
        path.shape == (2, 4, 4, 4)
        and log_probs.shape == (2, 4)
        and log_probs.dtype == torch.float64
    )
    inputs, expected = policy.inputs(batch), np.zeros((2, 4))
    for k, time in enumerate((1.0, 2 / 3, 1 / 3)):
        x, then = path[:, k].double().numpy(), path[:, k + 1].double().numpy()
        with torch.no_grad():
            v = (
                policy.network(**inputs, noise=path[:, k], timestep=torch.full((2,), time))
                .logits.double()
                .numpy()
            )
        score = -(x + (1 - time) * v) / time
        g = 0.7 * time**0.5
        mean, std = x - v / 3 + 0.5 * g**2 * score / 3, g * 3**-0.5
        assert then[..., 2:] == pytest.approx((x - v / 3)[..., 2:], abs=1e-5), (
            "without noise beyond our numbers"
        )
        off = ((then - mean) / std)[..., :2]
        expected += (-0.5 * off**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
    assert log_probs.numpy() == pytest.approx(expected, rel=1e-7, abs=1e-5)


@pytest.mark.usefixtures("precise")
def test_with_learned_noise_the_log_densities_are_those_of_the_formula():
    """Flow-Noise: an Euler step, and on each of our numbers what the small network says, here of
    random weights.
    """
    policy = pi0(learned_noise=(0.05, 0.4)).double()
    for index, parameter in enumerate(policy.spread.parameters()):
        parameter.data += 0.5 * torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(index)
        )
    policy.normalisation.set_statistics(np.full(3, 0.3), np.full(3, 2.0))
    batch = policy.to_batch(observation("push", "pull it"))
    with torch.no_grad():
        path, log_probs = policy.sample(batch, torch.Generator().manual_seed(2))
    inputs, expected, spreads = policy.inputs(batch), np.zeros((2, 4)), []
    for k, time in enumerate((1.0, 2 / 3, 1 / 3)):
        x, then = path[:, k].double().numpy(), path[:, k + 1].double().numpy()
        with torch.no_grad():
            v = (
                policy.network(**inputs, noise=path[:, k], timestep=torch.full((2,), time))
                .logits.double()
                .numpy()
            )
            features = torch.cat(
                [
                    (batch["vectors"] - 0.3) / 2.0001,
                    path[:, k, :, :2].flatten(1),
                    torch.full((2, 1), time),
                ],
                1,
            )
            outputs = (
                torch.tanh(policy.spread.head(policy.spread.body(features)))
                .double()
                .numpy()
                .reshape(2, 4, 2)
            )
        std = 0.05 * 8.0 ** ((1 + outputs) / 2)
        off = ((then - x + v / 3)[..., :2]) / std
        expected += (-0.5 * off**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
        assert then[..., 2:] == pytest.approx((x - v / 3)[..., 2:], abs=1e-5), (
            "without noise beyond our numbers"
        )
        spreads.append(std)
    assert np.ptp(spreads) > 0.1 and log_probs.numpy() == pytest.approx(
        expected, rel=1e-7, abs=1e-5
    )
    again, entropy = policy.log_probs(batch, path.flatten(1).unsqueeze(1))
    assert again.detach().numpy() == pytest.approx(expected, rel=1e-7, abs=1e-5)
    by_hand = sum(0.5 * np.log(2 * np.pi * np.e * std**2) for std in spreads).sum(axis=-1)
    assert entropy.detach().numpy() == pytest.approx(by_hand, abs=1e-4)
    again.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in policy.spread.parameters())


def test_learned_noise_begins_in_the_middle_of_its_bounds_and_is_gone_where_nothing_is_explored(
    tmp_path,
):
    policy, observations = pi0(learned_noise=(0.1, 0.4)), observation("push")
    spread = policy.spread(torch.randn(1, 3), torch.randn(1, 4, 2), torch.ones(1))
    assert torch.allclose(spread, torch.full((1, 4, 2), 0.2))
    assert torch.equal(
        policy.act(observations, False).actions, pi0().act(observations, False).actions
    )
    again = load_policy(save_policy(policy, tmp_path / "policy.safetensors"), SPEC)
    drawn = [
        actor.act(observations, True, torch.Generator().manual_seed(0)).drawn
        for actor in (policy, again)
    ]
    assert torch.equal(*drawn)


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"learned_noise": (0.1,)}, "expected two deviations, or none, got 1"),
        ({"learned_noise": (0.4, 0.1)}, "expected a smaller and a larger deviation"),
        ({"learned_noise": (0.1, 0.4), "sde_noise": 0.5}, "and sde_noise of 0; got .* and 0.5"),
        ({"learned_noise": (0.0, 0.4)}, "greater than 0"),
    ],
)
def test_noise_that_cannot_be_is_named(settings, error):
    with pytest.raises(ValueError, match=error):
        Config(**settings)


def test_what_a_learner_computes_again_is_what_was_drawn_with():
    policy, observations = pi0(sde_noise=0.5, n_action_steps=3), observation("push", "pull it")
    chunk = policy.act(observations, True, torch.Generator().manual_seed(2))
    assert chunk.drawn.shape == (2, 1, 4 * 4 * 4) and chunk.log_probs.shape == (2, 4)
    log_probs, entropy = policy.log_probs(policy.to_batch(observations), chunk.drawn)
    assert torch.allclose(log_probs, chunk.log_probs[:, :3], atol=1e-4) and log_probs.requires_grad
    spread = [0.5 * (1 - k / 3) ** 0.5 * 3**-0.5 for k in range(3)]
    by_hand = 2 * sum(0.5 * np.log(2 * np.pi * np.e * std**2) for std in spread)
    assert entropy.detach().numpy() == pytest.approx(np.full((2, 3), by_hand), abs=1e-5)
    assert (
        policy.act(observations, False).log_probs is None
        and pi0().act(observations, True).log_probs is None
    )


def test_noise_on_the_way_changes_no_marginal():
    """A network whose velocity is known: actions are N(0.5, 0.3^2), whichever way they are
    drawn.
    """
    policy = pi0(sde_noise=1.0, flow_steps=60)
    mu, s = 0.5, 0.3

    def velocity(inputs, cache, x, time):  # E[z - a | x] of x = t z + (1 - t) a
        t = time[:, None, None]
        return ((t - (1 - t) * s**2) * (x - (1 - t) * mu) / (t**2 + (1 - t) ** 2 * s**2)) - mu

    policy._velocity = velocity
    batch = policy.to_batch(observation(*["push"] * 2000))
    with torch.no_grad():
        path, _ = policy.sample(batch, torch.Generator().manual_seed(0))
        policy.config = policy.config.but(sde_noise=1e-6)
        still, _ = policy.sample(batch, torch.Generator().manual_seed(0))
    noisy, straight = path[:, -1, :, :2], still[:, -1, :, :2]
    assert (path[:, 1:-1, :, :2] - still[:, 1:-1, :, :2]).abs().mean() > 0.1, "another path"
    for actions in (noisy, straight):  # of 16,000 numbers
        assert actions.mean().item() == pytest.approx(
            mu, abs=0.015
        ) and actions.std().item() == pytest.approx(s, abs=0.015)


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.parametrize(
    "noise", [{"sde_noise": 0.5}, {"learned_noise": (0.2, 0.6)}], ids=["Flow-SDE", "Flow-Noise"]
)
def test_learners_from_rollouts_raise_what_pays(name, noise):
    policy, observations = pi0(**noise, horizon=1, flow_steps=2), observation(*["push"] * 32)
    before, after = paid_before_and_after(policy, observations, name, 18, learning_rate=5e-3)
    assert before < 0.75 and after > 0.85
