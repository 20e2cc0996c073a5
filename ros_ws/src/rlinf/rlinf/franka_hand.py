"""The Franka hand: widths in, one order after the other out, and never a wait: an order without an answer is a fault."""

from __future__ import annotations

import time
from typing import Any

from franka_msgs.action import Grasp, Move
from franka_msgs.msg import GraspEpsilon
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger

from rlinf.qos import profile
from rlinf_core.drivers.franka import Driver

NEAR_M = 0.004              # a width that near to the last order is none of its own
WIDEST_M = 0.08
ANY = GraspEpsilon(inner=WIDEST_M, outer=WIDEST_M)  # whatever is between the fingers is held
STATE = ("gripper_opening",)


class Hand:
    """``gripper/command`` to Move where it opens, and to Grasp where it closes; joint_states to ``gripper/state``.

    Attributes:
        fault: in words; empty where every order was answered in time.
        said: what came of the last one, for diagnostics.
    """

    def __init__(self, node: Node, prefix: str, settings: Driver) -> None:
        self.node, self.settings = node, settings
        self.actions = {"move": ActionClient(node, Move, f"{prefix}franka_gripper/move"),
                        "grasp": ActionClient(node, Grasp, f"{prefix}franka_gripper/grasp")}
        self.stopping = node.create_client(Trigger, f"{prefix}franka_gripper/stop")
        self.widths = node.create_publisher(JointState, "gripper/state", profile("gripper/state"))
        self.width: float | None = None
        self.wanted: float | None = None
        self.ordered: tuple[str, float] | None = None  # the last order: which, and its width
        self.order, self.sent, self.since = 0, False, 0.0
        self.waiting, self.fault, self.said = False, "", "no order yet"
        node.create_subscription(JointState, f"{prefix}franka_gripper/joint_states", self._on_state, 1)
        node.create_subscription(Float64, "gripper/command", self._on_command, profile("gripper/command"))

    def _on_state(self, state: JointState) -> None:
        self.width = float(sum(state.position[:2]))  # of each finger from the middle
        self.widths.publish(JointState(header=state.header, name=STATE, position=[self.width]))

    def _on_command(self, command: Float64) -> None:
        self.wanted = min(max(command.data, 0.0), WIDEST_M)

    def look(self) -> None:
        """At every tick: the next order, if the last one is through; or how long that takes."""
        if self.waiting and not self.sent:
            self._send()
        if self.waiting and time.monotonic() - self.since > self.settings.hand_timeout_s:
            who = "no answer to" if self.sent else "nobody there to be told"
            self.fault = f"gripper ({who} {self._words()} for {self.settings.hand_timeout_s:g} s)"
        elif not self.waiting and self.wanted is not None and self.width is not None and self._differs(self.wanted):
            self.ordered = ("move" if self.wanted >= self.width else "grasp", self.wanted)
            self.order, self.waiting, self.sent, self.since = self.order + 1, True, False, time.monotonic()

    def _differs(self, width: float) -> bool:
        """From the last order, or, before there is one, from where the fingers are."""
        return abs(width - (self.ordered[1] if self.ordered else self.width or 0.0)) > NEAR_M

    @property
    def _kind(self) -> str:
        return self.ordered[0] if self.ordered else "move"

    def _words(self) -> str:
        return f"{self._kind} {self.ordered[1]:.3f}" if self.ordered else "nothing"

    def _send(self) -> None:
        if self.ordered is None or not self.actions[self._kind].server_is_ready():
            return
        (kind, width), speed, number = self.ordered, self.settings.hand_speed, self.order
        goal: Any = Move.Goal(width=width, speed=speed) if kind == "move" else \
            Grasp.Goal(width=width, speed=speed, force=self.settings.hand_force, epsilon=ANY)
        self.sent = True
        self.actions[kind].send_goal_async(goal).add_done_callback(lambda future: self._on_accepted(number, future))

    def _on_accepted(self, number: int, future: Future) -> None:
        handle = future.result()
        if not handle.accepted:
            self._through(number, "refused")
            return
        handle.get_result_async().add_done_callback(lambda answer: self._through(
            number, "done" if answer.result().result.success else f"failed: {answer.result().result.error or 'no reason'}"))

    def _through(self, number: int, how: str) -> None:
        """An order was answered, however late. That nothing was grasped is a result, and no fault."""
        if number == self.order:
            self.waiting, self.fault, self.said = False, "", f"{self._words()}: {how}"

    def stop(self) -> Future:
        """Part of a reset: what is under way is given up."""
        return self.stopping.call_async(Trigger.Request())

    def stopped(self) -> None:
        """The hand has answered: it is told anew from here on."""
        self.order, self.waiting, self.fault = self.order + 1, False, ""
        self.ordered, self.wanted, self.said = None, None, "stopped with a reset"
