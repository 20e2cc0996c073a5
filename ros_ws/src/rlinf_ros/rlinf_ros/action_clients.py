"""Clients of ROS actions: a goal that can be cancelled at any time, and commands to a gripper."""

from __future__ import annotations

import time
import uuid
from typing import Any

from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.node import Node
from rclpy.task import Future
from rlinf_msgs.msg import GripperWidth
from unique_identifier_msgs.msg import UUID

from rlinf_ros.qos import subscription


class GoalHandle:
    """One goal with an id of the client's own.

    It can be withdrawn even if its acceptance was lost or is outstanding. Call both methods in the
    thread that spins the client's node.
    """

    def __init__(self, client: ActionClient, goal: Any) -> None:
        self.client = client
        self.goal = goal
        self.id = UUID(uuid=list(uuid.uuid4().bytes))
        self.withdrawn = False

    def send(self) -> Future:
        """Send the goal, once; return the acceptance, as ``send_goal_async`` does."""
        answer: Future = self.client.send_goal_async(self.goal, goal_uuid=self.id)
        answer.add_done_callback(self._on_answer)
        return answer

    def _on_answer(self, answer: Future) -> None:
        handle = answer.result()
        # the server accepted it after the withdrawal
        if self.withdrawn and handle is not None and handle.accepted:
            handle.cancel_goal_async()

    def withdraw(self) -> Future:
        """Cancel the goal, even if its acceptance is unknown; return the answer.

        An ended goal gives no answer.
        """
        self.withdrawn = True
        return ClientGoalHandle(self.client, self.id, None).cancel_goal_async()


NEAR_M = 0.004  # a width this near to the last command is no new command
GRIPPER_JOINTS = ("gripper_opening",)  # joint names in gripper/state


class GripperActionClient:
    """Sends ``gripper/command`` as goals of an action; a missing answer is a fault.

    Args:
        node: the node that owns the topics.
        max_width: largest width [m].
        timeout_s: timeout of an answer [s].

    Attributes:
        width: last measured width [m].
        target: newest width of ``gripper/command`` [m].
        command: verb and width [m] of the last command.
        number: number of the last command; answers to earlier ones are ignored.
        is_pending: whether the last command has no answer yet.
        fault: description; empty if every command was answered in time.
        last_result: result of the last command, for diagnostics.
    """

    def __init__(self, node: Node, max_width: float, timeout_s: float) -> None:
        self.max_width, self.timeout_s = max_width, timeout_s
        self.width: float | None = None
        self.target: float | None = None
        self.command: tuple[str, float] | None = None
        self.number = 0
        self.is_pending = False
        self.is_sent = False
        self.pending_since = 0.0
        self.fault = ""
        self.last_result = "no command yet"
        subscription(node, "gripper/command", self._on_command)

    # Overridden for each gripper
    def verb(self, width: float) -> str:
        """Return the command that brings the fingers there."""
        return "move"

    def goal(self, verb: str, width: float) -> tuple[ActionClient, Any]:
        """Return the action client and the goal."""
        raise NotImplementedError

    def outcome(self, result: Any) -> str:
        """Return the result in words."""
        raise NotImplementedError

    # Common to all grippers
    def _on_command(self, command: GripperWidth) -> None:
        self.target = min(max(command.width, 0.0), self.max_width)

    def update(self) -> None:
        """Send the next command once the last one is answered, or note a missed answer.

        Call it at every tick.
        """
        if self.is_pending and not self.is_sent:
            self._send()
        if self.is_pending:
            if self.is_overdue:
                problem = "no answer to" if self.is_sent else "no server for"
                self.fault = f"gripper ({problem} {self.command_text()} for {self.timeout_s:g} s)"
        elif self.target is not None and self.width is not None and self._is_new(self.target):
            self.start_command(self.target)

    def start_command(self, width: float) -> None:
        """Make a width [m] the current command, which ``update`` sends."""
        self.command = self.verb(width), width
        self.number = self.number + 1
        self.is_pending = True
        self.is_sent = False
        self.pending_since = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() - self.pending_since > self.timeout_s

    def _is_new(self, width: float) -> bool:
        """Return whether a width differs from the last command, or else the fingers' width."""
        reference = self.command[1] if self.command else self.width or 0.0
        return abs(width - reference) > NEAR_M

    def command_text(self) -> str:
        """Return the current command in words."""
        return f"{self.command[0]} {self.command[1]:.3f}" if self.command else "nothing"

    def _send(self) -> None:
        if self.command is None:
            return
        number, (client, goal) = self.number, self.goal(*self.command)
        if client.server_is_ready():
            self.is_sent = True
            client.send_goal_async(goal).add_done_callback(
                lambda future: self._on_accepted(number, future)
            )

    def _on_accepted(self, number: int, future: Future) -> None:
        handle = future.result()
        if not handle.accepted:
            self.finish_command(number, "refused")
            return
        handle.get_result_async().add_done_callback(
            lambda answer: self.finish_command(number, self.outcome(answer.result().result))
        )

    def finish_command(self, number: int, outcome: str) -> None:
        """Note the answer to a command, however late. An empty grasp is a result, not a fault."""
        if number == self.number:
            self.is_pending = False
            self.fault = ""
            self.last_result = f"{self.command_text()}: {outcome}"

    def forget(self, reason: str) -> None:
        """Forget the last command, so that the next one is sent anew."""
        self.number = self.number + 1
        self.is_pending = False
        self.fault = ""
        self.command = None
        self.target = None
        self.last_result = reason
