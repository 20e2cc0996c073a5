"""Clients of ROS actions: a goal that can be cancelled at any time, and the widths that a gripper is ordered to."""

from __future__ import annotations

import time
import uuid
from typing import Any

from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import Float64
from unique_identifier_msgs.msg import UUID

from rlinf_ros.qos import subscription


class GoalHandle:
    """One goal, named by whoever asks: it can be taken back though its acceptance was lost, or is yet to come.

    Both methods are for the thread that spins the client's node.
    """

    def __init__(self, client: ActionClient, goal: Any) -> None:
        self.client = client
        self.goal = goal
        self.id = UUID(uuid=list(uuid.uuid4().bytes))
        self.withdrawn = False

    def send(self) -> Future:
        """Once; whether it is accepted, as of ``send_goal_async``."""
        answer: Future = self.client.send_goal_async(self.goal, goal_uuid=self.id)
        answer.add_done_callback(self._on_answer)
        return answer

    def _on_answer(self, answer: Future) -> None:
        handle = answer.result()
        if self.withdrawn and handle is not None and handle.accepted:  # the server came to it after that
            handle.cancel_goal_async()

    def withdraw(self) -> Future:
        """Cancel it, whether or not anything was heard of it; the answer to that. Of one that is over, nothing comes."""
        self.withdrawn = True
        return ClientGoalHandle(self.client, self.id, None).cancel_goal_async()


NEAR_M = 0.004               # a width that near to the last order is none of its own
STATE = ("gripper_opening",)  # the joint's name in gripper/state


class Orders:
    """``gripper/command`` to an action's goals; an order without an answer is a fault.

    Args:
        node: whose topics they are.
        widest: to which it opens [m].
        timeout_s: after which an answer is missed [s].

    Attributes:
        width: as it was measured last [m].
        fault: in words; empty where every order was answered in time.
        said: what came of the last one, for diagnostics.
    """

    def __init__(self, node: Node, widest: float, timeout_s: float) -> None:
        self.widest, self.timeout_s = widest, timeout_s
        self.width: float | None = None
        self.wanted: float | None = None
        self.ordered: tuple[str, float] | None = None  # the last order: which, and its width
        self.order = 0
        self.sent = False
        self.since = 0.0
        self.waiting = False
        self.fault = ""
        self.last_result = "no order yet"
        subscription(node, "gripper/command", self._on_command)

    # Of each gripper
    def verb(self, width: float) -> str:
        """Return the command that brings the fingers there."""
        return "move"

    def goal(self, verb: str, width: float) -> tuple[ActionClient, Any]:
        """Whom to ask, and what."""
        raise NotImplementedError

    def outcome(self, result: Any) -> str:
        """Return the result in words."""
        raise NotImplementedError

    # Of all
    def _on_command(self, command: Float64) -> None:
        self.wanted = min(max(command.data, 0.0), self.widest)

    def look(self) -> None:
        """At every tick: the next order, if the last one is through; or how long that takes."""
        if self.waiting and not self.sent:
            self._send()
        if self.waiting and self.late:
            who = "no answer to" if self.sent else "nobody there to be told"
            self.fault = f"gripper ({who} {self.words()} for {self.timeout_s:g} s)"
        elif not self.waiting and self.wanted is not None and self.width is not None and self._differs(self.wanted):
            self.ordered = self.verb(self.wanted), self.wanted
            self.give()

    def give(self) -> None:
        """The order that stands, from now on."""
        self.order = self.order + 1
        self.waiting = True
        self.sent = False
        self.since = time.monotonic()

    @property
    def late(self) -> bool:
        return time.monotonic() - self.since > self.timeout_s

    def _differs(self, width: float) -> bool:
        """From the last order, or, before there is one, from where the fingers are."""
        return abs(width - (self.ordered[1] if self.ordered else self.width or 0.0)) > NEAR_M

    def words(self) -> str:
        """The order that stands."""
        return f"{self.ordered[0]} {self.ordered[1]:.3f}" if self.ordered else "nothing"

    def _send(self) -> None:
        if self.ordered is None:
            return
        number, (client, goal) = self.order, self.goal(*self.ordered)
        if client.server_is_ready():
            self.sent = True
            client.send_goal_async(goal).add_done_callback(lambda future: self._on_accepted(number, future))

    def _on_accepted(self, number: int, future: Future) -> None:
        handle = future.result()
        if not handle.accepted:
            self.through(number, "refused")
            return
        handle.get_result_async().add_done_callback(
            lambda answer: self.through(number, self.outcome(answer.result().result)))

    def through(self, number: int, how: str) -> None:
        """An order was answered, however late. That nothing was grasped is a result, and no fault."""
        if number == self.order:
            self.waiting, self.fault, self.last_result = False, "", f"{self.words()}: {how}"

    def forget(self, why: str) -> None:
        """It is told anew from here on."""
        self.order = self.order + 1
        self.waiting = False
        self.fault = ""
        self.ordered = None
        self.wanted = None
        self.last_result = why
