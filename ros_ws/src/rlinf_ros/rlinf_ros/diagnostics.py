"""Health reports of a node on /diagnostics, with the rate of each topic that it publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

OK = DiagnosticStatus.OK
WARN = DiagnosticStatus.WARN
ERROR = DiagnosticStatus.ERROR
EVERY_S = 1.0
OF_ROS = ("/rosout", "/parameter_events", "/diagnostics")
INACTIVE = "inactive: activate the node (rlinf lifecycle)"


def is_active(node: Node) -> bool:
    """Return whether a node is active; one without a life cycle always is."""
    return bool(getattr(node, "active", True))


class Health(NamedTuple):
    """A level, a sentence about the state, and measured values."""

    level: bytes
    message: str
    values: Mapping[str, Any] = {}


class Rates:
    """Messages a second of each topic that a node publishes, since the last call [Hz]."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.before = dict[str, int]()
        self.at = time.monotonic()

    def __call__(self) -> dict[str, float]:
        """Rates by name of the topic, relative to the node's namespace."""
        below, now = f"{self.node.get_namespace().rstrip('/')}/", time.monotonic()
        sent = {
            publisher.topic_name.removeprefix(below): getattr(publisher, "sent", 0)
            for publisher in self.node.publishers
            if publisher.topic_name not in OF_ROS
        }
        since_s = max(now - self.at, 1e-3)
        rates = {
            f"{name} hz": round((count - self.before.get(name, 0)) / since_s, 1)
            for name, count in sent.items()
        }
        self.before, self.at = sent, now
        return rates


class Diagnostics:
    """Publishes the result of ``check``, and the rate of each topic of the node."""

    def __init__(self, node: Node, check: Callable[[], Health]) -> None:
        self.node = node
        self.check = check
        self.rates = Rates(node)
        self.publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        node.create_timer(EVERY_S, self.publish)

    def publish(self) -> None:
        """Publish now; the timer calls this, too."""
        level, message, values = self.check()
        if not is_active(self.node):
            level, message = WARN, INACTIVE
        status = DiagnosticStatus(
            name=f"{self.node.get_namespace().strip('/')}/{self.node.get_name()}",
            level=level,
            message=message,
            values=[
                KeyValue(key=key, value=str(value))
                for key, value in {**values, **self.rates()}.items()
            ],
        )
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.node.get_clock().now().to_msg()
        self.publisher.publish(array)
