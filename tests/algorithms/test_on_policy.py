"""PPO, asynchronous PPO, GRPO, DAPO and REINFORCE++: formulas by independent computations;
checkpoints.
"""

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.async_ppo import decoupled_loss, interpolate_proximal
from rlinf_core.algorithms.common.advantages import (
    gae,
    group_advantages,
    normalise_advantages,
    rewards_to_go,
)
from rlinf_core.algorithms.common.on_policy import rollout_log_probs
from rlinf_core.algorithms.common.policy_losses import aggregate_log_probs, policy_loss, value_loss
from rlinf_core.algorithms.common.rollout import combine
from rlinf_core.algorithms.common.running_statistics import RunningReturn, update_moments
from rlinf_core.algorithms.dapo import has_gradient_signal, length_penalty
from rlinf_core.algorithms.grpo import k3
from rlinf_core.core.errors import RecipeError
from rlinf_core.rollouts.collect import ChunkRollouts
from rlinf_core.trainer import checkpoint
from tests.algorithms.learning import learner_of
from tests.algorithms.point import Points
from tests.algorithms.test_on_policy_updates import rollout_of, setting


def tensors(random, *shapes):
    return [torch.tensor(random.normal(size=shape)) for shape in shapes]


def test_gae_equals_the_sum_of_its_definition(random):
    rewards, values, next_observations = tensors(random, (7, 3), (7, 3), (7, 3))
    terminated = torch.tensor(random.random((7, 3)) < 0.2).double()
    done = torch.maximum(terminated, torch.tensor(random.random((7, 3)) < 0.2).double())
    got = gae(rewards, values, next_observations, terminated, done, 0.9, 0.8).numpy()
    for n in range(3):
        for t in range(7):
            total, weight = 0.0, 1.0
            for k in range(t, 7):
                delta = (
                    rewards[k, n]
                    + 0.9 * (0.0 if terminated[k, n] else next_observations[k, n])
                    - values[k, n]
                )
                total, weight = total + weight * float(delta), weight * 0.9 * 0.8
                if done[k, n]:
                    break
            assert got[t, n] == pytest.approx(total, abs=1e-9)


def test_the_clipped_objective_equals_an_independent_computation(random):
    now, then, advantages = tensors(random, (50,), (50,), (50,))
    for low, high, dual in ((0.2, 0.2, 0.0), (0.2, 0.28, 0.0), (0.2, 0.2, 3.0)):
        expected = []
        for a, b, advantage in zip(now.tolist(), then.tolist(), advantages.tolist(), strict=True):
            ratio = np.exp(a - b)
            term = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            expected.append(-(max(term, dual * advantage) if dual and advantage < 0 else term))
        assert policy_loss(now, then, advantages, low, high, dual).numpy() == pytest.approx(
            expected, abs=1e-9
        )


def test_the_value_loss_is_the_worse_of_clipped_and_unclipped(random):
    values, old, returns = tensors(random, (40,), (40,), (40,))

    def huber(x, delta=0.5):
        x = abs(x)
        return 0.5 * x * x if x <= delta else delta * (x - 0.5 * delta)

    expected = [
        max(huber(v - r), huber(o + min(max(v - o, -0.2), 0.2) - r))
        for v, o, r in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True)
    ]
    assert value_loss(values, old, returns, 0.2, 0.5).numpy() == pytest.approx(expected, abs=1e-9)
    assert value_loss(values, old, returns, 0.0, 0.0).numpy() == pytest.approx(
        0.5 * (values - returns).numpy() ** 2
    )


def test_group_advantages_and_rewards_to_go(random):
    returns, rewards = tensors(random, (12,), (5, 2))
    by_hand = np.concatenate(
        [(g - g.mean()) / (g.std(ddof=1) + 1e-6) for g in returns.numpy().reshape(3, 4)]
    )
    assert group_advantages(returns, 4).numpy() == pytest.approx(by_hand, abs=1e-9)
    mask = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0], [0, 0]]).double()
    got = rewards_to_go(rewards, mask, 0.9).numpy()
    assert got[1, 0] == pytest.approx(
        float(rewards[1, 0] + 0.9 * rewards[2, 0] + 0.81 * rewards[3, 0])
    )
    assert got[1, 1] == pytest.approx(float(rewards[1, 1])) and got[4, 0] == 0
    unmasked = normalise_advantages(rewards, mask)[mask > 0].numpy()
    assert (unmasked.mean(), unmasked.std(ddof=1)) == (
        pytest.approx(0, abs=1e-9),
        pytest.approx(1, abs=1e-6),
    )


def test_the_decoupled_objective_weighs_by_how_far_the_behaviour_was(random):
    now, proximal, behaviour, advantages = tensors(random, (30,), (30,), (30,), (30,))
    expected = []
    for a, p, b, advantage in zip(
        *(x.tolist() for x in (now, proximal, behaviour, advantages)), strict=True
    ):
        weight, ratio = np.exp(p - b), np.exp(a - p)
        weight = weight if weight <= 2.0 else 0.0
        expected.append(-weight * min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
    got = decoupled_loss(now, proximal, behaviour, advantages, 0.2, 0.2, 0.0, 2.0).numpy()
    assert got == pytest.approx(expected, abs=1e-9)
    same = decoupled_loss(now, behaviour, behaviour, advantages, 0.2, 0.2, 0.0, 2.0)
    assert torch.equal(same, policy_loss(now, behaviour, advantages, 0.2, 0.2)), (
        "on policy it is PPO's"
    )
    line = interpolate_proximal(torch.tensor(2.0), torch.tensor(0.0), torch.tensor(1.0), 3)
    assert line.item() == pytest.approx(2.0 * 2 / 3), "versions 1 and 4: the proximal one is 3"


def test_dapo_leaves_out_what_teaches_nothing_and_shapes_length():
    returns = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    assert has_gradient_signal(returns, 2).tolist() == [0, 0, 1, 1, 0, 0]
    assert length_penalty(torch.tensor([5.0, 10.0, 15.0, 40.0]), 10, 10).tolist() == [
        0,
        0,
        -0.5,
        -1,
    ]


def test_k3_is_never_negative_and_its_mean_is_the_divergence():
    torch.manual_seed(0)
    p, q = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.2)
    x = p.sample((200_000,))
    values = k3(p.log_prob(x), q.log_prob(x))
    assert values.min() >= 0
    assert values.mean().item() == pytest.approx(
        torch.distributions.kl_divergence(p, q).item(), abs=2e-3
    )


def test_ratios_of_a_chunk_are_the_product_of_its_actions(random):
    (log_probs,) = tensors(random, (4, 3))
    assert aggregate_log_probs(log_probs, "action") is log_probs
    assert aggregate_log_probs(log_probs, "chunk")[:, 0].exp().numpy() == pytest.approx(
        log_probs.exp().prod(dim=1).numpy()
    )


def test_the_running_return_follows_its_definition(random):
    rewards, done = random.normal(size=(40, 3)), (random.random((40, 3)) < 0.2).astype(float)
    running, returns = np.zeros(3), []
    for reward, end in zip(rewards, done, strict=True):
        running = running * 0.9 + reward
        returns.extend(running)
        running = running * (1 - end)
    scale = RunningReturn(0.9)
    got = scale.scale_rewards(*(torch.tensor(x, dtype=torch.float32) for x in (rewards, done)))
    assert got.numpy() == pytest.approx(
        np.clip(rewards / np.sqrt(np.var(returns) + 1e-8), -10, 10), rel=1e-3
    )
    count, mean, var = torch.tensor(0.0), torch.zeros(()), torch.zeros(())
    for part in np.array_split(np.array(returns), 4):
        update_moments(count, mean, var, torch.tensor(part))
    assert (mean.item(), var.item()) == (
        pytest.approx(np.mean(returns), abs=1e-5),
        pytest.approx(np.var(returns), rel=1e-4),
    )


def test_an_unknown_algorithm_is_answered_with_the_nearest():
    with pytest.raises(
        RecipeError, match="expected one of async_ppo, crossq, dagger, .*; got 'pppo'.*ppo"
    ):
        algorithm("pppo")


@pytest.mark.parametrize("name", ["ppo", "async_ppo", "grpo", "dapo", "reinforce"])
def test_going_on_from_a_saved_state_gives_the_same_updates(name, tmp_path):
    one = learner_of(name)
    collector = ChunkRollouts(Points(16), one.policy, 0)
    rollouts = [collector.play(**one.config.rollout).rollouts[0] for _ in range(3)]
    one.update(rollouts[0])
    folder = checkpoint.save(tmp_path, "updates-1", one.state_dict())
    two = learner_of(name, seed=5)
    two.load_state_dict(checkpoint.load(folder))
    for rollout in rollouts[1:]:
        assert one.update(rollout) == two.update(rollout)


def test_where_all_returns_are_the_same_none_has_an_advantage(random):
    for group in range(2, 17):
        same = (
            torch.tensor(random.uniform(-100.0, 100.0, (200, 1)), dtype=torch.float32)
            .repeat(1, group)
            .flatten()
        )
        assert (
            group_advantages(same, group).abs().max() < 1e-6
            and group_advantages(same, group).dtype == torch.float32
        )
        one = same[:group]
        assert normalise_advantages(one).abs().max() < 1e-5


@pytest.mark.parametrize(
    "name, network_name, changes",
    [("async_ppo", "policy", {}), ("reinforce", "reference", {"beta": 0.05})],
)
def test_of_what_fills_a_rollout_up_no_policy_is_asked(name, network_name, changes, monkeypatch):
    """Padding is zeros and no sentence; a policy that reads sentences would refuse it."""
    learner, collector = setting(name, **changes)
    long = rollout_of(learner, collector)
    both = long.concatenate(combine([long], lambda parts: parts[0][:2]))
    policy, batches = getattr(learner, network_name), []
    answer = policy.log_probs
    monkeypatch.setattr(
        policy, "log_probs", lambda batch, actions: batches.append(batch) or answer(batch, actions)
    )
    with torch.no_grad():
        data = learner.prepare(both)
        expected, _ = answer(
            {name: values.flatten(0, 1) for name, values in long.observations.items()},
            long.actions.flatten(0, 1),
        )
    (batch,), counted = batches, both.mask > 0
    assert len(batch["vectors"]) == counted.sum() < counted.numel()
    if name == "async_ppo":
        played = long.mask > 0
        assert torch.allclose(
            data["proximal"][:, :16][played], expected.view_as(long.log_probs)[played], atol=1e-6
        )
        assert torch.equal(data["proximal"][~counted], both.log_probs[~counted])
        none = rollout_log_probs(policy, both, torch.zeros_like(both.mask)).flatten(0, 1)
        assert torch.equal(none[1:], both.log_probs.flatten(0, 1)[1:])
        assert len(batches[-1]["vectors"]) == 1, "one row is asked of by every process"
