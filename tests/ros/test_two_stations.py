"""Two stations in one domain: topics, frames, clocks, services, actions and diagnostics of each are
its own.
"""

import re
from functools import partial

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rclpy.action import ActionClient, get_action_names_and_types
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import SafetyState
from rlinf_msgs.srv import ResetFault
from rosgraph_msgs.msg import Clock
from std_msgs.msg import String
from std_srvs.srv import SetBool

from rlinf_ros.qos import profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

tf2_msgs = pytest.importorskip("tf2_msgs.msg", reason="rlinf messages builds tf2_msgs")
pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DOMAIN = 149
STATIONS = {
    "station_a": ("station.operator.kind=scripted",),
    "station_b": ("station.name=station_b",),
}
NODES = ("sim_bridge", "interlock", "environment", "recorder", "operator")
# by ROS's convention; each message names its node
SHARED = {
    "/rosout",
    "/parameter_events",
    "/diagnostics",
}


class Station:
    """One station, and what a test hears of it."""

    def __init__(self, peer, name, changes):
        self.peer, self.name = peer, name
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, PoseStamped, "target_pose")
        self.descriptions = listen(peer, String, "robot_description")
        self.clocks, self.frames = [], set()
        peer.node.create_subscription(Clock, "clock", self.clocks.append, 10)
        for topic in ("tf", "tf_static"):
            peer.node.create_subscription(
                tf2_msgs.TFMessage, topic, self.on_transforms, profile(topic)
            )
        for node in NODES:
            if node != "operator" or changes[0].endswith("scripted"):
                start(peer, node, *changes)

    def on_transforms(self, message):
        self.frames |= {
            frame
            for transform in message.transforms
            for frame in (transform.header.frame_id, transform.child_frame_id)
        }

    def call(self, kind, name, **request):
        client = self.peer.node.create_client(kind, name)
        self.peer.spin(client.service_is_ready, what=name)
        future = client.call_async(kind.Request(**request))
        self.peer.spin(future.done, what=f"an answer of {name}")
        return future.result()


@pytest.fixture
def stations(tmp_path):
    with (
        peer_in(tmp_path / "a", DOMAIN, "station_a") as a,
        peer_in(tmp_path / "b", DOMAIN, "station_b") as b,
    ):
        pair = [
            Station(peer, name, STATIONS[name])
            for peer, name in ((a, "station_a"), (b, "station_b"))
        ]
        spin_a, turn_b = a.supervisor.poll, b.executor.spin_once

        def poll():  # whoever waits for one station listens to both
            spin_a()
            turn_b(timeout_sec=0.0)

        a.supervisor.poll = poll
        yield pair


def test_neither_station_hears_or_moves_the_other(stations):
    a, b = stations
    peer, node, statuses = a.peer, a.peer.node, {}
    node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda message: statuses.update({status.name: status for status in message.status}),
        10,
    )
    peer.spin(
        lambda: all(
            station.states and station.targets and station.frames and station.clocks
            for station in stations
        ),
        what="both stations",
    )
    assert b.call(ResetFault, "interlock/reset_fault", cause="nothing").success is False
    begun = [(place(station.targets[-1]), len(station.clocks)) for station in stations]

    runner = ActionClient(node, RunEpisodes, "run_episodes")
    peer.spin(runner.server_is_ready, what="the environment of station_a")
    sent = runner.send_goal_async(RunEpisodes.Goal(count=1, mode="demonstration", first_seed=1))
    peer.spin(sent.done, what="its acceptance")
    result = sent.result().get_result_async()
    peer.spin(result.done, what="the episode of station_a")
    assert result.result().result.success and a.call(SetBool, "interlock/arm", data=False).success

    assert {state.state for state in a.states} >= {SafetyState.ACTIVE} and place(
        a.targets[-1]
    ) != begun[0][0]
    assert {state.state for state in b.states} == {SafetyState.DISARMED} and place(
        b.targets[-1]
    ) == begun[1][0]
    assert [station.clocks[-1].clock.sec > 60 for station in stations] == [True, False], (
        "only station_a has begun a scene"
    )
    assert (
        all(frame.startswith("station_a/") for frame in a.frames) and "station_a/tool0" in a.frames
    )
    assert (
        all(frame.startswith("station_b/") for frame in b.frames) and "station_b/tool0" in b.frames
    )
    assert not any("station_b" in line for line in logs(a)), (
        "whoever runs episodes is told of its own station alone"
    )
    expected = {f"{name}/{executable}" for name in STATIONS for executable in NODES} - {
        "station_b/operator"
    }
    peer.spin(
        lambda: expected <= statuses.keys(),
        what=lambda: f"diagnostics: {expected - statuses.keys()}",
    )
    assert statuses.keys() == expected

    names = dict(node.get_topic_names_and_types())
    assert {name for name in names if not re.match(r"/station_[ab]/", name)} <= SHARED, (
        "no global /tf, /clock or /tool0"
    )
    for name in names.keys() - SHARED:
        ends = [
            *node.get_publishers_info_by_topic(name),
            *node.get_subscriptions_info_by_topic(name),
        ]
        assert {end.node_namespace.split("/")[1] for end in ends} <= {name.split("/")[1]}, name
    for listed in (node.get_service_names_and_types(), get_action_names_and_types(node)):
        assert listed and all(re.match(r"/station_[ab]/", name) for name, _ in listed)


def test_a_stop_of_one_station_is_none_of_the_other(stations):
    a, b = stations
    peer = a.peer
    for station in stations:
        peer.spin(lambda station=station: station.states and station.targets, what=station.name)
    peer.spin(
        lambda: b.call(SetBool, "interlock/arm", data=True).success, what="the arming of station_b"
    )
    peer.spin(lambda: b.states[-1].state == SafetyState.ARMED, what="its state")
    for command in (
        partial(a.call, SetBool, "interlock/arm", data=True),
        partial(a.call, SetBool, "interlock/arm", data=False),
    ):
        command()
        peer.for_s(0.3)
        assert b.states[-1].state == SafetyState.ARMED
    peer.supervisor.children["interlock"].popen.kill()
    peer.supervisor.children.pop("interlock")
    peer.for_s(1.0)
    assert b.states[-1].state == SafetyState.ARMED, (
        "the death of an interlock stops its own station alone"
    )


def place(message):
    position = message.pose.position
    return round(position.x, 6), round(position.y, 6), round(position.z, 6)


def logs(station):
    return [
        line
        for path in station.peer.supervisor.run_dir.rglob("*.log")
        for line in path.read_text().splitlines()
    ]
