"""How every node of a station starts, spins on one single-threaded executor, and ends cleanly."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable

import rclpy
from rclpy._rclpy_pybind11 import RCLError
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter

try:
    from rclpy.experimental import EventsExecutor
except ImportError:  # rclpy before 7.1.4
    EventsExecutor = SingleThreadedExecutor

BACKGROUND = -1
LOOK_UP_S = 0.5  # EventsExecutor.spin() without an end may spin on its clock; with one it sleeps


class ControlNode(Node):
    """A node of the control path: what it does is fixed when it starts, and it waits for nothing but its own topics.

    rclpy looks at every entity of a node each time it wakes; the parameter and type services are seven of them.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, start_parameter_services=False,
                         parameter_overrides=[Parameter("start_type_description_service", value=False)])


def run(make: Callable[[], Node], priority: int = 0) -> None:
    """Build one node and spin it until SIGINT or SIGTERM.

    Args:
        make: the node's class.
        priority: above 0, a real-time priority (SCHED_FIFO), taken where the system grants it (``rlinf doctor`` says so);
            BACKGROUND gives way to everything that controls.
    """
    _prioritise(priority)
    rclpy.init()
    executor = single_threaded()
    try:
        executor.add_node(make())
        gc.freeze()  # what a node is made of stays; collections look only at what came later
        while rclpy.ok():
            executor.spin_once(timeout_sec=LOOK_UP_S)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except RCLError:
        if rclpy.ok():  # otherwise a signal came between two waits
            raise
    finally:
        rclpy.try_shutdown()


def single_threaded() -> Executor:
    """One thread, woken by what arrives: a third of the time from a message to its callback that the wait set takes."""
    return EventsExecutor()


def _prioritise(priority: int) -> None:
    """For this process, the middleware's threads included: they are not there yet."""
    if priority == BACKGROUND:
        os.nice(10)
    elif priority > 0:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
