"""Start, logs, health reports, single-threaded executor and clean end of a station's nodes.

Logs and ROS messages are UTF-8. A lone surrogate, which JSON and file names can hold, has no UTF-8
bytes, and rclpy raises UnicodeEncodeError for it. Texts from outside are therefore escaped, so that
none of them ends a node or controls a terminal.
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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

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
from rlinf_core.specs.ros_parameters import from_parameters
from rlinf_core.specs.topics import check_parameters
from rlinf_ros import memory_bus
from rlinf_ros.parameters import described_field, expected
from rlinf_ros.parameters import descriptor as described
from rlinf_ros.qos import to_override
from rlinf_ros.workarounds import (
    LOOK_UP_S,
    DiscoveryWatchdog,
    LaunchFileLoader,
    end_soon,
    single_threaded,
)

if TYPE_CHECKING:
    from rlinf_core.config.base import Settings

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


BACKGROUND = -1
FINISH_S = 4.0  # a station's stop escalates after 5 s
ARRIVES_S = 0.1
STEADY = Clock(clock_type=ClockType.STEADY_TIME)


Model = TypeVar("Model", bound="Settings")


class StationNode(Node):
    """A node whose timers follow real time; simulated time stops whenever the simulator waits.

    It accepts ROS's ``qos_overrides`` if the robot interface leaves a topic's quality of service to
    its user. Its logs and messages accept every text (``rlinf_ros.spinning``).
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        if bus := memory_bus.bus():
            kwargs["cli_args"] = [*bus.arguments, *kwargs.get("cli_args", ())]
        # each has its own clock, because the executor sorts the timers of each clock
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        super().__init__(name, **kwargs)
        escape_logs(self)
        below = f"{self.get_namespace().rstrip('/')}/"
        self._check_overrides(
            lambda full: full.removeprefix(below) if full.startswith(below) else ""
        )

    def declare_parameter(
        self,
        name: str,
        value: Any = None,
        descriptor: ParameterDescriptor | None = None,
        ignore_override: bool = False,
    ) -> Parameter:
        """Declare a parameter as rclpy does.

        ``rlinf_ros.parameters`` holds its meaning and range, and whether it is fixed.

        Raises:
            RlinfError: the given value has another type, or is out of range.
        """
        try:
            return super().declare_parameter(
                name, value, descriptor or described(name, value), ignore_override
            )
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            override = self._parameter_overrides[name].value
            raise RlinfError(
                f"{self.get_name()}: parameter {name}: expected {expected(name, value)}, got "
                f"{override!r}"
            ) from error

    def declare_live(self, name: str, value: Any, apply: Callable[[Any], None]) -> None:
        """Declare a parameter that may change while the node runs.

        ``apply`` takes its value now and after each change.
        """

        def changed(parameters: list[Parameter]) -> None:
            for parameter in parameters:
                if parameter.name == name:
                    apply(parameter.value)

        apply(self.declare_parameter(name, value).value)
        self.add_post_set_parameters_callback(changed)

    def declare_settings(self, name: str, model: type[Model]) -> Model:
        """Declare the parameters below a name, and return them as settings.

        Raises:
            RlinfError: a parameter is wrong; the message names it.
        """
        # an interlock has no use for pydantic
        from rlinf_core.config.checking import validate_parameters

        settings = validate_parameters(
            model, from_parameters(self._below(name)), f"{self.get_name()}: {name}"
        )
        self.declare_structure(name, lambda _: model)
        return settings

    def _below(self, name: str) -> dict[str, Any]:
        """Return the given values below a name; raise RlinfError if it was given as one text."""
        overrides = {key: parameter.value for key, parameter in self._parameter_overrides.items()}
        if text := overrides.get(name):
            raise RlinfError(
                f"{self.get_name()}: parameter {name}: expected parameters {name}.KEY, one for "
                f"each value, got {str(text)[:80]!r}. Write them below {name}: in a file of "
                f"parameters, or as -p {name}.KEY:=VALUE"
            )
        return {
            key.removeprefix(f"{name}."): value
            for key, value in overrides.items()
            if key.startswith(f"{name}.")
        }

    def declare_structure(
        self, name: str, find_model: Callable[[dict[str, Any]], Any] | None = None
    ) -> dict[str, Any]:
        """Declare the given parameters below a name (``name.key``), read-only; return a document.

        Args:
            name: of the structure.
            find_model: finds a document's pydantic model; its fields describe the parameters.

        Raises:
            RlinfError: the structure was given as one text, as JSON was until version 0.1.
        """
        given_values = self._below(name)
        document = from_parameters(given_values)
        fields = (
            getattr(find_model(document), "model_fields", {}) if find_model and document else {}
        )
        for key, value in given_values.items():
            about = described_field(name, key, value, fields.get(key.partition(".")[0]))
            self.declare_parameter(f"{name}.{key}", value, about)
        return document

    def create_publisher(
        self, msg_type: Any, topic: str, qos_profile: Any, **kwargs: Any
    ) -> Publisher:
        """Create a publisher as rclpy does."""
        quality, options = self._quality(topic, qos_profile)
        publisher = super().create_publisher(msg_type, topic, quality, **options, **kwargs)
        bus = memory_bus.bus()
        return bus.connect_publisher(publisher) if bus else escape_messages(publisher)

    def create_subscription(
        self,
        msg_type: Any,
        topic: str,
        callback: Any,
        qos_profile: Any,
        lazy: bool = False,
        **kwargs: Any,
    ) -> Subscription:
        """Create a subscription as rclpy does; ``lazy`` is as in ``rlinf_ros.qos.subscription``."""
        quality, options = self._quality(topic, qos_profile)
        subscription = super().create_subscription(
            msg_type, topic, callback, quality, **options, **kwargs
        )
        bus = memory_bus.bus()
        return bus.connect_subscription(self, subscription, lazy) if bus else subscription

    def _quality(self, topic: str, quality: Any) -> tuple[Any, dict[str, Any]]:
        """Return the quality of service with the user's overrides.

        Raises:
            RlinfError: an override is not allowed, also by a robot driver's topic name.
        """
        name = self.resolve_topic_name(topic)
        self._check_overrides(lambda full: topic if full == name else "")
        return to_override(topic, quality)

    def _check_overrides(self, name_of: Callable[[str], str]) -> None:
        # rclpy offers no other access to undeclared parameters
        overrides = getattr(self, "_parameter_overrides", {})
        check_parameters({key: parameter.value for key, parameter in overrides.items()}, name_of)

    def create_timer(
        self,
        timer_period_sec: float,
        callback: Callable[..., Any],
        callback_group: Any = None,
        clock: Clock | None = None,
        autostart: bool = True,
    ) -> Timer:
        """Create a timer as rclpy does, on a steady clock unless another is given."""
        waits = {} if autostart else {"autostart": False}  # rclpy before 7.1.2 does not know it
        return super().create_timer(
            timer_period_sec, callback, callback_group, clock or self._steady, **waits
        )


class ControlNode(StationNode):
    """A node of the control path: fixed at its start, and waiting only for its own topics.

    Its parameters can be read; the events executor spends no time on unused services.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(
            name,
            parameter_overrides=[Parameter("start_type_description_service", value=False)],
            **kwargs,
        )


@runtime_checkable
class Ending(Protocol):
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
class Alive(Protocol):
    """A managed node (``rlinf_ros.lifecycle_node``)."""

    def begin_life(self) -> None:
        """Configure and activate the node, unless a manager does."""


@runtime_checkable
class CanGiveUp(Protocol):
    """A node that may have to give up."""

    def check(self) -> None:
        """Raise an RlinfError if the node must give up; a callback would show a traceback."""


def run(make: Callable[[], Node], priority: int = 0, listens: bool = True) -> None:
    """Build one node and spin it until SIGINT or SIGTERM; then let it finish (``Ending``).

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
        if isinstance(member, Alive):
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
    giving_up = node if isinstance(node, CanGiveUp) else None
    gc.freeze()  # the node's own objects stay; collections look only at later ones
    with contextlib.suppress(ExternalShutdownException):
        while not stop_requested():
            executor.spin_once(timeout_sec=LOOK_UP_S)
            if giving_up:
                giving_up.check()
            if watchdog and watchdog.check():
                watchdog = None
        deadline = time.monotonic() + FINISH_S
        while isinstance(node, Ending) and not node.finish() and time.monotonic() < deadline:
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
