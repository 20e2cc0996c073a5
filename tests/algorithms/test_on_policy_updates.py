"""Whole updates of the PPO family, minibatch by minibatch, beside the papers' objectives written
down once more.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rlinf_core.rollouts.collect import ChunkRollouts
from tests.algorithms.by_hand import Adam, assert_alike, twin
from tests.algorithms.learning import learner_of
from tests.algorithms.point import Points


class ByHand:
    """One update of an on-policy learner: advantages, then epochs of minibatches."""

    def __init__(self, name, learner):
        self.name = name
        self.learner_copy = twin(learner)
        self.config = learner.config
        self.updates = 0
        modules = [self.learner_copy.policy] + (
            [self.learner_copy.value] if "value" in learner.modules else []
        )
        self.adam = Adam(
            [p for module in modules for p in module.parameters()],
            self.config.learning_rate,
            epsilon=1e-5,
        )

    def update(self, rollout):
        config, learner_copy = self.config, self.learner_copy
        if config.anneal_updates:
            self.adam.rate = config.learning_rate * max(
                0.0, 1 - self.updates / config.anneal_updates
            )
        with torch.no_grad():
            data = self.data(rollout)
        flat = {key: values.flatten(0, 1) for key, values in data.items()}
        unmasked, metrics = torch.nonzero(flat["weights"]).squeeze(1), []
        for _ in range(config.epochs):
            order = unmasked[torch.randperm(len(unmasked), generator=learner_copy.generator)]
            for index in order.chunk(config.minibatches):
                metrics.append(self.minibatch({key: values[index] for key, values in flat.items()}))
        self.updates += 1
        return {key: np.mean([m[key] for m in metrics]) for key in metrics[0]}

    def data(self, rollout):
        """Advantages and weights of every decision (T, N), and what a minibatch looks at."""
        if self.name == "async_ppo":  # as if what is too old had not been played
            young = self.updates - rollout.versions <= self.config.max_staleness
            rollout = replace(rollout, mask=rollout.mask * young)
        played = torch.arange(rollout.actions.shape[2]) < rollout.steps[..., None]
        data = {
            "weights": rollout.mask,
            "actions": rollout.actions,
            "then": rollout.log_probs,
            "played": played.float(),
            **rollout.observations,
        }
        if self.name in ("ppo", "async_ppo"):
            data |= self.generalised(rollout)
        else:
            data |= {"grpo": self.grpo, "dapo": self.dapo, "reinforce": self.reinforce}[self.name](
                rollout
            )
        if self.name == "async_ppo":
            data["versions"] = rollout.versions
            data["proximal"] = self.density(self.learner_copy.policy, rollout)[0]
        return data

    def generalised(self, rollout):
        """Schulman et al. 2015, equation 16, as a sum."""
        config, learner_copy = self.config, self.learner_copy
        rewards = sum(
            config.discount**k * rollout.step_rewards[..., k]
            for k in range(rollout.step_rewards.shape[-1])
        )
        gamma = config.discount**rollout.steps
        if config.scale_rewards:
            rewards = learner_copy.returns.scale_rewards(
                rewards, rollout.done, rollout.steps, rollout.mask
            )
        values = learner_copy.value(rollout.observations)
        next_observations = learner_copy.value(rollout.next_observations)
        counts = {
            "truncation": 1 - rollout.terminated,
            "always": torch.ones_like(rewards),
            "never": 1 - rollout.done,
        }[config.bootstrap]
        delta = rewards + gamma * counts * next_observations - values
        advantages = torch.zeros_like(rewards)
        for t in range(len(rewards)):
            going = torch.ones(rewards.shape[1])
            for k in range(t, len(rewards)):
                advantages[t] += going * delta[k]
                going = going * gamma[k] * config.gae_lambda * (1 - rollout.done[k])
        returns = advantages + values
        if config.normalise:
            unmasked = advantages[rollout.mask > 0]
            advantages = (advantages - unmasked.mean()) / unmasked.std()
        return {"advantages": advantages, "returns": returns, "values": values}

    def per_group(self, returns, scale):
        groups = returns.view(-1, self.config.group)
        centred = groups - groups.mean(1, keepdim=True)
        return (centred / (groups.std(1, keepdim=True) + 1e-6) if scale else centred).flatten()

    def grpo(self, rollout):
        """DeepSeekMath, equation 3: of each episode, the mean over the actions (or chunks) that
        were played.
        """
        returns = (rollout.rewards * rollout.mask).sum(0)
        played = torch.arange(rollout.actions.shape[2]) < rollout.steps[..., None]
        lengths = (
            rollout.mask.sum(0)
            if self.config.level == "chunk"
            else (played * rollout.mask[..., None]).sum((0, 2))
        )
        return {
            "advantages": self.per_group(returns, True).expand(rollout.mask.shape),
            "weights": rollout.mask / lengths,
        }

    def dapo(self, rollout):
        config, returns = self.config, (rollout.rewards * rollout.mask).sum(0)
        if config.safe_length:
            returns = returns - (
                (rollout.mask.sum(0) - config.safe_length) / config.length_buffer
            ).clamp(0, 1)
        taught = torch.cat(
            [
                torch.full_like(group, float(group.max() > group.min()))
                for group in returns.split(config.group)
            ]
        )
        return {
            "advantages": self.per_group(returns, True).expand(rollout.mask.shape),
            "weights": rollout.mask * taught,
        }

    def reinforce(self, rollout):
        config, mask = self.config, rollout.mask
        drift = torch.zeros_like(mask)
        if config.beta:
            played = torch.arange(rollout.actions.shape[2]) < rollout.steps[..., None]
            drift = (
                (rollout.log_probs - self.density(self.learner_copy.reference, rollout)[0]) * played
            ).sum(-1)
        rewards = -config.beta * drift * mask
        if not config.baseline:
            rewards = rewards + rollout.rewards * mask
        advantages = torch.stack([rewards[t:].sum(0) for t in range(len(rewards))])
        if config.baseline:
            advantages = advantages + self.per_group((rollout.rewards * mask).sum(0), False)
        unmasked = advantages[mask > 0]
        return {"advantages": (advantages - unmasked.mean()) / unmasked.std()}

    @staticmethod
    def density(policy, batch):
        """Log-density of each action (..., H), and its entropy."""
        observations = batch if isinstance(batch, dict) else batch.observations
        mean, log_std = policy(observations)
        normal = torch.distributions.Normal(mean, log_std.exp())
        actions = batch["actions"] if isinstance(batch, dict) else batch.actions
        return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)

    def minibatch(self, batch):
        config = self.config
        learner_copy = self.learner_copy
        advantages = batch["advantages"][:, None]
        log_probs, entropy = self.density(learner_copy.policy, batch)
        played = batch["played"]
        now, then, entropy = (
            (x * played).sum(1, keepdim=True) if config.level == "chunk" else x * played
            for x in (log_probs, batch["then"], entropy)
        )
        near, weights = then, torch.ones_like(then)
        if self.name == "async_ppo":
            near = (
                batch["proximal"]
                if config.proximal == "recomputed"
                else self.between(now.detach(), then, batch)
            )
            if config.proximal == "recomputed":
                near = (
                    (near * played).sum(1, keepdim=True)
                    if config.level == "chunk"
                    else near * played
                )
            weights = (near - then).exp()
            weights = torch.where(weights > config.weight_limit, 0.0, weights)
        ratio = (now - near).exp()
        surrogate = torch.minimum(
            ratio * advantages, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages
        )
        if config.dual_clip:
            surrogate = torch.where(
                advantages < 0, torch.maximum(surrogate, config.dual_clip * advantages), surrogate
            )
        share = (batch["weights"][:, None] * (1.0 if config.level == "chunk" else played)).expand(
            now.shape
        )
        total = max(share.sum().item(), 1.0)
        bonus = (entropy * share).sum() / total
        loss = -(weights * surrogate * share).sum() / total - config.entropy * bonus
        drift = (now - then).detach()
        clipped = ((ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)).float()
        metrics = {
            "entropy": bonus.item(),
            "kl": ((drift.exp() - 1 - drift) * share).sum().item() / total,
            "clipped": (clipped * share).sum().item() / total,
        }
        loss, metrics = self.more(loss, metrics, batch, log_probs)
        self.adam.optimizer_step(loss, config.clip_gradient)
        return metrics | {"loss": loss.item()}

    def between(self, newest, behaviour, batch):
        versions = batch["versions"][:, None]
        share = (self.updates - versions) / (self.updates + 1 - versions)
        return behaviour + share.clamp(min=0) * (newest - behaviour)

    def more(self, loss, metrics, batch, log_probs):
        config, learner_copy = self.config, self.learner_copy
        if hasattr(learner_copy, "value"):
            value, old = learner_copy.value(batch), batch["values"]
            error = value_error(value, batch["returns"], config.huber)
            if config.value_clip:
                near = old + (value - old).clamp(-config.value_clip, config.value_clip)
                error = torch.maximum(error, value_error(near, batch["returns"], config.huber))
            loss = loss + config.value_weight * error.mean()
            metrics["value_loss"] = error.mean().item()
        elif config.reference_kl:
            with torch.no_grad():
                ratio = self.density(learner_copy.reference, batch)[0] - log_probs.detach()
            reference = ratio + log_probs.detach() - log_probs
            k3 = (reference.exp() - reference - 1).mean(1)
            divergence = (k3 * batch["weights"]).sum() / max(batch["weights"].sum().item(), 1.0)
            loss = loss + config.reference_kl * divergence
            metrics["reference_kl"] = divergence.item()
        return loss, metrics


def value_error(value, returns, width):
    away = (value - returns).abs()
    return (
        torch.where(away <= width, 0.5 * away**2, width * (away - 0.5 * width))
        if width
        else 0.5 * away**2
    )


def setting(name, **changes):
    """Return a learner with normalisation, and what plays for it."""
    sizes = dict(chunks=6) if "ppo" in name else dict(group=4)
    learner = learner_of(name, seed=1, **(dict(epochs=2, minibatches=3) | sizes | changes))
    learner.policy.encoder.fit_normalisation(np.random.default_rng(5).normal(0.3, 0.6, (50, 2)))
    return learner, ChunkRollouts(Points(16), learner.policy, 0)


def rollout_of(learner, collector):
    collector.version = learner.updates
    return collector.play(**learner.config.rollout).rollouts[0]


@pytest.mark.parametrize(
    "name, changes",
    [
        ("ppo", dict()),
        (
            "ppo",
            dict(
                horizon=2,
                level="chunk",
                entropy=0.02,
                value_clip=0.05,
                huber=0.2,
                clip_low=0.05,
                clip_high=0.1,
            ),
        ),
        (
            "ppo",
            dict(
                horizon=2,
                normalise=False,
                bootstrap="always",
                value_clip=0.0,
                huber=0.0,
                value_weight=0.3,
            ),
        ),
        (
            "ppo",
            dict(
                bootstrap="never",
                scale_rewards=True,
                anneal_updates=2,
                clip_gradient=0.05,
                dual_clip=1.05,
            ),
        ),
        ("async_ppo", dict(horizon=2, level="chunk", weight_limit=1.02)),
        ("async_ppo", dict(proximal="interpolated", max_staleness=1, scale_rewards=True)),
        ("grpo", dict(reference_kl=0.1, entropy=0.01)),
        ("grpo", dict(horizon=2)),
        ("grpo", dict(horizon=2, level="chunk")),
        ("dapo", dict()),
        ("dapo", dict(safe_length=8, length_buffer=6, horizon=2)),
        ("reinforce", dict(beta=0.05)),
        ("reinforce", dict(beta=0.05, baseline=True, horizon=2)),
        ("reinforce", dict(beta=0.0)),
    ],
)
def test_updates_equal_the_papers(name, changes):
    learner, collector = setting(name, learning_rate=3e-3, **changes)
    by_hand, waiting = ByHand(name, learner), []
    for number in range(4):
        waiting.append(rollout_of(learner, collector))
        if name == "async_ppo" and number == 0:
            continue  # learned from one update later than played
        rollout = waiting.pop(0)
        if name == "async_ppo":
            rollout = replace(rollout, versions=rollout.versions - torch.tensor([0.0, 1.0] * 8))
        got, expected = learner.update(rollout), by_hand.update(rollout)
        assert got == pytest.approx(expected, rel=2e-3, abs=1e-4)
        assert_alike(learner, by_hand.learner_copy, atol=2e-5)
    assert learner.updates == by_hand.updates


def test_what_is_too_old_changes_nothing_at_all():
    learner, collector = setting("async_ppo", scale_rewards=True, max_staleness=0)
    before = copy.deepcopy(learner.state_dict())
    rollout = rollout_of(learner, collector)
    assert learner.update(replace(rollout, versions=rollout.versions - 1.0)) == {}
    for name, module in learner.modules.items():
        for key, value in module.state_dict().items():
            assert key == "running" or torch.equal(value, before["modules"][name][key]), (name, key)


def test_what_a_learner_cannot_do_it_says():
    with pytest.raises(ValidationError, match="level\n.*'action', 'chunk' or 'mean'"):
        setting("ppo", level="token")


def test_the_value_begins_with_the_policys_normalisation_and_the_reference_as_the_policy():
    policy = learner_of("ppo").policy
    policy.encoder.fit_normalisation(np.random.default_rng(5).normal(0.3, 0.6, (50, 2)))
    from rlinf_core.algorithms import grpo, ppo

    value = ppo.Learner(policy, ppo.Config(), seed=3).value
    assert torch.equal(value.encoder.mean, policy.encoder.mean) and torch.equal(
        value.encoder.std, policy.encoder.std
    )
    regularised = grpo.Learner(policy, grpo.Config(reference_kl=0.1), seed=3)
    assert all(
        torch.equal(a, b) and not a.requires_grad
        for a, b in zip(regularised.reference.parameters(), policy.parameters(), strict=True)
    )
    assert "reference" not in grpo.Learner(policy, grpo.Config(), seed=3).modules


def test_the_reference_costs_no_second_pass_with_gradients(monkeypatch):
    """Each minibatch runs the policy once, and the reference once."""
    learner, collector = setting("grpo", reference_kl=0.1, epochs=1, minibatches=1)
    rollout, calls = rollout_of(learner, collector), []
    for name in ("policy", "reference"):
        network = getattr(learner, name)
        log_probs = network.log_probs
        monkeypatch.setattr(
            network,
            "log_probs",
            lambda *inputs, name=name, log_probs=log_probs: (
                calls.append(name) or log_probs(*inputs)
            ),
        )
    assert learner.update(rollout)["reference_kl"] >= 0.0
    assert calls == ["policy", "reference"]


def test_rollouts_lie_side_by_side_and_the_shorter_one_is_filled_up():
    learner, collector = setting("dapo")
    long, short = collector.episodes(4), collector.episodes(4)
    short = replace(
        short,
        **{
            name: {key: v[:3] for key, v in value.items()} if isinstance(value, dict) else value[:3]
            for name, value in vars(short).items()
            if value is not None
        },
    )
    both = long.concatenate(short)
    assert both.mask.shape == (len(long.mask), 32) and both.actions.shape == (
        len(long.mask),
        32,
        1,
        2,
    )
    assert torch.equal(both.rewards[:, :16], long.rewards) and torch.equal(
        both.rewards[:3, 16:], short.rewards
    )
    assert not both.mask[3:, 16:].any()
    assert torch.equal(both.observations["vectors"][:3, 16:], short.observations["vectors"])
    assert torch.allclose(both.returns, torch.cat([long.returns, short.returns]))
    swapped = short.concatenate(long)
    assert torch.equal(swapped.mask[:, 16:], long.mask) and not swapped.mask[3:, :16].any()


@pytest.mark.parametrize(
    "returns, rollouts, more",
    [
        ([1, 1, 1, 1, 0, 1, 0, 1], 1, True),  # one group of two teaches
        ([0, 1, 1, 1, 0, 1, 0, 1], 1, False),
        ([1, 1, 1, 1, 0, 1, 0, 1], 2, False),  # as many as the first rollout had groups
        ([1, 1, 1, 1, 0, 0, 0, 0], 5, True),
        ([1, 1, 1, 1, 0, 0, 0, 0], 6, False),
    ],
)
def test_dapo_plays_on_until_as_many_groups_teach_as_were_played_at_first(returns, rollouts, more):
    learner, collector = setting("dapo", max_resample=5)
    rollout = collector.episodes(4)
    rollout.step_rewards = torch.zeros(len(rollout.mask), 8, 1)
    rollout.step_rewards[0, :, 0], rollout.mask = (
        torch.tensor(returns).float(),
        torch.ones(len(rollout.mask), 8),
    )
    assert learner.needs_more_rollouts(rollout, rollouts) is more
    assert setting("grpo")[0].needs_more_rollouts(rollout, 1) is False


def test_a_ratio_at_the_very_bound_is_not_clipped():
    learner, collector = setting("grpo", clip_low=0.0, clip_high=0.0)
    rollout = collector.episodes(4)
    batch = {
        "vectors": rollout.observations["vectors"][0],
        "actions": rollout.actions[0],
        "advantages": torch.ones(16),
        "weights": torch.ones(16),
        "executed": rollout.executed[0],
    }
    log_probs, _ = learner.policy.log_probs(batch, batch["actions"])
    for moved, share in ((0.0, 0.0), (0.1, 1.0), (-0.1, 1.0)):
        _, metrics = learner.loss(batch | {"log_probs": log_probs.detach() + moved})
        assert metrics["clipped"] == share
