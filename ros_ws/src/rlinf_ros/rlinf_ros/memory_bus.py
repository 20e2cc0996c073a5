"""The topics of a process that hosts several nodes: messages pass in memory.

Each endpoint is nevertheless one of ROS, so that the graph, the page and ``ros2 topic echo`` see
it. Fast DDS matches no two endpoints of this process (``configs/fastdds_one_process.xml``). Between
them a message therefore has one path, through memory; to and from other processes it has one,
through DDS. A message goes to DDS only if it is latched or a process outside subscribes. A receiver
gets a copy that it shares with the other receivers, and must not change it.

Messages wait in one queue, in the order of their publication. A callback runs to its end before the
next one.
"""

from __future__ import annotations

import array
import ctypes
import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
import rclpy
from rclpy.executors import Executor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.subscription import Subscription
from std_msgs.msg import Empty

from rlinf_core.core.errors import RlinfError, harmless_lines
from rlinf_core.core.ros import use_dds_profile

SLICE_S = 0.01  # for messages in memory; then the executor checks timers and outside messages
ARRAYS = (array.array, np.ndarray, bytearray)
LATCHED = DurabilityPolicy.TRANSIENT_LOCAL
PROFILE = "fastdds_one_process.xml"
UNTIMED = {"received_timestamp": 0}
PROBE_S = 0.05


def snapshot(message: Any) -> Any:
    """Return a copy that shares nothing mutable, with values as after serialisation."""
    kind: Any = type(message)
    return copier(kind)(message)


@cache
def copier(kind: Any) -> Callable[[Any], Any]:
    """Return the function that copies a message of this class (``snapshot``).

    It is compiled once, because a loop over the slots takes three times as long.
    """
    names: dict[str, Any] = {"new": object.__new__, "list_of": _list, "text_of": _text}
    names |= {"float_of": _float32, "snapshot": snapshot}
    lines: list[str] = []
    result = _write_copy(kind, "message", lines, names)
    body = "\n    ".join([*lines, f"return {result}"])
    exec(f"def copy(message):\n    {body}", names)
    return cast("Callable[[Any], Any]", names["copy"])


def _write_copy(kind: Any, source: str, lines: list[str], names: dict[str, Any]) -> str:
    """Write the lines that copy a message; return the name of the copy."""
    number = len(names)
    target, class_name = f"copy{number}", f"class{number}"
    names[class_name] = kind
    lines.append(f"{target} = new({class_name})")
    kinds = kind.get_fields_and_field_types()
    for slot in kind.__slots__:
        field_kind = kinds.get(slot.removeprefix("_"), "")
        value = f"{source}.{slot}"
        if "/" in field_kind and _is_single(field_kind):
            package, _, name = field_kind.partition("/")
            nested = getattr(importlib.import_module(f"{package}.msg"), name)
            part = f"part{len(names)}"
            lines.append(f"{part} = {value}")
            value = _write_copy(nested, part, lines, names)
        elif duplicate := _duplicate(field_kind):
            value = f"{duplicate}({value})"
        lines.append(f"{target}.{slot} = {value}")
    return target


def _is_single(kind: str) -> bool:
    """Return whether a field has one value, and is no array."""
    return kind.startswith(("string", "wstring")) or not ("<" in kind or kind.endswith("]"))


def _duplicate(kind: str) -> str:
    """Return the name of the function that copies a field; empty for an immutable value."""
    if not _is_single(kind):
        return "list_of"
    if kind.startswith(("string", "wstring")):
        return "text_of"
    return "float_of" if kind == "float" else ""


def _list(values: Any) -> Any:
    if isinstance(values, ARRAYS):
        return values[:] if isinstance(values, array.array) else values.copy()
    return [_copy_item(item) for item in values]


def _copy_item(item: Any) -> Any:
    if isinstance(item, str):
        return _text(item)
    return snapshot(item) if hasattr(item, "__slots__") else item


def _text(value: str) -> str:
    """Escape a text without UTF-8 bytes."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return harmless_lines(value)
    return value


def _float32(value: float) -> float:
    return ctypes.c_float(value).value


class Envelope:
    """A message in transit, as it was at its publication."""

    __slots__ = ("_raw", "message")

    def __init__(self, message: Any) -> None:
        self.message = message
        self._raw = b""

    @property
    def raw(self) -> bytes:
        """The message in CDR, serialised once."""
        if not self._raw:
            self._raw = bytes(serialize_message(self.message))
        return self._raw


class MemoryPublisher(Publisher):
    """A publisher of this process; ``Bus.connect_publisher`` sets its attributes."""

    bus: Bus
    name: str
    msg_type: Any
    listeners: list[MemorySubscription]
    latched: deque[Envelope] | None
    sent = 0
    outside = False  # whether messages go to DDS
    turn = 0  # of the bus, when that was looked up

    def publish(self, msg: Any) -> None:
        """Publish as rclpy does."""
        self.sent += 1
        turn = self.bus.turn
        if turn == 0 or turn != self.turn:
            self.turn = turn
            self.outside = self.latched is not None or super().get_subscription_count() > 0
        if not (self.outside or self.listeners):
            return
        if type(msg) is not self.msg_type:
            if isinstance(msg, bytes):
                msg = deserialize_message(msg, self.msg_type)
            if not isinstance(msg, self.msg_type):
                raise TypeError(f"{self.name}: expected {self.msg_type}, got {type(msg)}")
        envelope = Envelope(snapshot(msg))
        if self.latched is not None:
            self.latched.append(envelope)
        for subscription in self.listeners:
            subscription.accept(envelope)
        if self.outside:
            super().publish(envelope.raw)  # serialised once, for a recorder too

    def get_subscription_count(self) -> int:
        """Return the number of matched subscriptions, here and outside."""
        return int(super().get_subscription_count()) + len(self.listeners)

    def destroy(self) -> None:
        """Destroy it as rclpy does."""
        publishers = self.bus.publishers[self.name]
        if self in publishers:
            publishers.remove(self)
        super().destroy()


class MemorySubscription(Subscription):
    """A subscription of this process; ``Bus.connect_subscription`` sets its attributes.

    Attributes:
        inbox: messages to be taken, if no executor spins its node; None if its callback is called.
        lazy: its callback takes an Envelope instead of bytes.
    """

    bus: Bus
    name: str
    owner: Node
    inbox: deque[Envelope] | None
    lazy: bool
    alive: bool

    def accept(self, envelope: Envelope) -> None:
        """Keep a message until it is taken, or until its turn."""
        if self.inbox is not None:
            self.inbox.append(envelope)
        else:
            self.bus.post(self, envelope)

    def hand_over(self, envelope: Envelope) -> None:
        """Call the callback."""
        if self.alive:
            if self.lazy:
                self.callback(envelope)
            else:
                self.callback(envelope.raw if self.raw else envelope.message)

    def get_publisher_count(self) -> int:
        """Return the number of matched publishers, here and outside."""
        return int(super().get_publisher_count()) + sum(
            self in publisher.listeners for publisher in self.bus.publishers.get(self.name, ())
        )

    def destroy(self) -> None:
        """Destroy it as rclpy does."""
        self.alive = False
        subscriptions = self.bus.subscriptions[self.name]
        if self in subscriptions:
            subscriptions.remove(self)
        for publisher in self.bus.publishers.get(self.name, ()):
            if self in publisher.listeners:
                publisher.listeners.remove(self)
        super().destroy()


class Bus:
    """The endpoints of this process by their topics' full names, and the waiting messages.

    Attributes:
        arguments: ROS arguments of the next node to be made.
        nodes: the nodes that this process hosts, in the order of their making.
        executor: the executor that spins them, once it does.
        ended_by: the node that has asked this process to end.
        turn: number of the present slice of deliveries; 0 outside of one. Within a slice a
            publisher looks once whether a process outside subscribes.
    """

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.nodes: list[Node] = []
        self.guests: list[Node] = []
        self.ended_by: Node | None = None
        self.executor: Executor | None = None
        self.publishers: dict[str, list[MemoryPublisher]] = {}
        self.subscriptions: dict[str, list[MemorySubscription]] = {}
        self.turn = self._turns = 0
        self._queue: deque[tuple[MemorySubscription, Envelope]] = deque()
        self._thread = threading.get_ident()
        self._clients: Any = None

    def connect_publisher(self, publisher: Any) -> Publisher:
        """Make a publisher of rclpy's deliver in memory."""
        publisher.__class__ = MemoryPublisher
        publisher.bus = self
        publisher.name = publisher.topic_name
        quality = publisher.qos_profile
        publisher.latched = (
            deque(maxlen=quality.depth or None) if quality.durability == LATCHED else None
        )
        publisher.listeners = [
            listener
            for listener in self.subscriptions.get(publisher.name, ())
            if _fits(publisher, listener)
        ]
        self.publishers.setdefault(publisher.name, []).append(publisher)
        return publisher

    def connect_subscription(
        self, node: Node, subscription: Any, lazy: bool = False
    ) -> Subscription:
        """Make a subscription of rclpy's receive from memory, too."""
        subscription.__class__ = MemorySubscription
        subscription.bus = self
        subscription.name = subscription.topic_name
        subscription.owner = node
        subscription.lazy = lazy
        subscription.alive = True
        pulled = isinstance(node, PulledNode)
        subscription.inbox = (
            deque(maxlen=subscription.qos_profile.depth or None) if pulled else None
        )
        self.subscriptions.setdefault(subscription.name, []).append(subscription)
        for publisher in self.publishers.get(subscription.name, ()):
            if _fits(publisher, subscription):
                publisher.listeners.append(subscription)
                if subscription.qos_profile.durability == LATCHED:
                    for envelope in publisher.latched or ():
                        subscription.accept(envelope)
        return subscription

    def post(self, subscription: MemorySubscription, envelope: Envelope) -> None:
        """Queue a message for a callback; may be called from any thread."""
        self._queue.append((subscription, envelope))
        if self.executor is not None and threading.get_ident() != self._thread:
            self.executor.wake()

    def spin_once(self, timeout_s: float) -> None:
        """Deliver messages for up to SLICE_S, then run the executor; it waits if none is left."""
        assert self.executor is not None
        queue, deadline = self._queue, time.monotonic() + SLICE_S
        self._turns += 1
        self.turn = self._turns
        try:
            while queue and time.monotonic() < deadline:
                subscription, envelope = queue.popleft()
                try:
                    subscription.hand_over(envelope)
                except Exception as error:
                    raise CallbackError(subscription.owner) from error
        finally:
            self.turn = 0
        self.executor.spin_once(timeout_sec=0.0 if queue else timeout_s)

    def client_node(self, owner: Node) -> Node:
        """Make a node for clients of actions that another node of this process serves.

        It has its own DDS participant, because endpoints within one are not matched.
        """
        if self._clients is None:
            self._clients = rclpy.Context()
            rclpy.init(args=[], context=self._clients, domain_id=owner.context.get_domain_id())
        node = rclpy.create_node(
            f"{owner.get_name()}_client",
            namespace=owner.get_namespace(),
            context=self._clients,
            enable_rosout=False,
            start_parameter_services=False,
            use_global_arguments=False,
        )
        self.guests.append(node)
        return node

    def close(self) -> None:
        """End the second participant."""
        if self._clients is not None:
            rclpy.try_shutdown(context=self._clients)


class CallbackError(Exception):
    """A callback of a node has failed; its cause says how."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.get_name())
        self.node = node


def _fits(publisher: MemoryPublisher, subscription: MemorySubscription) -> bool:
    """Return whether DDS would match them, ignoring reliability, because memory loses nothing."""
    latched = publisher.qos_profile.durability == LATCHED
    return publisher.msg_type is subscription.msg_type and (
        latched or subscription.qos_profile.durability != LATCHED
    )


class PulledNode(Node):
    """A second node of a process, which no executor spins; topics keep messages up to their depth.

    Args:
        owner: the node whose namespace and name it has.
        suffix: suffix of its name.
    """

    def __init__(self, owner: Node, suffix: str = "_inputs") -> None:
        # these names include the owner
        super().__init__(
            f"{owner.get_name()}{suffix}",
            namespace=owner.get_namespace(),
            context=owner.context,
            enable_rosout=False,
            start_parameter_services=False,
            use_global_arguments=False,
        )

    def create_subscription(self, *kwargs: Any, lazy: bool = False, **more: Any) -> Subscription:
        """Create a subscription as rclpy does."""
        subscription = super().create_subscription(*kwargs, **more)
        return _bus.connect_subscription(self, subscription) if _bus else subscription


def take(subscription: Subscription, raw: bool = False) -> tuple[Any, dict[str, Any]] | None:
    """Take the oldest waiting message, with its times.

    A ``raw`` message is bytes, or an Envelope of this process.
    """
    if inbox := getattr(subscription, "inbox", None):
        envelope = inbox.popleft()
        return (envelope if raw else envelope.message), UNTIMED
    with subscription.handle:
        taken: tuple[Any, dict[str, Any]] | None = subscription.handle.take_message(
            subscription.msg_type, raw
        )
        return taken


def as_bytes(taken: Any) -> bytes:
    """Return a message that was taken raw in CDR."""
    return taken.raw if isinstance(taken, Envelope) else bytes(taken)


def action_node(owner: Node) -> Node:
    """Return the node for a client of an action that this process may serve."""
    return _bus.client_node(owner) if _bus else owner


def check_middleware() -> None:
    """Check that DDS does not match two endpoints of this process.

    Raises:
        RlinfError: it does, so that each message would arrive twice.
    """
    node = rclpy.create_node(
        f"probe_{os.getpid()}", enable_rosout=False, start_parameter_services=False
    )
    publisher = node.create_publisher(Empty, "~/probe", 1)
    node.create_subscription(Empty, "~/probe", lambda _: None, 1)
    time.sleep(PROBE_S)
    matched = publisher.get_subscription_count()
    node.destroy_node()
    if matched:
        raise RlinfError(
            f"station.processes: one process needs rmw_fastrtps_cpp and configs/{PROFILE}, which "
            "keep endpoints of one process unmatched. Here they are matched. Set "
            "station.processes=several"
        )


_bus: Bus | None = None


def bus() -> Bus | None:
    """Return the bus of this process; None if it has only one node."""
    return _bus


def start() -> Bus:
    """Give this process a bus, before ROS starts and before any node is made."""
    global _bus
    use_dds_profile(PROFILE)
    _bus = Bus()
    return _bus
