"""A running station for RViz and Foxglove.

It publishes ``robot_description``, ``tf``, ``tf_static`` and ``markers``. This replaces
robot_state_publisher, which no wheel has. Its topics are relative, and its frames begin with the
station's name (``rlinf_core.episodes.view``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rclpy.publisher import Publisher
from std_msgs.msg import String

from rlinf_core.core.errors import RlinfError
from rlinf_core.episodes.view import MOVING, View
from rlinf_core.specs.topics import of_arms, topic
from rlinf_ros.memory_bus import PulledNode, as_bytes, take
from rlinf_ros.qos import LAZY_PROFILE, publisher, subscription
from rlinf_ros.station_node import StationNode

EVERY_S = 1 / 30


class Transforms:
    """Subscribes only while somebody watches, at a display rate, without a burden on the senders.

    Args:
        node: the node that owns the topics.
        arms: the arms' names, or none.
        view: computes the messages.
        urdf: file of the robot's URDF; empty if its driver publishes ``robot_description``.
    """

    def __init__(self, node: StationNode, arms: Sequence[str], view: View, urdf: str) -> None:
        self.node = node
        self.view = view
        self.arms = arms
        self.moving, self.static, self.markers = (
            self._publisher(name) for name in ("tf", "tf_static", "markers")
        )
        self.subscriptions: dict[str, Any] = {}
        if urdf:
            self.description = publisher(node, "robot_description")
            text = Path(urdf).read_text()
            self.description.publish(String(data=text))
            self.describe(text)
        self.announce()
        self.inputs = PulledNode(node, "_poses")
        if self.moving is not None:
            node.create_timer(EVERY_S, self._publish_moving)

    def describe(self, urdf: str) -> None:
        """Place the links of a URDF from now on; an unreadable one is logged."""
        try:
            self.view.describe(urdf)
        except RlinfError as error:
            self.node.get_logger().warning(f"{error}. RViz and Foxglove do not show the robot")
            return
        self.announce()

    def announce(self) -> None:
        """Publish the latched messages: fixed frames and markers."""
        for output, make in (
            (self.static, self.view.fixed_frames),
            (self.markers, self.view.markers),
        ):
            if output is not None:
                self._publish(output, make)

    def show_state(self, arm: str, state: int, cause: str) -> bool:
        """Publish the markers if an interlock's state has changed; return whether it has."""
        changed = self.view.update(arm, state, cause)
        if changed and self.markers is not None:
            self._publish(self.markers, self.view.markers)
        return changed

    def _publish(self, output: Publisher, make: Callable[[tuple[int, int]], bytes]) -> None:
        output.publish(make(self.node.get_clock().now().seconds_nanoseconds()))

    def _publisher(self, name: str) -> Publisher | None:
        package = topic(name).type.partition("/")[0]
        try:
            importlib.import_module(f"{package}.msg")
        except ImportError:
            remedy = (
                "rlinf messages"
                if package == "tf2_msgs"
                else "make setup (with ROS: apt-get install ros-jazzy-visualization-msgs)"
            )
            self.node.get_logger().warning(
                f"no {name}: expected the package {package}, which is not installed. Run: {remedy}"
            )
            return None
        return publisher(self.node, name)

    def _subscribe(self) -> None:
        """Subscribe to the poses and joints of every arm, on the node that nobody spins."""
        for name in [name for row in MOVING for name in of_arms(row, self.arms)]:
            self.subscriptions[name] = subscription(
                self.inputs,
                name,
                lambda _: None,
                quality=LAZY_PROFILE,
                raw=True,
                at=self.node.resolve_topic_name(name),
            )

    def _publish_moving(self) -> None:
        assert self.moving is not None
        if not self.moving.get_subscription_count():
            return
        if not self.subscriptions:
            self._subscribe()
        for name, poses in self.subscriptions.items():
            # the queue has depth 1: it holds the newest message or none
            taken = take(poses, raw=True)
            if (
                taken is not None
                and (moved := self.view.moving_frames(name, as_bytes(taken[0]))) is not None
            ):
                self.moving.publish(moved)
