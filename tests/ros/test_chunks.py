"""A chunk means the same in simulation and on a station: whole stations over ROS, beside the
vectorised environment.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, SafetyState, TimeStep

from rlinf_core.algorithms import sft
from rlinf_core.data.replay import ReplayBuffer
from rlinf_core.episodes import read_episode
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.collect import demonstrate
from rlinf_core.rollouts.envs import single_action_chunks
from rlinf_core.rollouts.evaluate import play
from rlinf_ros.conversions import set_stamp, to_ns
from rlinf_ros.qos import lossless_profile, profile
from sim_bridges.core.environments import make_environments
from tests.algorithms.toy import acted
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start
from tests.ros.test_nodes import step_of

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
REACH = ("station.operator.kind=scripted", "station.task=reach")
SCENES = range(1_000_000, 1_000_004)
NODES = ("sim_bridge", "interlock", "environment", "operator", "recorder")
SMALL = tanh_gaussian.Config(hidden=(32,), horizon=8)


@pytest.fixture(scope="module")
def env():
    """Behind the interlock's core; as in a policy's process, torch computes in one thread."""
    torch.set_num_threads(1)
    env = make_environments(
        load_recipe("sim_rlpd", ["station.task=reach", "simulation.interlock=true"]), 1
    )
    yield env
    env.close()


@pytest.fixture(scope="module")
def cloned(env):
    """Chunks of eight actions that now and then reach their goal."""
    torch.manual_seed(0)
    policy, replay = make_policy(env.spec, SMALL), ReplayBuffer(env.spec, 2000)
    for shown in demonstrate(env, 8, 5):
        replay.insert_episode(shown.observations, shown.actions, shown.rewards, shown.discounts)
    policy.encoder.fit_normalisation(replay.vectors())
    cloner = sft.Learner(policy, sft.Config(steps=150, batch_size=64, learning_rate=3e-3))
    random = np.random.default_rng(0)
    for _ in range(150):
        cloner.update(replay.sample(64, random, policy.config.horizon))
    return policy.eval()


def with_execute(policy, execute):
    """Return the same weights, of whose chunks another part is played."""
    other = make_policy(policy.spec, policy.config.but(n_action_steps=execute)).eval()
    other.load_state_dict(policy.state_dict())
    return other


class Watched:
    """A vector of one environment that keeps what was played and seen."""

    def __init__(self, env):
        self.env, self.spec, self.size = env, env.spec, 1
        self.episodes = []

    def reset(self, seeds):
        observations = self.env.reset(seeds)
        self.episodes.append(([observations["vectors"][0]], [], []))
        return observations

    def step(self, actions, active=None):
        steps = self.env.step(actions, active)
        vectors, played, rewards = self.episodes[-1]
        vectors.append(steps.next_observations["vectors"][0])
        played.append(self.spec.action.to_si(actions[0].astype(np.float32).astype(float)))
        rewards.append(steps.reward[0])
        return steps


@contextlib.contextmanager
def standing(folder, domain, nodes, *overrides):
    """A station of these nodes, started once; yields what has a policy's scenes played there."""
    with peer_in(folder, domain) as peer:
        statuses = listen(peer, PolicyStatus, "policy/status")
        chunks = listen(peer, ActionChunk, "policy/action", lossless_profile)
        updates = peer.node.create_publisher(
            PolicyUpdate, "policy/update", profile("policy/update")
        )
        for name in nodes:
            start(peer, name, *REACH, *overrides)
        runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(
            lambda: statuses and updates.get_subscription_count() and runner.server_is_ready(),
            what="the station",
        )

        def played(policy):
            version = statuses[-1].version + 1
            file = save_policy(policy, peer.supervisor.run_dir / f"{version}.safetensors")
            updates.publish(PolicyUpdate(version=version, path=str(file)))
            # of the version before it, if there was one
            recorded(peer, runner, "evaluate", [SCENES[0] - 1])
            chunks.clear()
            recordings = recorded(peer, runner, "evaluate", SCENES)
            assert {recording.policy_version for recording in recordings} == {version}
            return recordings, [chunk for chunk in chunks if chunk.policy_version == version]

        yield played


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    with standing(tmp_path_factory.mktemp("station"), 151, (*NODES, "policy")) as played:
        yield played


def recorded(peer, runner, mode, scenes, poll=lambda: None):
    """Return an episode of each scene; ``beside`` is called while they are played."""
    sent = runner.send_goal_async(
        RunEpisodes.Goal(count=len(scenes), mode=mode, first_seed=scenes[0])
    )
    peer.spin(sent.done, what="the goal")
    answer = sent.result().get_result_async()
    peer.spin(lambda: poll() or answer.done(), 120, "the episodes")
    result = answer.result().result
    assert result.success, result.message
    return [
        read_episode(peer.supervisor.run_dir / "spool/closed" / name) for name in result.episode_ids
    ]


@pytest.mark.parametrize("execute", [1, 4, 8])
def test_a_station_plays_the_same_chunks_to_the_last_bit_as_the_vectorised_environment(
    execute, env, cloned, station
):
    """Actions, observations, rewards and success of whole episodes, with chunks of eight of which
    some are played.
    """
    assert_alike(env, with_execute(cloned, execute), station)


def test_so_does_a_policy_that_is_composed_with_the_environment(env, cloned, tmp_path):
    with standing(tmp_path, 139, NODES, "station.policy.backend=composed") as station:
        assert_alike(env, with_execute(cloned, 4), station)


def assert_alike(env, policy, station):
    execute = policy.config.n_action_steps
    watched, decisions = Watched(env), []

    def decide(observation):
        decisions.append(len(observation))
        return policy.act(observation, explore=False)

    expected = play(watched, decide, execute, SCENES)
    assert sum(decisions) == sum(-(-episode.steps // execute) for episode in expected)
    recordings, chunks = station(policy)
    assert {(chunk.horizon, chunk.execute) for chunk in chunks} == {(8, execute)}
    begun_ns = recordings[0].stamps_ns[0]
    assert sum(to_ns(chunk.observation_stamp) >= begun_ns for chunk in chunks) == sum(decisions)
    for recording, episode, (vectors, played, rewards) in zip(
        recordings, expected, watched.episodes, strict=True
    ):
        assert (recording.success, len(recording)) == (episode.success, episode.steps)
        assert np.array_equal(recording.requested, np.array(played))
        observed = np.concatenate(
            [recording.observations[item.name] for item in env.spec.vectors], axis=1
        )
        assert np.array_equal(observed, np.array(vectors))
        assert np.array_equal(recording.rewards, np.array(rewards, np.float32))
    assert {episode.success for episode in expected} == {True, False} or execute < 8, (
        "both are seen"
    )


@pytest.mark.domain(152)
def test_a_failure_ends_an_episode_at_the_station_as_in_the_vectorised_environment(peer, tmp_path):
    """The tool may not go below a height here, and the script that shows the task goes there."""
    low = {
        "kind": "outside",
        "what": "current_pose",
        "low": [0.0, -1.0, 0.16],
        "high": [1.0, 1.0, 1.0],
    }
    task = yaml.safe_load(Path("configs/tasks/reach.yaml").read_text()) | {"failure": low}
    (tmp_path / "strict.yaml").write_text(yaml.safe_dump(task))
    strict = (f"station.task={tmp_path / 'strict.yaml'}",)
    vector = make_environments(load_recipe("sim_rlpd", [*strict, "simulation.interlock=true"]), 1)
    (expected,) = play(vector, lambda _: single_action_chunks(vector.expert()), 1, [SCENES[0]])
    vector.close()
    assert (expected.failure, expected.success, expected.value) == (True, False, 0.0)
    for name in NODES:
        start(peer, name, *REACH[:1], *strict)
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(runner.server_is_ready, what="the station")
    # nodes may still be finding each other
    recorded(peer, runner, "demonstration", [SCENES[0] - 1])
    (failed,) = recorded(peer, runner, "demonstration", SCENES[:1])
    assert (failed.success, failed.failure, failed.truncated) == (False, True, False)
    assert (
        failed.discounts[-1] == 0.0 and not failed.rewards.any() and len(failed) < task["max_steps"]
    )


@pytest.mark.domain(190)
def test_the_policy_node_decides_anew_where_its_chunk_ends_or_is_cut_short(peer, tmp_path):
    """After four time steps, seen or not, at an episode's beginning, and at each one while somebody
    else commands.
    """
    statuses, chunks = (
        listen(peer, PolicyStatus, "policy/status"),
        listen(peer, ActionChunk, "policy/action"),
    )
    says = {
        topic: peer.node.create_publisher(kind, topic, profile(topic))
        for topic, kind in (
            ("timestep", TimeStep),
            ("safety", SafetyState),
            ("policy/update", PolicyUpdate),
        )
    }
    spec = start(peer, "policy")
    policy = make_policy(spec, SMALL.but(n_action_steps=4))
    says["policy/update"].publish(
        PolicyUpdate(version=1, path=str(save_policy(policy, tmp_path / "p.safetensors")))
    )
    peer.spin(
        lambda: (
            statuses
            and statuses[-1].version == 1
            and says["timestep"].get_subscription_count()
            and says["safety"].get_subscription_count()
        ),
        what="the policy",
    )

    def decided(number, expected, kind=TimeStep.MID, episode="a"):
        """Whether as many chunks come: one takes the time that it takes, none is waited for a
        little.
        """
        step, before = step_of(spec, "evaluate", kind, episode), len(chunks)
        set_stamp(step.header.stamp, 10**9 + number * 10**8)
        says["timestep"].publish(step)
        peer.spin(lambda: len(chunks) >= before + expected, what=lambda: f"the answer to {number}")
        peer.for_s(0.05 if expected else 0.15)
        return len(chunks) - before == expected

    def safety(state, source=""):
        says["safety"].publish(SafetyState(state=state, source=source))
        peer.for_s(0.15)

    safety(SafetyState.ARMED)
    assert decided(0, 1, TimeStep.FIRST) and all(
        map(decided, range(1, 10), [0, 0, 0, 1, 0, 0, 0, 1, 0])
    )
    assert chunks[0].horizon == 8 and chunks[0].execute == 4
    observation = {item.name: np.zeros(item.shape, item.dtype) for item in spec.observation}
    assert np.array_equal(
        chunks[0].data, spec.action.to_si(acted(policy.eval(), observation)).ravel()
    )
    assert (
        decided(20, 0, TimeStep.LAST)
        and decided(30, 1, TimeStep.FIRST, "b")
        and decided(31, 0, TimeStep.MID, "b")
    )
    assert decided(35, 1, TimeStep.MID, "b") and decided(36, 0, TimeStep.MID, "b"), (
        "four time steps have gone by unseen"
    )
    safety(SafetyState.ACTIVE, "policy")
    assert decided(37, 0)
    safety(SafetyState.ACTIVE, "operator")
    assert decided(38, 1) and decided(39, 1)
    safety(SafetyState.HOLD)
    assert decided(40, 1)
    safety(SafetyState.ACTIVE, "policy")
    assert all(map(decided, range(41, 45), [0, 0, 0, 1]))
