"""Workarounds for defects in rclpy, Fast DDS and launch, in one place for their removal.

The list: docs/contribute/workarounds.md.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import yaml
from rclpy.context import Context
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.ros import use_dds_profile
from rlinf_core.specs.topics import of_arms
from rlinf_ros.qos import subscription

try:
    from rclpy.experimental import EventsExecutor
except ImportError:  # rclpy before 7.1.4
    EventsExecutor = SingleThreadedExecutor

LOOK_UP_S = 0.5  # EventsExecutor.spin() without a timeout may spin on its clock; with one it sleeps
DEAF_S = 8.0  # longest silence of a discovered interlock; discovery takes 1 s, under load 3 s
SIGEV_THREAD = 2
CLOCK_LOOK_S = 0.1
CLOCK_STEP_S = 0.05
READ_S = 0.001  # longest time of reading two clocks
ENDS_S = 3.0  # largest time of the middleware's own end


def single_threaded(context: Context | None = None) -> Executor:
    """Return a single-threaded executor that arriving messages wake.

    A message reaches its callback in a third of the wait set's time.
    """
    executor = EventsExecutor(context=context)
    watch = threading.Thread(target=_wake_after_clock_steps, args=[weakref.ref(executor)])
    watch.daemon = True
    watch.start()
    return executor


def _wake_after_clock_steps(executor: Callable[[], Executor | None]) -> None:
    """Wake an executor and its timers when this machine's clock is set, until it is gone.

    rclpy from wheels waits by the time of day. After the clock is set back by an hour, it would
    wait for an hour. A reset of one timer makes the executor look at all timers.
    """
    offset_s = _clock_offset_s()
    while (awake := executor()) is not None:
        before_s, offset_s = offset_s, _clock_offset_s()
        if abs(offset_s - before_s) > CLOCK_STEP_S:
            _wake(awake)
        del awake  # otherwise it would live as long as this thread
        time.sleep(CLOCK_LOOK_S)


def _clock_offset_s() -> float:
    """Return how far the time of day is ahead of the steady clock [s]."""
    while True:
        before = time.monotonic()
        offset_s = time.time() - before
        # after an interruption between the two readings the offset is wrong: read again
        if time.monotonic() - before < READ_S:
            return offset_s


def _wake(executor: Executor) -> None:
    timers = [timer for node in executor.get_nodes() for timer in node.timers]
    running = [timer for timer in timers if not timer.is_canceled()]
    for timer in sorted(running, key=lambda timer: timer.timer_period_ns)[:1]:
        timer.reset()
    executor.wake()


class DiscoveryWatchdog:
    """Ends a process that discovers the interlock but receives nothing from it.

    The supervisor restarts the process. Fast DDS's shared memory can leave a process deaf that
    starts right after the kill of another one: discovery works both ways, and no message arrives
    (eProsima/Fast-DDS#5053, #5469). ``safety`` is latched, so a process that can hear has heard it.
    """

    def __init__(self, node: Node, arms: Sequence[str]) -> None:
        self.node = node
        self.has_safety = False
        self.looked_at = self.silent_since = time.monotonic()
        self.topic = of_arms("safety", [arm for arm in arms if arm])[0]
        self.subscription = subscription(node, self.topic, self._on_safety)

    def _on_safety(self, _: SafetyState) -> None:
        self.has_safety = True

    def check(self) -> bool:
        """Return True once the interlock has been heard, finally. Call it every LOOK_UP_S.

        Raises:
            RlinfError: it was silent for DEAF_S.
        """
        now = time.monotonic()
        # e.g. loading a large policy: it did not listen
        busy = now - self.looked_at > 2 * LOOK_UP_S
        self.looked_at = now
        if self.has_safety:
            self.node.destroy_subscription(self.subscription)
        elif busy or not self.node.count_publishers(self.topic):
            self.silent_since = now
        elif now - self.silent_since > DEAF_S:
            raise RlinfError(
                f"{self.node.get_fully_qualified_name()} discovered the interlock but received "
                f"nothing from it for {DEAF_S:.0f} s: expected its state on 'safety'. The node "
                "ends and is restarted. If that does not help, stop the station and run: fastdds "
                "shm clean"
            )
        return self.has_safety


def wait_for_nobody() -> None:
    """Restrict this process to UDP on one machine (configs/fastdds_control.xml).

    Call it before ROS starts. A process that opens a shared-memory port may wait 0.33 s for a
    healthy one, and every publisher with it (eProsima/Fast-DDS#6535).
    """
    if os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") != "LOCALHOST":
        return  # a station over several machines stays unchanged, as does a user's own profile
    if use_dds_profile("fastdds_control.xml"):
        # otherwise ROS adds shared memory to the profile
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "SYSTEM_DEFAULT"


def end_soon(code: int, seconds: float = ENDS_S) -> None:
    """Make this process end with ``code`` after ``seconds``, whatever it is doing.

    Call it at the end. A process that destroys its last node may spin for ever in Fast DDS, which
    waits for a callback that does not return while rclpy holds Python's lock
    (eProsima/Fast-DDS#6513). Then it answers no signal and runs no Python. A timer of the system
    therefore calls ``_exit``, in its own thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _SigEvent(code, 0, SIGEV_THREAD, ctypes.cast(libc._exit, ctypes.c_void_p).value)
    after = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # itimerspec: once
    if libc.timer_create(
        time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)
    ) or libc.timer_settime(timer, 0, ctypes.byref(after), None):
        raise OSError(ctypes.get_errno(), "timer_create")


class _SigEvent(ctypes.Structure):
    """``struct sigevent`` of Linux on 64 bits."""

    _fields_ = (
        ("value", ctypes.c_long),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("rest", ctypes.c_char * 40),
    )


class LaunchFileLoader(yaml.SafeLoader):
    """Reads launch_ros's files, which mark lists as Python's tuples (since ros2/launch_ros#33)."""

    def of_marked(self, node: yaml.SequenceNode) -> list[Any]:
        return self.construct_sequence(node, deep=True)


LaunchFileLoader.add_constructor("tag:yaml.org,2002:python/tuple", LaunchFileLoader.of_marked)


class AwaitFuture:
    """``await AwaitFuture(future)`` in a routine gives the future's result.

    rclpy polls its own tasks, which costs a whole core on the events executor (ros2/rclpy#1405;
    later rclpy: #1469).
    """

    def __init__(self, future: Future) -> None:
        self._future = future

    def __await__(self) -> Generator[Future, None, Any]:
        yield self._future
        return self._future.result()


def run_routine(routine: Coroutine[Future, None, Any], finished: Callable[[Any], None]) -> None:
    """Run a routine to its end; ``finished`` receives the result. It may await ``AwaitFuture``."""
    try:
        future = routine.send(None)
    except StopIteration as end:
        finished(end.value)
    except Exception:
        # the events executor is silent about a failed task: it dies of SIGSEGV
        traceback.print_exc()
        raise
    else:
        future.add_done_callback(lambda _: run_routine(routine, finished))
