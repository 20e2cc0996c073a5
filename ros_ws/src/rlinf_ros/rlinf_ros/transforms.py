"""tf2's view of a station while it runs: each arm's tool on /tf, and what stands still on /tf_static: cameras."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import rclpy
from geometry_msgs.msg import PoseStamped, TransformStamped
from rclpy.qos import DurabilityPolicy, QoSProfile

from rlinf_core.specs.topics import of_arms
from rlinf_ros.qos import OVERHEARD, subscription
from rlinf_ros.spinning import StationNode

EVERY_S = 1 / 30
DYNAMIC = QoSProfile(depth=100)  # both as tf2_ros has them
STATIC = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Transforms:
    """Listens while somebody looks, at people's rate, and is no burden to who speaks.

    Args:
        node: whose arms they are.
        arms: their names, or none.
        tool: the child frame, below the arm's name where there are several; empty for no /tf.
        mounts: of each frame that stands still in another: that one, position [m], orientation (xyzw), as JSON.
    """

    def __init__(self, node: StationNode, arms: Sequence[str], tool: str, mounts: str) -> None:
        try:
            from tf2_msgs.msg import TFMessage
        except ImportError:
            node.get_logger().warning("no transforms: expected the package tf2_msgs, found none. Run: rlinf messages")
            return
        self.kind, self.node = TFMessage, node
        self.static = node.create_publisher(TFMessage, "/tf_static", STATIC)
        self._mount(json.loads(mounts) if mounts else {})
        if not tool:
            return
        self.moving = node.create_publisher(TFMessage, "/tf", DYNAMIC)
        self.inputs = rclpy.create_node(f"{node.get_name()}_poses", namespace=node.get_namespace(), enable_rosout=False,
                                        start_parameter_services=False, use_global_arguments=False)  # nobody spins it
        topics = of_arms("current_pose", arms)
        self.poses = {f"{arm}_{tool}" if arm else tool: subscription(
            self.inputs, topic, lambda _: None, quality=OVERHEARD, at=node.resolve_topic_name(topic))
            for arm, topic in zip(arms or ("",), topics, strict=True)}
        node.create_timer(EVERY_S, self._say)

    def _mount(self, mounts: dict[str, Any]) -> None:
        """Said once, to whoever comes."""
        placed = []
        for child, mount in mounts.items():
            transform = TransformStamped(child_frame_id=child)
            transform.header.frame_id, transform.header.stamp = mount["frame"], self.node.get_clock().now().to_msg()
            p, q = transform.transform.translation, transform.transform.rotation
            (p.x, p.y, p.z), (q.x, q.y, q.z, q.w) = mount["position"], mount["orientation"]
            placed.append(transform)
        if placed:
            self.static.publish(self.kind(transforms=placed))

    def _say(self) -> None:
        wanted, moved = self.moving.get_subscription_count(), []
        for child, pose in self.poses.items():
            with pose.handle:
                taken = pose.handle.take_message(PoseStamped, False)  # of depth 1: the newest or none
            if taken is not None and wanted:
                moved.append(transform(taken[0], child))
        if moved:
            self.moving.publish(self.kind(transforms=moved))


def transform(pose: PoseStamped, child: str) -> TransformStamped:
    """A tool's pose as tf2 has it."""
    result = TransformStamped(header=pose.header, child_frame_id=child)
    result.transform.rotation = pose.pose.orientation
    p, at = result.transform.translation, pose.pose.position
    p.x = at.x
    p.y = at.y
    p.z = at.z
    return result
