"""A station with two arms, whole, over the real middleware: it plays as the vectorised environment does, and stops as one."""

import numpy as np
import pytest
import torch
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import PolicyStatus, PolicyUpdate

from rlinf.qos import profile
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.validation import check_episode
from rlinf_core.policies import make_policy, tanh_gaussian
from rlinf_core.policies.files import save_policy
from rlinf_core.recipes import load_recipe
from rlinf_core.trainer.evaluation import play
from rlinf_core.trainer.simulated import stations
from rlinf_core.trainer.vector import single
from tests.ros.conftest import peer_in
from tests.ros.stand import listen, start
from tests.ros.test_chunks import Watched, recorded

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
BOTH = ("station.operator.kind=scripted", "station.robot=two_franka_sim", "station.task=reach_both")
NODES = ("sim_bridge", "interlock_left", "interlock_right", "environment", "operator", "recorder", "policy")
SCENES = range(1_000_000, 1_000_003)


@pytest.fixture(scope="module")
def env():
    torch.set_num_threads(1)
    env = stations(load_recipe("sim_rlpd", [*BOTH[1:], "simulation.interlock=true"]), 1)
    yield env
    env.close()


@pytest.fixture(scope="module")
def station(tmp_path_factory):
    """All but the uplink, in lockstep."""
    with peer_in(tmp_path_factory.mktemp("station"), 171) as peer:
        peer.statuses = listen(peer, PolicyStatus, "policy/status")
        peer.updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))
        for name in NODES:
            start(peer, name, *BOTH)
        peer.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(lambda: peer.statuses and peer.updates.get_subscription_count() and peer.runner.server_is_ready(), 60,
                  "the station")
        recorded(peer, peer.runner, "demonstration", [SCENES[0] - 1])  # nodes may still be finding each other
        yield peer


def same(recording, episode, seen, spec):
    vectors, played, rewards = seen
    observed = np.concatenate([recording.observations[item.name] for item in spec.vectors], axis=1)
    assert (recording.success, len(recording)) == (episode.success, episode.steps)
    assert np.array_equal(recording.requested, np.array(played)) and np.array_equal(observed, np.array(vectors))
    assert np.array_equal(recording.rewards, np.array(rewards, np.float32))


def test_both_arms_are_shown_the_task_to_the_last_bit_as_in_the_vectorised_environment(env, station):
    watched = Watched(env)
    expected = play(watched, lambda _: single(env.expert()), 1, SCENES)
    recordings = recorded(station, station.runner, "demonstration", SCENES)
    for recording, episode, seen in zip(recordings, expected, watched.episodes, strict=True):
        same(recording, episode, seen, env.spec)
        check_episode(recording, env.spec, 100)
        assert recording.success and set(recording.sources) == {"operator"}
        assert np.abs(recording.executed).max(0).min() > 1e-3, "each axis of each arm has moved"
        assert len(set(recording.limits_hash.split("+"))) == 2
