"""SAC, CrossQ, SAC-Flow, DSRL, IQL and DAgger: formulas by independent computations;
checkpoints.
"""

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithm, crossq, dagger, dsrl, iql, sac, sft
from rlinf_core.algorithms.common.actor_critic import discount_powers
from rlinf_core.algorithms.common.tensors import next_observations, to_tensors
from rlinf_core.core.errors import SpecError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.specs.arrays import ArraySpec, StationSpec
from rlinf_core.trainer import checkpoint
from tests.algorithms.learning import SMALL, buffer_of, make
from tests.algorithms.point import SPEC, misled
from tests.algorithms.toy import acted


def test_dsrl_changes_the_choice_of_noise_and_not_the_flow(random):
    latent_noise = make("latent_noise", noise_policy=(64, 64))
    flow = latent_noise.flow
    weights = [p.clone() for p in flow.parameters()]
    learner = dsrl.Learner(latent_noise, dsrl.Config(**SMALL), seed=0)
    noise_policy = [p.clone() for p in learner.actor.noise_policy.parameters()]
    batch = buffer_of(misled(random), 8).sample(32, random)
    for _ in range(5):
        learner.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(weights, flow.parameters(), strict=True))
    assert not all(
        torch.equal(a, b)
        for a, b in zip(noise_policy, learner.actor.noise_policy.parameters(), strict=True)
    )


def test_the_experts_share_falls_to_its_floor_and_gated_decisions_are_the_experts():
    config = dagger.Config(gated=True)
    assert [config.expert_fraction(episode) for episode in (0, 10, 10**4)] == pytest.approx(
        [0.5, 0.5 * 0.99**10, 0.05]
    )
    assert config.learning_mask(["policy", "operator", "policy"]).tolist() == [False, True, False]
    assert dagger.Config().learning_mask(["policy", "operator"]).tolist() == [True, True]


def test_transitions_of_chunks_equal_the_sum_of_their_steps(random):
    observations = {"vectors": random.normal(size=(8, 3))}
    actions, rewards = random.normal(size=(7, 2)), random.normal(size=7)
    discounts = np.array([1, 1, 1, 1, 1, 1, 0.0])
    vectors = observations["vectors"].astype(np.float32)
    buffer = ReplayBuffer(StationSpec((ArraySpec("at", (3,)),), SPEC.action, 10.0), 20)
    for _ in range(3):  # the ring's end lies within the third
        buffer.insert_episode({"vectors": vectors}, actions, rewards, discounts)
    got, start = buffer.sample(200, random, 3, 0.9), {tuple(at): t for t, at in enumerate(vectors)}
    for i in range(200):
        t = start[tuple(got["vectors"][i])]
        end = min(t + 3, 7)
        assert np.array_equal(got["next/vectors"][i], vectors[end]) and got["steps"][i] == end - t
        assert got["reward"][i] == pytest.approx(
            sum(0.9**k * rewards[t + k] for k in range(end - t)), abs=1e-6
        )
        assert got["discount"][i] == discounts[end - 1]
        played = [actions[min(t + k, 6)] for k in range(3)]
        assert got["action"][i] == pytest.approx(np.concatenate(played), abs=1e-6), (
            "after the end, the last one again"
        )
    partly = buffer.sample(200, random, 3, 0.9, execute=2)
    for i in range(200):
        t = start[tuple(partly["vectors"][i])]
        end = min(t + 2, 7)
        assert (
            np.array_equal(partly["next/vectors"][i], vectors[end])
            and partly["steps"][i] == end - t
        )
        assert partly["reward"][i] == pytest.approx(
            sum(0.9**k * rewards[t + k] for k in range(end - t)), abs=1e-6
        )
        assert partly["discount"][i] == discounts[end - 1]
        played = [actions[min(t + k, 6)] for k in range(3)]
        assert partly["action"][i] == pytest.approx(np.concatenate(played), abs=1e-6), (
            "all is there to clone"
        )
    powers = discount_powers({"steps": torch.tensor([3.0, 1.0])}, 0.9).numpy()
    assert powers == pytest.approx([0.729, 0.9], abs=1e-6) and discount_powers({}, 0.9) == 0.9


def test_latent_noise_is_learned_from_where_it_was_drawn_and_spans_what_was_played(random):
    """Chunks of three, of which two are played; an episode's end cuts the last one short."""
    buffer = ReplayBuffer(SPEC, 20, latent=6)
    vectors = random.normal(size=(6, 2)).astype(np.float32)
    latents = random.normal(size=(5, 6)).astype(np.float32)
    decided = np.array([True, False, True, False, True])
    with pytest.raises(SpecError, match="'latent': expected shape"):
        buffer.insert_episode(
            {"vectors": vectors}, np.zeros((5, 2)), np.ones(5), np.ones(5), decided
        )
    for _ in range(2):
        buffer.insert_episode(
            {"vectors": vectors}, np.zeros((5, 2)), np.ones(5), np.ones(5), decided, latents
        )
    got = buffer.sample(100, random, 3, 0.9, execute=2)
    begun = [int(np.flatnonzero((vectors == at).all(1))[0]) for at in got["vectors"]]
    assert set(begun) == {0, 2, 4}
    for i, t in enumerate(begun):
        assert np.array_equal(got["action"][i], latents[t]) and np.array_equal(
            got["next/vectors"][i], vectors[min(t + 2, 5)]
        )
        assert got["steps"][i] == min(2, 5 - t)


def test_critics_judge_what_is_played_of_a_chunk_and_the_rest_is_free(random):
    """Two of three actions are executed; values and entropy do not depend on the third."""
    learner = sac.Learner(make(horizon=3, n_action_steps=2), sac.Config(**SMALL), seed=3)
    batch = to_tensors(buffer_of(misled(random), 8).sample(16, random, 3, 0.95, execute=2))
    changed = batch | {"action": torch.cat([batch["action"][:, :4], torch.zeros(16, 2)], 1)}
    features = learner.encoder(batch)
    values = [
        learner.critics(features, learner.executed(variant, variant["action"]))
        for variant in (batch, changed)
    ]
    assert values[0].shape == (2, 16) and torch.equal(*values)
    action, log_prob, _ = learner.actor_proposal(batch)
    assert action.shape == (16, 6)
    loss = -learner.q_values(batch, action).sum() + log_prob.sum()
    (gradient,) = torch.autograd.grad(loss, learner.actor.head.bias)
    played, free = gradient.view(2, 3, 2)[:, :2], gradient.view(2, 3, 2)[:, 2]
    assert played.abs().min() > 0 and not free.any()
    metrics = learner.update(buffer_of(misled(random), 8).sample(16, random, 3, 0.95, execute=2))
    assert np.isfinite(list(metrics.values())).all()


def test_sac_targets_equal_an_independent_computation(random):
    learner = sac.Learner(make(), sac.Config(**SMALL), seed=3)
    batch = to_tensors(buffer_of(misled(random), 8).sample(16, random))
    state = learner.generator.get_state()
    got = learner.critic_targets(batch).numpy()
    learner.generator.set_state(state)
    with torch.no_grad():
        action, log_prob = learner.actor.sample(next_observations(batch), learner.generator)
        values = learner.target[1](learner.target[0](next_observations(batch)), action).numpy()
    alpha = float(np.exp(learner.temperature.log.item()))
    for i in range(16):
        soft = min(values[0, i], values[1, i]) - alpha * log_prob[i].item()
        assert got[i] == pytest.approx(
            batch["reward"][i].item() + 0.95 * batch["discount"][i].item() * soft, abs=1e-6
        )


def test_batch_renormalisation_equals_its_definition(random):
    norm = crossq.BatchRenorm(2, 3, momentum=0.1, warmup=0).double()
    mean, std = np.zeros((2, 1, 3)), np.ones((2, 1, 3))
    for number in range(4):
        x = random.normal(1.0, 2.0, (2, 16, 3))
        got = norm(torch.tensor(x)).detach().numpy()
        m, s = x.mean(axis=1, keepdims=True), np.sqrt(x.var(axis=1, keepdims=True) + 1e-3)
        r, d = np.clip(s / std, 1 / 3, 3), np.clip((m - mean) / std, -5, 5)
        if number == 0:
            r, d = np.ones_like(r), np.zeros_like(d)
        assert got == pytest.approx((x - m) / s * r + d, abs=1e-6)
        mean, std = 0.9 * mean + 0.1 * m, 0.9 * std + 0.1 * s
    norm.eval()
    assert norm(torch.tensor(x)).detach().numpy() == pytest.approx((x - mean) / std, abs=1e-6)


def test_iql_losses_equal_their_definitions(random):
    difference = random.normal(size=20)
    expected = np.mean([(0.7 if u > 0 else 0.3) * u * u for u in difference])
    assert iql.expectile_loss(torch.tensor(difference), 0.7).item() == pytest.approx(
        expected, abs=1e-9
    )
    assert iql.advantage_weights(torch.tensor([0.1, 9.0]), 3.0, 100.0).numpy() == pytest.approx(
        [np.exp(0.3), 100.0], abs=1e-5
    )


def test_the_density_of_a_flow_is_that_of_its_path(random):
    """The density is compared with torch's distributions, and the decoded actions with the path."""
    flow = make("flow").double()
    batch = {"vectors": torch.tensor(random.normal(size=(5, 2)))}
    real, draws = torch.randn, []
    torch.manual_seed(1)

    def keep(*shape, generator=None, device=None):
        draws.append(real(*shape, dtype=torch.float64))
        return draws[-1]

    torch.randn = keep
    try:
        action, log_prob = flow.sample(batch, torch.Generator())
    finally:
        torch.randn = real
    features, point = flow.encoder(batch), draws[0]
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(point).sum(-1)
    for k in range(4):
        velocity, log_std = flow.velocity(
            features, point, torch.full((5, 1), k / 4, dtype=torch.float64)
        )
        step = torch.distributions.Normal(point + velocity / 4, log_std.exp())
        point = step.mean + log_std.exp() * draws[k + 1]
        expected = expected + step.log_prob(point).sum(-1)
    expected = expected - torch.log(1 - torch.tanh(point) ** 2).sum(-1)
    assert torch.allclose(action, torch.tanh(point)) and torch.allclose(
        log_prob, expected, atol=1e-6
    )


def test_flow_matching_carries_noise_to_both_of_two_demonstrated_actions(random):
    """A Gaussian would output their mean."""
    flow = make("flow", hidden=(128, 128), flow_steps=8)
    cloner = sft.Learner(flow, sft.Config(min_std=0.0, learning_rate=1e-3))
    for _ in range(1200):
        side = np.sign(random.normal(size=(128, 1)))
        cloner.update(
            {
                "vectors": np.zeros((128, 2), np.float32),
                "action": (0.8 * side * [1, -1]).astype(np.float32),
            }
        )
    batch = {"vectors": torch.zeros(400, 2)}
    with torch.no_grad():
        actions = flow.decode(
            batch, torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        ).numpy()
    right = actions[:, 0] > 0
    assert 0.3 < right.mean() < 0.7
    near = np.abs(np.abs(actions) - 0.8).max(axis=1) < 0.2
    assert near.mean() > 0.75, near.mean()


@pytest.mark.parametrize("kind", ["tanh_gaussian", "gaussian", "flow", "latent_noise"])
def test_policies_of_every_kind_come_back_from_their_file(kind, tmp_path, random):
    policy = make(kind, horizon=3)
    again = load_policy(save_policy(policy, tmp_path / "policy.safetensors"), SPEC)
    observation = {"offset": np.array([0.3, -0.2], np.float32)}
    action = acted(policy, observation)
    assert action.shape == (3, 2) and np.abs(action).max() <= 1.0
    assert np.array_equal(action, acted(again, observation))


@pytest.mark.parametrize("name", ["sac", "crossq", "sac_flow", "iql"])
def test_going_on_from_a_saved_state_gives_the_same_updates(name, tmp_path, random):
    module, kind = algorithm(name), "flow" if name == "sac_flow" else "tanh_gaussian"
    data = buffer_of(misled(random), 10)
    one = module.Learner(make(kind), module.Config(**SMALL), seed=0)
    for seed in range(5):
        one.update(data.sample(32, np.random.default_rng(seed)))
    folder = checkpoint.save(tmp_path, "updates-5", one.state_dict())
    two = module.Learner(make(kind, seed=9), module.Config(**SMALL), seed=9)
    two.load_state_dict(checkpoint.load(folder))
    for seed in range(5, 10):
        assert one.update(data.sample(32, np.random.default_rng(seed))) == two.update(
            data.sample(32, np.random.default_rng(seed))
        )
