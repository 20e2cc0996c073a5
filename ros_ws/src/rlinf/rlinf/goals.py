"""What is asked of an action server, and taken back whatever has become of it."""

from __future__ import annotations

import uuid
from typing import Any

from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.task import Future
from unique_identifier_msgs.msg import UUID


class Asked:
    """One goal, named by whoever asks: it can be taken back though its acceptance was lost, or is yet to come.

    Both methods are for the thread that spins the client's node.
    """

    def __init__(self, client: ActionClient, goal: Any) -> None:
        self.client, self.goal, self.id, self.withdrawn = client, goal, UUID(uuid=list(uuid.uuid4().bytes)), False

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
