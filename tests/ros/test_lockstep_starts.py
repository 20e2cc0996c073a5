"""A lockstep station begins when its nodes hear each other: no first action is lost, and equal runs
are equal.
"""

import json
import time
from types import SimpleNamespace

import pytest
from rclpy.action import ActionClient
from rclpy.serialization import deserialize_message
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import EpisodeEvent, PolicyStatus, TimeStep
from std_msgs.msg import String

from benchmarks.lockstep_starts import NODES, STATION, differences, run_start, write_policy
from rlinf_core.episodes.raw_messages import read_messages
from rlinf_ros.conversions import to_ns
from rlinf_ros.endpoints import EndpointReport, _unmatched
from rlinf_ros.qos import lossless_profile, profile
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]


def test_equal_starts_are_recorded_alike_to_the_bit(tmp_path):
    policy = write_policy(tmp_path / "policy.safetensors")
    one, other = (
        run_start(tmp_path / name, 234 - 2 * number, policy) for number, name in enumerate("ab", 1)
    )
    for run in (one, other):
        assert (run["lost"], run["stalls"], run["left_out"]) == (0, 0, 0)
    assert differences(one["contents"], other["contents"]) == []
    topics = {topic for episode in one["contents"] for topic in episode}
    expected = (
        "timestep",
        "applied",
        "policy/action",
        "teleop/action",
        "current_pose",
        "episode",
        "safety/events",
    )
    assert {f"/station_a/{name}" for name in expected} <= topics
    assert all(
        len(episode["/station_a/current_pose"]) == len(episode["/station_a/timestep"])
        for episode in one["contents"]
    )
    for folder in (tmp_path / "a/spool/closed").iterdir():
        steps = [
            (message.at_ns, to_ns(deserialize_message(bytes(message.data), TimeStep).header.stamp))
            for message in read_messages(folder)
            if message.topic.endswith("/timestep")
        ]
        assert all(logged == stamp for logged, stamp in steps), "log times are simulated time"
        assert steps[0][0] % (60 * 10**9) == 0, "a scene begins at a whole minute"


@pytest.mark.domain(229)
def test_no_episode_begins_before_all_have_matched(peer, tmp_path):
    """The peer stands in for a node that another one does not hear yet."""
    statuses, events = (
        listen(peer, PolicyStatus, "policy/status"),
        listen(peer, EpisodeEvent, "episode", lossless_profile),
    )
    reports = peer.node.create_publisher(String, "endpoints", profile("endpoints"))
    endpoint_reports = listen(peer, String, "endpoints", lossless_profile)
    peer.node.create_subscription(TimeStep, "timestep", lambda _: None, profile("timestep"))
    policy = write_policy(tmp_path / "policy.safetensors")
    reports.publish(
        String(
            data=json.dumps(
                ["/station_a/peer", {"/station_a/timestep": {"own": [1], "others": []}}]
            )
        )
    )
    for name in NODES:
        start(peer, name, *STATION, **({"policy_file": str(policy)} if name == "policy" else {}))
    runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
    peer.spin(lambda: statuses and runner.server_is_ready(), what="the station")
    sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="evaluate", first_seed=1))
    peer.spin(sent.done, what="the goal")
    peer.for_s(6.0)
    assert not events, "the others do not know of the peer's endpoint"
    assert {json.loads(report.data)[0] for report in endpoint_reports} >= {
        f"/station_a/{name}" for name in NODES
    }
    reports.publish(String(data=json.dumps(["/station_a/peer", {}])))
    began = time.monotonic()
    peer.spin(
        lambda: any(event.kind == EpisodeEvent.CLOSED for event in events), what="the episode"
    )
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize(
    "theirs, expected",
    [([1], []), ([], ["/timestep: /policy has not matched /environment"]), ([1, 7], [])],
)
def test_a_report_that_lacks_an_endpoint_names_both_nodes(theirs, expected):
    reports = {
        "/environment": {
            "/timestep": {"own": [1], "others": [2]},
            "/clock": {"own": [3], "others": []},
        },
        "/policy": {"/timestep": {"own": [2], "others": theirs}},
    }
    assert list(_unmatched(reports)) == expected
    assert list(_unmatched(dict(reversed(reports.items())))) == expected


@pytest.mark.parametrize("in_one_process, looks", [(True, (22, 1)), (False, (100, 100))])
def test_one_process_looks_at_its_endpoints_rarely_once_they_agree(
    monkeypatch, in_one_process, looks
):
    report = EndpointReport.__new__(EndpointReport)
    report.node = SimpleNamespace(get_fully_qualified_name=lambda: "/a/b")
    report._reports, published = SimpleNamespace(publish=lambda _: published.append(1)), []
    report._published, report._polls, report._changed_poll, report._counts = "", 0, 0, {}
    counts, looked = {("t", "in"): [0]}, []
    report._matched = lambda: looked.append(1) or {key: [*number] for key, number in counts.items()}
    report._report = lambda counts: {"t": counts[("t", "in")]}
    monkeypatch.setattr("rlinf_ros.endpoints.bus", lambda: object() if in_one_process else None)

    def looks_in_100_polls():
        before = len(looked)
        for _ in range(100):
            report._poll()
        return len(looked) - before

    assert (looks_in_100_polls(), looks_in_100_polls()) == looks
    counts["t", "in"] = [1]
    looks_in_100_polls()
    assert len(published) == 2, "a change is reported within five seconds"
