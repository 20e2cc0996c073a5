"""How every node of a station starts, logs, reports its health, spins on one single-threaded executor, and ends cleanly.

A log and a ROS message are UTF-8. A lone surrogate, which JSON and file names can hold, has no UTF-8 bytes, and rclpy
raises UnicodeEncodeError for it: texts from outside are escaped, and none of them ends a node or controls a terminal.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.executors import ExternalShutdownException
from rclpy.impl import rcutils_logger
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription
from rclpy.timer import Timer

from rlinf_core.core.errors import RlinfError, harmless_lines
from rlinf_core.core.signals import end_with_parent
from rlinf_core.specs.topics import check_parameters
from rlinf_ros import memory_bus
from rlinf_ros.parameters import descriptor as described
from rlinf_ros.parameters import expected
from rlinf_ros.qos import to_override
from rlinf_ros.workarounds import LOOK_UP_S, DiscoveryWatchdog, OfLaunch, end_soon, single_threaded

rcutils_logger._internal_callers.append(os.path.realpath(__file__))  # a log names its caller, not this file


class EscapingLogger(rcutils_logger.RcutilsLogger):
    """Logs every text, with control characters and lone surrogates as their numbers."""

    def log(self, message: object, severity: Any, **filters: Any) -> bool:
        """As rclpy's."""
        return super().log(harmless_lines(str(message)), severity, **filters)


class EscapingPublisher(Publisher):
    """Publishes every text; one that has no UTF-8 bytes is escaped."""

    def publish(self, msg: Any) -> None:
        """As rclpy's."""
        try:
            super().publish(msg)
        except UnicodeEncodeError:
            super().publish(escaped(msg))


def escape_logs(node: Node) -> None:
    """Let the node's own logger escape."""
    node._logger = EscapingLogger(node.get_logger().name)


def escape_messages(publisher: Publisher) -> Publisher:
    """Let a publisher that rclpy has made escape."""
    publisher.__class__ = EscapingPublisher
    return publisher


def escaped(value: Any) -> Any:
    """A message, or a value of one, whose strings all have UTF-8 bytes."""
    if isinstance(value, str):
        return harmless_lines(value)
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if not hasattr(value, "get_fields_and_field_types"):
        return value
    names = type(value).get_fields_and_field_types()
    return type(value)(**{name: escaped(getattr(value, name)) for name in names})


OK = DiagnosticStatus.OK
WARN = DiagnosticStatus.WARN
ERROR = DiagnosticStatus.ERROR
EVERY_S = 1.0
INACTIVE = "inactive: activate the node (rlinf lifecycle)"


def is_active(node: Node) -> bool:
    """Whether a node is active; one without a life cycle always is."""
    return bool(getattr(node, "active", True))


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
        if not is_active(self.node):
            level, message = WARN, INACTIVE
        status = DiagnosticStatus(name=f"{self.node.get_namespace().strip('/')}/{self.node.get_name()}", level=level,
                                  message=message,
                                  values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.node.get_clock().now().to_msg()
        self.publisher.publish(array)


BACKGROUND = -1
FINISH_S = 4.0   # whoever stops a station asks again, less kindly, after 5
ARRIVES_S = 0.1
STEADY = Clock(clock_type=ClockType.STEADY_TIME)


class StationNode(Node):
    """A node whose timers go by the time that passes: simulated time stands still whenever the simulator waits.

    It takes ROS's ``qos_overrides`` where the robot interface leaves a topic's quality of service to its user. Its logs and
    messages take every text (``rlinf_ros.spinning``).
    """

    def __init__(self, name: str, **how: Any) -> None:
        if bus := memory_bus.bus():
            how["cli_args"] = [*bus.arguments, *how.get("cli_args", ())]
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)  # its own: the executor sorts the timers of each clock
        super().__init__(name, **how)
        escape_logs(self)
        below = f"{self.get_namespace().rstrip('/')}/"
        self._check_overrides(lambda full: full.removeprefix(below) if full.startswith(below) else "")

    def declare_parameter(self, name: str, value: Any = None, descriptor: ParameterDescriptor | None = None,
                          ignore_override: bool = False) -> Parameter:
        """As rclpy's; what it means, its range, and that it is fixed from now on stand in ``rlinf_ros.parameters``.

        RlinfError where the value that was given is of another type, or beyond its range.
        """
        try:
            return super().declare_parameter(name, value, descriptor or described(name, value), ignore_override)
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            given = self._parameter_overrides[name].value
            raise RlinfError(f"{self.get_name()}: parameter {name}: expected {expected(name, value)}, got "
                             f"{given!r}") from error

    def create_publisher(self, msg_type: Any, topic: str, qos_profile: Any, **how: Any) -> Publisher:
        """As rclpy's."""
        quality, options = self._quality(topic, qos_profile)
        publisher = super().create_publisher(msg_type, topic, quality, **options, **how)
        bus = memory_bus.bus()
        return bus.connect_publisher(publisher) if bus else escape_messages(publisher)

    def create_subscription(self, msg_type: Any, topic: str, callback: Any, qos_profile: Any, lazy: bool = False,
                            **how: Any) -> Subscription:
        """As rclpy's; ``lazy`` as in ``rlinf_ros.qos.subscription``."""
        quality, options = self._quality(topic, qos_profile)
        subscription = super().create_subscription(msg_type, topic, callback, quality, **options, **how)
        bus = memory_bus.bus()
        return bus.connect_subscription(self, subscription, lazy) if bus else subscription

    def _quality(self, topic: str, quality: Any) -> tuple[Any, dict[str, Any]]:
        """As the user may have it; RlinfError where that cannot be, also by the name of a robot's driver."""
        name = self.resolve_topic_name(topic)
        self._check_overrides(lambda full: topic if full == name else "")
        return to_override(topic, quality)

    def _check_overrides(self, ours: Callable[[str], str]) -> None:
        given = getattr(self, "_parameter_overrides", {})  # rclpy has no other way to those that nobody declares
        check_parameters({key: parameter.value for key, parameter in given.items()}, ours)

    def create_timer(self, timer_period_sec: float, callback: Callable[..., Any], callback_group: Any = None,
                     clock: Clock | None = None, autostart: bool = True) -> Timer:
        """As rclpy's, on a steady clock unless another is given."""
        waits = {} if autostart else {"autostart": False}  # which rclpy before 7.1.2 does not know
        return super().create_timer(timer_period_sec, callback, callback_group, clock or self._steady, **waits)


class ControlNode(StationNode):
    """A node of the control path: what it does is fixed when it starts, and it waits for nothing but its own topics.

    Its parameters can be asked for; the events executor spends nothing on services that nobody calls.
    """

    def __init__(self, name: str, **how: Any) -> None:
        super().__init__(name, parameter_overrides=[Parameter("start_type_description_service", value=False)], **how)


@runtime_checkable
class Ending(Protocol):
    """A node that has something to bring to an end."""

    def finish(self) -> bool:
        """Whether it has: asked again and again, while messages come and go, until it has or FINISH_S have passed."""


@runtime_checkable
class Hosting(Protocol):
    """A node with others in its process, which spin and end with it."""

    guests: list[Node]


@runtime_checkable
class Alive(Protocol):
    """A managed node (``rlinf_ros.managed``)."""

    def begin_life(self) -> None:
        """Configure and activate it, unless a manager does."""


@runtime_checkable
class GivingUp(Protocol):
    """A node that may have to give up."""

    def check(self) -> None:
        """RlinfError where it has to; out of a callback, that would come with a traceback."""


def run(make: Callable[[], Node], priority: int = 0, listens: bool = True) -> None:
    """Build one node and spin it until SIGINT or SIGTERM; then let it finish (``Ending``), and end with exit code 0.

    Args:
        make: the node's class.
        priority: above 0, a real-time priority (SCHED_FIFO), taken where the system grants it (``rlinf doctor`` says so);
            BACKGROUND gives way to everything that controls.
        listens: it is no use to a station whose interlock it cannot hear.

    Raises:
        SystemExit: an RlinfError as one line on stderr, with exit code 1.

    In a process that hosts several nodes (``rlinf_station.station_process``) the node is built alone: its host spins it.
    """
    if bus := memory_bus.bus():
        bus.nodes.append(_begin_life(make()))
        return
    faulthandler.enable()  # a crash, and SIGABRT, leave in the log where every thread was
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
    """Let the managed nodes of its process begin their life."""
    for member in _of_process(node):
        if isinstance(member, Alive):
            member.begin_life()
    return node


def _check_time(node: Node) -> None:
    """RlinfError where a node would take simulated time from a station that has none."""
    simulated = node.get_parameter("use_sim_time").value
    if simulated and node.has_parameter("lockstep") and not node.get_parameter("lockstep").value:
        raise RlinfError(f"{node.get_name()}: use_sim_time: expected false for a station in real time, whose limits hold "
                         "by measured time, got true. Leave it out, or run in simulated time (lockstep)")


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """ROS, from here to the end of the block; yields whether SIGINT or SIGTERM has come, or whoever started us has died.

    rclpy's own handlers would end the context at once, and with it the publishers of whoever has yet to finish.
    """
    signals: list[int] = []
    _answer(lambda number, _: signals.append(number))
    end_with_parent()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        yield lambda: bool(signals)
    finally:
        rclpy.try_shutdown()
        _answer(signal.SIG_IGN)  # whoever ends is asked twice, by the terminal and by ros2 launch


def _answer(how: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, how)


def _spin(node: Node, listens: bool, stop_requested: Callable[[], bool]) -> None:
    executor = single_threaded()
    for member in _of_process(node):
        executor.add_node(member)
    hearing = DiscoveryWatchdog(node, given("arms") or ()) if listens else None
    giving_up = node if isinstance(node, GivingUp) else None
    gc.freeze()  # what a node is made of stays; collections look only at what came later
    with contextlib.suppress(ExternalShutdownException):
        while not stop_requested():
            executor.spin_once(timeout_sec=LOOK_UP_S)
            if giving_up:
                giving_up.check()
            if hearing and hearing.check():
                hearing = None
        deadline = time.monotonic() + FINISH_S
        while isinstance(node, Ending) and not node.finish() and time.monotonic() < deadline:
            executor.spin_once(timeout_sec=0.02)
        for publisher in [publisher for member in _of_process(node) for publisher in member.publishers]:
            publisher.wait_for_all_acked(Duration(seconds=ARRIVES_S))  # what was said last must still arrive
    destroy(node)


def _of_process(node: Node) -> list[Node]:
    return [node, *(node.guests if isinstance(node, Hosting) else [])]


def destroy(node: Node) -> None:
    """The last act of a process, which has then ended soon; with exit code 1 where an exception is on its way."""
    end_soon(int(sys.exc_info()[0] is not None))
    for member in _of_process(node):
        member.destroy_node()


def given(name: str) -> Any:
    """Return a parameter from the parameter files on the command line, before ROS begins; None if
    they have none.
    """
    files = [after for option, after in zip(sys.argv, sys.argv[1:], strict=False) if option == "--params-file"]
    nodes = [section for file in files for section in _parameters(yaml.load(Path(file).read_text(), OfLaunch))]
    matches = [section[name] for section in nodes if name in section]
    return matches[0] if matches else None


def _parameters(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of every node in a parameter file, in namespaces of any depth."""
    for key, value in data.items() if isinstance(data, dict) else ():
        yield from [value] if key == "ros__parameters" else _parameters(value)


def prioritise(priority: int) -> None:
    """Every thread of this process that is there by now, the middleware's included, and those that they start.

    Only once the node is made: while processes start at real-time priority they use up what Linux grants all such threads
    together (95 % of a second), and then those that control must wait.
    """
    for thread in os.listdir("/proc/self/task") if priority > 0 else ():
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(priority))
