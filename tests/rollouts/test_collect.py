"""Results, continuation and timing of rollouts, in counting environments and among points."""

import contextlib
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.usage import Usage
from rlinf_core.policies import make_policy, policy_kind
from rlinf_core.policies.base import Observation
from rlinf_core.rollouts import collect
from rlinf_core.rollouts.collect import (
    AlternatingRollouts,
    ChunkRollouts,
    EpisodeRollouts,
    ExpertRollouts,
    RolloutUsage,
    demonstrate,
)
from rlinf_core.rollouts.evaluate import evaluate, record
from rlinf_core.rollouts.types import DEMONSTRATION, TRAIN, Experience
from tests.algorithms.point import SPEC as POINT_SPEC
from tests.algorithms.point import Points
from tests.rollouts.test_chunks import SPEC, Counting, gaussian, plan


class Numbered(Counting):
    """Knows the scenes that it was reset to; its script's action is 0.25."""

    def reset(self, seeds):
        self.seeds = [*getattr(self, "seeds", []), list(seeds)]
        return super().reset(seeds)

    def expert(self):
        return np.full((self.size, 1), 0.25, np.float32)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = np.array(state["at"])


def point_policy():
    torch.manual_seed(0)
    return make_policy(POINT_SPEC, policy_kind("gaussian").Config(hidden=(8,)))


def latent_policy():
    torch.manual_seed(0)
    config = policy_kind("latent_noise").Config
    return make_policy(SPEC, config(hidden=(8,), noise_policy=(8,), horizon=4, n_action_steps=3))


def times(episode):
    return episode.observations["vectors"][:, 1].tolist()


def test_episodes_come_when_they_end_and_those_that_go_on_when_they_are_cut():
    env = Numbered([5, 8])
    rollouts = EpisodeRollouts(env, gaussian(horizon=4, n_action_steps=3), first_scene=70)
    assert rollouts.cut() == [], "nothing was played yet"
    experience = rollouts.play(6)
    (episode,) = experience.trajectories
    assert experience.steps == 12 and times(episode) == [0, 1, 2, 3, 4, 5]
    assert episode.discounts.tolist() == [1, 1, 1, 1, 0] and not episode.success
    assert episode.mode == TRAIN and episode.chunk_starts is None
    one, other = rollouts.cut()
    assert times(one) == [0, 1] and times(other) == [0, 1, 2, 3, 4, 5, 6]
    assert one.discounts.tolist() == [1] and other.rewards.tolist() == [1, 2, 3, 4, 5, 6]
    assert other.actions[:, 0].tolist() == env.played[1]
    assert rollouts.chunks.schedule.due.all(), "the next episode begins with a chunk of its own"
    rollouts.play(1)
    assert env.seeds == [[70, 71], [72, 73]] and times(rollouts.cut()[0]) == [0, 1]


def test_a_cut_episode_knows_where_its_latent_noise_was_drawn():
    rollouts = EpisodeRollouts(Numbered([9]), latent_policy())
    rollouts.play(5)
    latents = rollouts.chunks.drawn.copy()
    (episode,) = rollouts.cut()
    assert episode.chunk_starts.tolist() == [True, False, False, True, False]
    assert episode.latents.shape == (5, 4) and episode.latents[4].tolist() == latents[0].tolist()


def test_random_actions_are_uniform_and_of_the_seed():
    env = Numbered([100])
    played = EpisodeRollouts(env, gaussian(horizon=2, n_action_steps=1), seed=3).play(
        100, random_warmup=True
    )
    expected = np.random.default_rng(3).uniform(-1.0, 1.0, (100, 2))[:, 0]
    np.testing.assert_allclose(env.played[0], expected, atol=1e-6)
    assert len(played.trajectories) == 1
    rollouts = EpisodeRollouts(Numbered([100]), gaussian(), seed=3)
    rollouts.play(20)
    assert max(np.abs(rollouts.env.played[0] - expected[:20])) > 0.1, "the policy's own"


@pytest.mark.parametrize(
    "play",
    [
        lambda env, policy: EpisodeRollouts(env, policy).play(2),
        lambda env, policy: ExpertRollouts(env, policy).play(2, 0.5),
        lambda env, policy: ChunkRollouts(env, policy).play(chunks=2),
        lambda env, policy: evaluate(env, policy, range(3)),
        lambda env, policy: record(env, policy, 2, 5),
    ],
)
def test_a_policy_gets_observations_on_its_own_device(play, monkeypatch):
    devices, from_arrays = [], Observation.from_arrays

    def noted(spec, arrays, device="the default", instruction=None):
        devices.append(device)
        return from_arrays(spec, arrays, device, instruction)

    monkeypatch.setattr(Observation, "from_arrays", noted)
    policy = gaussian()
    play(Numbered([3, 4]), policy)
    assert len(devices) >= 2 and devices == [policy.device] * len(devices)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_the_script_acts_in_a_fraction_and_labels_all(fraction):
    env = Numbered([20, 40])
    rollouts = ExpertRollouts(env, gaussian(), seed=1, first_scene=5)
    assert rollouts.cut() == []
    experience = rollouts.play(30, fraction)
    (episode,) = experience.trajectories
    (rest, other) = rollouts.cut()
    assert experience.steps == 60 and env.seeds == [[5, 6]]
    assert (len(episode), len(rest), len(other)) == (20, 10, 30) and rollouts.cut() == []
    for sources, labels, played in (
        (episode.sources, episode.actions, env.played[0][:20]),
        (rest.sources, rest.actions, env.played[0][20:]),
        (other.sources, other.actions, env.played[1]),
    ):
        assert (labels == 0.25).all() and set(sources) <= {"operator", "policy"}
        assert [source == "operator" for source in sources] == [one == 0.25 for one in played]
    share = np.mean([source == "operator" for source in episode.sources + other.sources])
    assert abs(share - fraction) <= (0.15 if fraction == 0.5 else 0.0)


@pytest.mark.parametrize(
    "kind, amount", [(ExpertRollouts, {"expert_fraction": 0.0}), (EpisodeRollouts, {})]
)
def test_alone_or_beside_an_expert_the_policy_explores_by_the_noise_of_the_seed(kind, amount):
    env, policy, generator = Numbered([50]), gaussian(), torch.Generator().manual_seed(3)
    kind(env, policy, seed=3).play(steps=20, **amount)
    times_ = [Observation.from_arrays(SPEC, {"vectors": np.float32([[0, t]])}) for t in range(20)]
    expected = [policy.act(one, explore=True, generator=generator).actions.item() for one in times_]
    np.testing.assert_allclose(env.played[0], expected, atol=1e-6)
    without = [policy.act(one, explore=False).actions.item() for one in times_]
    assert np.abs(np.subtract(expected, without)).max() > 0.1


def test_recorded_episodes_are_played_without_exploring_and_with_noise_of_their_scenes():
    first, other = (record(Numbered([6]), gaussian(), 1, scene)[0] for scene in (5, 9))
    assert first.actions.tolist() == other.actions.tolist(), "the means"
    config = policy_kind("tanh_gaussian").Config(hidden=(8,), stochastic_eval=True)
    torch.manual_seed(0)
    policy, before = make_policy(SPEC, config), torch.get_rng_state()
    first, again, other = (record(Numbered([6]), policy, 1, scene)[0] for scene in (5, 5, 9))
    assert first.actions.tolist() == again.actions.tolist() != other.actions.tolist()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "wall, busy, idle, simulated, stepped, environment, policy",
    [
        # of 6 s off a core, 5 s idle, the environments take 5 s off a core
        (10.0, 4.0, 5.0, 6.0, 1.0, (1.0, 25.0 / 6.0), (3.0, 5.0 / 6.0)),
        (10.0, 4.0, 5.0, 12.0, 1.0, (1.0, 5.0), (3.0, 0.0)),
        (10.0, 4.0, 5.0, 4.0, 5.0, (5.0, 0.0), (0.0, 5.0)),
        (4.0, 4.0, 0.0, 1.0, 1.0, (1.0, 0.0), (3.0, 0.0)),
        (4.0, 4.0, 2.0, 2.0, 1.0, (1.0, 2.0), (3.0, 0.0)),
    ],
)
def test_idle_seconds_are_divided_between_environments_and_policy(
    wall, busy, idle, simulated, stepped, environment, policy, monkeypatch
):
    @contextlib.contextmanager
    def measured():
        usage = Usage()
        yield usage
        usage.wall_s, usage.busy_s, usage.idle_s = wall, busy, idle

    class Played(EpisodeRollouts):
        def play(self, steps):
            self.simulate_s += simulated
            self.simulate_busy_s += stepped
            return Experience(steps=steps)

    monkeypatch.setattr(collect, "measure_usage", measured)
    rollouts = Played(Numbered([5]), gaussian())
    rollouts.simulate_s, rollouts.simulate_busy_s = 100.0, 50.0  # of earlier rollouts
    experience, usage = rollouts.play_measured({"steps": 7})
    assert experience.steps == 7 and usage.simulate == pytest.approx(simulated)
    assert usage.environment == pytest.approx(environment)
    assert usage.policy == pytest.approx(policy)
    assert (usage.total.wall_s, usage.total.busy_s) == (wall, busy)


def test_seconds_of_steps_and_of_waits_for_the_other_half_add_up(monkeypatch):
    clock, calls = SimpleNamespace(wall=100.0, busy=10.0), []
    times = {"perf_counter": lambda: clock.wall, "thread_time": lambda: clock.busy}
    monkeypatch.setattr(collect, "time", SimpleNamespace(**times))

    class Timed(Numbered):
        def step(self, actions, active=None):
            calls.append("step")
            clock.wall += 2.0
            clock.busy += 0.5
            return super().step(actions, active)

    class Waited:
        def release(self):
            calls.append("release")

        def acquire(self):
            calls.append("acquire")
            clock.wall += 3.0

    rollouts = EpisodeRollouts(Timed([5]), gaussian())
    rollouts.begin()
    seconds = []
    for lock in (Waited(), Waited(), None):
        rollouts.acting_lock = lock
        rollouts.step(np.zeros((1, 1)))
        seconds.append((rollouts.simulate_s, rollouts.simulate_busy_s, rollouts.lock_wait_s))
    assert seconds == [(2.0, 0.5, 3.0), (4.0, 1.0, 6.0), (6.0, 1.5, 6.0)]
    assert calls == ["release", "step", "acquire"] * 2 + ["step"]


@pytest.mark.parametrize("waited, idle", [(1.5, 2.5), (9.0, 0.0)])
def test_of_two_halves_what_one_waited_for_the_other_is_no_idleness_of_the_policy(waited, idle):
    class Half(EpisodeRollouts):
        def play_measured(self, amount):
            self.lock_wait_s += waited / 2
            usage = RolloutUsage(Usage(), amount["steps"] * 1.0, (1.0, 2.0), (3.0, 2.0))
            return Experience(["one"], ["two"], 5), usage

    parts = [Half(Numbered([5]), gaussian()) for _ in range(2)]
    parts[0].lock_wait_s = 7.0  # of earlier rollouts
    experience, usage = AlternatingRollouts(Numbered([5, 5]), parts).play_measured({"steps": 3})
    assert experience == Experience(["one"] * 2, ["two"] * 2, 10)
    assert usage.simulate == 3.0 and usage.environment == (2.0, 4.0)
    assert usage.policy == (6.0, idle)


@pytest.mark.parametrize(
    "kind, amount, policy",
    [
        (EpisodeRollouts, {"steps": 3}, latent_policy),
        (ExpertRollouts, {"steps": 3, "expert_fraction": 0.5}, gaussian),
        (ChunkRollouts, {"chunks": 3}, gaussian),
    ],
)
def test_a_rollout_goes_on_from_its_state_as_if_nothing_had_been(kind, amount, policy):
    one, other = (kind(Numbered([5, 8]), policy(), seed, 7 * seed) for seed in (1, 2))
    one.play(**amount)
    other.load_state_dict(one.state_dict())
    assert other.scene == one.scene == 9
    for _ in range(3):
        first, second = one.play(**amount), other.play(**amount)
        assert len(first.trajectories) == len(second.trajectories)
        for mine, theirs in zip(first.trajectories, second.trajectories, strict=True):
            assert mine.actions.tolist() == theirs.actions.tolist() and times(mine) == times(theirs)
            assert list(mine.sources) == list(theirs.sources)
        for mine, theirs in zip(first.rollouts, second.rollouts, strict=True):
            assert torch.equal(mine.actions, theirs.actions)
            assert torch.equal(mine.observations["vectors"], theirs.observations["vectors"])
    assert "env" not in kind(Numbered([5, 8]), policy()).state_dict(), "nothing was played"
    fewer = kind(Numbered([5]), policy(), 3)
    fewer.load_state_dict(one.state_dict())
    assert fewer.observation is None and fewer.scene == one.scene, "another number begins anew"


@pytest.mark.parametrize("kind", [EpisodeRollouts, ExpertRollouts, ChunkRollouts])
def test_rollouts_begin_without_an_observation_and_with_nothing_measured(kind):
    rollouts = kind(Numbered([5]), gaussian())
    assert rollouts.observation is None and rollouts.acting_lock is None and rollouts.version == 0
    assert rollouts.simulate_s == rollouts.simulate_busy_s == rollouts.lock_wait_s == 0.0


def test_a_rollout_in_the_place_of_another_goes_on_with_its_noise_and_scenes():
    former, next_one = (EpisodeRollouts(Numbered([5]), gaussian(), seed) for seed in (1, 2))
    former.play(2)
    next_one.continue_noise(former)
    assert next_one.random is former.random and next_one.generator is former.generator
    next_one.play(1)
    assert next_one.env.seeds == [[1]] and next_one.scene == 2


def test_neighbours_of_a_group_play_one_scene_each_to_its_end():
    env = Numbered([2, 7, 4, 6])
    rollouts = ChunkRollouts(env, gaussian(horizon=4, n_action_steps=3), first_scene=40)
    rollouts.version = 6
    experience = rollouts.play(group=2)
    (rollout,) = experience.rollouts
    assert env.seeds == [[40, 40, 41, 41]] and rollouts.observation is None
    assert rollout.mask.tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 0]]
    assert rollout.steps.tolist() == [[2, 3, 3, 3], [0, 3, 1, 3], [0, 1, 0, 0]]
    assert rollout.done.tolist() == [[1, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]]
    assert rollout.terminated.tolist() == rollout.done.tolist()
    assert rollout.step_rewards[1].tolist() == [[0, 0, 0], [4, 5, 6], [4, 0, 0], [4, 5, 6]]
    assert rollout.next_observations["vectors"][0, :, 1].tolist() == [2, 3, 3, 3]
    assert experience.steps == 19 and (rollout.versions == 6).all()
    rollouts.play(group=4)
    assert env.seeds[1] == [42] * 4, "the next group plays the next scene"


def test_a_hold_ends_a_chunk_and_what_comes_after_counts_for_the_next():
    env = Numbered([8], holds=[(0, 2)])
    rollouts = ChunkRollouts(env, gaussian(horizon=4, n_action_steps=4))
    (rollout,) = rollouts.play(chunks=2).rollouts
    assert rollout.steps.tolist() == [[2], [4]] and rollout.done.tolist() == [[0], [0]]
    assert rollout.step_rewards[:, 0].tolist() == [[1, 2, 0, 0], [3, 4, 5, 6]]
    assert rollout.next_observations["vectors"][:, 0, 1].tolist() == [2, 6]


class WithoutDensity:
    """A policy whose chunks have no log-probabilities."""

    config, device, latent_size = SimpleNamespace(executed=2), torch.device("cpu"), 0

    def to_batch(self, observation):
        return observation.batch

    def act(self, observation, explore, generator):
        return plan(observation, 2)


def test_chunks_need_log_probabilities():
    with pytest.raises(RlinfError, match="expected log-probabilities of the sampled actions"):
        ChunkRollouts(Numbered([5]), WithoutDensity()).play(chunks=1)


class Slow(Numbered):
    """A time step takes 4 ms, in which the processor rests."""

    def step(self, actions, active=None):
        time.sleep(0.004)
        return super().step(actions, active)


@pytest.mark.parametrize(
    "kind, amount", [(EpisodeRollouts, {"steps": 25}), (ChunkRollouts, {"chunks": 25})]
)
def test_the_time_of_a_rollout_is_that_of_its_environments_and_that_of_its_policy(kind, amount):
    rollouts = kind(Slow([9]), gaussian())
    for _ in range(2):
        experience, usage = rollouts.play_measured(amount)
        total = usage.total
        assert experience.steps == 25 and 0.1 <= usage.simulate <= total.wall_s
        assert usage.environment[0] + usage.policy[0] == pytest.approx(total.busy_s)
        assert usage.environment[1] + usage.policy[1] == pytest.approx(total.idle_s)
        assert min(*usage.environment, *usage.policy) >= 0.0
        assert usage.environment[1] > usage.policy[1], "the environments slept, not the policy"
        assert usage.policy[0] > usage.environment[0] > 0.0, "the network computes"


def halves(seed=0):
    policy = point_policy()
    parts = [EpisodeRollouts(Points(2), policy, seed + 10 * i, 100 * i) for i in range(2)]
    return AlternatingRollouts(Points(4), parts), parts


def test_two_halves_bring_what_each_brings_in_one():
    stages, parts = halves()
    single = halves()[1]
    stages.version = 5
    experience, usage = stages.play_measured({"steps": 30})
    alone = [part.play(30) for part in single]
    assert experience.steps == sum(one.steps for one in alone) == 120
    expected = [one.actions.tolist() for played in alone for one in played.trajectories]
    assert [one.actions.tolist() for one in experience.trajectories] == expected
    assert [part.version for part in parts] == [5, 5]
    assert len(stages.cut()) == sum(len(part.cut()) for part in single) > 0 and not stages.cut()
    pairs = usage.environment[0], usage.policy[0]
    assert min(pairs) > 0.0 and 0.0 < usage.simulate <= usage.total.wall_s
    assert stages.play(steps=10).steps == 40


def test_two_halves_measure_the_time_of_both():
    stages = AlternatingRollouts(
        Numbered([9]), [EpisodeRollouts(Slow([9]), gaussian()) for _ in range(2)]
    )
    _, usage = stages.play_measured({"steps": 25})
    assert 0.1 <= usage.simulate <= usage.total.wall_s, "the mean of both, which sleep at once"
    assert usage.environment[1] > 0.1, "the sum"
    chunks = AlternatingRollouts(
        Points(4), [ChunkRollouts(Points(2), point_policy(), i) for i in range(2)]
    )
    assert len(chunks.play(chunks=3).rollouts) == 2


def test_a_policy_acts_for_one_half_while_the_other_is_stepped(monkeypatch):
    policy, acting, both, names = point_policy(), [], [], set()
    act = policy.act

    def slow_act(*arguments, **options):
        acting.append(True)
        both.append(len(acting))
        time.sleep(0.003)
        acting.pop()
        return act(*arguments, **options)

    class Watched(Points):
        def step(self, *arguments):
            names.add(threading.current_thread().name)
            time.sleep(0.003)
            both.append(-len(acting))
            return super().step(*arguments)

    monkeypatch.setattr(policy, "act", slow_act)
    stages = AlternatingRollouts(
        Points(4), [EpisodeRollouts(Watched(2), policy, seed) for seed in (0, 1)]
    )
    stages.play(steps=20)
    assert max(both) == 1, "it acted for both at once"
    assert min(both) == -1, "nobody was stepped while it acted"
    assert names == {"rollouts_0", "rollouts_1"}


def test_a_half_whose_environments_stop_leaves_the_turn_to_the_other():
    class Broken(Points):
        def step(self, *arguments):
            raise RlinfError("the simulator stopped")

    policy = point_policy()
    stages = AlternatingRollouts(
        Points(4), [EpisodeRollouts(env, policy) for env in (Broken(2), Points(2))]
    )
    for _ in range(2):
        with pytest.raises(RlinfError, match="the simulator stopped"):
            stages.play(steps=5)
    stages.threads.shutdown(wait=True)
    assert not stages.shared_lock.locked()


def test_two_halves_go_on_from_their_state_and_in_the_place_of_others():
    one, other = halves(1)[0], halves(2)[0]
    one.play(steps=10)
    other.load_state_dict(one.state_dict())
    first, second = one.play(steps=30), other.play(steps=30)
    assert len(first.trajectories) >= 4
    for mine, theirs in zip(first.trajectories, second.trajectories, strict=True):
        assert mine.actions.tolist() == theirs.actions.tolist()
    successor = halves(3)[0]
    successor.continue_noise(one)
    assert [part.scene for part in successor.parts] == [2, 102]
    for part, former in zip(successor.parts, one.parts, strict=True):
        assert part.generator is former.generator
    successor.load_state_dict({})
    successor.continue_noise(EpisodeRollouts(Points(2), point_policy()))
    assert [part.scene for part in successor.parts] == [2, 102], "of one that was not halved"


def test_demonstrations_are_the_scripts_successes():
    env = Numbered([4, 3])
    episodes = demonstrate(env, 3, 7)
    assert env.seeds == [[7, 8]] and [len(episode) for episode in episodes] == [4, 4, 4]
    for episode in episodes:
        assert episode.mode == DEMONSTRATION and episode.success
        assert (episode.actions == 0.25).all() and times(episode) == [0, 1, 2, 3, 4]
    assert demonstrate(Numbered([4]), 0, 0) == []


@pytest.mark.parametrize("failing, solved", [(9, 3), (10, None)])
def test_a_script_may_fail_nine_times_of_ten_and_not_more(failing, solved):
    env = Numbered([3] * failing + [4])
    if solved:
        assert len(demonstrate(env, solved, 0)) == solved
        return
    with pytest.raises(RlinfError, match="script solved 1 of 21 episodes"):
        demonstrate(env, 5, 0)


def test_episodes_are_recorded_as_many_in_each_environment_and_as_many_as_were_wanted():
    env = Numbered([2, 5])
    episodes = record(env, gaussian(), 3, 20)
    assert env.seeds == [[20, 21]] and [len(episode) for episode in episodes] == [2, 2, 5]
    assert times(episodes[2]) == [0, 1, 2, 3, 4, 5] and episodes[0].success
    assert episodes[2].actions[:, 0].tolist() == env.played[1][:5]
    again = record(Numbered([2, 5]), gaussian(), 3, 20)
    for one, other in zip(episodes, again, strict=True):
        assert one.actions.tolist() == other.actions.tolist()
    assert [len(one) for one in record(Numbered([2, 5]), gaussian(), 1, 20)] == [2]


@pytest.mark.parametrize(
    "kind, amount",
    [
        (EpisodeRollouts, {"steps": 6}),
        (ExpertRollouts, {"steps": 6, "expert_fraction": 0.5}),
        (ChunkRollouts, {"chunks": 6}),
    ],
)
def test_a_rollout_without_a_seed_is_that_of_seed_0_from_scene_0(kind, amount):
    envs = Numbered([5, 8]), Numbered([5, 8])
    kind(envs[0], gaussian()).play(**amount)
    kind(envs[1], gaussian(), 0, 0).play(**amount)
    assert envs[0].played == envs[1].played and envs[0].seeds == envs[1].seeds == [[0, 1]]


class Differentiable:
    """A policy whose chunks still have a gradient."""

    def __init__(self, policy):
        self.policy, self.config, self.device = policy, policy.config, policy.device
        self.latent_size, self.to_batch = policy.latent_size, self.batch

    def batch(self, observation):
        return {
            name: value * torch.ones((), requires_grad=True)
            for name, value in self.policy.to_batch(observation).items()
        }

    def act(self, observation, explore, generator=None):
        chunk = self.policy.act(observation, explore, generator)
        log_probs = chunk.log_probs if chunk.log_probs is None else with_gradient(chunk.log_probs)
        return replace(
            chunk,
            actions=with_gradient(chunk.actions),
            drawn=with_gradient(chunk.drawn),
            log_probs=log_probs,
        )


def with_gradient(tensor):
    return tensor.detach().clone().requires_grad_()


@pytest.mark.parametrize(
    "kind, amount",
    [
        (EpisodeRollouts, {"steps": 6}),
        (ExpertRollouts, {"steps": 6, "expert_fraction": 0.5}),
        (ChunkRollouts, {"chunks": 6}),
    ],
)
def test_what_is_played_has_no_gradient(kind, amount):
    envs = Numbered([5, 8]), Numbered([5, 8])
    kind(envs[0], gaussian()).play(**amount)
    experience = kind(envs[1], Differentiable(gaussian())).play(**amount)
    assert envs[0].played == envs[1].played
    for rollout in experience.rollouts:
        tensors = (rollout.actions, rollout.log_probs, rollout.observations["vectors"])
        assert not any(tensor.requires_grad for tensor in tensors)
