"""How every node of a station starts, spins on one single-threaded executor, and ends cleanly."""

from __future__ import annotations

from collections.abc import Callable

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node


def run(make: Callable[[], Node]) -> None:
    """Build one node and spin it until SIGINT or SIGTERM."""
    rclpy.init()
    executor = SingleThreadedExecutor()
    try:
        executor.add_node(make())
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        rclpy.try_shutdown()
