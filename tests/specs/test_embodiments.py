"""Several robots in one policy: their specs together, the network that they share, and that both
learn.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import algorithm
from rlinf_core.core.errors import RecipeError, SpecError
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.deploy.serving.weights import Weights
from rlinf_core.policies import make_policy
from rlinf_core.policies.base import Observation
from rlinf_core.policies.serialization import load_policy, save_policy
from rlinf_core.policies.small.tanh_gaussian import Config
from rlinf_core.policies.small.tanh_gaussian.policy import squashed_log_prob
from rlinf_core.recipes import check_recipe, load_recipe
from rlinf_core.recipes.station import learned_spec, longest_episode
from rlinf_core.specs.embodiment import joined, spec_of
from rlinf_core.tasks.task import load_task
from rlinf_core.trainer.train import train
from tests.algorithms.point import SPACE, SPEC, points

ONE, TWO = (load_task(f"configs/tasks/{name}.yaml").spec for name in ("reach", "reach_both"))
BOTH = joined({"one": ONE, "two": TWO})


def batch_of(spec, size, random):
    """Return a robot's observations and actions, placed among those of all robots."""
    numbers = random.normal(size=(size, spec.vector_size)).astype(np.float32)
    vectors, actions = BOTH.with_others(
        spec, numbers, random.uniform(-1, 1, (size, spec.action.dim)).astype(np.float32)
    )
    return {"vectors": torch.from_numpy(vectors)}, torch.from_numpy(actions)


def test_specs_together_have_a_place_for_every_number_of_each_and_say_whose_it_is(random):
    assert (BOTH.vector_size, BOTH.action.dim) == (
        2 + ONE.vector_size + TWO.vector_size,
        ONE.action.dim + TWO.action.dim,
    )
    ours = random.normal(size=(5, 18)).astype(np.float32)
    done = random.normal(size=(5, 6)).astype(np.float32)
    vectors, actions = BOTH.with_others(TWO, ours, done)
    assert np.array_equal(
        vectors, np.hstack([np.tile([0, 1], (5, 1)), np.zeros((5, 9)), ours]).astype(np.float32)
    )
    assert np.array_equal(actions, np.hstack([np.zeros((5, 3)), done]).astype(np.float32))
    numbers, rows = BOTH.dimension_masks
    assert numbers.tolist() == [[1, 1] + 9 * [1] + 18 * [0], [1, 1] + 9 * [0] + 18 * [1]]
    assert rows.tolist() == [3 * [1] + 6 * [0], 3 * [0] + 6 * [1]]


def test_specs_together_are_read_as_they_were_said_and_know_their_members():
    again = spec_of(json.loads(json.dumps(BOTH.to_dict())))
    assert again == BOTH and again.hash == BOTH.hash and spec_of(ONE.to_dict()) == ONE
    assert BOTH.hash == joined({"one": replace(ONE, instruction="in other words"), "two": TWO}).hash
    assert (
        len(
            {
                BOTH.hash,
                joined({"two": TWO, "one": ONE}).hash,
                joined({"a": ONE, "b": TWO}).hash,
                ONE.hash,
            }
        )
        == 4
    )
    assert (
        BOTH.member(ONE.hash) == ONE
        and BOTH.member(TWO.hash) == TWO
        and BOTH.member(BOTH.hash) is BOTH
    )
    assert (
        BOTH.member("beef") is None and ONE.member(TWO.hash) is None and ONE.member(ONE.hash) is ONE
    )
    with pytest.raises(
        SpecError, match=r"one of one \w{12}, two \w{12}. nearest is robot 'one': control_hz: 10.0"
    ):
        BOTH.slices_of(replace(ONE, control_hz=7.0))


def test_robots_that_are_the_same_or_look_through_other_cameras_are_refused():
    with pytest.raises(
        SpecError, match="'twin': expected specs that differ from those of 'one', got the same"
    ):
        joined({"one": ONE, "twin": ONE})
    seeing = load_task("configs/tasks/reach_both.yaml").with_images({"front": (8, 8)}).spec
    with pytest.raises(
        SpecError,
        match=r"'two': expected the images of 'one', none, since .*got {'front': \(8, 8, 3\)}",
    ):
        joined({"one": ONE, "two": seeing})


@pytest.mark.parametrize("mine, others", [(ONE, TWO), (TWO, ONE)], ids=["one", "two"])
def test_what_one_robot_shows_changes_the_trunk_and_nothing_of_the_others(mine, others, random):
    torch.manual_seed(0)
    policy = make_policy(BOTH, Config(hidden=(16, 16), horizon=2, fine_scale=20.0))
    policy.encoder.fit_normalisation(
        np.vstack([batch_of(spec, 50, random)[0]["vectors"] for spec in (ONE, TWO)])
    )
    inputs, actions = batch_of(mine, 8, random)
    policy.imitation_loss(inputs, actions.repeat(1, 2)).backward()
    (number, place, rows), (their_number, theirs, their_rows) = (
        BOTH.slices_of(mine),
        BOTH.slices_of(others),
    )
    # the numbers, and once more, fine
    first = policy.trunk[0].weight.grad.reshape(16, 2, BOTH.vector_size)
    assert (first[:, :, theirs] == 0).all() and (first[:, :, their_number] == 0).all()
    assert (first[:, :, place].abs().sum(dim=(0, 1)) > 0).all() and (first[:, 0, number] != 0).any()
    # two actions' means, and what their deviations are of
    head = policy.head.weight.grad.reshape(4, BOTH.action.dim, 16)
    assert (head[:, their_rows] == 0).all() and (head[:, rows].abs().sum(dim=-1) > 0).all()
    assert (policy.trunk[3].weight.grad != 0).any()


def test_each_robots_numbers_are_normalised_as_if_it_were_alone(random):
    alone, policy = make_policy(TWO, Config()), make_policy(BOTH, Config())
    vectors_by_spec = {
        spec.hash: random.normal(3, 2, (200, spec.vector_size)).astype(np.float32)
        for spec in (ONE, TWO)
    }
    policy.encoder.fit_normalisation(
        np.vstack(
            [
                BOTH.with_others(
                    spec, vectors_by_spec[spec.hash], np.zeros((200, spec.action.dim))
                )[0]
                for spec in (ONE, TWO)
            ]
        )
    )
    alone.encoder.fit_normalisation(vectors_by_spec[TWO.hash])
    vectors = torch.from_numpy(
        BOTH.with_others(TWO, vectors_by_spec[TWO.hash], np.zeros((200, 6)))[0]
    )
    normalised = policy.encoder.normalize(vectors)
    theirs = alone.encoder.normalize(torch.from_numpy(vectors_by_spec[TWO.hash]))
    assert torch.allclose(normalised[:, BOTH.slices_of(TWO)[1]], theirs, atol=1e-4)
    assert torch.allclose(normalised[:, :2], torch.tensor([0.0, 1.0]), atol=1e-3), (
        "they say which one it is"
    )
    assert (normalised[:, BOTH.slices_of(ONE)[1]] == 0).all()


@pytest.mark.parametrize("explore", [False, True])
def test_a_station_takes_from_the_file_what_is_its_own_robots(explore, tmp_path, random):
    torch.manual_seed(0)
    policy = make_policy(BOTH, Config(hidden=(16,), horizon=3, n_action_steps=2))
    path = save_policy(policy, tmp_path / "policy-00000001.safetensors")
    assert load_policy(path).spec == BOTH
    for spec in (ONE, TWO):
        station_policy = load_policy(path, spec)
        arrays = random.normal(size=(4, spec.vector_size)).astype(np.float32)
        chunk = station_policy.act(
            Observation(torch.from_numpy(arrays)), explore, torch.Generator().manual_seed(1)
        )
        among = torch.from_numpy(BOTH.with_others(spec, arrays, np.zeros((4, spec.action.dim)))[0])
        full_chunk = policy.act(Observation(among), explore, torch.Generator().manual_seed(1))
        assert (
            station_policy.spec == spec
            and chunk.actions.shape == (4, 3, spec.action.dim)
            and chunk.execute == 2
        )
        assert torch.equal(chunk.actions, full_chunk.actions[..., BOTH.slices_of(spec)[2]])
        assert torch.equal(chunk.drawn.reshape(4, 3, -1), chunk.actions)
        assert (chunk.log_probs is None) == (not explore) and (
            not explore or torch.equal(chunk.log_probs, full_chunk.log_probs)
        )
    with pytest.raises(
        SpecError,
        match="does not fit this station:\nnearest is robot 'one': control_hz: 10.0 against 7.0",
    ):
        load_policy(path, replace(ONE, control_hz=7.0))
    with pytest.raises(SpecError, match="expected one of a single robot, got one of one"):
        Weights(path)


def test_robots_are_drawn_alike_and_each_station_of_a_robot_whichever_shows_more(random):
    buffer = ReplayBuffer(BOTH, 1000)
    for origin, spec, episodes in ((1, ONE, 30), (2, ONE, 2), (3, TWO, 1)):
        for _ in range(episodes):
            ours, done = np.full((11, spec.vector_size), origin), np.zeros((11, spec.action.dim))
            vectors, actions = BOTH.with_others(spec, ours, done)
            buffer.insert_episode(
                {"vectors": vectors},
                actions[:-1].astype(np.float32),
                np.zeros(10),
                np.ones(10),
                origin=origin,
            )
    assert buffer.episodes_by_robot(2).tolist() == [32, 1]
    assert buffer.robot_weights(2)[:5].tolist() == [0, 0.5, 0.5, 1, 0]
    buffer.sample(40_000, random, weights=buffer.robot_weights(2))
    assert buffer.sampled[1:4] / 40_000 == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


@pytest.mark.parametrize(
    "change, says",
    [
        (
            ["algorithm.name=iql"],
            "embodiments: expected algorithm.name crossq, dagger, rlpd, sac, sft and policy.kind "
            "tanh_gaussian, got iql and tanh_gaussian. Others do not support several robots",
        ),
        (["policy.kind=flow"], "got sft and flow"),
        (["algorithm.name=rlpd", "placement.workers=1"], "expected placement.workers 0, got 1"),
        (
            ["placement.learners=2"],
            "expected placement.learners 0, got 2. Training on several robots runs in one process",
        ),
        (
            ["algorithm.name=sac", "placement.replay_shards=2"],
            "expected placement.replay_shards 0, got 2",
        ),
        (["~embodiments.two"], "expected two or more, and no env, got one"),
        (["embodiments.two.robot=franka_sim"], "expected one arm, without a name"),
        (
            ["embodiments.two={robot: franka_sim, task: reach}"],
            "embodiments: 'two': expected specs that differ from those of 'one'",
        ),
    ],
)
def test_recipes_that_cannot_be_are_refused_in_words(change, says):
    with pytest.raises(RecipeError) as error:
        recipe = load_recipe("sim_embodiments", change)
        check_recipe(recipe)
        learned_spec(recipe)
    assert says in str(error.value)


@pytest.mark.slow
def test_one_policy_learns_two_robots_that_it_fails_with_before(tmp_path):
    recipe = load_recipe(
        "sim_embodiments",
        ["collect.episodes=60", "simulation.evaluate_episodes=40", "policy.hidden=[64, 64]"],
    )
    successes = []
    on_progress = lambda run, entry: entry and successes.append(dict(run.source.success))  # noqa: E731
    last = train(recipe, tmp_path, points, on_progress)
    assert max(successes[0].values()) <= 0.2 and min(successes[-1].values()) >= 0.9, successes
    assert last["episodes"] == 80 and last["success"] == pytest.approx(
        np.mean(list(successes[-1].values()))
    )
    file = max((tmp_path / "policies").iterdir())
    for spec in (SPEC, SPACE):
        assert load_policy(file, spec).spec == spec, "a station of either takes its own of the file"
    progress = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [
        {name: line[f"{name}/success"] for name in ("one", "two")} for line in progress
    ] == successes


@pytest.mark.parametrize("name", ["sac", "rlpd", "crossq"])
def test_of_what_one_robot_does_nothing_is_learned_about_the_others(name, random):
    """Actions of others are drawn beside its own: neither critics, entropy nor imitation may see
    them.
    """
    chosen = algorithm(name)
    torch.manual_seed(0)
    learner = chosen.Learner(
        make_policy(BOTH, Config(hidden=(16,))),
        chosen.Config(critic_hidden=(16,), critic_warmup=0, actor_every=1, batch_size=8),
    )
    inputs, actions = batch_of(ONE, 8, random)
    batch = {
        "vectors": inputs["vectors"].numpy(),
        "next/vectors": inputs["vectors"].numpy(),
        "action": actions.numpy(),
        "reward": np.ones(8, np.float32),
        "discount": np.ones(8, np.float32),
    }
    theirs, head = BOTH.slices_of(TWO)[2], learner.actor.head
    before = [value.detach().clone() for value in (head.weight, learner.critics.weights[0])]
    metrics = learner.update(batch)
    moved = [
        (old != new).any(dim=-1)
        for old, new in zip(before, (head.weight, learner.critics.weights[0]), strict=True)
    ]
    of_head = moved[0].reshape(2, BOTH.action.dim)  # means and deviations
    of_critic = moved[1][:, -BOTH.action.dim :]
    assert not of_head[:, theirs].any() and not of_critic[:, theirs].any()
    assert of_head[:, BOTH.slices_of(ONE)[2]].all() and of_critic[:, BOTH.slices_of(ONE)[2]].all()
    assert learner.controlled_dimensions(inputs) == ONE.action.dim, (
        "the entropy is asked of its own actions alone"
    )
    mean, log_std = (value[:, BOTH.slices_of(ONE)[2]] for value in learner.actor(inputs))
    gaussian = torch.distributions.Normal(mean, log_std.exp())
    raw = gaussian.mean + gaussian.stddev
    expected = (gaussian.log_prob(raw) - torch.log1p(-(torch.tanh(raw) ** 2))).sum(dim=-1)
    outputs = [value.clone() for value in learner.actor(inputs)]
    assert torch.allclose(
        squashed_log_prob(
            outputs[0] + outputs[1].exp(), *outputs, learner.actor.robot_mask(inputs)
        ),
        expected,
        atol=1e-3,
    )
    assert np.isfinite(metrics["critic_loss"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "rlpd, critic_warmup: 100, discount: 0.95, critic_hidden: [64, 64], batch_size: 128",
        "dagger, steps: 500",
    ],
)
def test_on_the_way_one_policy_becomes_better_with_two_robots(name, tmp_path):
    """Three demonstrations of each do not suffice; what it then plays itself, rewarded or
    corrected, does.
    """
    recipe = load_recipe(
        "sim_embodiments",
        [
            "collect.episodes=3",
            f"algorithm={{name: {name}}}",
            "policy.hidden=[64, 64]",
            "sft.steps=150",
            "online.max_staleness=0",
            "simulation={"  # what simulators bring is never stale
            "environments: 1, env_steps: 1500, start_steps: 100, updates_per_step: 1.0, "
            "evaluate_every: 1500, "
            "evaluate_episodes: 40}",
        ],
    )
    counts_by_entry, scenes = [], []

    def make(recipe, size):
        env, seeds_of_env = points(recipe, size), set()
        scenes.append(seeds_of_env)
        reset, env.reset = env.reset, lambda seeds: seeds_of_env.update(seeds) or reset(seeds)
        return env

    train(recipe, tmp_path, make, lambda run, entry: entry and counts_by_entry.append(run.counts()))
    held_out = [
        {scene in range(1_000_000, 1_000_040) for scene in seeds_of_env} for seeds_of_env in scenes
    ]
    assert held_out == [{False}, {False}, {True}, {True}], (
        "nobody is judged in the midst of a training episode"
    )
    before, after = (
        [counts[f"{robot}/success"] for robot in ("one", "two")]
        for counts in (counts_by_entry[0], counts_by_entry[-1])
    )
    assert max(before) <= 0.7 and min(after) >= 0.9
    assert counts_by_entry[-1]["one/sampled"] == pytest.approx(
        counts_by_entry[-1]["two/sampled"], rel=0.2
    ), "as much of each"
    assert (
        counts_by_entry[-1]["steps"]
        == counts_by_entry[-1]["one/steps"] + counts_by_entry[-1]["two/steps"]
        >= 1500
    )


@pytest.mark.slow
def test_one_policy_learns_one_arm_and_two_arms(tmp_path):
    """In the simulators, behind their interlocks: minutes."""
    recipe = load_recipe("sim_embodiments", ["simulation.evaluate_episodes=10"])
    assert learned_spec(recipe).hash == BOTH.hash and longest_episode(recipe) == 40
    successes = []
    train(
        recipe,
        tmp_path,
        on_progress=lambda run, entry: entry and successes.append(dict(run.source.success)),
    )
    assert max(successes[0].values()) <= 0.2 and min(successes[-1].values()) >= 0.8, successes
