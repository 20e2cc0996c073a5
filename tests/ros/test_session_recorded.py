"""The session's recording by a real recorder: what it hears, what a kill costs, and that it plays again."""

import signal
import time

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from rosbags.rosbag2 import Reader
from std_msgs.msg import Bool, String

from rlinf.qos import kind, profile, publisher
from rlinf_core.cli.main import main
from rlinf_core.episodes.messages import typestore
from rlinf_core.interface import topic
from tests.ros.stand import start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


class Station:
    """What a recorder hears of one, said by the test."""

    def __init__(self, peer):
        self.peer, self.root = peer, peer.supervisor.run_dir / "sessions"
        names = ("safety", "label", "enable", "estop/pendant", "robot/fault", "episode")
        self.say, self.ticks = {name: publisher(peer.node, name) for name in names}, 0
        self.health = peer.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        peer.node.create_timer(0.1, self.tick)
        start(peer, "recorder", estops=["pendant"])
        peer.spin(self.heard, what=lambda: {name: each.get_subscription_count() for name, each in self.say.items()})

    def tick(self):
        self.ticks += 1
        self.say["safety"].publish(SafetyState(state=SafetyState.ARMED, ticks=self.ticks))

    def heard(self):
        return all(each.get_subscription_count() for each in (*self.say.values(), self.health))

    def live(self, word):
        """A second of it, with a word of a person in its middle."""
        for tick in range(10):
            self.say["enable"].publish(Bool(data=True))
            self.say["estop/pendant"].publish(Bool(data=tick == 5))
            if tick == 5:
                self.say["label"].publish(String(data=word))
            self.peer.for_s(0.1)
        self.health.publish(DiagnosticArray(status=[DiagnosticStatus(name="arm", level=b"\1", message=word)]))
        self.peer.for_s(0.5)


def read(folder):
    """{topic below the station's: messages}."""
    found = {}
    with Reader(folder) as reader:
        for each, _, raw in reader.messages():
            found.setdefault(each.topic.removeprefix("/station_a/"), []).append(
                typestore().deserialize_cdr(raw, each.msgtype))
    return found


@pytest.mark.domain(219)
def test_of_a_killed_recorder_all_is_kept_and_the_next_ones_session_is_closed_and_plays(peer, tmp_path, capsys):
    station = Station(peer)
    station.say["robot/fault"].publish(String(data="reflex"))
    station.live("success")
    peer.node.declare_parameter("instruction", "")
    peer.node.set_parameters([Parameter("instruction", value="to the red mark")])
    peer.for_s(1.0)
    peer.supervisor.children["recorder"].popen.send_signal(signal.SIGKILL)
    peer.spin(lambda: peer.supervisor.events, 30, "the supervisor to start it again")
    peer.spin(lambda: (station.root / "broken").exists() and any((station.root / "broken").iterdir()), 60, "the next one")
    peer.spin(station.heard, what="the next one")
    peer.for_s(1.0)
    station.live("failure")
    station.say["episode"].publish(EpisodeEvent(kind=EpisodeEvent.STARTED, episode_id="e1", station="station_a"))
    peer.for_s(0.5)
    child = peer.supervisor.children["recorder"].popen
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 0, "in the middle of an episode"
    (cut,), (closed,) = (list((station.root / name).iterdir()) for name in ("broken", "closed"))
    assert main(["data", "repair", str(cut), "--out", str(tmp_path / "new")]) == 0, capsys.readouterr().out
    before, after = read(tmp_path / "new" / cut.name), read(closed)
    assert [said.data for said in before["label"]] == ["success"]
    assert [said.data for said in before["robot/fault"]] == ["reflex"]
    assert [said.data for said in before["estop/pendant"]] == [False, True, False]
    assert len(before["enable"]) == 1 and 1 <= len(before["safety"]) < station.ticks / 10, "the same again and again"
    changed = [each for event in before["/parameter_events"] for each in event.changed_parameters]
    assert [(each.name, each.value.string_value) for each in changed] == [("instruction", "to the red mark")]
    told = [status.message for array in before["/diagnostics"] for status in array.status if status.name == "arm"]
    assert told == ["success"]
    assert [said.data for said in after["label"]] == ["failure"]
    assert [said.data for said in after["robot/fault"]] == ["reflex"], "latched: the next one knows it, too"
    assert [event.episode_id for event in after["episode"]] == ["e1"]
    assert main(["data", "check", str(closed)]) == 0
    assert_played(closed)


def assert_played(folder):
    """As ros2 bag play does: publishers with the recorded quality of service, the bytes as they are."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=220)
    player, listener = (rclpy.create_node(name, context=context) for name in ("player", "listener"))
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(listener)
    heard, sent, publishers = {}, {}, {}
    try:
        with Reader(folder) as reader:
            for connection in (each for each in reader.connections if each.topic.startswith("/station_a/")):
                name = connection.topic.removeprefix("/station_a/")
                [offered] = connection.ext.offered_qos_profiles
                assert (offered.depth, offered.durability.name == "TRANSIENT_LOCAL") == (topic(name).depth,
                                                                                        topic(name).latched)
                publishers[connection.topic] = player.create_publisher(kind(name), connection.topic, QoSProfile(
                    depth=offered.depth, history=HistoryPolicy[offered.history.name],
                    reliability=ReliabilityPolicy[offered.reliability.name],
                    durability=DurabilityPolicy[offered.durability.name]))
                listener.create_subscription(kind(name), connection.topic,
                                             lambda message, to=connection.topic: heard.setdefault(to, []).append(message),
                                             profile(name))
            deadline = time.monotonic() + 20
            while not all(each.get_subscription_count() for each in publishers.values()) and time.monotonic() < deadline:
                executor.spin_once(timeout_sec=0.05)
            for connection, _, raw in reader.messages([each for each in reader.connections if each.topic in publishers]):
                publishers[connection.topic].publish(raw)
                sent[connection.topic] = sent.get(connection.topic, 0) + 1
                executor.spin_once(timeout_sec=0.01)
        while {name: len(got) for name, got in heard.items()} != sent and time.monotonic() < deadline + 20:
            executor.spin_once(timeout_sec=0.05)
        assert {name: len(got) for name, got in heard.items()} == sent and len(sent) >= 5
    finally:
        executor.shutdown()
        for node in (player, listener):
            node.destroy_node()
        rclpy.shutdown(context=context)
