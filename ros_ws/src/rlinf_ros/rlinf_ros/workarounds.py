"""Workarounds of defects in rclpy, Fast DDS and launch, so that they can go. The list: docs/contribute/workarounds.md."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import yaml
from rclpy.context import Context
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState

from rlinf_core.core.errors import RlinfError
from rlinf_core.specs.topics import of_arms
from rlinf_ros.qos import subscription

try:
    from rclpy.experimental import EventsExecutor
except ImportError:  # rclpy before 7.1.4
    EventsExecutor = SingleThreadedExecutor

LOOK_UP_S = 0.5  # EventsExecutor.spin() without an end may spin on its clock; with one it sleeps
DEAF_S = 8.0     # discovery takes 1 s, on a machine with no time for it 3 s
SIGEV_THREAD = 2
ENDS_S = 3.0     # what the middleware may take for its own end


def single_threaded(context: Context | None = None) -> Executor:
    """One thread, woken by what arrives: a third of the time from a message to its callback that the wait set takes."""
    return EventsExecutor(context=context)


class DiscoveryWatchdog:
    """Ends a process that finds the interlock and hears nothing of it; whoever keeps the station starts another.

    Fast DDS's shared memory can leave a process deaf that starts right after another was killed: it is discovered and it
    discovers, and no message arrives (eProsima/Fast-DDS#5053, #5469). ``safety`` is latched: whoever can hear has heard it.
    """

    def __init__(self, node: Node, arms: Sequence[str]) -> None:
        self.node, self.has_safety = node, False
        self.looked_at = self.silent_since = time.monotonic()
        self.topic = of_arms("safety", [arm for arm in arms if arm])[0]
        self.subscription = subscription(node, self.topic, self._on_safety)

    def _on_safety(self, _: SafetyState) -> None:
        self.has_safety = True

    def check(self) -> bool:
        """True once all is well, for good; RlinfError after DEAF_S of silence. To be asked every LOOK_UP_S."""
        now = time.monotonic()
        busy, self.looked_at = now - self.looked_at > 2 * LOOK_UP_S, now  # e.g. loading a large policy: it did not listen
        if self.has_safety:
            self.node.destroy_subscription(self.subscription)
        elif busy or not self.node.count_publishers(self.topic):
            self.silent_since = now
        elif now - self.silent_since > DEAF_S:
            raise RlinfError(f"{self.node.get_fully_qualified_name()} finds the interlock and has heard nothing of it for "
                             f"{DEAF_S:.0f} s: expected its state on 'safety'. Ends, to be started again; if that does not "
                             "help, stop the station and run: fastdds shm clean")
        return self.has_safety


def wait_for_nobody() -> None:
    """To be called before ROS begins: on one machine, this process speaks by UDP alone (configs/fastdds_control.xml).

    Whoever opens a shared-memory port may wait 0.33 s for a healthy one, and every publisher with it
    (eProsima/Fast-DDS#6535).
    """
    profile = os.environ.get("FASTDDS_DEFAULT_PROFILES_FILE", "")
    if not profile.endswith("configs/fastdds.xml") or os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") != "LOCALHOST":
        return  # a user's own profile, or a station over several machines, stays as it is
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "SYSTEM_DEFAULT"  # else ROS adds shared memory to what the profile says
    for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE"):
        os.environ[name] = profile.replace("fastdds.xml", "fastdds_control.xml")


def end_soon(code: int, seconds: float = ENDS_S) -> None:
    """To be called when all is done: after so many seconds this process ends with ``code``, whatever it is in.

    Who destroys its last node may spin for ever in Fast DDS, which waits for a callback that does not return while rclpy
    holds Python's lock (eProsima/Fast-DDS#6513): no signal is answered then, no Python runs. So a timer of the system calls
    ``_exit``, in a thread of its own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _SigEvent(code, 0, SIGEV_THREAD, ctypes.cast(libc._exit, ctypes.c_void_p).value)
    after = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # itimerspec: once
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) \
            or libc.timer_settime(timer, 0, ctypes.byref(after), None):
        raise OSError(ctypes.get_errno(), "timer_create")


class _SigEvent(ctypes.Structure):
    """``struct sigevent`` of Linux on 64 bits."""

    _fields_ = (("value", ctypes.c_long), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("function", ctypes.c_void_p), ("rest", ctypes.c_char * 40))


class OfLaunch(yaml.SafeLoader):
    """Reads what launch_ros writes: it marks lists as Python's tuples (since ros2/launch_ros#33)."""

    def of_marked(self, node: yaml.SequenceNode) -> list[Any]:
        return self.construct_sequence(node, deep=True)


OfLaunch.add_constructor("tag:yaml.org,2002:python/tuple", OfLaunch.of_marked)


class Until:
    """``await Until(future)`` inside a routine: its result, once it has one.

    rclpy's own tasks are asked again and again whether they can go on, which costs a whole core on the events executor
    (ros2/rclpy#1405; later rclpy: #1469).
    """

    def __init__(self, future: Future) -> None:
        self._future = future

    def __await__(self) -> Generator[Future, None, Any]:
        yield self._future
        return self._future.result()


def run_routine(routine: Coroutine[Future, None, Any], finished: Callable[[Any], None]) -> None:
    """Run up to its end, one ``Until`` after the other; ``finished`` gets what it returns."""
    try:
        future = routine.send(None)
    except StopIteration as end:
        finished(end.value)
    except Exception:
        traceback.print_exc()  # of a task that fails the events executor says nothing: it dies of SIGSEGV
        raise
    else:
        future.add_done_callback(lambda _: run_routine(routine, finished))
