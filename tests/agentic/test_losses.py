"""Losses and gradients on conversations, beside those of TRL on the same ids, masks,
log-probabilities and rewards.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rlinf_core.algorithms import algorithm
from rlinf_core.algorithms.common import advantages
from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.policies.base import OnPolicyActor
from rlinf_core.policies.settings import PolicySettings
from rlinf_core.specs.arrays import TextSpec

RECORDED = Path(__file__).parent / "trl_losses.json"
TRL = json.loads(RECORDED.read_text())
MASKED = {"correction_high": 1.1}
OURS = {
    "grpo": {},
    "grpo_kl": {"reference_kl": 0.05},
    "dr_grpo": {"scale": "none", "weighting": "constant", "constant_length": 6},
    "dapo": {"name": "dapo"},
    "rollout_scale": {"scale": "rollout"},
    "gspo": {"level": "mean", "clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"objective": "cispo", "clip_high": 4.0, "weighting": "step"},
    "reinforce": {"name": "reinforce", "baseline": True, "beta": 0.0},
    "tis": {"correction": "token_truncate", **MASKED},
    "masked_tokens": {"correction": "token_mask", **MASKED},
    "tis_sequences": {"correction": "sequence_truncate", "correction_high": 1.2},
    "masked_sequences": {"correction": "sequence_mask", "correction_high": 1.2},
    "icepop": {"correction": "token_mask", "correction_low": 0.9, "correction_high": 1.1},
}


class Table(OnPolicyActor):
    """A policy whose log-probabilities (N, L) are its parameters; an action is the number of its
    row.
    """

    def __init__(self, values):
        super().__init__(TextSpec(), PolicySettings(kind="table"))
        self.values = torch.nn.Parameter(values.clone())

    def log_probs(self, batch, actions):
        rows = self.values[actions[:, 0, 0].long()]
        return rows, torch.zeros_like(rows)


@pytest.fixture
def recorded():
    return {
        name: torch.tensor(values, dtype=torch.float64) for name, values in TRL["inputs"].items()
    }


def rollout(rewards, mask, log_probs, rows=None):
    """Return a rollout of N rows, each with one conversation."""
    count, length = mask.shape
    step_rewards = torch.zeros(1, count, length, dtype=torch.float64)
    step_rewards[0, :, 0] = rewards
    ones, nothing = torch.ones(1, count, dtype=torch.float64), {"vectors": torch.zeros(1, count, 0)}
    actions = torch.arange(count)[None, :, None, None].expand(1, count, length, 1)
    return Rollout(
        nothing,
        nothing,
        actions,
        log_probs[None],
        step_rewards,
        mask.sum(-1)[None],
        ones,
        ones,
        ones,
        torch.zeros(1, count),
        mask[None],
        torch.arange(count) if rows is None else rows,
    )


def loss_and_gradient(recorded, name="grpo", **settings):
    """Return loss and gradient of a rollout as one minibatch, by the log-probabilities (N, L)."""
    part = algorithm(name)
    learner = part.Learner(Table(recorded["old"]), part.Config(group=4, **settings))
    if "reference" in learner.modules:
        learner.reference.values.data.copy_(recorded["reference"])
    engine = recorded["engine"] if settings.get("correction") else recorded["old"]
    played = rollout(recorded["rewards"], recorded["mask"], engine)
    with torch.no_grad():
        data = learner.prepare(played)
    learner.policy.values.data.copy_(recorded["now"])
    batch = data | {
        "actions": played.actions,
        "log_probs": played.log_probs,
        "executed": played.executed,
    }
    loss, _ = learner.loss({key: values.flatten(0, 1) for key, values in batch.items()})
    loss.backward()
    return loss.item(), learner.policy.values.grad


@pytest.mark.parametrize("name", OURS)
def test_loss_and_gradient_are_trls(name, recorded, monkeypatch):
    """TRL divides by a group's deviation plus 1e-4, this project by that plus 1e-6: the one
    difference, set alike.
    """
    from rlinf_core.algorithms.grpo import learner

    for module in (advantages, learner):
        monkeypatch.setattr(module, "EPSILON", 1e-4)
    loss, gradient = loss_and_gradient(recorded, **OURS[name])
    expected = TRL["results"][name]
    assert loss == pytest.approx(expected["loss"], abs=1e-6)
    np.testing.assert_allclose(gradient.numpy(), expected["gradient"], rtol=0, atol=1e-6)


def test_every_loss_of_trl_is_compared():
    assert OURS.keys() == TRL["results"].keys()
    gradients = {name: np.array(result["gradient"]) for name, result in TRL["results"].items()}
    for name, gradient in gradients.items():
        assert all(
            np.abs(gradient - other).max() > 1e-6 for key, other in gradients.items() if key != name
        ), name


@pytest.mark.slow
def test_the_recorded_values_are_trls_own(tmp_path):
    """Recomputed by TRL itself, where RLINF_TRL_PYTHON names the Python of an environment that has
    it.
    """
    python = os.environ.get("RLINF_TRL_PYTHON")
    if not python:
        pytest.skip("RLINF_TRL_PYTHON: no environment with TRL is named; see scripts/trl_losses.py")
    script = Path(__file__).parents[2] / "scripts/trl_losses.py"
    subprocess.run([python, script, tmp_path / "now.json"], check=True)
    now = json.loads((tmp_path / "now.json").read_text())
    for name, result in TRL["results"].items():
        np.testing.assert_allclose(
            now["results"][name]["gradient"], result["gradient"], rtol=0, atol=1e-9
        )


def test_rows_of_an_episode_share_its_return_and_its_weight(recorded):
    """Two rows of one episode, by hand: the reward of either counts for both, and together they
    weigh as one episode.
    """
    mask = recorded["mask"][:5].clone()
    rewards = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0], dtype=torch.float64)
    rows = torch.tensor([0, 0, 1, 2, 3])
    part = algorithm("grpo")
    learner = part.Learner(Table(recorded["old"]), part.Config(group=2))
    played = rollout(rewards, mask, recorded["old"][:5], rows)
    data = learner.prepare(played)
    assert played.returns.tolist() == [1.0, 0.0, 2.0, 0.0]
    sign = data["advantages"][0].sign().tolist()
    assert (
        sign == [1.0, 1.0, -1.0, 1.0, -1.0] and data["advantages"][0, 0] == data["advantages"][0, 1]
    )
    weight = data["weights"][0] * mask.sum(-1)
    assert weight[0] + weight[1] == pytest.approx(1.0) and weight[2:].tolist() == pytest.approx(
        [1.0, 1.0, 1.0]
    )


@pytest.mark.parametrize("name", ["grpo", "dapo", "reinforce"])
def test_marks_of_a_robots_rollout_change_nothing(name, recorded):
    """``counted`` as a prefix and ``episode`` as one's own are what None means: equal to the bit,
    but REINFORCE++'s.
    """
    part = algorithm(name)
    prefix = (torch.arange(6) < recorded["mask"].sum(-1, keepdim=True)).double()
    marked = rollout(recorded["rewards"], prefix, recorded["old"])
    plain = replace(marked, counted=None, episode=None)
    results = []
    for played in (marked, plain):
        learner = part.Learner(
            Table(recorded["now"]), part.Config(epochs=2, minibatches=2, group=4), seed=1
        )
        if name == "reinforce":  # a chunk's advantage: with marks it is a token's
            learner._judge_tokens = None
            played = replace(played, counted=None)
        learner.update(played)
        results.append(learner.policy.values.detach())
    assert torch.equal(*results) and not torch.equal(results[0], recorded["now"])


def test_rollouts_of_other_lengths_are_joined(recorded):
    long = rollout(recorded["rewards"], recorded["mask"], recorded["old"])
    short = rollout(recorded["rewards"][:4], recorded["mask"][:4, :3], recorded["old"][:4, :3])
    joined = long.concatenate(short)
    assert joined.counted.shape == (1, 12, 6) and joined.episode.tolist() == list(range(12))
    assert joined.counted[0, 8:, 3:].sum() == 0 and torch.equal(
        joined.log_probs[0, 8:, :3], short.log_probs[0]
    )
    assert torch.equal(joined.returns, torch.cat([long.returns, short.returns]))


def test_episodes_that_were_cut_off_can_be_left_out(recorded):
    part = algorithm("grpo")
    learner = part.Learner(Table(recorded["old"]), part.Config(group=4, mask_truncated=True))
    played = rollout(recorded["rewards"], recorded["mask"], recorded["old"])
    played.terminated = played.terminated.clone()
    played.terminated[0, 3] = 0.0
    assert played.mask[0, 3] == 1.0
    weights = learner.prepare(played)["weights"][0]
    assert weights[3] == 0.0 and (weights[[0, 1, 2, 4, 5, 6, 7]] > 0).all()


def test_an_episode_of_several_chunks_ended_if_one_of_them_did(recorded):
    """Four environments play three chunks; the second is cut off, the last ends early."""
    part = algorithm("grpo")
    policy = Table(recorded["old"])
    finished, all_chunks = (
        part.Learner(policy, part.Config(group=4, mask_truncated=masked, weighting="step"))
        for masked in (True, False)
    )
    shape, nothing = (3, 4), {"vectors": torch.zeros(3, 4, 0)}
    mask = torch.ones(shape)
    mask[1:, 3] = 0.0
    terminated = torch.zeros(shape)
    terminated[2, [0, 2]] = terminated[0, 3] = 1.0
    terminated[2, 3] = 1.0  # after its only episode
    rewards = torch.zeros(3, 4, 1)
    rewards[2, :, 0] = torch.tensor([1.0, 0.0, 2.0, 0.0])
    played = Rollout(
        *(nothing, nothing, torch.zeros(3, 4, 1, 1), torch.zeros(3, 4, 1), rewards),
        *(torch.ones(shape), terminated, torch.ones(shape), mask, torch.zeros(shape)),
    )
    assert torch.equal(all_chunks.prepare(played)["weights"], mask)
    expected = mask.clone()
    expected[:, 1] = 0.0
    assert torch.equal(finished.prepare(played)["weights"], expected)


def test_settings_that_do_not_go_together_are_refused():
    config = algorithm("grpo").Config
    with pytest.raises(ValidationError, match="constant_length: expected a number of tokens"):
        config(weighting="constant")
    with pytest.raises(ValidationError, match="correction: expected sequence_truncate"):
        config(level="mean", correction="token_mask")


def test_a_group_without_a_difference_is_not_computed(recorded):
    """Its gradient is zero, so loss and gradient of the other groups do not change."""
    recorded["rewards"][:4] = 1.0
    calls, results = [], []
    for is_complete in (False, True):
        part = algorithm("grpo")
        learner = part.Learner(Table(recorded["old"]), part.Config(group=4))
        played = rollout(recorded["rewards"], recorded["mask"], recorded["old"])
        batch = learner.prepare(played) | {
            "actions": played.actions,
            "log_probs": played.log_probs,
            "executed": played.executed,
        }
        learner.policy.values.data.copy_(recorded["now"])
        log_probs = learner.policy.log_probs
        learner.policy.log_probs = lambda batch, actions, log_probs=log_probs: (
            calls.append(len(actions)),
            log_probs(batch, actions),
        )[1]
        if is_complete:
            learner.evaluate = lambda batch, learner=learner: learner.policy.log_probs(
                batch, batch["actions"]
            )
        loss, _ = learner.loss({key: values.flatten(0, 1) for key, values in batch.items()})
        loss.backward()
        results.append((loss.detach(), learner.policy.values.grad))
    rows = len(recorded["rewards"])
    assert calls == [rows - 3, rows], "one row stays, so that each process has a gradient"
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)
    assert results[0][1][4:].abs().sum() > 0 and not results[0][1][:4].any()


class ValueTable(torch.nn.Module):
    """The values (N, L) before each token are its parameters, by the number of a row."""

    def __init__(self, values):
        super().__init__()
        self.values = torch.nn.Parameter(values.clone())

    def forward(self, batch):
        return self.values[batch["actions"][:, 0, 0].long()]


class ValuedTable(Table):
    """A table of log-probabilities beside one of values."""

    def __init__(self, log_probs, values):
        super().__init__(log_probs)
        self.of_tokens = values

    def value_network(self):
        return ValueTable(self.of_tokens)


@pytest.fixture
def other_default_device():
    """Make a device the default whose tensors cannot be combined with others."""
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("level", ["action", "chunk"])
def test_ppo_judges_each_token_that_the_policy_drew(normalise, level, other_default_device):
    """Two episodes; the first has two rows. Tokens of tools (0) take no time and have no value."""
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0]], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    old, now, values, later = (
        torch.randn(3, 5, generator=draw, dtype=torch.float64) for _ in range(4)
    )
    gamma, decay = 0.9, 0.8
    part = algorithm("ppo")
    config = part.Config(
        discount=gamma,
        gae_lambda=decay,
        normalise=normalise,
        level=level,
        value_clip=0.5,
        huber=1.0,
        value_weight=0.3,
        clip_low=0.1,
        clip_high=0.2,
        dual_clip=0.0,
    )
    learner = part.Learner(ValuedTable(old, values), config)
    played = rollout(torch.tensor([2.0, 0.0, -1.0]), mask, old, torch.tensor([0, 0, 1]))
    other_default_device()
    with torch.no_grad():
        data = learner.prepare(played)
    expected = np.zeros((3, 5))
    for row, reward in enumerate((2.0, 2.0, -1.0)):  # an episode's reward ends each of its rows
        counted = [t for t in range(5) if mask[row, t]]
        advantage, next_value = 0.0, 0.0
        for t in reversed(counted):
            value = values[row, t].item()
            delta = (reward if t == counted[-1] else 0.0) + gamma * next_value - value
            advantage = delta + gamma * decay * advantage
            expected[row, t], next_value = advantage, value
    is_counted = mask.numpy() > 0
    masked_values = (values * mask).numpy()
    returns = expected + masked_values
    if normalise:
        drawn = expected[is_counted]
        expected = np.where(is_counted, (expected - drawn.mean()) / drawn.std(ddof=1), 0.0)
    got = {name: value.numpy() for name, value in data.items()}
    assert got.keys() == {"advantages", "returns", "values", "weights"}
    np.testing.assert_allclose(got["advantages"][0] * mask.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(got["returns"][0], returns, atol=1e-6)
    np.testing.assert_allclose(got["values"][0], masked_values, atol=1e-6)
    assert got["weights"].tolist() == [[1.0, 1.0, 1.0]]

    batch = data | {
        "actions": played.actions,
        "log_probs": played.log_probs,
        "executed": played.executed,
    }
    learner.policy.values.data.copy_(now)
    learner.value.values.data.copy_(later)
    flat = {key: value.flatten(0, 1) for key, value in batch.items()}
    worse = np.zeros((3, 5))  # Huber losses of the clipped and of the free value
    for row, t in zip(*np.nonzero(is_counted), strict=True):
        free, before = later[row, t].item(), masked_values[row, t]
        errors = [
            abs(value - returns[row, t])
            for value in (free, before + np.clip(free - before, -0.5, 0.5))
        ]
        worse[row, t] = max(0.5 * e**2 if e < 1.0 else e - 0.5 for e in errors)
    value_loss = worse[is_counted].mean()
    total, metrics = learner.loss(flat)
    assert metrics["value_loss"] == pytest.approx(value_loss, abs=1e-6)
    policy_alone, _ = super(part.Learner, learner).loss(flat)
    assert total.item() == pytest.approx(policy_alone.item() + 0.3 * value_loss, abs=1e-6)


@pytest.mark.parametrize("baseline", [False, True])
def test_reinforce_takes_the_drift_from_a_token_on_from_its_episode_s_return(baseline, recorded):
    """Two groups of two episodes; the first episode has two rows."""
    mask = recorded["mask"][:5]
    rewards = torch.tensor([1.0, 0.5, 0.0, 2.0, -1.0], dtype=torch.float64)
    episodes = torch.tensor([0, 0, 1, 2, 3])
    part = algorithm("reinforce")
    config = part.Config(group=2, baseline=baseline, beta=0.3, weighting="step")
    learner = part.Learner(Table(recorded["old"]), config)
    assert learner.needs_reference
    learner.reference.values.data.copy_(recorded["reference"])
    played = rollout(rewards, mask, recorded["old"][:5], episodes)
    data = learner.prepare(played)
    returns = np.array([1.5, 0.0, 2.0, -1.0])
    if baseline:
        returns = returns - np.array([0.75, 0.75, 0.5, 0.5])
    drift = ((recorded["old"] - recorded["reference"])[:5] * mask).numpy()
    advantages = np.array(
        [
            [returns[episodes[row]] - 0.3 * drift[row, token:].sum() for token in range(6)]
            for row in range(5)
        ]
    )
    is_counted = mask.numpy() > 0
    drawn = advantages[is_counted]
    expected = (drawn - drawn.mean()) / drawn.std(ddof=1)
    np.testing.assert_allclose(data["advantages"][0].numpy()[is_counted], expected, atol=1e-6)
    assert data["weights"].tolist() == [[1.0] * 5]


@pytest.mark.parametrize("level", ["chunk", "mean"])
def test_a_constant_length_divides_also_whole_conversations(level, recorded):
    """Each row has one ratio, of all of its tokens or of their mean; 8 rows of constant length 5."""
    loss, gradient = loss_and_gradient(
        recorded, level=level, weighting="constant", constant_length=5, clip_low=0.1, clip_high=0.3
    )
    mask, rewards = recorded["mask"], recorded["rewards"].view(2, 4)
    now = recorded["now"].clone().requires_grad_()
    relative = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = (relative / (rewards.std(dim=1, keepdim=True) + 1e-6)).flatten()
    difference = ((now - recorded["old"]) * mask).sum(dim=1)
    ratio = (difference / (mask.sum(dim=1) if level == "mean" else 1.0)).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.3) * advantages)
    expected = -objective.sum() / (8 * 5)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-9)
    np.testing.assert_allclose(gradient.numpy(), now.grad.numpy(), rtol=0, atol=1e-9)
