"""The common part of the nodes beside vendors' drivers.

A fault is published at every change; it ends only as part of a reset (S17). During a person's
reset, ``Steps`` calls the vendor's driver step by step, each with a timeout.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.subscription import Subscription
from rclpy.task import Future
from std_msgs.msg import String

from rlinf_ros.diagnostics import is_active
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.qos import LAZY_PROFILE, publisher, subscription
from rlinf_ros.scene import wait_with_timeout
from rlinf_ros.station_node import ControlNode
from rlinf_ros.workarounds import AwaitFuture, run_routine

STEP_S = 4.0  # timeout of an answer
BACK_S = 1.0  # timeout of the robot's own report that it is back


class Steps:
    """Requests of a routine, each with a timeout.

    Args:
        node: the node whose routine makes the requests.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.running = False

    async def run(self) -> str:
        """Run all steps; return the error, or an empty string."""
        raise NotImplementedError

    async def service(self, client: Any, request: Any) -> Any:
        """Return a service's answer; None if it is missing or late, or the node is inactive."""
        ready = client.service_is_ready() and is_active(self.node)
        return await self.answer(client.call_async(request)) if ready else None

    async def answer(self, future: Future) -> Any:
        """Await an answer; None if none came in time."""
        has_answer = await wait_with_timeout(self.node, future, STEP_S)
        return await AwaitFuture(future) if has_answer else None


RECOVERING = "recovering"
# interval of repetitions: a longer silence reveals a hanging node
REPEAT_S = 0.1


class ArmDriver(Managed, ControlNode):
    """Publishes ``robot/fault``, and recovers the robot on ``robot/reset``.

    A subclass makes its ``recovery`` and then calls ``begin``.

    While inactive, the node publishes nothing, so that the interlock holds
    (``silent:robot/fault``), and starts no recovery.
    """

    recovery: Steps

    def __init__(self) -> None:
        super().__init__("driver")
        self.published_fault: str | None = None
        self.faults = publisher(self, "robot/fault")
        self._inputs = rclpy.create_node(
            "driver_inputs",
            namespace=self.get_namespace(),
            enable_rosout=False,
            # no executor spins it
            start_parameter_services=False,
            use_global_arguments=False,
        )

    def subscribe_lazily(self, kind: type, name: str) -> Subscription:
        """Subscribe to a topic that may be fast; ``newest`` takes its newest message on demand."""
        return self._inputs.create_subscription(
            kind, self.resolve_topic_name(name), lambda _: None, LAZY_PROFILE
        )

    def begin(self) -> None:
        """Start to listen and report."""
        subscription(self, "robot/reset", self._on_reset)
        self.publish_fault()
        self.create_timer(REPEAT_S, self._repeat)

    def activate(self) -> str:
        """Publish the robot's fault at once."""
        self.active = True
        self.published_fault = None
        self.publish_fault()
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
        """The robot's fault; during a recovery, RECOVERING."""
        return RECOVERING if self.recovery.running else self.arm_fault

    @abstractmethod
    def ends_at_the_robot(self, fault: str) -> bool:
        """Return whether only a person at the robot can end the fault."""

    def publish_fault(self) -> None:
        """Publish the fault at every change, and once at the start."""
        fault = self.fault
        if self.active and fault != self.published_fault:
            ended = self.published_fault
            self.published_fault = fault
            self.faults.publish(String(data=fault))
            if fault:
                self.get_logger().error(f"robot/fault: {fault}")
            elif ended:
                self.get_logger().info(f"robot/fault: none. This has ended: {ended}")

    def _on_reset(self, cause: String) -> None:
        """Start a recovery if a person has asked the interlock to reset ``cause``.

        The robot may be asked to continue at no other time.
        """
        fault = self.fault
        if not fault or self.recovery.running or not self.active:
            return
        if self.ends_at_the_robot(fault):
            self.get_logger().warning(
                f"{fault}: only the robot's own controls end this fault. End it there, then reset "
                "again"
            )
            return
        self.get_logger().info(
            f"'{fault}': the driver recovers from it as part of the reset of '{cause.data}'"
        )
        run_routine(
            self.recovery.run(),
            lambda trouble: trouble and self.get_logger().error(f"not recovered: {trouble}"),
        )


def newest(reader: Subscription, raw: bool = False) -> Any:
    """Return the newest message since the last call, serialised if ``raw``, or None."""
    with reader.handle:
        taken = reader.handle.take_message(reader.msg_type, raw)
    return None if taken is None else taken[0]
