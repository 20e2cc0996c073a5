"""A scripted person takes over in the middle of an episode, in lockstep: who moves the arm, and
what is recorded of it.
"""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rclpy.action import ActionClient
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import PolicyStatus, PolicyUpdate

from rlinf_core.interlock import Mode
from rlinf_core.policies import make_policy
from rlinf_core.policies.serialization import save_policy
from rlinf_core.policies.small import tanh_gaussian
from rlinf_interlock.interlock_clock import Lockstep
from rlinf_ros.qos import profile
from tests.ros.stand_ins import listen, start
from tests.ros.test_chunks import recorded

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
AFTER = 5


@pytest.mark.domain(174)
def test_where_the_policy_is_stuck_the_script_ends_the_episode(peer, tmp_path):
    statuses = listen(peer, PolicyStatus, "policy/status")
    updates = peer.node.create_publisher(PolicyUpdate, "policy/update", profile("policy/update"))
    options = ("station.task=reach", f"station.operator={{kind: scripted, takes_over: {AFTER}}}")
    for name in ("sim_bridge", "environment", "operator", "recorder", "policy"):
        spec = start(peer, name, *options)
    # as long as a busy machine may keep the script from its answer
    start(peer, "interlock", *options, lockstep_guard_s=20.0)
    policy = make_policy(spec, tanh_gaussian.Config(hidden=(8,)))
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(
        lambda: updates.get_subscription_count() and runner.server_is_ready(), what="the station"
    )
    updates.publish(
        PolicyUpdate(version=1, path=str(save_policy(policy, tmp_path / "1.safetensors")))
    )
    peer.spin(lambda: statuses and statuses[-1].version == 1, what="the policy")
    recorded(peer, runner, "demonstration", [7])  # nodes may still be finding each other
    taken_over = [
        recording
        for recording in recorded(peer, runner, "train", range(8, 14))
        if "operator" in recording.sources
    ]
    assert len(taken_over) >= 4, "an untrained policy gets there hardly ever"
    for episode in taken_over:
        first = episode.sources.index("operator")
        assert list(episode.sources[:AFTER]) == ["policy"] * AFTER
        assert set(episode.sources[first:]) == {"operator"}, (
            "from when their first chunk comes, which nobody waits for"
        )
        assert episode.success
    alone = recorded(peer, runner, "evaluate", range(8, 11))
    assert all(set(episode.sources) == {"policy"} for episode in alone), (
        "held-out episodes are nobody's but the policy's"
    )


class Chunks:
    """A lockstep clock that hears of chunks of one action, 100 ms each, and of poses 10 ms
    apart.
    """

    def __init__(self):
        self.inputs = SimpleNamespace(
            others={},
            pose_stamp_ns=0,
            pull=lambda: None,
            check_publishers=lambda: None,
            chunks=[],
            decode=lambda topic, kind, raw: raw,
            receive=self._receive,
        )
        self.ticks = []
        self.clock = Lockstep(
            MagicMock(),
            self.inputs,
            0.01,
            lambda now_ns, *_: self.ticks.append(now_ns // 10**6),
            0.5,
            lambda: Mode.ACTIVE,
            lambda: None,
        )

    def _receive(self, topic, message):
        if topic == "current_pose":
            self.inputs.pose_stamp_ns = message
        else:
            self.inputs.chunks.append(message)

    def pose(self, milliseconds):
        self.clock._on_pose(milliseconds * 10**6)

    def chunk(self, topic, milliseconds, is_release=False):
        stamp_ns = milliseconds * 10**6
        self.clock._on_chunk(
            topic,
            SimpleNamespace(
                dt_s=0.1,
                dt_ns=10**8,
                execute=0 if is_release else 1,
                observation_stamp_ns=stamp_ns,
                is_release=is_release,
            ),
        )

    def ticked(self):
        ticks, self.ticks = self.ticks, []
        return ticks


def test_while_the_operator_commands_the_policys_chunk_lets_no_tick_go_by_before_theirs_is_there():
    at = Chunks()
    at.pose(0)
    at.chunk("policy/action", 0)
    assert at.ticked() == [0]
    at.pose(10)
    at.chunk("teleop/action", 0)
    at.pose(20)
    assert at.ticked() == [10, 20]
    at.pose(100)
    at.chunk("policy/action", 100)
    assert at.ticked() == []
    at.chunk("teleop/action", 100)
    assert at.ticked() == [100]
    at.pose(200)
    at.chunk("policy/action", 200)
    at.clock._on_guard()
    assert at.ticked() == [], "theirs may be on its way"
    at.clock.since_ns -= 10**9
    at.clock._on_guard()
    at.pose(210)
    assert at.ticked() == [200, 210], "they have let go"


def test_a_release_lets_the_ticks_of_the_policys_chunk_go_by_at_once():
    at = Chunks()
    at.pose(0)
    at.chunk("teleop/action", 0)
    assert at.ticked() == [0]
    at.pose(100)
    at.chunk("policy/action", 100)
    assert at.ticked() == [], "the operator's may be on its way"
    at.chunk("teleop/action", 100, is_release=True)
    assert at.ticked() == [100]
    at.pose(110)
    assert at.ticked() == [110]
    at.pose(200)
    at.chunk("teleop/action", 200, is_release=True)
    assert at.ticked() == [], "a release is nothing to play"
