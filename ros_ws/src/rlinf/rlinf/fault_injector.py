"""Fault injector: stands between topics and does to their messages what networks, sensors and programs do.

    ros2 run rlinf fault_injector --ros-args -p routes:="['policy/action:drill/action:rlinf_msgs/msg/ActionChunk']"
    ros2 topic pub --once inject std_msgs/String "{data: '{route: policy/action, kind: corrupt, field: data, value: nan}'}"

Each route is ``from:to:type``. One fault at a time per route, given as YAML on ``inject``; ``kind: none`` ends it. The
first message that a fault alters is announced on ``injected`` with the time at which that happened.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from importlib import import_module
from typing import Any

import yaml
from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_msgs.msg import Header, String

from rlinf.qos import profile
from rlinf.spinning import run
from rlinf.stamps import NS, set_stamp, to_ns
from rlinf.workarounds import wait_for_nobody
from rlinf_core.errors import RlinfError

KINDS = {
    "none": "pass everything on",
    "drop": "lose messages; fraction: 1.0 of them",
    "delay": "hand on late; seconds: 0.1",
    "reorder": "swap every two messages",
    "repeat": "send everything again; times: 1",
    "corrupt": "set a field to a value (nan, inf, a number, or words); field: data, value: nan",
    "offset": "add to a field; field: data, value: 0.1",
    "scale": "multiply a field; field: data, value: 100",
    "freeze": "go on with the first message's content under fresh stamps",
    "shift": "shift every stamp, as a clock that steps; seconds: 10",
}


class FaultInjector(Node):
    """Passes messages on unharmed until it is told otherwise."""

    def __init__(self) -> None:
        super().__init__("fault_injector", start_parameter_services=False)
        self.faults: dict[str, dict[str, Any]] = {}
        self.outputs: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}
        self.altered: set[str] = set()
        self.injected = self.create_publisher(Header, "injected", 10)
        self.create_subscription(String, "inject", self._on_inject, 10)
        for route in self.declare_parameter("routes", [""]).value:
            if route:
                self._open(*route.split(":"))

    def _open(self, source: str, target: str, type_name: str) -> None:
        package, _, name = type_name.split("/")
        kind = getattr(import_module(f"{package}.msg"), name)
        quality: QoSProfile | int
        try:
            quality = profile(source)
        except RlinfError:  # somebody's own topic
            quality = 10
        self.outputs[source] = self.create_publisher(kind, target, quality)
        self.create_subscription(kind, source, partial(self._on_message, source), quality)

    def _on_inject(self, message: String) -> None:
        fault = yaml.safe_load(message.data)
        route, kind = fault.get("route"), fault.get("kind")
        if route not in self.outputs or kind not in KINDS:
            self.get_logger().error(f"inject: expected route one of {', '.join(self.outputs)} and kind one of "
                                    f"{', '.join(KINDS)}; got {message.data!r}")
            return
        self.faults[route] = fault
        self.kept.pop(route, None)
        self.altered.discard(route)

    def _on_message(self, route: str, message: Any) -> None:
        fault = self.faults.get(route, {"kind": "none"})
        outputs = getattr(self, f"_{fault['kind']}")(route, fault, message)
        if fault["kind"] != "none" and route not in self.altered:
            self.altered.add(route)
            self.injected.publish(Header(stamp=self.get_clock().now().to_msg(), frame_id=route))
        for each in outputs:
            self.outputs[route].publish(each)

    # What can be done to a message
    def _none(self, route: str, fault: dict, message: Any) -> list:
        return [message]

    def _drop(self, route: str, fault: dict, message: Any) -> list:
        fraction = float(fault.get("fraction", 1.0))
        self.kept[route] = self.kept.get(route, 0.0) + fraction
        if self.kept[route] >= 1.0:
            self.kept[route] -= 1.0
            return []
        return [message]

    def _delay(self, route: str, fault: dict, message: Any) -> list:
        def hand_on() -> None:
            self.outputs[route].publish(message)
            self.destroy_timer(timer)

        timer = self.create_timer(float(fault.get("seconds", 0.1)), hand_on)
        return []

    def _reorder(self, route: str, fault: dict, message: Any) -> list:
        before = self.kept.pop(route, None)
        if before is None:
            self.kept[route] = message
            return []
        return [message, before]

    def _repeat(self, route: str, fault: dict, message: Any) -> list:
        return [message] * (1 + int(fault.get("times", 1)))

    def _corrupt(self, route: str, fault: dict, message: Any) -> list:
        value = fault.get("value", math.nan)
        _change(message, fault.get("field", "data"), lambda old: value if isinstance(old, str) else float(value))
        return [message]

    def _offset(self, route: str, fault: dict, message: Any) -> list:
        _change(message, fault.get("field", "data"), lambda old: old + float(fault.get("value", 0.1)))
        return [message]

    def _scale(self, route: str, fault: dict, message: Any) -> list:
        _change(message, fault.get("field", "data"), lambda old: old * float(fault.get("value", 100.0)))
        return [message]

    def _freeze(self, route: str, fault: dict, message: Any) -> list:
        frozen = copy.copy(self.kept.setdefault(route, message))
        if hasattr(frozen, "header"):
            frozen.header = message.header
        return [frozen]

    def _shift(self, route: str, fault: dict, message: Any) -> list:
        by = round(float(fault.get("seconds", 10.0)) * NS)
        also = [message.observation_stamp] if hasattr(message, "observation_stamp") else []
        for stamp in [message.header.stamp, *also]:
            set_stamp(stamp, max(to_ns(stamp) + by, 0))
        return [message]


def _change(message: Any, path: str, change: Any) -> None:
    """Apply ``change`` to the number, or to each number of the sequence, at a dotted path."""
    *way, last = path.split(".")
    for name in way:
        message = getattr(message, name)
    old = getattr(message, last)
    setattr(message, last, change(old) if isinstance(old, int | float | str) else [change(value) for value in old])


def main() -> None:
    """Entry point."""
    wait_for_nobody()
    run(FaultInjector, priority=25, listens=False)  # it must not be what is late


if __name__ == "__main__":
    main()
