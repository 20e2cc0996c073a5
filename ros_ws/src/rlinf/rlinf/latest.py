"""The newest message of each robot-side topic, taken when wanted: topics that come faster than the control rate wake nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import rclpy
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from rlinf.conversions import from_image
from rlinf.qos import profile
from rlinf.stamps import to_ns

KINDS = {"current_pose": PoseStamped, "current_twist": TwistStamped, "wrench": WrenchStamped,
         "joint_states": JointState, "gripper/state": JointState, "object_pose": PoseStamped}


class Latest:
    """Pulls topics into channels (rlinf_core.environment).

    The subscriptions live on a node that no executor spins, so that the middleware keeps the newest messages and this
    process only pays for those it takes.
    """

    def __init__(self, owner: Node, topics: set[str]) -> None:
        self.node = rclpy.create_node(f"{owner.get_name()}_inputs", namespace=owner.get_namespace())
        self._subscriptions = {}
        for topic in sorted(topics):
            kind = Image if topic.startswith("camera/") else KINDS[topic]
            self._subscriptions[topic] = self.node.create_subscription(kind, topic, lambda _: None, profile(topic))
        self.channels: dict[str, np.ndarray] = {}
        self.stamps_ns: dict[str, int] = {}

    def pull(self) -> None:
        """Take everything that has arrived; only the newest of each topic is converted."""
        for topic, subscription in self._subscriptions.items():
            newest = None
            with subscription.handle:
                while (taken := subscription.handle.take_message(subscription.msg_type, False)) is not None:
                    newest = taken[0]
            if newest is not None:
                self.channels[topic] = _channel(newest)
                self.stamps_ns[topic] = to_ns(newest.header.stamp)

    def older_than(self, stamp_ns: int) -> list[str]:
        """Topics whose newest message is older than that, or never came."""
        return [topic for topic in self._subscriptions if self.stamps_ns.get(topic, -1) < stamp_ns]


def _channel(message: Any) -> np.ndarray:
    if isinstance(message, Image):
        return from_image(message)
    if isinstance(message, JointState):
        return np.asarray(message.position)
    if isinstance(message, PoseStamped):
        p, q = message.pose.position, message.pose.orientation
        return np.array([p.x, p.y, p.z, q.x, q.y, q.z, q.w])
    if isinstance(message, TwistStamped):
        a, b = message.twist.linear, message.twist.angular
    else:
        a, b = message.wrench.force, message.wrench.torque
    return np.array([a.x, a.y, a.z, b.x, b.y, b.z])
