"""Fault injector: damages messages between topics as networks, sensors and programs do.

    ros2 run rlinf fault_injector --ros-args -p
    routes:="['policy/action:drill/action:rlinf_msgs/msg/ActionChunk']" ros2 topic pub --once inject
    std_msgs/String "{data: '{route: policy/action, kind: corrupt, field: data, value: nan}'}"

Each route is ``from:to:type``. A route has one fault at a time, given as YAML on ``inject``;
``kind: none`` ends it. Faults: ``rlinf_core/interlock/scenarios.py``. It announces the first
message that a fault alters on ``injected``, with its time.
"""

from __future__ import annotations

import copy
from functools import partial
from importlib import import_module
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_msgs.msg import Header, String

from rlinf_core.core.errors import RlinfError, nearest
from rlinf_core.interlock.scenarios import (
    Corrupt,
    Delay,
    Drop,
    Fault,
    Offset,
    Repeat,
    Scale,
    Shift,
    read_fault,
)
from rlinf_ros.conversions import NS, set_stamp, to_ns
from rlinf_ros.diagnostics import OK, WARN, Diagnostics, Health
from rlinf_ros.qos import profile
from rlinf_ros.spinning import run
from rlinf_ros.station_node import STEADY
from rlinf_ros.workarounds import wait_for_nobody


class FaultInjector(Node):
    """Passes messages on unchanged until a fault is injected."""

    def __init__(self) -> None:
        super().__init__("fault_injector", start_parameter_services=False)
        self.faults: dict[str, Fault] = {}
        self.outputs: dict[str, Any] = {}
        self.route_state: dict[str, Any] = {}
        self.altered: set[str] = set()
        self.injected = self.create_publisher(Header, "injected", 10)
        self.create_subscription(String, "inject", self._on_inject, 10)
        for route in self.declare_parameter("routes", [""]).value:
            if route:
                self._open(*route.split(":"))
        self.diagnostics = Diagnostics(self, self._health)

    def _health(self) -> Health:
        faults = ", ".join(
            f"{route}: {fault.kind}" for route, fault in self.faults.items() if fault.kind != "none"
        )
        return Health(WARN, f"injects {faults}") if faults else Health(OK, "relays every message")

    def _open(self, source: str, target: str, type_name: str) -> None:
        package, _, name = type_name.split("/")
        kind = getattr(import_module(f"{package}.msg"), name)
        quality: QoSProfile | int
        try:
            quality = profile(source)
        except RlinfError:  # a topic outside the robot interface
            quality = 10
        self.outputs[source] = self.create_publisher(kind, target, quality)
        self.create_subscription(kind, source, partial(self._on_message, source), quality)

    def _on_inject(self, message: String) -> None:
        try:
            fault = read_fault(message.data)
        except RlinfError as error:
            self.get_logger().error(f"inject: {error}")
            return
        if fault.route not in self.outputs:
            self.get_logger().error(
                f"inject: 'inject.route': expected one of {', '.join(self.outputs)}, got "
                f"'{fault.route}'{nearest(fault.route, self.outputs)}"
            )
            return
        self.faults[fault.route] = fault
        self.route_state.pop(fault.route, None)
        self.altered.discard(fault.route)

    def _on_message(self, route: str, message: Any) -> None:
        fault = self.faults.get(route)
        try:
            outputs = getattr(self, f"_{fault.kind}")(route, fault, message) if fault else [message]
        except (AttributeError, AssertionError, TypeError, ValueError) as error:
            self.get_logger().error(
                f"inject: expected a field and a value that fit {type(message).__name__}, got "
                f"{fault}: {error}. Its messages pass unchanged"
            )
            del self.faults[route]
            fault, outputs = None, [message]
        # a drop that loses only a fraction, and not this message
        passed = isinstance(fault, Drop) and outputs
        if fault and fault.kind != "none" and not passed and route not in self.altered:
            self.altered.add(route)
            self.injected.publish(Header(stamp=self.get_clock().now().to_msg(), frame_id=route))
        for output in outputs:
            self.outputs[route].publish(output)

    # Faults
    def _none(self, route: str, fault: Fault, message: Any) -> list:
        return [message]

    def _drop(self, route: str, fault: Drop, message: Any) -> list:
        self.route_state[route] = self.route_state.get(route, 0.0) + fault.fraction
        if self.route_state[route] >= 1.0:
            self.route_state[route] -= 1.0
            return []
        return [message]

    def _delay(self, route: str, fault: Delay, message: Any) -> list:
        def hand_on() -> None:
            self.outputs[route].publish(message)
            self.destroy_timer(timer)

        timer = self.create_timer(fault.seconds, hand_on, clock=STEADY)
        return []

    def _reorder(self, route: str, fault: Fault, message: Any) -> list:
        before = self.route_state.pop(route, None)
        if before is None:
            self.route_state[route] = message
            return []
        return [message, before]

    def _repeat(self, route: str, fault: Repeat, message: Any) -> list:
        return [message] * (1 + fault.times)

    def _corrupt(self, route: str, fault: Corrupt, message: Any) -> list:
        _change(
            message,
            fault.field,
            lambda old: str(fault.value) if isinstance(old, str) else float(fault.value),
        )
        return [message]

    def _offset(self, route: str, fault: Offset, message: Any) -> list:
        _change(message, fault.field, lambda old: old + fault.value)
        return [message]

    def _scale(self, route: str, fault: Scale, message: Any) -> list:
        _change(message, fault.field, lambda old: old * fault.value)
        return [message]

    def _freeze(self, route: str, fault: Fault, message: Any) -> list:
        frozen = copy.copy(self.route_state.setdefault(route, message))
        if hasattr(frozen, "header"):
            frozen.header = message.header
        return [frozen]

    def _shift(self, route: str, fault: Shift, message: Any) -> list:
        by = round(fault.seconds * NS)
        also = [message.observation_stamp] if hasattr(message, "observation_stamp") else []
        for stamp in [message.header.stamp, *also]:
            set_stamp(stamp, max(to_ns(stamp) + by, 0))
        return [message]


def _change(message: Any, path: str, change: Any) -> None:
    """Apply ``change`` to the number, or to each number of the sequence, at a dotted path."""
    *parents, last = path.split(".")
    for name in parents:
        message = getattr(message, name)
    old = getattr(message, last)
    setattr(
        message,
        last,
        change(old) if isinstance(old, int | float | str) else [change(value) for value in old],
    )


def main() -> None:
    """Entry point."""
    wait_for_nobody()
    run(FaultInjector, priority=25, listens=False)  # the injector itself must not add a delay


if __name__ == "__main__":
    main()
