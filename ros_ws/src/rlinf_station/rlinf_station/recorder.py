"""Recorder: writes every episode raw while it runs, and reports when it is safe on disk.

An episode is closed once its last time step is written and all of its actions are accounted for.
The node only receives messages; a thread writes them (``rlinf_core.episodes.worker``), so that a
slow disk loses none. Messages outside any episode go to the session's recording, whose failure
affects no episode. Disk errors never reach the control loop: they are reported as ABORTED events,
and the recorder continues with the next episode. It also publishes ``robot_description``, ``tf``,
``tf_static`` and ``markers`` for viewers. ``Sampled`` picks each standard topic's message for a
time step. ``BlackBox`` keeps the last half minute in memory and writes it when a fault latches
(S20).
"""

from __future__ import annotations

import json
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import ParameterEvent
from rclpy.node import Node
from rclpy.qos import qos_profile_parameter_events
from rclpy.serialization import deserialize_message
from rlinf_msgs.msg import EpisodeEvent, SafetyState, TimeStep

from rlinf_core.core.errors import SpoolError
from rlinf_core.episodes.messages import TOOL, compress_image
from rlinf_core.episodes.names import time_stamp
from rlinf_core.episodes.record import Recording
from rlinf_core.episodes.ring import Message, Ring
from rlinf_core.episodes.session import ROS_TOPICS, Session
from rlinf_core.episodes.spool import MAX_GB, SPECS, Spool
from rlinf_core.episodes.view import View, text_of
from rlinf_core.episodes.worker import Worker
from rlinf_core.interlock import load_limits
from rlinf_core.specs import topics
from rlinf_core.specs.topics import BLACK_BOX, EPISODE, TOPICS, arm_of, of_arms
from rlinf_ros.arms import arms_of
from rlinf_ros.conversions import NS, to_ns
from rlinf_ros.diagnostics import ERROR, OK, WARN, Diagnostics, Health
from rlinf_ros.endpoints import EndpointReport
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.memory_bus import Envelope, PulledNode, take
from rlinf_ros.qos import (
    LAZY_PROFILE,
    LOSSLESS_DEPTH,
    lazy_profile,
    lossless_profile,
    publisher,
    subscription,
)
from rlinf_ros.spinning import BACKGROUND, run
from rlinf_ros.station_node import StationNode
from rlinf_ros.transforms import Transforms
from rlinf_station.episodes import RECORDER_INACTIVE

SECONDS = 30.0
BYTES = 64 << 20
GB = 5.0  # size of all fault recordings together; the oldest are deleted first


class BlackBox:
    """A ring of serialized messages; ``write`` saves it as a rosbag2 folder, one per fault.

    The folders lie in ``root/closed``.
    """

    def __init__(self, root: Path, seconds: float = SECONDS, max_bytes: int = BYTES) -> None:
        self.spool = Spool(root, kind=BLACK_BOX, max_gb=GB)
        self._faults = 0
        self._ring = Ring(max_bytes, seconds=seconds)
        self.spool.recover()  # unfinished writes of an earlier recorder

    def add(self, message: Message) -> None:
        """Keep one message."""
        self._ring.add(message)

    def write(self, cause: str) -> Path:
        """Write the kept messages; raise SpoolError if the disk does not take them."""
        self.spool.forget("closed", "broken", needed=BYTES)
        writer = self.spool.open_episode(self._name(cause))
        try:
            for message in self._ring:
                writer.write(message.topic, message.kind, message.real_ns, message.raw)
            return writer.close()
        except SpoolError:
            writer.abort()
            raise

    def _name(self, cause: str) -> str:
        """Return a file name from the time, the cause (any text) and a number.

        The number separates faults of the same second.
        """
        self._faults += 1
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in cause[:60])
        return f"fault-{time_stamp()}-{self._faults:03d}-{plain}"


# messages, while the recorder is late; two seconds of images
QUEUE_DEPTH, IMAGE_QUEUE_DEPTH = 50, 60
LATE_S = 0.5  # longest wait for a time step's images after its arrival
HEADER = 12  # bytes: CDR's own four, and a stamp
BEGINNING = 64  # bytes of a time step that include its stamp


def sampled(arms: Sequence[str], cameras: Sequence[str]) -> list[str]:
    """Return the topics that a station with these arms and cameras records by sampling."""
    rows = [row.name for row in TOPICS if row.sampled]
    return [
        *(name for row in rows if "<name>" not in row for name in of_arms(row, arms)),
        *(row.replace("<name>", camera) for row in rows if "<name>" in row for camera in cameras),
    ]


class Sampled:
    """Subscriptions on a node that no executor spins, so that only taking costs time.

    Args:
        owner: the recorder's node, which resolves topic names.
        topics: their names.
        lockstep: makes the subscriptions reliable and deep, because simulated time may run far
            ahead of a late recorder.
    """

    def __init__(self, owner: Node, topics: Sequence[str], lockstep: bool = False) -> None:
        self.lockstep = lockstep
        self.node = PulledNode(owner)
        self.subscriptions = {
            name: subscription(
                self.node,
                name,
                _ignore,
                quality=lazy_profile(self._depth(name), lockstep),
                at=owner.resolve_topic_name(name),
                raw=True,
            )
            for name in topics
        }
        self.full_names = {
            name: (taken.topic_name, _type(name)) for name, taken in self.subscriptions.items()
        }
        self.waiting: dict[str, deque[bytes | Envelope]] = {
            name: deque(maxlen=self._depth(name)) for name in topics
        }
        self.images = [name for name in topics if _is_image(name)]
        self.before: Message | None = None  # the last time step
        self.late: deque[Message] = deque()  # time steps whose images may still arrive
        self.present_topics: set[str] = set()  # topics with a message in the last time step
        self.overflown = 0  # number of messages dropped from full queues

    def at(self, message: Message) -> Iterator[tuple[str, Message]]:
        """Yield the messages of the previous time step, which have had time to arrive.

        At an episode's last step, yield those of that step, too. Images, which may arrive later,
        are awaited for at most LATE_S.
        """
        kind = step_type(message.raw)
        if kind == TimeStep.FIRST:  # leftovers of an episode that never ended
            self.before = None
            self.late.clear()
        others = [name for name in self.waiting if name not in self.images]
        if self.before is not None:
            yield from self.of(self.before, others)
        self.before = replace(message, raw=message.raw[:BEGINNING])
        self.late.append(self.before)
        if kind == TimeStep.LAST:
            yield from self.of(self.before, others)
            self.before = None
        while self.late and (
            kind == TimeStep.LAST
            or message.at_ns - self.late[0].at_ns > LATE_S * NS
            or (len(self.late) > 1 and not self.behind(self.late[0].raw))
        ):
            yield from self.of(self.late.popleft(), self.images)

    def behind(self, step: bytes) -> bool:
        """Return whether an active camera has no image yet of a time step's time or later.

        Such an image may still arrive.
        """
        until_ns = stamp_ns(step)
        for name in self.present_topics.intersection(self.images):
            self._take(name)
            if not self.waiting[name] or stamp_ns(self.waiting[name][-1]) < until_ns:
                return True
        return False

    def of(self, step: Message, names: Sequence[str]) -> Iterator[tuple[str, Message]]:
        """Yield each topic's newest message up to a time step, once, with the topic's name."""
        until_ns = stamp_ns(step.raw)
        for name in names:
            self._take(name)
            waiting, newest = self.waiting[name], None
            while waiting and stamp_ns(waiting[0]) <= until_ns:
                newest = waiting.popleft()
            if newest is None:
                self.present_topics.discard(name)
            else:
                self.present_topics.add(name)
                simulated_ns = stamp_ns(newest) if self.lockstep else None
                raw = newest.raw if isinstance(newest, Envelope) else newest
                full_name, kind = self.full_names[name]
                yield (
                    name,
                    Message(full_name, kind, step.at_ns, raw, step.wall_ns, simulated_ns),
                )

    def _depth(self, name: str) -> int:
        if _is_image(name):
            return IMAGE_QUEUE_DEPTH
        return LOSSLESS_DEPTH if self.lockstep else QUEUE_DEPTH

    def _take(self, name: str) -> None:
        subscription = self.subscriptions[name]
        for _ in range(self._depth(name)):
            taken = take(subscription, raw=True)
            if taken is None:
                return
            self.overflown += len(self.waiting[name]) == self._depth(name)
            self.waiting[name].append(
                taken[0] if isinstance(taken[0], Envelope) else bytes(taken[0])
            )


def stamp_ns(raw: bytes | Envelope) -> int:
    """Return the stamp of a message in CDR that begins with a header; 0 if it is too short."""
    if isinstance(raw, Envelope):
        return to_ns(raw.message.header.stamp)
    if len(raw) < HEADER:
        return 0
    seconds, nanoseconds = struct.unpack_from("<iI" if raw[1] & 1 else ">iI", raw, 4)
    return int(seconds * NS + nanoseconds)


def step_type(step: bytes) -> int:
    """Return the step type of a TimeStep in CDR, the field after its header; -1 if too short."""
    if len(step) < HEADER + 4:
        return -1
    (length,) = struct.unpack_from("<I" if step[1] & 1 else ">I", step, HEADER)
    place = HEADER + 4 + int(length)
    return step[place] if place < len(step) else -1


def _is_image(name: str) -> bool:
    return _type(name).endswith("/Image")


def _type(name: str) -> str:
    return topics.topic(name).type


def _ignore(_: Any) -> None:
    """Do nothing; never called, because nobody spins the node of these topics."""


# markers in the queue
SAMPLED, OVER = "sampled", "over"
SESSION_GB = 1.0
CLOSE_LATE_S = 0.4  # longest wait of an episode's last time step for its images
POLL_S = 0.02  # interval of the check for these images
# at the end: longest wait for an ended episode before the session is closed
PATIENCE_S = 1.0
RECORDED = {
    store: [topic.name for topic in TOPICS if topic.recorded == store]
    for store in (EPISODE, BLACK_BOX)
}
OF_SESSION = [topic.name for topic in TOPICS if topic.session is not None]


class Recorder(Managed, StationNode):
    """One rosbag2 folder per episode, in the spool.

    While inactive, it finishes the episode in play and begins no other. It records the session and
    the last half minute before a fault in any state, as evidence.
    """

    def __init__(self) -> None:
        super().__init__("recorder")
        lockstep = self.declare_parameter("lockstep", False).value
        endpoints = EndpointReport(self) if lockstep else None
        self.station = self.declare_parameter("station", "station").value
        spool = self.declare_parameter("spool", "spool").value
        self.spool = Spool(spool, max_gb=self.declare_parameter("spool_gb", MAX_GB).value)
        self.declare_live(
            "min_free_mb", 200.0, lambda megabytes: setattr(self.spool, "min_free_mb", megabytes)
        )
        self.specs = self.declare_structure("specs")
        self.attached = [
            text.partition("=") for text in self.declare_parameter("attached", [""]).value if text
        ]
        self.spool.attachments = self._attachments
        for left in self.spool.recover():
            self.get_logger().warning(
                f"episode {left} was interrupted; its recording is in {self.spool.root / 'broken'}"
            )
        arms = arms_of(self)
        self.box = BlackBox(self.spool.root.parent / "faults")
        self.faults: dict[str, str] = {}  # by the topic that reported it
        cameras = [name for name in self.declare_parameter("cameras", [""]).value if name]
        self.sampled = Sampled(self, sampled(arms, cameras), lockstep)
        if endpoints is not None:
            endpoints.nodes.append(self.sampled.node)
        observed = [topic for topic in self.declare_parameter("observed", [""]).value if topic]
        counted = [
            topic for topic in self.sampled.subscriptions if topic not in self.sampled.images
        ]
        names = [
            list(map(self.resolve_topic_name, topics))
            for topics in (
                [f"camera/{name}/image" for name in cameras],
                [topic for topic in observed if topic in counted],
                counted,
            )
        ]
        self.recording = Recording(self.spool, self._publish_event, max(len(arms), 1), *names)
        self.last: Message | None = None  # an episode's last time step, which waits for its images
        self.waits = self.create_timer(POLL_S, self._on_late)
        self.waits.cancel()
        self.refused = self.refused_before = 0
        self.losing = False
        self.lost = 0
        self.trouble = ""
        self.requested_s = 0.0
        self.has_finished = False  # other nodes of this process may still publish
        self.session = Session(
            self.spool.root.parent / "sessions",
            self.station,
            self.declare_parameter("session_gb", SESSION_GB).value,
            self._attachments,
            self._on_session,
        )
        self.diagnostics = Diagnostics(self, self._health)
        self.worker = Worker(self._handle, self._poll, self._log_fault)
        self.description: Message | None = None  # published once, recorded with each episode
        self.view = self._view(arms)
        self.shown = {
            name: (self.resolve_topic_name(name), _type(name))
            for name in ("tf", "tf_static", "markers")
        }
        self.transforms = Transforms(
            self, arms, self.view, self.declare_parameter("urdf", "").value
        )
        estops = [f"estop/{name}" for name in self.declare_parameter("estops", [""]).value if name]
        rows = dict.fromkeys(
            (*RECORDED[EPISODE], *(() if lockstep else RECORDED[BLACK_BOX]), *OF_SESSION)
        )
        for topic in (
            *estops,
            *(topic for row in rows if "<name>" not in row for topic in of_arms(row, arms)),
        ):
            self._listen(topic)
        self.create_subscription(
            DiagnosticArray,
            "/diagnostics",
            partial(self._on_session_topic, "/diagnostics"),
            100,
            raw=True,
        )
        self.create_subscription(
            ParameterEvent,
            "/parameter_events",
            partial(self._on_session_topic, "/parameter_events"),
            qos_profile_parameter_events,
            raw=True,
        )
        self.events = publisher(self, "episode")  # last: others wait for this publisher

    def finish(self) -> bool:
        """End the node, but close an ended episode first.

        For an unended one, the end may be in transit.
        """
        closed = self.recording.writer is None and self.worker.idle
        self.requested_s = self.requested_s or time.monotonic()
        if self.session.is_closed:
            self.has_finished |= closed
            return self.has_finished
        if closed or time.monotonic() - self.requested_s > PATIENCE_S:
            self.worker.put((OVER, None), 0, anyway=True)
        return False

    def _attachments(self) -> dict[str, bytes]:
        """Return the attachments of each recording: recipe, limits and full specs.

        Messages hold their hashes. Missing files are left out.
        """
        specs = {SPECS: json.dumps(self.specs).encode()} if self.specs else {}
        return specs | {
            name: Path(path).read_bytes() for name, _, path in self.attached if Path(path).is_file()
        }

    def _view(self, arms: list[str]) -> View:
        """Return this station's view for live and recorded viewers."""
        paths = [path for path in self.declare_parameter("limits", [""]).value if path]
        limits = dict(zip(arms or [""], map(load_limits, paths), strict=True)) if paths else {}
        mounts = self.declare_structure("mounts")
        bases = {arm: limit.frame for arm, limit in limits.items()} or {"": "base_link"}
        tool = self.declare_parameter("tool_frame", TOOL).value
        boxes = {arm: (limit.box_low, limit.box_high) for arm, limit in limits.items()}
        return View(self.get_namespace().strip("/"), bases, tool, mounts, boxes)

    # In the node's thread
    def _listen(self, topic: str) -> None:
        name = self.resolve_topic_name(topic)
        row = topics.topic(topic)
        subscription(
            self,
            topic,
            partial(self._on_raw, topic, name, row.type),
            raw=True,
            quality=lossless_profile(topic)
            if row.recorded == EPISODE or row.session is not None
            else LAZY_PROFILE,
        )

    def _on_raw(self, topic: str, name: str, kind: str, raw: bytes) -> None:
        headed = kind.startswith("rlinf_msgs/") and self.sampled.lockstep
        message = Message(
            name,
            kind,
            time.monotonic_ns(),
            bytes(raw),
            time.time_ns(),
            stamp_ns(raw) if headed else None,
        )
        if topic == "timestep":
            self._write_waiting()
            if step_type(message.raw) == TimeStep.LAST and self.sampled.behind(message.raw):
                self.last = message
                self.recording.held = True
                self.waits.reset()
                return
        self._put(topic, message)

    def _on_late(self) -> None:
        last = self.last
        if (
            last is None
            or time.monotonic_ns() - last.at_ns > CLOSE_LATE_S * 1e9
            or not self.sampled.behind(last.raw)
        ):
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write an episode's last time step, which has waited for its images."""
        self.waits.cancel()
        last = self.last
        self.last = None
        if last is not None:
            self._put("timestep", last)
            self.recording.held = False

    def _put(self, topic: str, message: Message) -> None:
        if self.has_finished:
            return
        if topic == "timestep":  # before it, because the last one may close the episode
            shown = list(self.sampled.at(message))
            if not self.worker.put((SAMPLED, shown), sum(len(item.raw) for _, item in shown)):
                self.refused += len(shown)
        is_event = topic == "episode"
        urgent = is_event or self.recording.ended is not None
        taken = self.worker.put((topic, message), len(message.raw), is_event, urgent)
        if topics.topic(topic).recorded != EPISODE:
            return
        if not taken and not self.losing:
            self.worker.put(("", message.at_ns), 0, anyway=True)
        self.losing = not taken

    def _on_session_topic(self, name: str, raw: bytes) -> None:
        if self.has_finished:
            return
        kind = ROS_TOPICS[name]
        message = Message(name, kind, time.monotonic_ns(), bytes(raw), time.time_ns())
        self.worker.put((name, message), len(raw))

    def _health(self) -> Health:
        refused, before = self.refused + self.sampled.overflown, self.refused_before
        self.refused_before = refused
        values = {
            "waiting_mb": self.worker.bytes >> 20,
            "lost_episodes": self.lost,
            "missed_images": self.recording.missed,
            "refused_messages": refused,
        }
        if self.trouble:
            return Health(ERROR, self.trouble, values)
        if refused > before:
            return Health(
                WARN,
                "the recorder is too slow: images or states of time steps were left out",
                values,
            )
        return Health(OK, "records", values)

    # In the writing thread
    def _handle(self, item: tuple[str, Any]) -> None:
        topic, message = item
        if topic == SAMPLED:
            for name, payload in message:
                self.recording.take(compress_image(payload))
                if (moved := self.view.moving_frames(name, payload.raw)) is not None:
                    self._take_shown("tf", moved, payload)
            return
        if topic == OVER:
            self.session.close()
            return
        if not topic:
            self.recording.abort(
                f"more than {self.worker.max_bytes >> 20} MiB wait to be written: the disk is too "
                "slow. Record smaller images, or on a faster disk"
            )
            return
        if topic == "robot_description":
            self.description = message
            self.transforms.describe(text_of(message.raw))
            return
        if topic != "timestep":  # half a minute of images would be too large
            self.box.add(message)
        row = topics.topic(topic) if topic not in ROS_TOPICS else None
        if row is None or row.session is not None:
            self.session.take(topic, message)
        if row is not None and row.name == "safety":
            self._on_safety(topic, message)
        if row is not None and row.recorded == EPISODE:
            event = deserialize_message(message.raw, EpisodeEvent) if topic == "episode" else None
            if event is not None and event.kind == EpisodeEvent.STARTED and not self.active:
                event.detail = RECORDER_INACTIVE
                self._publish_event(EpisodeEvent.ABORTED, event.episode_id, event, "")
                return
            self.recording.take(message, event)
            if event is not None and event.kind == EpisodeEvent.STARTED:
                self._begin_view(message)

    def _begin_view(self, message: Message) -> None:
        """Begin a recording with the latched messages for viewers."""
        if self.description is not None:
            self.recording.take(self.description.at_time_of(message))
        stamp = divmod(message.log_ns, NS)
        self._take_shown("tf_static", self.view.fixed_frames(stamp), message)
        self._take_shown("markers", self.view.markers(stamp), message)

    def _take_shown(self, name: str, raw: bytes, at: Message) -> None:
        full_name, kind = self.shown[name]
        self.recording.take(replace(at, topic=full_name, kind=kind, raw=raw))

    def _poll(self) -> None:
        self.recording.close_if_due(time.monotonic_ns())

    def _on_safety(self, topic: str, message: Message) -> None:
        """Write the half minute before a fault, once per fault and arm; show viewers the state."""
        safety = deserialize_message(message.raw, SafetyState)
        if (
            self.transforms.show_state(arm_of(topic), safety.state, safety.cause)
            and self.recording.writer is not None
        ):
            self._take_shown("markers", self.view.markers(divmod(message.log_ns, NS)), message)
        fault = safety.cause if safety.state == SafetyState.FAULT else ""
        if fault and fault != self.faults.get(topic):
            try:
                self.get_logger().info(
                    f"FAULT {fault}: the recording of the last half minute is "
                    f"{self.box.write(fault)}"
                )
            except SpoolError as error:
                self.get_logger().error(
                    f"FAULT {fault}: the recording of the last half minute is lost: {error}"
                )
        self.faults[topic] = fault

    def _publish_event(
        self, kind: int, episode_id: str, event: EpisodeEvent | None, reason: str
    ) -> None:
        self.trouble = f"episode {episode_id} is lost: {reason}" if event is None else ""
        if event is None:
            self.lost += 1
            self.get_logger().error(f"episode {episode_id} is lost: {reason}")
            event = EpisodeEvent(
                episode_id=episode_id, station=self.station, detail=f"recorder: {reason}"
            )
        event.kind = kind
        self.events.publish(event)

    def _on_session(self, error: Exception) -> None:
        self.get_logger().warning(
            f"the session's recording pauses; episodes are recorded as before: {error}",
            throttle_duration_sec=60.0,
        )

    def _log_fault(self, error: Exception) -> None:
        self.get_logger().error(f"a message could not be recorded: {type(error).__name__}: {error}")


def main() -> None:
    """Entry point."""
    run(Recorder, BACKGROUND)


if __name__ == "__main__":
    main()
