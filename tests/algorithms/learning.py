"""A learning run of every algorithm on the points of ``point.py``, with thresholds of success.

The tests run one seed of each algorithm, and end a run above ``ENOUGH``. ``benchmarks/algorithms.py``
runs three seeds to their ends, with curves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from rlinf_core.algorithms import algorithm, dagger, dsrl, iql, recap, residual, rlpd, sft
from rlinf_core.algorithms.common.mixed_precision import apply_computing
from rlinf_core.algorithms.common.settings import PLAIN
from rlinf_core.data.replay import ReplayBuffer, mix
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.policies.small.residual.policy import ResidualActor
from rlinf_core.rollouts.collect import ChunkRollouts
from tests.algorithms.point import SPEC, Points, expert, misled, play, success
from tests.algorithms.toy import acted

SMALL = dict(critic_hidden=(64, 64), discount=0.95, learning_rate=1e-3)
SOON = dict(initial_temperature=0.1)  # from 1 it falls for a thousand updates
EPISODE_RETURNS = dict(group=8, learning_rate=3e-3, epochs=4, minibatches=4)
ROLLOUTS = dict(chunks=32, learning_rate=1e-3, epochs=6, minibatches=4)
CONFIGS = {
    "ppo": ROLLOUTS,
    "async_ppo": ROLLOUTS,
    "grpo": EPISODE_RETURNS,
    "dapo": EPISODE_RETURNS,
    "reinforce": EPISODE_RETURNS,
    "sac": SMALL | SOON,
    "crossq": SMALL | SOON | dict(actor_every=1, renorm_warmup=200, learning_rate=3e-3),
    "sac_flow": SMALL,
    "rlpd": SMALL | dict(critics=3, critic_warmup=200),
}
ENOUGH = 0.95


@dataclass
class Run:
    """The result of a run.

    Attributes:
        before, after: success over 64 held-out scenes.
        at_most, at_least: thresholds of these two.
        steps: number of environment steps.
        curve: (environment steps, success) of each evaluation.
    """

    before: float
    after: float
    steps: int
    at_most: float = 0.20
    at_least: float = 0.90
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def learned(self) -> bool:
        return self.before <= self.at_most and self.after >= self.at_least

    def look(self, actor, at: int, to_its_end: bool) -> bool:
        """Record the success, and return whether the run may end."""
        self.curve.append((at, solved(actor)))
        return not to_its_end and self.curve[-1][1] >= ENOUGH


def make(kind="tanh_gaussian", seed=0, **config):
    """Return a small policy."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return of_config(SPEC, policy_kind(kind).Config(**({"hidden": (64, 64)} | config)))


def of_config(spec, config):
    """Return a policy of any kind that can learn the task.

    A residual policy gets a tanh-Gaussian base, and corrects it fully. A pi0-FAST from scratch gets a
    vocabulary of actions only, because one other word in a chunk would replace it by the mean.
    """
    if config.kind == "pi0_fast":
        return randomize_head(
            make_policy(spec, config.but(network=words_of_actions(), max_decoding_steps=24))
        )
    if config.kind != "residual":
        return make_policy(spec, config)
    sizes = {
        name: getattr(config, name) for name in ("hidden", "horizon", "image_features", "channels")
    }
    actor = ResidualActor(
        spec, config, make_policy(spec, policy_kind("tanh_gaussian").Config(**sizes))
    )
    actor.share.fill_(1.0)
    return actor


def words_of_actions():
    """Return a network config whose 514 tokens each stand for a number in about [-1, 1]."""
    from rlinf_core.policies.pretrained.pi0_fast.fast import letter_tokenizer

    return {"action_tokenizer": {"text": letter_tokenizer(514), "scale": 257.0, "least": -257}}


def randomize_head(policy):
    """Give a pi0-FAST a random head, because its initial head repeats the last word."""
    with torch.no_grad():
        policy.network.lm_head.weight.normal_()
    return policy


def learner_of(name, seed=0, horizon=1, kind="gaussian", computing=PLAIN, **changes):
    """Return an algorithm with its configuration for the points."""
    module = algorithm(name)
    learner = module.Learner(
        make(kind, seed, horizon=horizon), module.Config(**(CONFIGS[name] | changes)), seed
    )
    apply_computing(learner, computing)
    return learner


def solved(actor):
    """Return the success of a policy without exploration."""
    return success(
        lambda arrays: actor.act(Observation.from_arrays(SPEC, arrays), False).actions.numpy()
    )


def buffer_of(act, episodes, latent=0, shaping=1.0):
    """Return a replay with some episodes of ``act``."""
    buffer = ReplayBuffer(SPEC, 50_000, latent)
    for seed in range(episodes):
        buffer.insert_episode(*play(act, seed, shaping))
    return buffer


def on_policy(name, seed=0, rollouts=60, size=64, stale=0, to_its_end=False, **changes) -> Run:
    """Train with ``size`` environments; each rollout is learned ``stale`` updates later."""
    learner = learner_of(name, seed, **changes)
    collector = ChunkRollouts(Points(size), learner.policy, seed)
    run, waiting, config = Run(solved(learner.policy), 0.0, 0), [], learner.config
    for number in range(rollouts):
        collector.version = learner.updates
        waiting.extend(collector.play(**config.rollout).rollouts)
        run.steps += int(waiting[-1].steps.sum())
        if len(waiting) > stale:
            learner.update(waiting.pop(0))
        if number % (rollouts // 12) == 0 and run.look(learner.policy, run.steps, to_its_end):
            break
    run.after = solved(learner.policy)
    return run


def off_policy(name, seed=0, steps=3000, kind="tanh_gaussian", to_its_end=False, **changes) -> Run:
    """Train with one environment and one update per time step."""
    return online(
        learner_of(name, seed, kind=kind, **changes),
        np.random.default_rng(seed),
        steps,
        to_its_end=to_its_end,
    )


def online(learner, random, steps, batch=128, to_its_end=False, demonstrations=None) -> Run:
    """Train a learner while its policy plays.

    ``demonstrations`` fill half of every batch. For a noise policy the latent noise is stored, too.
    """
    actor, seed, draw = learner.actor, 0, torch.Generator().manual_seed(int(random.integers(2**31)))
    buffer = ReplayBuffer(actor.policy_spec, 50_000, actor.latent_size)
    run = Run(solved(actor), 0.0, 0)
    random_warmup = 0 if actor.latent_size or demonstrations else 300
    while buffer.inserted < steps:
        drawn = []

        def act(observation):
            if buffer.inserted < random_warmup:
                return random.uniform(-1, 1, (1, 2))
            chunk = actor.act(Observation.from_single(SPEC, observation), True, draw)
            drawn.append(chunk.drawn[0].numpy())  # noqa: B023
            return chunk.actions[0].numpy()

        observations, *rest = play(act, seed)
        episode = actor.annotate(observations), *rest
        buffer.insert_episode(*episode, latents=np.array(drawn) if actor.latent_size else None)
        seed += 1
        while buffer.inserted >= 300 and learner.updates < buffer.inserted - random_warmup:
            learner.update(
                buffer.sample(batch, random)
                if demonstrations is None
                else mix(
                    buffer.sample(batch // 2, random), demonstrations.sample(batch // 2, random)
                )
            )
        if buffer.inserted >= len(run.curve) * steps / 12 and run.look(
            actor, buffer.inserted, to_its_end
        ):
            break
    run.after, run.steps = solved(actor), buffer.inserted
    return run


def rlpd_run(seed=0, to_its_end=False) -> Run:
    """Clone twelve demonstrations of ``misled`` a little, then train RLPD."""
    random = np.random.default_rng(seed)
    demonstrations = buffer_of(misled(random, 0.8), 12)
    actor = make(seed=seed)
    cloner = sft.Learner(actor, sft.Config(learning_rate=1e-3), seed)
    for _ in range(20):
        cloner.update(demonstrations.sample(64, random))
    learner = rlpd.Learner(actor, rlpd.Config(**CONFIGS["rlpd"]), seed)
    run = online(learner, random, 2500, to_its_end=to_its_end, demonstrations=demonstrations)
    run.at_most = 0.70
    return run


def residual_run(seed=0, to_its_end=False) -> Run:
    """Correct a frozen cloned base by residual RL; ``before`` is the base alone."""
    random, base = np.random.default_rng(seed), make(seed=seed)
    demonstrations = buffer_of(misled(random, 0.8), 12)
    cloner = sft.Learner(base, sft.Config(learning_rate=1e-3), seed)
    for _ in range(20):
        cloner.update(demonstrations.sample(64, random))
    weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    actor = ResidualActor(
        SPEC, policy_kind("residual").Config(hidden=(64, 64), residual_bound=1.0), base
    )
    actor.share.fill_(1.0)
    learner = residual.Learner(actor, residual.Config(**CONFIGS["rlpd"]), seed)
    run = online(
        learner,
        random,
        2500,
        to_its_end=to_its_end,
        demonstrations=annotated(actor, demonstrations),
    )
    run.before, run.at_most = solved(base), 0.70
    assert all(
        torch.equal(tensor, weights[name]) for name, tensor in actor.base.state_dict().items()
    )
    return run


def annotated(actor, buffer):
    """Return the same episodes with the base's chunks."""
    result = ReplayBuffer(actor.policy_spec, buffer.capacity)
    for episode in buffer.trajectories("demonstration"):
        result.insert_episode(
            actor.annotate(episode.observations),
            episode.actions,
            episode.rewards,
            episode.discounts,
        )
    return result


def sft_run(seed=0, kind="tanh_gaussian", to_its_end=False) -> Run:
    """Clone sixty good demonstrations."""
    random, actor = np.random.default_rng(seed), make(kind, seed)
    data = buffer_of(lambda o: expert(o)[None], 60)
    cloner = sft.Learner(actor, sft.Config(min_std=0.1, learning_rate=3e-3), seed)
    return cloned(cloner, data, random, to_its_end)


def cloned(cloner, data, random, to_its_end) -> Run:
    """Clone for at most two thousand gradient steps."""
    run = Run(solved(cloner.actor), 0.0, data.inserted)
    for number in range(2000):
        if number % 200 == 0 and run.look(cloner.actor, number, to_its_end):
            break
        cloner.update(data.sample(128, random))
    run.after = solved(cloner.actor)
    return run


def lora_run(seed=0, to_its_end=False) -> Run:
    """Correct a policy, cloned from ``misled``, by good demonstrations and adapters of rank 4."""
    random, actor = np.random.default_rng(seed), make(seed=seed)
    wrong, right = buffer_of(misled(random, 0.0), 60), buffer_of(lambda o: expert(o)[None], 60)
    cloner = sft.Learner(actor, sft.Config(learning_rate=1e-3), seed)
    for _ in range(300):
        cloner.update(wrong.sample(128, random))
    cloner = sft.Learner(actor, sft.Config(lora_rank=4, learning_rate=3e-3), seed)
    return cloned(cloner, right, random, to_its_end)


def dsrl_run(seed=0, to_its_end=False) -> Run:
    """Train a noise policy for a frozen cloned flow; ``before`` is the flow alone."""
    random = np.random.default_rng(seed)
    latent_noise = make("latent_noise", seed, noise_policy=(64, 64))
    flow = latent_noise.flow
    data = buffer_of(misled(random), 60)
    cloner = sft.Learner(flow, sft.Config(min_std=0.0, learning_rate=1e-3), seed)
    for _ in range(1500):
        cloner.update(data.sample(128, random))
    alone = solved(flow)
    run = online(
        dsrl.Learner(latent_noise, dsrl.Config(**SMALL), seed), random, 2500, to_its_end=to_its_end
    )
    run.before, run.at_most = alone, 0.70
    return run


def iql_run(seed=0, to_its_end=False) -> Run:
    """Learn from transitions of ``misled`` only, in comparison with a cloned policy."""
    random, cloned = np.random.default_rng(seed), make(seed=seed)
    data = buffer_of(misled(random), 200)
    cloner = sft.Learner(cloned, sft.Config(min_std=0.0, learning_rate=1e-3), seed)
    learner = iql.Learner(
        make(seed=seed),
        iql.Config(steps=4000, **(SMALL | dict(expectile=0.8, temperature=10.0, target_rate=0.02))),
        seed,
    )
    run = Run(0.0, 0.0, data.inserted, at_most=0.70)
    for number in range(4000):
        if number % 250 == 0 and run.look(learner.actor, number, to_its_end):
            break
        batch = data.sample(128, random)
        cloner.update(batch)
        learner.update(batch)
    run.before, run.after = solved(cloned), solved(learner.actor)
    return run


def recap_run(seed=0, to_its_end=False) -> Run:
    """Learn from transitions of ``misled`` only, in comparison with a cloned policy."""
    random, cloned = np.random.default_rng(seed), make(seed=seed)
    data = buffer_of(misled(random), 200, shaping=0.0)
    cloner = sft.Learner(cloned, sft.Config(min_std=0.0, learning_rate=1e-3), seed)
    learner = recap.Learner(
        make("conditioned", seed),
        recap.Config(
            steps=2000,
            value_steps=800,
            value_hidden=(64, 64),
            learning_rate=3e-3,
            discount=0.9,
            n_step=1,
            target_rate=0.05,
        ),
        seed,
    )
    labelled = annotated(learner.actor, data)
    learner.fit_normalisation(labelled.vectors())
    run = Run(0.0, 0.0, data.inserted, at_most=0.70)
    for number in range(2000):
        if number % 250 == 0 and run.look(learner.actor, number, to_its_end):
            break
        if number < 800:
            cloner.update(data.sample(128, random))
        learner.update(labelled.sample(128, random, gamma=0.9, n_step=learner.config.n_step))
    run.before, run.after = solved(cloned), solved(learner.actor)
    return run


def dagger_run(seed=0, gated=False, to_its_end=False) -> Run:
    """Play sixty episodes, with 25 gradient steps after each."""
    random, actor = np.random.default_rng(seed), make(seed=seed)
    learner = dagger.Learner(
        actor, dagger.Config(gated=gated, learning_rate=1e-3, min_std=0.02), seed
    )
    run, draw = Run(solved(actor), 0.0, 0), torch.Generator().manual_seed(seed)
    data = {"vectors": np.zeros((0, 2), np.float32), "action": np.zeros((0, 2), np.float32)}
    for episode in range(60):
        labels, sources = [], []

        def act(observation):
            drives = random.random() < learner.config.expert_fraction(episode)  # noqa: B023
            labels.append(expert(observation))  # noqa: B023
            sources.append("operator" if drives else "policy")  # noqa: B023
            return labels[-1][None] if drives else acted(actor, observation, True, draw)  # noqa: B023

        observations, actions, *_ = play(act, episode)
        run.steps += len(actions)
        counts = learner.config.learning_mask(sources)
        data["vectors"] = np.concatenate([data["vectors"], observations["vectors"][:-1][counts]])
        data["action"] = np.concatenate([data["action"], np.array(labels, np.float32)[counts]])
        for _ in range(25):
            index = random.integers(0, len(data["action"]), 128)
            learner.update({name: values[index] for name, values in data.items()})
        if episode % 5 == 0 and run.look(actor, run.steps, to_its_end):
            break
    run.after = solved(actor)
    return run


RUNS: dict[str, Callable[..., Run]] = {
    "PPO": partial(on_policy, "ppo"),
    "PPO, chunks of 2, ratios of actions": partial(
        on_policy, "ppo", horizon=2, chunks=16, rollouts=110
    ),
    "PPO, chunks of 2, ratios of chunks": partial(
        on_policy, "ppo", horizon=2, chunks=16, rollouts=110, level="chunk"
    ),
    "async PPO": partial(on_policy, "async_ppo", stale=2),
    "async PPO, interpolated": partial(on_policy, "async_ppo", stale=2, proximal="interpolated"),
    "GRPO": partial(on_policy, "grpo"),
    "DAPO": partial(on_policy, "dapo"),
    "REINFORCE++": partial(on_policy, "reinforce"),
    "REINFORCE++ with baseline": partial(on_policy, "reinforce", baseline=True),
    "SAC": partial(off_policy, "sac"),
    "CrossQ": partial(off_policy, "crossq"),
    "SAC-Flow": partial(off_policy, "sac_flow", kind="flow", steps=4500),
    "RLPD": rlpd_run,
    "Residual": residual_run,
    "DSRL": dsrl_run,
    "IQL": iql_run,
    "RECAP": recap_run,
    "DAgger": dagger_run,
    "HG-DAgger": partial(dagger_run, gated=True),
    "SFT": sft_run,
    "SFT of a flow": partial(sft_run, kind="flow"),
    "SFT, LoRA": lora_run,
}
