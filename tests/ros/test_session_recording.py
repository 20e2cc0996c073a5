"""The session's recording by a real recorder: what it hears, what a kill costs, and that it plays
again.
"""

import signal

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.parameter import Parameter
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from rosbags.rosbag2 import Reader
from std_msgs.msg import Bool, String

from rlinf_core.cli.main import main
from rlinf_core.episodes.messages import typestore
from rlinf_ros.qos import publisher
from tests.ros.play_recording import assert_played
from tests.ros.stand_ins import start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]


class Station:
    """A stand-in for a station that sends the test's messages to a recorder."""

    def __init__(self, peer):
        self.peer, self.root = peer, peer.supervisor.run_dir / "sessions"
        names = ("safety", "label", "enable", "estop/pendant", "robot/fault", "episode")
        self.say, self.ticks = {name: publisher(peer.node, name) for name in names}, 0
        self.health = peer.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        peer.node.create_timer(0.1, self.tick)
        start(peer, "recorder", estops=["pendant"])
        peer.spin(
            self.is_subscribed,
            what=lambda: {
                name: sender.get_subscription_count() for name, sender in self.say.items()
            },
        )

    def tick(self):
        self.ticks += 1
        self.say["safety"].publish(SafetyState(state=SafetyState.ARMED, ticks=self.ticks))

    def listeners(self):
        """Of each publisher: those that the graph knows, by their number."""
        return {
            sender: {
                bytes(info.endpoint_gid)
                for info in self.peer.node.get_subscriptions_info_by_topic(sender.topic_name)
            }
            for sender in (*self.say.values(), self.health)
        }

    def is_subscribed(self, dead=frozenset()):
        """By somebody else than the dead, who count until they are missed."""
        return all(
            gids - dead and entry.get_subscription_count() >= len(gids)
            for entry, gids in self.listeners().items()
        )

    def live(self, word):
        """A second of it, with a word of a person in its middle."""
        for tick in range(10):
            self.say["enable"].publish(Bool(data=True))
            self.say["estop/pendant"].publish(Bool(data=tick == 5))
            if tick == 5:
                self.say["label"].publish(String(data=word))
            self.peer.for_s(0.1)
        self.health.publish(
            DiagnosticArray(status=[DiagnosticStatus(name="arm", level=b"\1", message=word)])
        )
        self.peer.for_s(0.5)


def read(folder):
    """{topic below the station's: messages}."""
    messages = {}
    with Reader(folder) as reader:
        for connection, _, raw in reader.messages():
            messages.setdefault(connection.topic.removeprefix("/station_a/"), []).append(
                typestore().deserialize_cdr(raw, connection.msgtype)
            )
    return messages


@pytest.mark.domain(219)
def test_of_a_killed_recorder_all_is_kept_and_the_next_ones_session_is_closed_and_plays(
    peer, tmp_path, capsys
):
    station = Station(peer)
    station.say["robot/fault"].publish(String(data="reflex"))
    station.live("success")
    peer.node.declare_parameter("instruction", "")
    peer.node.set_parameters([Parameter("instruction", value="to the red mark")])
    peer.for_s(1.0)
    dead = frozenset().union(*station.listeners().values())
    peer.supervisor.children["recorder"].popen.send_signal(signal.SIGKILL)
    peer.spin(lambda: peer.supervisor.events, 30, "the supervisor to start it again")
    peer.spin(
        lambda: (station.root / "broken").exists() and any((station.root / "broken").iterdir()),
        what="the next one",
    )
    peer.spin(lambda: station.is_subscribed(dead), what="the next one")
    peer.for_s(1.0)
    station.live("failure")
    station.say["episode"].publish(
        EpisodeEvent(kind=EpisodeEvent.STARTED, episode_id="e1", station="station_a")
    )
    peer.for_s(0.5)
    child = peer.supervisor.children["recorder"].popen
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 0, "in the middle of an episode"
    (cut,), (closed,) = (list((station.root / name).iterdir()) for name in ("broken", "closed"))
    assert main(["data", "repair", str(cut), "--out", str(tmp_path / "new")]) == 0, (
        capsys.readouterr().out
    )
    before, after = read(tmp_path / "new" / cut.name), read(closed)
    assert [message.data for message in before["label"]] == ["success"]
    assert [message.data for message in before["robot/fault"]] == ["reflex"]
    assert [message.data for message in before["estop/pendant"]] == [False, True, False]
    assert len(before["enable"]) == 1 and 1 <= len(before["safety"]) < station.ticks / 10, (
        "the same again and again"
    )
    changed = [
        parameter for event in before["/parameter_events"] for parameter in event.changed_parameters
    ]
    assert [(parameter.name, parameter.value.string_value) for parameter in changed] == [
        ("instruction", "to the red mark")
    ]
    statuses = [
        status.message
        for array in before["/diagnostics"]
        for status in array.status
        if status.name == "arm"
    ]
    assert statuses == ["success"]
    assert [message.data for message in after["label"]] == ["failure"]
    assert [message.data for message in after["robot/fault"]] == ["reflex"], (
        "latched: the next one knows it, too"
    )
    assert [event.episode_id for event in after["episode"]] == ["e1"]
    assert main(["data", "check", str(closed)]) == 0
    assert_played(closed, domain=220, least=5)
