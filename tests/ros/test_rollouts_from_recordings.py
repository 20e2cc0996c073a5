"""A station's recorded draws equal those in the vectorised environment, to the last bit."""

import numpy as np
import pytest
import torch
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import ActionChunk, PolicyStatus, PolicyUpdate, TimeStep

from rlinf_core.algorithms.common.rollout import Rollout
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.validate import check_episode
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import gaussian, latent_noise
from rlinf_core.recipes import load_recipe
from rlinf_core.rollouts.collect import ChunkRollouts, EpisodeRollouts
from rlinf_core.rollouts.episode_conversion import episode_to_rollout
from rlinf_ros.conversions import action_chunk, release_chunk
from rlinf_ros.qos import profile
from sim_bridges.core.environments import make_environments
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
REACH = ("station.operator.kind=scripted", "station.task=reach", "seed=5")
FIRST, COUNT, SEED = 1_000_000, 3, 5  # a station draws anew with each version


@pytest.fixture
def env():
    """Behind the interlock's core; as in a policy's process, torch computes in one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env = make_environments(
        load_recipe("sim_rlpd", ["station.task=reach", "simulation.interlock=true"]), 1
    )
    yield env
    env.close()


class Station:
    """A whole station over ROS that plays policies."""

    def __init__(self, peer):
        self.peer = peer
        self.statuses = listen(peer, PolicyStatus, "policy/status")
        self.version = 0
        for name in ("sim_bridge", "interlock", "environment", "operator", "recorder", "policy"):
            start(peer, name, *REACH, **({"lockstep_guard_s": 15.0} if name == "interlock" else {}))
        self.updates = peer.node.create_publisher(
            PolicyUpdate, "policy/update", profile("policy/update")
        )
        self.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(lambda: self.statuses and self.runner.server_is_ready(), what="the station")

    def plays(self, policy):
        """From now on; what it draws is by this version.

        After an evaluation it waits for an episode: hence two.
        """
        self._publish(policy)
        self.episodes("train", 1)  # and at first, nodes may still be finding each other
        self._publish(policy)
        self.peer.spin(lambda: self.statuses[-1].version == self.version, what="the policy")
        return self.version

    def _publish(self, policy):
        self.version += 1
        file = str(
            save_policy(policy, self.peer.supervisor.run_dir / f"{self.version}.safetensors")
        )
        self.updates.publish(PolicyUpdate(version=self.version, path=file))

    def episodes(self, mode, count):
        """Return the recordings of so many."""
        sent = self.runner.send_goal_async(
            RunEpisodes.Goal(count=count, mode=mode, first_seed=FIRST)
        )
        self.peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        self.peer.spin(answer.done, 120, "the episodes")
        result = answer.result().result
        assert result.success, result.message
        return [
            read_episode(self.peer.supervisor.run_dir / "spool/closed" / name)
            for name in result.episode_ids
        ]


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    with peer_in(tmp_path_factory.mktemp("station"), 191) as peer:
        yield Station(peer)


def test_a_rollout_of_recordings_is_the_rollout_of_the_vectorised_environment(env, station):
    """Of a Gaussian policy, chunks of four of which two are played: what was drawn, its
    log-probabilities, all there is.
    """
    policy = make_policy(
        env.spec, gaussian.Config(hidden=(32,), horizon=4, n_action_steps=2, initial_log_std=-1.0)
    ).eval()
    version = station.plays(policy)
    rollouts = ChunkRollouts(env, policy, SEED + version, FIRST)
    rollouts.version = version
    for episode in station.episodes("train", COUNT):
        check_episode(episode, env.spec, 1000)
        expected = rollouts.play(group=1).rollouts[0]
        got = episode_to_rollout(episode, env.spec, policy.config)
        assert (
            len(episode.chunks) == -(-len(episode) // 2) and episode.chunks.drawn.shape[1] == 4 * 3
        )
        for name, value in vars(expected).items():
            pairs = (
                [(value[key], getattr(got, name)[key]) for key in value]
                if isinstance(value, dict)
                else [(value, getattr(got, name))]
            )
            assert all(one is other or torch.equal(one, other) for one, other in pairs), name
        assert (
            isinstance(got, Rollout) and got.log_probs.abs().min() > 0 and got.actions.std() > 0.1
        )
    (evaluated,) = station.episodes("evaluate", 1)
    assert evaluated.chunks.log_probs is None and len(evaluated.chunks) == -(-len(evaluated) // 2)


def test_a_replay_of_recordings_has_the_latent_noise_of_the_vectorised_environment(env, station):
    """Of a flow with a noise policy: the noise, and at which time steps it was drawn."""
    sizes = latent_noise.Config(hidden=(32,), noise_policy=(16,), horizon=4, n_action_steps=2)
    policy = make_policy(env.spec, sizes).eval()
    rollouts = EpisodeRollouts(env, policy, SEED + station.plays(policy), FIRST)
    chunks = listen(station.peer, ActionChunk, "policy/action")
    for episode in station.episodes("train", COUNT):
        check_episode(episode, env.spec, 1000)
        rollouts.observation, ended = None, []
        while not ended:
            ended = rollouts.play(1).trajectories
        (played,) = ended
        observations = played.observations
        rewards = played.rewards
        decided = played.chunk_starts
        latents = played.latents
        length = len(rewards)
        assert len(episode) == length and np.array_equal(
            episode.chunks.chunk_starts(length), decided
        )
        assert (
            np.array_equal(episode.chunks.latents(length)[decided], latents[decided])
            and latents[decided].std() > 0.1
        )
        recorded_vectors = np.concatenate(
            [episode.observations[item.name] for item in env.spec.vectors], axis=1
        )
        assert np.array_equal(recorded_vectors, observations["vectors"])
        assert (
            episode.chunks.drawn.shape[1] == policy.latent_size == 12
            and episode.chunks.log_probs.shape[1] == 1
        )
    assert {(chunk.drawn_dim, len(chunk.drawn), len(chunk.log_probs)) for chunk in chunks} == {
        (12, 12, 1)
    }


def test_what_a_person_does_is_no_chunk_of_the_policy(env, station):
    """Somebody commands from time step 3 on, later where the machine is busy; in the end it is
    handed back.
    """
    policy = make_policy(
        env.spec, gaussian.Config(hidden=(32,), horizon=4, n_action_steps=2, initial_log_std=-3.0)
    ).eval()
    teleop = station.peer.node.create_publisher(
        ActionChunk, "teleop/action", profile("teleop/action")
    )
    begins = []

    def take_over(step):
        if begins and step.step_index == 3:
            # one that came too late has had its number: the same again would be a duplicate
            begins.append(True)
            chunk = action_chunk(
                env.spec,
                np.zeros((14, 3)),
                source="operator",
                session="person",
                seq=len(begins),
                version=-1,
                observation_stamp=step.header.stamp,
                execute=14,
            )
            teleop.publish(chunk)
        elif (
            begins and step.step_index == 16
        ):  # the person lets go, or the interlock would hold: operator_silent
            begins.append(True)
            teleop.publish(
                release_chunk(env.spec, session="person", seq=len(begins), stamp=step.header.stamp)
            )

    steps = station.peer.node.create_subscription(
        TimeStep, "timestep", take_over, profile("timestep")
    )
    station.plays(policy)  # meanwhile, they meet
    station.peer.meet(teleop, by=("interlock", "recorder"))
    begins.append(True)
    for _ in range(5):  # simulated time goes on without a person whom a busy machine keeps waiting
        (episode,) = station.episodes("train", 1)
        theirs = [step for step, source in enumerate(episode.sources) if source == "operator"]
        if len(theirs) >= 3:
            break
    station.peer.node.destroy_subscription(steps)
    station.peer.node.destroy_publisher(teleop)
    check_episode(episode, env.spec, 1000)
    chunks, first = episode.chunks, min(theirs)
    assert 3 <= first < 17 and len(theirs) >= 3
    rollout = episode_to_rollout(episode, env.spec, policy.config)
    counted = [
        step
        for start, played in zip(chunks.starts, chunks.lengths, strict=True)
        for step in range(start, start + played)
    ]
    assert len(counted) == len(set(counted)) and not set(counted) & set(theirs)
    assert counted[:first] == list(range(first)) and all(
        episode.sources[step] == "policy" for step in counted
    )
    before = [2] * (first // 2) + [1] * (first % 2)
    assert rollout.steps[: len(before), 0].tolist() == before, (
        "a chunk that was cut counts as far as it was played"
    )
    assert rollout.done[: len(before), 0].tolist() == [0] * (len(before) - 1) + [1]
    assert counted[-1] == len(episode) - 1 and len(counted) >= len(episode) - len(theirs) - 5
