"""The newest message of each robot-side topic, on demand: fast topics wake no node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped, Vector3, WrenchStamped
from rclpy.node import Node
from rlinf_msgs.msg import TaskStatus
from sensor_msgs.msg import Image, JointState

from rlinf_core.core.errors import SpecError
from rlinf_core.core.rotation import rotate, unit
from rlinf_core.specs.topics import arm_of
from rlinf_ros.arms import arm_topic
from rlinf_ros.conversions import angles_of, from_image, pose_values, to_ns
from rlinf_ros.memory_bus import PulledNode, snapshot, take
from rlinf_ros.qos import SHARED, kind, received, subscription


class Latest:
    """Pulls topics into channels (rlinf_core.tasks.task).

    The subscriptions live on a node that no executor spins: the middleware keeps the newest
    messages, and this process pays only for those it takes. With ``on_image``, images are received
    on arrival, and the callback reports that every camera has sent one since the last pull.
    ``joints`` names a topic's joints, which are taken in that order; a message that lacks one of
    them, as a gripper's on the same topic, is ignored. Twists and wrenches in ``axes`` are
    expressed along the axes of its frame. Those in another frame are refused, except for the
    tool's, if it says so.
    """

    def __init__(
        self,
        owner: Node,
        topics: set[str],
        lockstep: bool,
        on_image: Callable[[], None] | None = None,
        joints: Mapping[str, Collection[str]] | None = None,
        axes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        for topic in topics:
            if kind(topic) not in CHANNELS:
                raise SpecError(
                    f"topic '{topic}': expected a topic with numbers or an image for the "
                    f"observation (docs/reference/topics.md), got {kind(topic).__name__}. Take it "
                    "out of task and reward"
                )
        node = self.node = PulledNode(owner)
        self.joints, self.axes = joints or {}, axes or {}
        self.channels: dict[str, np.ndarray] = {}
        self.messages: dict[str, Any] = {}
        self.stamps_ns = dict.fromkeys(sorted(topics), -1)
        self.taken_at = dict.fromkeys(self.stamps_ns, float("-inf"))
        self._pulled: dict[str, Any] = {}
        self._images: dict[str, Image] = {}
        images = sum(kind(topic) is Image for topic in topics)

        def receive(topic: str) -> Callable[[Image], None]:
            def take(message: Image) -> None:
                self._images[topic] = message
                if len(self._images) < images:
                    with contextlib.suppress(SpecError):  # the next pull reports it
                        # read now, to save work when the last image arrives
                        self._take(self._pulled)
                elif on_image:
                    on_image()

            return take

        for topic in self.stamps_ns:
            if kind(topic) is Image and on_image is not None:
                subscription(owner, topic, receive(topic), quality=received(topic, lockstep))
            else:
                self._pulled[topic] = subscription(
                    node,
                    topic,
                    _ignore,
                    quality=received(topic, lockstep),
                    at=owner.resolve_topic_name(topic),
                )

    def pull(self, only: Collection[str] = ()) -> None:
        """Take and convert the newest message of all topics, or of ``only``.

        Raises:
            SpecError: a message cannot be read.
        """
        self._take(only or self._pulled)
        while self._images:
            self._keep(*self._images.popitem())

    def _take(self, topics: Collection[str]) -> None:
        for topic in topics:
            subscription = self._pulled[topic]
            while (taken := take(subscription)) is not None:
                self._keep(topic, taken[0])
                # the queue has depth 1: it holds the newest message or none
                if not topic.endswith(SHARED):
                    break

    def _keep(self, topic: str, message: Any) -> None:
        if names := self.joints.get(topic):
            angles = angles_of(message, names)
            if angles is None:
                return
            message = snapshot(message)  # other subscribers may share the message
            message.name, message.position = list(names), list(angles)
        values: np.ndarray | None = CHANNELS[type(message)](message)
        if topic in self.axes:
            values = self._in_axes(topic, message.header.frame_id, values)
        if values is None:
            return
        self.channels[topic], self.messages[topic] = values, message
        self.stamps_ns[topic], self.taken_at[topic] = to_ns(message.header.stamp), time.monotonic()

    def _in_axes(self, topic: str, frame: str, values: Any) -> np.ndarray | None:
        """Return values (6,) along the requested axes; None with an unknown tool orientation."""
        frame_name, of_tool = self.axes[topic]["frame"], self.axes[topic]["tool"]
        if frame == frame_name or not (frame or of_tool):
            return np.asarray(values)
        if not of_tool:
            raise SpecError(
                f"{topic}: expected values along the axes of the limits' frame '{frame_name}', got "
                f"'{frame}'. If these are the tool's axes, set tool_axes: [{topic}] in robot.yaml; "
                f"else publish them in '{frame_name}'"
            )
        # already taken, by the order of the names
        pose = self.channels.get(arm_topic(arm_of(topic), "current_pose"))
        if pose is None or not abs(np.linalg.norm(pose[3:]) - 1.0) < 0.01:
            return None
        turn = unit(tuple(pose[3:]))
        return np.array([*rotate(turn, values[:3]), *rotate(turn, values[3:])])

    def older_than(self, stamp_ns: int, taken_at: float = float("-inf")) -> list[str]:
        """Return the topics whose newest message is too old.

        It is if it never came, if its stamp is before ``stamp_ns``, or if it was taken before
        ``taken_at`` (time.monotonic).
        """
        return [
            topic
            for topic, newest_ns in self.stamps_ns.items()
            if newest_ns < stamp_ns or self.taken_at[topic] < taken_at
        ]


def _ignore(_: Any) -> None:
    """Do nothing; never called, because nobody spins the node of the pulled topics."""


def _pose(message: PoseStamped) -> np.ndarray:
    return np.array(pose_values(message.pose))


def _six(a: Vector3, b: Vector3) -> np.ndarray:
    return np.array([a.x, a.y, a.z, b.x, b.y, b.z])


CHANNELS: dict[type, Callable[[Any], np.ndarray]] = {
    Image: from_image,
    JointState: lambda message: np.asarray(message.position),
    PoseStamped: _pose,
    TwistStamped: lambda message: _six(message.twist.linear, message.twist.angular),
    WrenchStamped: lambda message: _six(message.wrench.force, message.wrench.torque),
    TaskStatus: lambda message: np.array([message.success], np.float64),
}
