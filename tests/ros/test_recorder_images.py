"""No image is missed where the recorder was late, or the image was; one that never came is counted
and told.
"""

import signal
import threading
import time

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from rlinf_msgs.msg import Applied, EpisodeEvent, SafetyState, TimeStep
from rosbags.rosbag2 import Reader
from sensor_msgs.msg import Image

from rlinf_core.cli.main import main
from rlinf_core.episodes.messages import to_ns, typestore
from rlinf_ros.qos import publisher
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
HZ = 30


class Station:
    """An environment with a camera of 64x64."""

    def __init__(self, peer):
        self.peer = peer
        self.say = {
            name: publisher(peer.node, name)
            for name in ("safety", "episode", "timestep", "applied", "camera/front/image")
        }
        self.events, self.health = listen(peer, EpisodeEvent, "episode"), []
        peer.node.create_subscription(
            DiagnosticArray,
            "/diagnostics",
            lambda array: self.health.extend(
                {entry.key: entry.value for entry in status.values}
                for status in array.status
                if status.name == "station_a/recorder"
            ),
            10,
        )
        peer.node.create_timer(
            0.1, lambda: self.say["safety"].publish(SafetyState(state=SafetyState.ARMED))
        )
        start(peer, "recorder", cameras=["front"], lockstep=False)
        peer.meet(*self.say.values(), by=["recorder"])
        for _ in range(20):  # whom the camera has met need not have met the camera
            self.see(peer.node.get_clock().now().to_msg())
            peer.for_s(0.05)

    def see(self, stamp):
        image = Image(height=64, width=64, encoding="rgb8", step=192, data=bytes(3 * 64 * 64))
        image.header.stamp = stamp
        self.say["camera/front/image"].publish(image)

    def play(self, name, steps, without=(), late_s=0.0, at=lambda step: None):
        """An episode; the last image comes so late; ``at`` is called before each time step.

        Its folder, once closed.
        """
        self.say["episode"].publish(
            EpisodeEvent(kind=EpisodeEvent.STARTED, episode_id=name, station="station_a")
        )
        for k in range(steps + 1):
            at(k)
            stamp = self.peer.node.get_clock().now().to_msg()
            last = k == steps
            if k not in without and not (last and late_s):
                self.see(stamp)
            time.sleep(0.005)
            step = TimeStep(
                step_index=k,
                episode_id=name,
                discount=1.0,
                step_type=TimeStep.LAST if last else TimeStep.MID if k else TimeStep.FIRST,
            )
            step.header.stamp = stamp
            self.say["timestep"].publish(step)
            if not last:
                self.say["applied"].publish(
                    Applied(source="operator", seq=k + 1, requested=[0.0], executed=[0.0])
                )
            elif late_s:
                time.sleep(late_s)
                self.see(stamp)
            time.sleep(1 / HZ)
        self.say["episode"].publish(
            EpisodeEvent(kind=EpisodeEvent.ENDED, episode_id=name, steps=steps)
        )
        self.peer.spin(
            lambda: any(
                e.kind == EpisodeEvent.CLOSED and e.episode_id == name for e in self.events
            ),
            30,
            lambda: [(e.kind, e.detail) for e in self.events],
        )
        return self.peer.supervisor.run_dir / "spool/closed" / name


def recorded(folder):
    """Return the number of images, and the reported number of missed ones."""
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    counts = {
        topic["topic_metadata"]["name"]: topic["message_count"]
        for topic in metadata["topics_with_message_count"]
    }
    missed = {name: count for name, count in metadata["custom_data"].items() if "camera" in name}
    others = {count for name, count in metadata["custom_data"].items() if name not in missed}
    assert others == {str(counts["/station_a/timestep"])}, (
        "nobody publishes what the task observes besides"
    )
    return counts["/station_a/camera/front/image/compressed"], missed, without(folder)


def without(folder):
    """Numbers of the time steps of whose time there is no image."""
    stamps, images = {}, set()
    with Reader(folder) as reader:
        for connection, _, raw in reader.messages():
            if connection.topic.endswith(("/timestep", "/compressed")):
                message = typestore().deserialize_cdr(raw, connection.msgtype)
                if connection.topic.endswith("/timestep"):
                    stamps[message.step_index] = to_ns(message.header.stamp)
                else:
                    images.add(to_ns(message.header.stamp))
    return [step for step, stamp in sorted(stamps.items()) if stamp not in images]


@pytest.mark.domain(221)
def test_no_image_is_missed_by_a_recorder_that_stood_still_and_what_never_came_is_told(
    peer, capsys
):
    station = Station(peer)
    topic = "missed /station_a/camera/front/image"
    recorder = peer.supervisor.children["recorder"].popen

    def stand_still(step):
        if step == 10:  # from then on for 1.2 s, 36 images
            recorder.send_signal(signal.SIGSTOP)
            threading.Timer(1.2, recorder.send_signal, [signal.SIGCONT]).start()

    lost = 0
    # one that is stopped while it takes a message is sent nothing more that need not arrive
    for attempt in range(5):
        images, missed, steps = recorded(station.play(f"stood{attempt}", 70, at=stand_still))
        lost += len(steps)
        assert (images + len(steps), missed) == (71, {topic: str(len(steps))}), (
            "what did not come is told"
        )
        if not steps:
            break
    assert not steps
    assert recorded(station.play("late", 20, late_s=0.03)) == (21, {topic: "0"}, []), (
        "the last image is waited for"
    )
    folder = station.play("gap", 20, without=(7, 12))
    assert recorded(folder) == (19, {topic: "2"}, [7, 12])
    station.health.clear()
    peer.spin(lambda: station.health, 30, "its word")
    assert (
        station.health[-1]["missed_images"] == str(lost + 2)
        and station.health[-1]["refused_messages"] == "0"
    )
    assert main(["show", str(folder)]) == 0
    assert (
        "2 time steps without a new image of /station_a/camera/front/image"
        in capsys.readouterr().out
    )
