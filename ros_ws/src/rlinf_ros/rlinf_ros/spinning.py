"""Start, single-threaded executor and clean end of a station's nodes."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import rclpy
import yaml
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.signals import end_with_parent
from rlinf_ros import memory_bus
from rlinf_ros.workarounds import (
    LOOK_UP_S,
    DiscoveryWatchdog,
    LaunchFileLoader,
    end_soon,
    single_threaded,
)

BACKGROUND = -1
FINISH_S = 4.0  # a station's stop escalates after 5 s
ARRIVES_S = 0.1


@runtime_checkable
class Finishable(Protocol):
    """A node that needs time to end."""

    def finish(self) -> bool:
        """Return whether the node has ended.

        The process calls it repeatedly until the node has ended, or FINISH_S have passed.
        """


@runtime_checkable
class HostNode(Protocol):
    """A node with other nodes in its process, which spin and end with it."""

    guests: list[Node]


@runtime_checkable
class HasLifecycle(Protocol):
    """A managed node (``rlinf_ros.lifecycle_node``)."""

    def begin_life(self) -> None:
        """Configure and activate the node, unless a manager does."""


@runtime_checkable
class HasCheck(Protocol):
    """A node that checks itself, and ends its process if it must give up."""

    def check(self) -> None:
        """Raise an RlinfError if the node must give up; a callback would show a traceback."""


def run(make: Callable[[], Node], priority: int = 0, listens: bool = True) -> None:
    """Build one node and spin it until SIGINT or SIGTERM; then let it finish (``Finishable``).

    In a process that hosts several nodes (``rlinf_station.station_process``) the node is only
    built: its host spins it. The exit code is 0.

    Args:
        make: the node's class.
        priority: above 0, a real-time priority (SCHED_FIFO), used if the system grants it (``rlinf
            doctor`` reports it); BACKGROUND yields to all control.
        listens: whether the node is useless to a station whose interlock it cannot hear.

    Raises:
        SystemExit: an RlinfError as one line on stderr, with exit code 1.
    """
    if bus := memory_bus.bus():
        bus.nodes.append(_begin_life(make()))
        return
    faulthandler.enable()  # a crash, and SIGABRT, log the position of every thread
    if priority == BACKGROUND:
        os.nice(10)
    try:
        with stop_on_signal() as stop_requested:
            node = make()
            _check_time(node)
            _begin_life(node)
            prioritise(priority)
            _spin(node, listens, stop_requested)
    except RlinfError as error:
        end_soon(1)
        raise SystemExit(error.with_code()) from error


def _begin_life(node: Node) -> Node:
    """Start the life cycle of the managed nodes in this process."""
    for member in _of_process(node):
        if isinstance(member, HasLifecycle):
            member.begin_life()
    return node


def _check_time(node: Node) -> None:
    """Check that a node does not use simulated time in a real-time station.

    Raises:
        RlinfError: it does.
    """
    simulated = node.get_parameter("use_sim_time").value
    if simulated and node.has_parameter("lockstep") and not node.get_parameter("lockstep").value:
        raise RlinfError(
            f"{node.get_name()}: use_sim_time: expected false for a station in real time, whose "
            "limits hold by measured time, got true. Leave it out, or run in simulated time "
            "(lockstep)"
        )


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Run ROS in the block; yield a function that returns whether the process should end.

    It should after SIGINT or SIGTERM, or after the death of the parent. rclpy's own handlers would
    end the context at once, and with it publishers that are still needed.
    """
    signals: list[int] = []
    _handle_signals(lambda number, _: signals.append(number))
    end_with_parent()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        yield lambda: bool(signals)
    finally:
        rclpy.try_shutdown()
        # a second signal is normal: the terminal and ros2 launch both send one
        _handle_signals(signal.SIG_IGN)


def _handle_signals(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _spin(node: Node, listens: bool, stop_requested: Callable[[], bool]) -> None:
    executor = single_threaded()
    for member in _of_process(node):
        executor.add_node(member)
    watchdog = DiscoveryWatchdog(node, override_of("arms") or ()) if listens else None
    checked_node = node if isinstance(node, HasCheck) else None
    gc.freeze()  # the node's own objects stay; collections look only at later ones
    with contextlib.suppress(ExternalShutdownException):
        while not stop_requested():
            executor.spin_once(timeout_sec=LOOK_UP_S)
            if checked_node:
                checked_node.check()
            if watchdog and watchdog.check():
                watchdog = None
        deadline = time.monotonic() + FINISH_S
        while isinstance(node, Finishable) and not node.finish() and time.monotonic() < deadline:
            executor.spin_once(timeout_sec=0.02)
        for publisher in [
            publisher for member in _of_process(node) for publisher in member.publishers
        ]:
            # the last messages must still arrive
            publisher.wait_for_all_acked(Duration(seconds=ARRIVES_S))
    destroy(node)


def _of_process(node: Node) -> list[Node]:
    return [node, *(node.guests if isinstance(node, HostNode) else [])]


def destroy(node: Node) -> None:
    """Destroy a node as the last act of a process, which ends soon after.

    The exit code is 1 if an exception is being raised.
    """
    end_soon(int(sys.exc_info()[0] is not None))
    for member in _of_process(node):
        member.destroy_node()


def override_of(name: str) -> Any:
    """Return a parameter from the parameter files on the command line, before ROS starts.

    None if they do not hold it.
    """
    files = [
        value
        for option, value in zip(sys.argv, sys.argv[1:], strict=False)
        if option == "--params-file"
    ]
    nodes = [
        section
        for file in files
        for section in _parameters(yaml.load(Path(file).read_text(), LaunchFileLoader))
    ]
    matches = [section[name] for section in nodes if name in section]
    return matches[0] if matches else None


def _parameters(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of every node in a parameter file, in namespaces of any depth."""
    for key, value in data.items() if isinstance(data, dict) else ():
        yield from [value] if key == "ros__parameters" else _parameters(value)


def prioritise(priority: int) -> None:
    """Give a real-time priority to every present thread of this process; new threads inherit it.

    Call it only once the node is made. Processes that start at real-time priority use up the time
    that Linux grants all such threads together (95 % of a second), and then control must wait.
    """
    for thread in os.listdir("/proc/self/task") if priority > 0 else ():
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(priority))
