"""Recorder: writes every episode as it happens, raw, and says when it is safe on disk.

An episode is closed once its last time step is written and the actions it holds are accounted for. Problems with the disk
never reach the control loop: they are reported as ABORTED events and the recorder goes on with the next episode.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from rlinf_msgs.msg import ActionChunk, Applied, EpisodeEvent, SafetyEvent, SafetyState, TimeStep

from rlinf.black_box import BlackBox
from rlinf.qos import newest, profile
from rlinf.spinning import BACKGROUND, run
from rlinf_core.episodes.spool import EpisodeWriter, Spool
from rlinf_core.errors import SpoolError

TOPICS = {"timestep": TimeStep, "applied": Applied, "episode": EpisodeEvent, "safety": SafetyState,
          "safety/events": SafetyEvent, "policy/action": ActionChunk, "teleop/action": ActionChunk}
MOTION = ("current_pose", "target_pose")  # for the black box alone
GRACE_S = 0.5


class Recorder(Node):
    """One rosbag2 folder an episode, in the spool."""

    def __init__(self) -> None:
        super().__init__("recorder")
        self.station = self.declare_parameter("station", "station").value
        spool = self.declare_parameter("spool", "spool").value
        self.spool = Spool(spool, min_free_mb=self.declare_parameter("min_free_mb", 200.0).value)
        for left in self.spool.recover():
            self.get_logger().warning(f"episode {left} was interrupted; it is in {self.spool.root / 'broken'}")
        self.early: deque[tuple[str, type, bytes]] = deque(maxlen=64)  # topics are not ordered: data may beat STARTED
        self.writer: EpisodeWriter | None = None
        self.ended: EpisodeEvent | None = None
        self.steps = self.applied = 0
        self.events = self.create_publisher(EpisodeEvent, "episode", profile("episode"))
        for topic, kind in TOPICS.items():
            self.create_subscription(kind, topic, partial(self._on_raw, topic, kind), profile(topic), raw=True)
        self.box, self.fault = BlackBox(self.spool.root.parent / "faults"), ""
        for topic in () if self.declare_parameter("lockstep", False).value else MOTION:
            self.create_subscription(PoseStamped, topic, partial(self._keep, topic, PoseStamped), newest(False), raw=True)
        self.closing = self.create_timer(0.05, self._close_if_late)
        self.closing.cancel()

    def _keep(self, topic: str, kind: type, raw: bytes) -> None:
        package = kind.__module__.split(".")[0]
        self.box.add(self.resolve_topic_name(topic), f"{package}/msg/{kind.__name__}", bytes(raw))

    def _on_safety(self, safety: SafetyState) -> None:
        """The half minute before a fault is kept, once per fault."""
        fault = safety.cause if safety.state == SafetyState.FAULT else ""
        if fault and fault != self.fault:
            try:
                self.get_logger().info(f"FAULT {fault}: what led to it is in {self.box.write(fault)}")
            except SpoolError as error:
                self.get_logger().error(f"what led to FAULT {fault} is lost: {error}")
        self.fault = fault

    def _on_raw(self, topic: str, kind: type, raw: bytes) -> None:
        if topic != "timestep":  # half a minute of images is too much to hold
            self._keep(topic, kind, raw)
        if topic == "safety":
            self._on_safety(deserialize_message(raw, SafetyState))
        event = deserialize_message(raw, EpisodeEvent) if topic == "episode" else None
        if event and event.kind == EpisodeEvent.STARTED:
            self._open(event)
        if self.writer is not None:
            self._write(topic, kind, raw)
        else:
            self.early.append((topic, kind, raw))
        if event and self.writer is not None and event.episode_id == self.writer.episode_id:
            if event.kind == EpisodeEvent.ENDED:
                self.ended, self.ended_at = event, self.get_clock().now()
                self.closing.reset()
            elif event.kind == EpisodeEvent.ABORTED:
                self._abort(event.detail, tell=False)
        self._close_if_complete()

    def _open(self, event: EpisodeEvent) -> None:
        if self.writer is not None:
            self._abort("the next episode began before this one ended")
        self.steps = self.applied = 0
        self.ended = None
        try:
            self.writer = self.spool.open_episode(event.episode_id)
        except SpoolError as error:
            self._report(event.episode_id, str(error))
            return
        while self.early and self.writer is not None:
            self._write(*self.early.popleft())

    def _write(self, topic: str, kind: type, raw: bytes) -> None:
        name = f"rlinf_msgs/msg/{kind.__name__}"
        self.steps += topic == "timestep"
        self.applied += topic == "applied"
        try:
            self.writer.write(self.resolve_topic_name(topic), name, self.get_clock().now().nanoseconds, bytes(raw))
        except SpoolError as error:
            self._abort(str(error))

    def _close_if_complete(self) -> None:
        if self.ended is not None and self.steps >= self.ended.steps + 1 and self.applied >= self.ended.steps:
            self._close()

    def _close_if_late(self) -> None:
        """Some actions were never applied (the arm held); a short grace, then close with what there is."""
        if self.ended is None:
            self.closing.cancel()
        elif (self.get_clock().now() - self.ended_at).nanoseconds > GRACE_S * 1e9:
            if self.steps >= self.ended.steps + 1:
                self._close()
            else:
                self._abort(f"expected {self.ended.steps + 1} time steps, got {self.steps}; messages were lost")

    def _close(self) -> None:
        event, writer = self.ended, self.writer
        self.ended = self.writer = None
        self.early.clear()
        try:
            writer.close()
        except SpoolError as error:
            self._report(event.episode_id, str(error))
            return
        event.kind = EpisodeEvent.CLOSED
        self.events.publish(event)

    def _abort(self, reason: str, tell: bool = True) -> None:
        writer, self.writer, self.ended = self.writer, None, None
        try:
            writer.abort()
        except OSError as error:
            self.get_logger().error(f"episode {writer.episode_id} could not be set aside: {error}")
        if tell:
            self._report(writer.episode_id, reason)

    def _report(self, episode_id: str, reason: str) -> None:
        self.get_logger().error(f"episode {episode_id} is lost: {reason}")
        self.events.publish(EpisodeEvent(kind=EpisodeEvent.ABORTED, episode_id=episode_id, station=self.station,
                                         detail=f"recorder: {reason}"))


def main() -> None:
    """Entry point."""
    run(Recorder, BACKGROUND)


if __name__ == "__main__":
    main()
