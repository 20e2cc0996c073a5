"""The rollout of a recorded episode: what each chunk of the policy is judged by, and what follows
it.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.algorithms import ppo
from rlinf_core.algorithms.common.advantages import gae
from rlinf_core.core.errors import EpisodeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.spool import Spool
from rlinf_core.policies import make_policy
from rlinf_core.policies.pretrained import pi0
from rlinf_core.policies.small import gaussian
from rlinf_core.rollouts.episode_conversion import episode_to_rollout, episode_to_trajectory
from rlinf_core.specs.arrays import INSTRUCTION, decode_instructions
from tests.messages import record

SIZES = gaussian.Config(hidden=(8,), horizon=4, n_action_steps=2)


@pytest.fixture
def recorded(tmp_path, task):
    """Episodes of chunks of four, two of which are played; the reward of a transition is the number
    of its time step.
    """
    spec = task.with_images({"front": (8, 8)}).spec

    def make(name="a", chunk=(4, 2), **how):
        def numbered(topic, number, message):
            if topic == "timestep":
                message.reward = float(number)

        writer = record(Spool(tmp_path / "spool"), spec, name, chunk=chunk, change=numbered, **how)
        return read_episode(writer.close()), spec

    return make


def test_each_chunk_is_a_decision_with_the_time_steps_in_which_it_was_played(recorded):
    episode, spec = recorded(steps=5)
    rollout = episode_to_rollout(episode, spec, SIZES)
    assert rollout.actions.shape == (3, 1, 2, 3) and rollout.log_probs.shape == (3, 1, 2)
    assert np.array_equal(rollout.actions[:, 0].flatten(1), episode.chunks.drawn[:, :6])
    assert np.array_equal(rollout.log_probs[:, 0], episode.chunks.log_probs)
    assert rollout.steps[:, 0].tolist() == [2, 2, 1] and rollout.versions[:, 0].tolist() == [
        4,
        4,
        4,
    ]
    assert (
        rollout.step_rewards[:, 0].tolist() == [[1, 2], [3, 4], [5, 0]]
        and rollout.mask.tolist() == [[1]] * 3
    )
    assert rollout.observations["vectors"].shape == (3, 1, spec.vector_size)
    assert rollout.observations["vectors"][:, 0, 0].tolist() == [0, 2, 4]
    assert rollout.next_observations["vectors"][:, 0, 0].tolist() == [2, 4, 5]
    assert rollout.observations["front"].dtype == torch.uint8
    assert rollout.next_observations["front"][:, 0].amax((1, 2, 3)).tolist() == [2, 4, 5]
    assert rollout.done[:, 0].tolist() == [0, 0, 1] == rollout.terminated[:, 0].tolist()
    assert {value.dtype for value in (rollout.actions, rollout.steps, rollout.done)} == {
        torch.float32
    }


def test_where_the_policy_reads_it_a_decision_has_what_was_asked_for(recorded):
    episode, spec = recorded(steps=5)
    episode = replace(episode, instructions=("left",) * 3 + ("right",) * 3)
    rollout = episode_to_rollout(episode, spec, SIZES.but(sentence_features=4))
    assert decode_instructions(rollout.observations[INSTRUCTION][:, 0].numpy()) == (
        "left",
        "left",
        "right",
    )
    assert decode_instructions(rollout.next_observations[INSTRUCTION][:, 0].numpy()) == (
        "left",
        "right",
        "right",
    )
    assert INSTRUCTION not in episode_to_rollout(episode, spec, SIZES).observations


@pytest.mark.parametrize(
    "how, terminated",
    [(dict(success=True), 1), (dict(success=False, failure=True), 1), (dict(success=False), 0)],
    ids=["success", "failure", "time limit"],
)
def test_a_time_limit_ends_and_does_not_terminate(recorded, how, terminated):
    rollout = episode_to_rollout(*recorded(steps=4, **how), SIZES)
    assert (rollout.done[:, 0].tolist(), rollout.terminated[:, 0].tolist()) == (
        [0, 1],
        [0, terminated],
    )


def test_what_the_operator_did_is_nobodys_decision_and_ends_the_one_before(recorded):
    """Time steps 3 to 5 are the operator's: of the second chunk one action was played, of the third
    none.
    """
    episode, spec = recorded(steps=8, sources=dict.fromkeys((3, 4, 5), "operator"))
    rollout = episode_to_rollout(episode, spec, SIZES)
    assert rollout.observations["vectors"][:, 0, 0].tolist() == [0, 2, 6]
    assert rollout.next_observations["vectors"][:, 0, 0].tolist() == [2, 3, 8], (
        "what was observed when the takeover began"
    )
    assert rollout.steps[:, 0].tolist() == [2, 1, 2] and rollout.executed[1, 0].tolist() == [1, 0]
    assert rollout.step_rewards[:, 0].tolist() == [[1, 2], [3, 0], [7, 8]]
    assert rollout.done[:, 0].tolist() == [0, 1, 1] and rollout.terminated[:, 0].tolist() == [
        0,
        0,
        1,
    ]


def test_advantages_go_up_to_a_takeover_and_count_the_value_there_and_nothing_beyond(recorded):
    rollout = episode_to_rollout(
        *recorded(steps=8, sources=dict.fromkeys((3, 4, 5), "operator")), SIZES
    )
    gamma = 0.9
    lambda_ = 0.5
    r, v, next_observations = ([1 + 0.9 * 2, 3, 7 + 0.9 * 8], [10, 12, 16], [12, 13, 18])
    values = 10.0 + rollout.observations["vectors"][:, :, 0]
    next_values = 10.0 + rollout.next_observations["vectors"][:, :, 0]
    advantages = gae(
        rollout.discounted_rewards(gamma),
        values,
        next_values,
        rollout.terminated,
        rollout.done,
        gamma**rollout.steps,
        lambda_,
    )[:, 0]
    before = r[1] + gamma * next_observations[1] - v[1]
    first = r[0] + gamma**2 * next_observations[0] - v[0] + gamma**2 * lambda_ * before
    assert advantages.tolist() == pytest.approx([first, before, r[2] - v[2]])


def test_an_episode_that_the_operator_drove_all_along_has_no_decision_and_stands_beside_others(
    recorded,
):
    none = episode_to_rollout(*recorded("none", sources=dict.fromkeys(range(5), "operator")), SIZES)
    assert none.mask.shape == (0, 1) and none.actions.shape == (0, 1, 2, 3)
    some = episode_to_rollout(*recorded("some"), SIZES)
    assert (
        some.concatenate(none).mask.tolist()
        == none.concatenate(some).mask.flip(1).tolist()
        == [[1, 0]] * 3
    )


def test_ppo_learns_from_episodes_of_several_lengths(recorded):
    episodes = [recorded(str(steps), steps=steps, sources={2: "operator"}) for steps in (5, 9)]
    spec = episodes[0][1]
    one, other = (episode_to_rollout(*episode, SIZES) for episode in episodes)
    torch.manual_seed(0)
    policy = make_policy(spec, SIZES)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    metrics = ppo.Learner(policy, ppo.Config(epochs=2, minibatches=1)).update(
        one.concatenate(other)
    )
    assert all(np.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_what_says_no_log_probabilities_or_has_other_sizes_is_refused_by_name(recorded):
    episode, spec = recorded()
    for without in (None, replace(episode.chunks, log_probs=None)):
        with pytest.raises(
            EpisodeError,
            match="episode a: expected log-probabilities of the sampled actions, got none",
        ):
            episode_to_rollout(replace(episode, chunks=without), spec, SIZES)
    for config, message in (
        (
            SIZES.but(n_action_steps=3),
            "12 samples and 3 log-probabilities .*n_action_steps 3.*, got 12 and 2",
        ),
        (SIZES.but(horizon=5), "expected chunks of 15 samples and 2 log-probabilities"),
    ):
        with pytest.raises(EpisodeError, match=message):
            episode_to_rollout(episode, spec, config)


def test_what_a_flow_policy_drew_is_one_path_and_models_that_read_have_their_instruction(recorded):
    config = pi0.Config(horizon=4, n_action_steps=2, flow_steps=3, sde_noise=0.3)
    episode, spec = recorded(steps=5)
    path = np.arange(len(episode.chunks) * 4 * 4 * 32, dtype=np.float32).reshape(
        len(episode.chunks), -1
    )
    chunks = replace(episode.chunks, drawn=path)
    rollout = episode_to_rollout(replace(episode, chunks=chunks), spec, config)
    assert rollout.actions.shape == (3, 1, 1, 512) and np.array_equal(
        rollout.actions[:, 0, 0], path
    )
    assert INSTRUCTION in rollout.observations
    with pytest.raises(
        EpisodeError,
        match="expected chunks of 48 samples and 2 log-probabilities .* got 511 and 2",
    ):
        episode_to_rollout(
            replace(episode, chunks=replace(chunks, drawn=path[:, :-1])), spec, config
        )


def test_a_recording_becomes_a_trajectory_with_the_noise_behind_each_chunk(recorded):
    episode, spec = recorded(steps=5)
    trajectory = episode_to_trajectory(episode, spec)
    drawn = episode.chunks.drawn
    assert trajectory.chunk_starts.tolist() == [True, False, True, False, True]
    assert trajectory.latents.shape == (5, 12) and trajectory.latents.dtype == np.float32
    assert np.array_equal(trajectory.latents[[0, 2, 4]], drawn)
    assert not trajectory.latents[[1, 3]].any()
    assert trajectory.steps_to_chunk_end.tolist() == [2, 1, 2, 1, 1]
    assert (trajectory.id, trajectory.station, trajectory.mode) == ("a", "a", "train")
    assert (trajectory.version, trajectory.success, trajectory.rollout) == (4, True, None)
    assert trajectory.rewards.tolist() == [1, 2, 3, 4, 5]
    assert trajectory.discounts.tolist() == [1, 1, 1, 1, 0]
    assert trajectory.sources == episode.sources
    vectors = trajectory.observations["vectors"]
    assert vectors.shape == (6, spec.vector_size) and vectors[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert trajectory.observations["front"].shape == (6, 8, 8, 3)
    assert decode_instructions(trajectory.observations[INSTRUCTION]) == ("do it",) * 6
    without = episode_to_trajectory(replace(episode, chunks=None), spec)
    assert without.latents is None and without.chunk_starts is None


@pytest.mark.parametrize("use_executed, first", [(False, 0.02), (True, 0.01)])
def test_actions_are_those_that_were_asked_for_or_executed_by_the_action_scale(
    recorded, use_executed, first
):
    episode, spec = recorded(steps=5)
    actions = episode_to_trajectory(episode, spec, use_executed).actions
    expected = np.array([[first, 0.0, 0.001 * k] for k in range(5)]) / spec.action.scale
    np.testing.assert_allclose(actions, np.clip(expected, -1, 1), atol=1e-6)
    fast = replace(episode, requested=100 * episode.requested, executed=-100 * episode.executed)
    assert episode_to_trajectory(fast, spec, use_executed).actions[0, 0] == (
        -1.0 if use_executed else 1.0
    )


@pytest.mark.parametrize(
    "how, decisions",
    [
        ({}, 3),
        ({"mode": "demonstration"}, None),
        ({"mode": "evaluate"}, None),
        ({"sources": dict.fromkeys(range(5), "operator")}, None),
        ({"sources": dict.fromkeys(range(2), "operator")}, 2),
    ],
)
def test_only_what_the_policy_played_in_training_has_a_rollout(recorded, how, decisions):
    episode, spec = recorded(steps=5, **how)
    rollout = episode_to_trajectory(episode, spec, rollouts_of=SIZES).rollout
    assert (rollout and len(rollout.mask)) == decisions


@pytest.mark.parametrize(
    "sources, limits, rate",
    [
        (["policy"] * 4, [(), ("speed",), (), ()], 0.25),
        (["policy", "", "policy", "policy"], [()] * 4, 0.25),
        (["operator", "policy", "policy", "operator"], [("speed",), ("speed",), (), ()], 0.5),
        (["operator"] * 4, [("speed",)] * 4, 0.0),
        (["operator"] * 3 + ["policy"], [(), (), (), ("speed",)], 1.0),
    ],
)
def test_the_interlock_intervened_in_a_share_of_the_time_steps_without_an_operator(
    recorded, sources, limits, rate
):
    episode, spec = recorded(steps=4)
    episode = replace(episode, sources=tuple(sources), limits=tuple(limits))
    assert episode_to_trajectory(episode, spec).interlock == rate
