"""How a node fares, once a second, on /diagnostics (REP-107), by its name below the station's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
EVERY_S = 1.0


class Health(NamedTuple):
    """Whether all is well, in a sentence, and what can be measured of it."""

    level: bytes
    message: str
    values: Mapping[str, Any] = {}


class Diagnostics:
    """Publishes what ``look`` returns."""

    def __init__(self, node: Node, look: Callable[[], Health]) -> None:
        self.node, self.look = node, look
        self.publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        node.create_timer(EVERY_S, self.say)

    def say(self) -> None:
        """Now, too."""
        level, message, values = self.look()
        status = DiagnosticStatus(name=f"{self.node.get_namespace().strip('/')}/{self.node.get_name()}", level=level,
                                  message=message,
                                  values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.node.get_clock().now().to_msg()
        self.publisher.publish(array)
