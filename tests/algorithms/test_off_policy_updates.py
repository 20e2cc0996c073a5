"""Whole updates of SAC, CrossQ, RLPD and DSRL, step by step, beside the papers' losses written once
more.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rlinf_core.algorithms import algorithm, crossq, dsrl, rlpd, sac, sac_flow
from rlinf_core.algorithms.common.image_augmentation import shift_images
from rlinf_core.algorithms.common.optimizer import polyak_update
from rlinf_core.algorithms.common.tensors import to_tensors
from tests.algorithms.by_hand import (
    SMALL,
    Adam,
    assert_alike,
    batches,
    parts,
    pictures,
    prepared,
    seeing,
    twin,
)

SOFT = SMALL | dict(
    discount=0.9, adam_beta=0.7, initial_temperature=0.3, target_entropy=-0.7, clip_gradient=0.5
)


class Soft:
    """Haarnoja et al. 2018 (1812.05905), equations 5 to 18, with what REDQ, RLPD and CrossQ
    change.
    """

    def __init__(self, learner):
        self.reference = twin(learner)
        self.config = learner.config
        self.updates = 0
        self.dropped = 0
        config, reference = self.config, self.reference
        rate = config.critic_learning_rate or config.learning_rate
        self.critic = Adam(
            [*reference.encoder.parameters(), *reference.critics.parameters()],
            rate,
            config.adam_beta,
        )
        self.actor = Adam(
            [p for p in reference.actor.parameters()], config.learning_rate, config.adam_beta
        )
        self.temperature = Adam([reference.temperature.log], rate, config.adam_beta)

    def update(self, batch):
        here, next_observations = parts(batch)
        expected = self.step_critics(here, next_observations)
        self.updates += 1
        if self.updates > self.config.critic_warmup and self.updates % self.config.actor_every == 0:
            expected |= self.improve_actor(here)
        return expected

    def bellman(self, here, values, log_prob):
        config = self.config
        drawn = torch.randperm(config.critics, generator=self.reference.generator)[
            : config.target_critics
        ]
        worst = torch.stack([values[e] for e in drawn.tolist()]).amin(0)
        if config.entropy_backup:
            worst = worst - self.reference.temperature.log.exp().detach() * log_prob
        return (
            here["reward"]
            + here["discount"] * config.discount ** here.get("steps", torch.tensor(1.0)) * worst
        )

    def measured(self, target):
        """Return the scale of the values; each step moves it by 1 % (arXiv 1602.07714)."""
        size = max(
            1.0,
            0.99 * self.reference.value_scale.scale.item()
            + 0.01 * target.square().mean().sqrt().item(),
        )
        last = (self.reference.critics.weights[-1], self.reference.critics.biases[-1])
        self.critic.factors = [
            size if any(p is parameter for parameter in last) else 1.0
            for p in self.critic.parameters
        ]
        self.reference.value_scale.scale.fill_(size)
        return size

    def step_critics(self, here, next_observations):
        reference, config = self.reference, self.config
        with torch.no_grad():
            action, log_prob = reference.actor.sample(next_observations, reference.generator)
        if isinstance(self.config, crossq.Config):
            reference.critics.train()
            features = torch.cat([reference.encoder(here), reference.encoder(next_observations)])
            both = reference.critics(features, torch.cat([here["action"], action]))
            values, size = both[:, : len(action)], len(action)
            target = self.bellman(here, both[:, size:].detach(), log_prob)
        else:
            with torch.no_grad():
                target = self.bellman(
                    here,
                    reference.target[1](reference.target[0](next_observations), action),
                    log_prob,
                )
            values = reference.critics(reference.encoder(here), here["action"])
        unit = self.measured(target)
        loss = sum(F.mse_loss(values[e] / unit, target / unit) for e in range(config.critics))
        self.critic.optimizer_step(loss, config.clip_gradient)
        if hasattr(reference, "target"):
            rate = config.target_rate
            with torch.no_grad():
                for slow, quick in zip(
                    [*reference.target[0].parameters(), *reference.target[1].parameters()],
                    self.critic.parameters,
                    strict=True,
                ):
                    slow.copy_((1 - rate) * slow + rate * quick)
        return {"critic_loss": loss.item(), "q": values.mean().item()}

    def improve_actor(self, here):
        reference, config = self.reference, self.config
        reference.critics.eval()
        action, log_prob = reference.actor.sample(here, reference.generator)
        values = reference.critics(reference.encoder(here).detach(), action)
        value = values.mean(0) if isinstance(config, rlpd.Config) else values.amin(0)
        loss = (reference.temperature.log.exp().item() * log_prob - value).mean()
        expected = {"actor_loss": loss.item()}
        if isinstance(config, rlpd.Config):
            half, (mean, log_std) = len(action) // 2, reference.actor(here)
            shown = here["action"][half:]
            shown = shown + config.cloning_noise * torch.randn(
                shown.shape, generator=reference.generator
            )
            normal = torch.distributions.Normal(mean[half:], log_std[half:].exp())
            squashed = torch.distributions.TransformedDistribution(
                normal, torch.distributions.TanhTransform()
            )
            likely = squashed.log_prob(shown.clamp(-0.97, 0.97)).sum(1)
            if config.cloning_filter:  # Nair et al. 2018 (1709.10089), equation 4
                features, filtered = reference.encoder(here)[half:], []
                for row in range(half):
                    done, instead = (
                        reference.critics(features[row : row + 1], a[None])[:, 0].tolist()
                        for a in (here["action"][half + row], torch.tanh(mean[half + row]))
                    )
                    worse = all(one < other for one, other in zip(done, instead, strict=True))
                    filtered.append(0 * likely[row] if worse else likely[row])
                    self.dropped += worse
                likely = torch.stack(filtered)
            cloning = -likely.mean()
            loss = loss + config.cloning * 10 ** (-self.updates / config.cloning_steps) * cloning
            expected["cloning"] = cloning.item()
        self.actor.optimizer_step(loss, config.clip_gradient)
        entropy, size = -log_prob.mean().item(), action.shape[1]
        self.temperature.optimizer_step(
            reference.temperature.log.exp() * (entropy - config.target_entropy * size)
        )
        return expected | {
            "entropy": entropy,
            "temperature": reference.temperature.log.exp().item(),
        }


@pytest.mark.parametrize(
    "module, horizon, changes",
    [
        (sac, 1, dict(critics=3, target_rate=0.2)),
        (sac, 1, dict(critic_learning_rate=2e-3)),
        (
            sac,
            2,
            dict(critics=4, target_critics=3, entropy_backup=False, actor_every=2, critic_warmup=1),
        ),
        (sac_flow, 1, dict(target_rate=0.1)),
        (
            rlpd,
            1,
            dict(entropy_backup=True, actor_every=1, critic_warmup=0, cloning=0.3, cloning_steps=5),
        ),
        (rlpd, 2, dict(critic_warmup=2)),
        (
            rlpd,
            2,
            dict(actor_every=1, critic_warmup=0, cloning=0.3, cloning_filter=True, critics=2),
        ),
        (crossq, 1, dict(renorm_warmup=2, renorm_momentum=0.1, actor_every=1)),
        (crossq, 2, dict(renorm_momentum=0.2)),
    ],
)
def test_six_updates_of_an_actor_critic_equal_the_papers(module, horizon, changes, random):
    kind = "flow" if module is sac_flow else "tanh_gaussian"
    learner = module.Learner(prepared(kind, horizon), module.Config(**(SOFT | changes)), seed=1)
    by_hand = Soft(learner)
    for batch in batches(6, random, horizon):
        if module is rlpd:
            batch["action"] *= 1.6  # a person may have asked for more than the policy can
        got, expected = learner.update(batch), by_hand.update(batch)
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert_alike(learner, by_hand.reference)
    assert (by_hand.dropped > 0) is changes.get("cloning_filter", False)


def test_what_the_actor_learns_leaves_the_critics_and_their_gradients_alone(random):
    learner = sac.Learner(seeing(), sac.Config(**SOFT), seed=1)
    batch = to_tensors(pictures(random))
    learner.update_critics(batch)
    judges = [
        *learner.encoder.parameters(),
        *learner.critics.parameters(),
        *learner.target.parameters(),
    ]
    before = [(p.clone(), None if p.grad is None else p.grad.clone()) for p in judges]
    learner.update_actor(batch)
    for p, (value, gradient) in zip(judges, before, strict=True):
        assert torch.equal(p, value) and (
            p.grad is None if gradient is None else torch.equal(p.grad, gradient)
        )
    assert all(p.requires_grad for p in learner.critics.parameters()), (
        "and they learn on afterwards"
    )
    assert not any(p.requires_grad for p in learner.target.parameters())


@pytest.mark.parametrize("target, rises", [(5.0, True), (-5.0, False)])
@pytest.mark.parametrize("horizon", [1, 2])
def test_the_temperature_rises_where_entropy_is_too_low_and_falls_where_it_is_too_high(
    target, rises, horizon, random
):
    """The target counts per action dimension, all actions of a chunk included."""
    learner = sac.Learner(
        prepared(horizon=horizon), sac.Config(**(SOFT | dict(target_entropy=target))), seed=1
    )
    batch = batches(1, random, horizon)[0]
    for _ in range(3):
        metrics = learner.update(batch)
    assert (metrics["temperature"] > 0.3) is rises
    gradient = metrics["entropy"] - target * 2 * horizon
    before = learner.temperature().item()
    learner.optimisers["temperature"] = torch.optim.SGD(learner.temperature.parameters(), lr=0.01)
    entropy = learner.update(batch)["entropy"]
    moved = (np.log(learner.temperature().item()) - np.log(before)) / 0.01
    assert (
        moved == pytest.approx(-before * (entropy - target * 2 * horizon), rel=1e-3)
        and gradient * moved < 0
    )


@pytest.mark.parametrize("module", [sac, crossq, rlpd])
def test_a_learner_begins_as_its_actor_and_its_seed_say(module):
    actor = prepared()
    learner = module.Learner(
        actor, module.Config(**(SMALL | dict(initial_temperature=0.4, critics=3))), seed=7
    )
    for name, value in learner.encoder.state_dict().items():
        assert torch.equal(value, actor.encoder.state_dict()[name])
    assert learner.temperature().item() == pytest.approx(0.4) and learner.updates == 0
    assert learner.critics(torch.zeros(5, 2), torch.zeros(5, 2)).shape == (3, 5)
    same, other = (module.Learner(prepared(), learner.config, seed=seed) for seed in (7, 8))
    assert torch.equal(same.critics.weights[0], learner.critics.weights[0])
    assert not torch.equal(other.critics.weights[0], learner.critics.weights[0])
    assert torch.equal(same.generator.get_state(), learner.generator.get_state())
    assert not torch.equal(other.generator.get_state(), learner.generator.get_state())
    assert all(
        0.9 / np.sqrt(w.shape[1]) < w.abs().max().item() <= 1 / np.sqrt(w.shape[1])
        for w in learner.critics.weights
        if w.numel() > 100
    )
    if hasattr(learner, "target"):
        for slow, quick in zip(
            learner.target.parameters(),
            [*learner.encoder.parameters(), *learner.critics.parameters()],
            strict=True,
        ):
            assert torch.equal(slow, quick) and slow is not quick


@pytest.mark.parametrize("name", ["sac", "iql", "sft"])
def test_images_of_a_batch_are_moved_before_anything_is_learned(name, random):
    """Random shifts as in DrQ equal learning from images with the same shifts."""
    module, sizes = algorithm(name), {} if name == "sft" else {"critic_hidden": (8,)}

    def learner(shift):
        return module.Learner(seeing(), module.Config(image_shift=shift, **sizes), seed=3)

    batch, moving, still = pictures(random), learner(2), learner(0)
    moved = shift_images(to_tensors(batch), 2, still.generator)
    assert not torch.equal(moved["front"], torch.as_tensor(batch["front"]))
    assert moving.update(batch) == still.update(
        {key: value.numpy() for key, value in moved.items()}
    )
    assert_alike(moving, still)


def test_dsrl_steers_by_what_the_critics_say_of_the_choice(random):
    """Soft actor-critic over the noise; the flow gets no gradient."""
    learner = dsrl.Learner(
        prepared("latent_noise", noise_policy=(16,)), dsrl.Config(**SOFT), seed=1
    )
    flow, by_hand = [p.clone() for p in learner.actor.flow.parameters()], Soft(learner)
    by_hand.actor = Adam(by_hand.reference.actor.noise_policy.parameters(), 3e-3, 0.7)
    for batch in batches(3, random):
        assert learner.update(batch) == pytest.approx(by_hand.update(batch), rel=1e-4, abs=1e-5)
    assert_alike(learner, by_hand.reference)
    assert all(
        torch.equal(a, b) and b.grad is None
        for a, b in zip(flow, learner.actor.flow.parameters(), strict=True)
    )


def test_following_moves_by_the_rate():
    slow, quick = torch.tensor([0.0, 4.0]), torch.tensor([1.0, 0.0])
    polyak_update([slow], [quick], 0.25)
    assert slow.tolist() == [0.25, 3.0] and quick.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("module", [sac, pytest.param(crossq, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [400.0, pytest.param(0.8, marks=pytest.mark.slow)])
def test_values_of_hundreds_are_learned_as_soon_as_small_ones(module, size, random):
    """In 800 steps of 1e-3, each of which moves what a last layer of 16 says by about 0.01 times
    their size.
    """
    learner = module.Learner(
        prepared(), module.Config(**(SOFT | dict(learning_rate=1e-3, clip_gradient=10.0))), seed=1
    )
    batch = batches(1, random, 1)[0]
    batch["reward"], batch["discount"] = (
        np.full_like(batch["reward"], -size),
        np.zeros_like(batch["discount"]),
    )
    for _ in range(800):
        q = learner.update(batch)["q"]
    assert q == pytest.approx(-size, rel=0.15)
    assert learner.value_scale.scale.item() == pytest.approx(max(1.0, size), rel=0.05)
