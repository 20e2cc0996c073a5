"""Logs and messages that accept every text.

Both are UTF-8. A lone surrogate, which JSON and file names can hold, has no UTF-8 bytes, and rclpy
raises UnicodeEncodeError for it. Texts from outside are therefore escaped, so that none of them
ends a node or controls a terminal.
"""

from __future__ import annotations

import os
from typing import Any

from rclpy.impl import rcutils_logger
from rclpy.node import Node
from rclpy.publisher import Publisher

from rlinf_core.core.errors import harmless_lines

# a log names its caller, not this file
rcutils_logger._internal_callers.append(os.path.realpath(__file__))


class EscapingLogger(rcutils_logger.RcutilsLogger):
    """Logs every text, with control characters and lone surrogates escaped as their numbers."""

    def log(self, message: object, severity: Any, **filters: Any) -> bool:
        """Log as rclpy does."""
        return super().log(harmless_lines(str(message)), severity, **filters)


class EscapingPublisher(Publisher):
    """Publishes every text; one without UTF-8 bytes is escaped. ``sent`` counts the messages."""

    sent = 0

    def publish(self, msg: Any) -> None:
        """Publish as rclpy does."""
        self.sent += 1
        try:
            super().publish(msg)
        except UnicodeEncodeError:
            super().publish(escaped(msg))


def escape_logs(node: Node) -> None:
    """Make the node's own logger escape."""
    node._logger = EscapingLogger(node.get_logger().name)


def escape_messages(publisher: Publisher) -> Publisher:
    """Make a publisher of rclpy's escape."""
    publisher.__class__ = EscapingPublisher
    return publisher


def escaped(value: Any) -> Any:
    """Return a message, or a value of one, whose strings all have UTF-8 bytes."""
    if isinstance(value, str):
        return harmless_lines(value)
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if not hasattr(value, "get_fields_and_field_types"):
        return value
    names = type(value).get_fields_and_field_types()
    return type(value)(**{name: escaped(getattr(value, name)) for name in names})
