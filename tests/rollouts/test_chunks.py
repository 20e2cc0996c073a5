"""Times of chunks, the executed part, and the learners' data, in counting environments."""

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import ActionChunk
from rlinf_core.policies.chunking import ChunkSchedule
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.collect import ChunkRollouts, EpisodeRollouts, demonstrate
from rlinf_core.rollouts.envs import BatchedEnv, ChunkExecutor, Steps, single_action_chunks
from rlinf_core.rollouts.evaluate import play
from rlinf_core.rollouts.types import DEMONSTRATION, TRAIN, Trajectory
from rlinf_core.specs.arrays import ActionSpec, ArraySpec, StationSpec
from rlinf_core.trainer.data import ReplayData
from rlinf_core.trainer.governor import Governor

SPEC = StationSpec(
    (ArraySpec("time", (2,)),), ActionSpec("tcp_delta", ("dx",), (0.1,), ("m",)), 10.0, "count"
)


class Counting:
    """Environment i observes (i, its time step); it ends after ``lengths[i]`` of them, by success
    where that is even, else by failure; its reward is its time step. Where ``holds`` says (i,
    step), the arm is held at its end."""

    def __init__(self, lengths, holds=()):
        self.spec = SPEC
        self.size = len(lengths)
        self.lengths = np.array(lengths)
        self.holds = set(holds)
        self.played = [[] for _ in lengths]

    def reset(self, seeds):
        self.at = np.zeros(self.size, int)
        return self.observation()

    def observation(self):
        return {"vectors": np.stack([np.arange(self.size), self.at], 1).astype(np.float32)}

    def step(self, actions, active=None):
        active = np.ones(self.size, bool) if active is None else active
        for index in np.flatnonzero(active):
            self.played[index].append(float(actions[index, 0]))
        self.at = self.at + active
        done, next_observations = (self.at >= self.lengths) & active, self.observation()
        reward = self.at * active
        held = np.array([(i, int(at)) in self.holds for i, at in enumerate(self.at)])
        self.at = np.where(done, 0, self.at)
        success = done & (self.lengths % 2 == 0)
        return Steps(
            next_observations,
            reward.astype(float),
            done.astype(float),
            np.zeros(self.size),
            success.astype(float),
            self.observation(),
            held,
        )

    def close(self):
        pass


def plan(observation, execute, horizon=4):
    """Action j of a chunk decided at time step t is (10 t + j) / 1000: it tells when it was
    decided.
    """
    actions = (10 * observation.vectors[:, 1:] + torch.arange(horizon)) / 1000
    return ActionChunk(actions[..., None], execute, actions[..., None])


def decisions(played):
    """(time step of the decision, index within the chunk) of each played action."""
    return [divmod(round(1000 * value), 10) for value in played]


def test_a_schedule_counts_what_is_played_and_begins_anew_where_a_chunk_was_cut():
    schedule = ChunkSchedule(3, 2)
    assert schedule.due.all()
    schedule.replan()
    assert not schedule.due.any() and schedule.index.tolist() == [0, 0, 0]
    schedule.advance()
    schedule.cut(np.array([False, True, False]))
    assert schedule.due.tolist() == [False, True, False]
    schedule.advance(np.array([0, 2]))
    assert schedule.due.all()
    schedule.replan(np.array([True, False, False]))
    schedule.advance(steps=5)
    assert schedule.due.all(), "time steps that went by unseen count too"


@pytest.mark.parametrize("execute", [1, 3, 4])
def test_of_each_chunk_so_many_actions_are_played_and_an_episodes_end_cuts_it_short(execute):
    env, times = Counting([5, 8]), []

    def decide(observation):
        assert observation.instruction == ("count",) * len(observation)
        times.append(observation.vectors[:, 0].tolist())
        return plan(observation, execute)

    episodes = play(env, decide, execute, [0, 1])
    for index, length in enumerate((5, 8)):
        assert decisions(env.played[index])[:length] == [
            (t - t % execute, t % execute) for t in range(length)
        ]
    assert decisions(env.played[0])[5:] == [(t - t % execute, t % execute) for t in range(3)], (
        "a new episode, a new chunk"
    )
    assert [(e.success, e.failure, e.steps, e.value) for e in episodes] == [
        (False, True, 5, 15),
        (True, False, 8, 36),
    ]
    assert times[0] == [0, 1], "in one batch"


def test_a_hold_of_the_interlock_cuts_a_chunk_short():
    env = Counting([8], holds=[(0, 2)])
    play(env, lambda observation: plan(observation, 4), 4, [0])
    assert decisions(env.played[0]) == [
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
        (2, 2),
        (2, 3),
        (6, 0),
        (6, 1),
    ]


class Alternating(Counting):
    """An environment whose episodes end in success and failure in turn."""

    def step(self, actions, active=None):
        steps = super().step(actions, active)
        self.lengths = self.lengths + steps.done.astype(int)
        return steps


def test_only_the_first_episode_of_an_environment_is_evaluated():
    """The others play on until the last of them has ended."""
    results = play(Alternating([2, 9]), lambda observation: plan(observation, 1), 1, [5, 6])
    assert [(result.success, result.failure, result.steps) for result in results] == [
        (True, False, 2),
        (False, True, 9),
    ]
    results = play(Alternating([3, 8]), lambda observation: plan(observation, 1), 1, [5, 6])
    assert [(result.success, result.failure, result.steps) for result in results] == [
        (False, True, 3),
        (True, False, 8),
    ]


def test_only_those_whose_chunk_is_due_are_asked():
    env, times = Counting([5, 9]), []

    def decide(observation):
        times.append(observation.vectors[:, 0].tolist())
        return plan(observation, 4)

    chunks, observations = ChunkExecutor(env, decide, 4), env.reset([0, 1])
    for _ in range(9):
        actions = chunks.next(observations)
        assert actions.dtype == chunks.drawn.dtype == np.float32
        steps = env.step(actions)
        chunks.after(steps)
        observations = steps.observation
    assert times == [[0, 1], [0, 1], [0], [1]], (
        "the first one's second episode begins at its time step 5"
    )


def test_environments_that_are_stepped_at_once_refuse_what_only_single_ones_can():
    class Batched(BatchedEnv):
        name, size = "lift", 3

    env = Batched()
    env.check_all_active(None)
    env.check_all_active(np.ones(3, bool))
    with pytest.raises(RlinfError, match="env 'lift' steps all of its 3 at once"):
        env.check_all_active(np.array([True, False, True]))
    with pytest.raises(RecipeError, match="env 'lift' has no script for demonstrations"):
        env.expert()
    with pytest.raises(RlinfError, match="env 'lift' is stepped together with others and cannot"):
        env.render(1)
    assert env.state_dict() == {} and env.auto_reset is True
    env.load_state_dict({})


def test_single_actions_are_chunks_of_one():
    chunk = single_action_chunks(np.array([[0.5], [-0.25]]))
    assert chunk.execute == 1 and chunk.actions.shape == (2, 1, 1) and chunk.actions is chunk.drawn
    assert chunk.actions.flatten().tolist() == [0.5, -0.25] and chunk.actions.dtype == torch.float32


def gaussian(**sizes):
    torch.manual_seed(0)
    return make_policy(SPEC, policy_kind("gaussian").Config(hidden=(8,), **sizes))


def test_the_noise_of_a_rollout_is_of_its_seed_alone():
    drawn = []
    for seed, everybodys in ((3, 0), (3, 1), (4, 0)):
        rollouts = ChunkRollouts(Counting([5, 8]), gaussian(), seed)
        torch.manual_seed(everybodys)
        drawn.append(rollouts.play(chunks=3).rollouts[0].actions)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_demonstrations_of_a_script_that_does_not_know_the_task_end_with_a_question():
    env = Counting([3])
    env.expert = lambda: np.zeros((1, 1), np.float32)
    with pytest.raises(RlinfError) as refused:
        demonstrate(env, 5, 0)
    assert str(refused.value) == (
        "demonstrations: the task's script solved 0 of 20 episodes; expected at least one in ten. "
        "Is it the script of this task (its file's 'script')?"
    )


def test_a_rollout_holds_what_was_played_and_says_how_many_time_steps_each_decision_spans():
    env = Counting([5, 8])
    rollout = ChunkRollouts(env, gaussian(horizon=4, n_action_steps=3)).play(chunks=3).rollouts[0]
    assert rollout.actions.shape == (3, 2, 3, 1) and rollout.log_probs.shape == (3, 2, 3)
    assert rollout.steps.tolist() == [[3, 3], [2, 3], [3, 2]]
    assert rollout.step_rewards[:2, 0].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert rollout.executed[1, 0].tolist() == [1, 1, 0] and rollout.done[1].tolist() == [1, 0]
    assert rollout.discounted_rewards(0.5)[1].tolist() == [4 + 0.5 * 5, 4 + 0.5 * 5 + 0.25 * 6]
    assert rollout.rewards[1].tolist() == [9, 15]
    assert rollout.observations["vectors"][:, 0, 1].tolist() == [0, 3, 0]
    assert rollout.next_observations["vectors"][1, 0].tolist() == [0, 5]
    played = np.array(env.played[0][3:5])
    assert np.clip(rollout.actions[1, 0, :2, 0].numpy(), -1, 1) == pytest.approx(played)


def test_a_player_says_where_latent_noise_was_drawn():
    torch.manual_seed(0)
    policy = make_policy(
        SPEC,
        policy_kind("latent_noise").Config(
            hidden=(8,), noise_policy=(8,), horizon=4, n_action_steps=3
        ),
    )
    env = Counting([5])
    (episode,) = EpisodeRollouts(env, policy).play(5).trajectories
    observations = episode.observations
    actions = episode.actions
    rewards = episode.rewards
    discounts = episode.discounts
    decided, latents = episode.chunk_starts, episode.latents
    assert decided.tolist() == [True, False, False, True, False]
    assert (
        latents.shape == (5, 4)
        and discounts.tolist() == [1, 1, 1, 1, 0]
        and rewards.tolist() == [1, 2, 3, 4, 5]
    )
    batch = {"vectors": torch.as_tensor(observations["vectors"][[0, 3]])}
    with torch.no_grad():
        led_to = policy.decode(batch, torch.as_tensor(latents[[0, 3]])).numpy()
    assert led_to[0, :3] == pytest.approx(actions[:3, 0], abs=1e-6)
    assert led_to[1, :2] == pytest.approx(actions[3:, 0], abs=1e-6)


def test_transitions_are_of_what_is_played_of_a_chunk():
    recipe = load_recipe(
        "sim_rlpd",
        [
            "policy.horizon=4",
            "policy.n_action_steps=2",
            "algorithm.discount=0.5",
            "replay.capacity=100",
            "algorithm.batch_size=32",
            "algorithm.n_step=1",
        ],
    )
    data = ReplayData(
        recipe,
        make_policy(SPEC, recipe.policy),
        Governor(updates_per_step=1.0, max_lag_episodes=1, max_staleness=1, steps_per_episode=5),
    )
    times = np.arange(7)
    observations = {"vectors": np.stack([times, times], 1).astype(np.float32)}
    for mode in (DEMONSTRATION, TRAIN):
        data.insert(
            Trajectory(
                observations,
                times[:6, None] / 10.0,
                np.ones(6),
                np.array([1, 1, 1, 1, 1, 0.0]),
                True,
                mode,
            ),
            0,
        )
    for batch in (data.batch(), data.demonstration_batch(32)):
        begun, after = batch["vectors"][:, 0], batch["next/vectors"][:, 0]
        assert np.array_equal(after, np.minimum(begun + 2, 6)) and np.array_equal(
            batch["steps"], after - begun
        )
        assert np.array_equal(batch["reward"], np.where(begun == 5, 1.0, 1.5).astype(np.float32))
