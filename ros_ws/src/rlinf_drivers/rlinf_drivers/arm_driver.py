"""The common part of the nodes beside vendors' drivers. A fault is published on every change; it
ends only as a part of a reset (S17).

``Steps`` asks the vendor's driver, step by step, each with a bound on its time, while a person resets.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.subscription import Subscription
from rclpy.task import Future
from std_msgs.msg import String

from rlinf_ros.managed import Managed
from rlinf_ros.qos import OVERHEARD, publisher, subscription
from rlinf_ros.scene import either
from rlinf_ros.spinning import ControlNode, is_active
from rlinf_ros.workarounds import Until, run_routine

STEP_S, BACK_S = 4.0, 1.0  # for an answer; until the robot says itself that it is back


class Steps:
    """Questions of a routine that never wait for ever.

    Args:
        node: whose routine asks.
    """

    def __init__(self, node: Node) -> None:
        self.node, self.running = node, False

    async def run(self) -> str:
        """All of it; returns what went wrong, or an empty string."""
        raise NotImplementedError

    async def service(self, client: Any, request: Any) -> Any:
        """The answer of a service; None where nobody is there, nothing came in time, or the node is inactive."""
        ready = client.service_is_ready() and is_active(self.node)
        return await self.answer(client.call_async(request)) if ready else None

    async def answer(self, future: Future) -> Any:
        """Await an answer; None if none came in time."""
        return await Until(future) if await either(self.node, future, STEP_S) else None


RECOVERING = "recovering"
AGAIN_S = 0.1  # between two times that it says the same: whoever hears nothing for longer knows that it hangs


class ArmDriver(Managed, ControlNode):
    """``robot/fault`` out, ``robot/reset`` in. A subclass makes its ``recovery`` and then calls ``begin``.

    Inactive, it publishes nothing, so that the interlock holds (``silent:robot/fault``), and recovers from nothing.
    """

    recovery: Steps

    def __init__(self) -> None:
        super().__init__("driver")
        self.published_fault: str | None = None
        self.faults = publisher(self, "robot/fault")
        self._inputs = rclpy.create_node("driver_inputs", namespace=self.get_namespace(), enable_rosout=False,
                                         start_parameter_services=False, use_global_arguments=False)  # nobody spins it

    def hear(self, kind: type, name: str) -> Subscription:
        """A topic that may be fast, of which the newest message alone is wanted, when it is asked for: by ``newest``."""
        return self._inputs.create_subscription(kind, self.resolve_topic_name(name), lambda _: None, OVERHEARD)

    def begin(self) -> None:
        """From now on."""
        subscription(self, "robot/reset", self._on_reset)
        self.tell()
        self.create_timer(AGAIN_S, self._repeat)

    def activate(self) -> str:
        """The robot's fault is published at once."""
        self.active, self.published_fault = True, None
        self.tell()
        return ""

    def _repeat(self) -> None:
        if self.active:
            self.faults.publish(String(data=self.published_fault or ""))

    @property
    @abstractmethod
    def arm_fault(self) -> str:
        """Why the arm does not follow, in a word or two; empty if it does."""

    @property
    def fault(self) -> str:
        """The robot's fault; while the robot recovers, that it does."""
        return RECOVERING if self.recovery.running else self.arm_fault

    @abstractmethod
    def ends_at_the_robot(self, fault: str) -> bool:
        """Whether a person does, and nothing that could be asked for from here."""

    def tell(self) -> None:
        """At every change, and once at the beginning."""
        fault = self.fault
        if self.active and fault != self.published_fault:
            self.published_fault = fault
            self.faults.publish(String(data=fault))
            if fault:
                self.get_logger().error(f"robot/fault: {fault}")

    def _on_reset(self, cause: String) -> None:
        """A person has asked the interlock to reset ``cause``: the one time at which the robot may be asked to go on."""
        fault = self.fault
        if not fault or self.recovery.running or not self.active:
            return
        if self.ends_at_the_robot(fault):
            self.get_logger().warning(f"{fault}: a person ends that at the robot, then reset again")
            return
        self.get_logger().info(f"'{fault}' is to be recovered from, as a part of the reset of '{cause.data}'")
        run_routine(self.recovery.run(), lambda trouble: trouble and self.get_logger().error(f"not recovered: {trouble}"))


def newest(reader: Subscription) -> Any:
    """Return the newest message since the last call, or None."""
    with reader.handle:
        taken = reader.handle.take_message(reader.msg_type, False)
    return None if taken is None else taken[0]
