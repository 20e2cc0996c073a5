"""What twins of grippers share: actions that are answered once the fingers are there; the newest order alone stands."""

from __future__ import annotations

from functools import partial
from typing import Any

from rclpy.action import ActionServer, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node


class Orders:
    """The order that stands, if there is one: its action and its goal.

    Args:
        replaced: the result of one that another takes the place of.
    """

    def __init__(self, **replaced: Any) -> None:
        self.replaced = replaced
        self.order: tuple[Any, ServerGoalHandle] | None = None
        self.results: dict[bytes, tuple[bool, Any]] = {}

    def serve(self, node: Node, kind: Any, name: str) -> ActionServer:
        """An action by which orders come."""
        return ActionServer(node, kind, name, self._result, goal_callback=lambda _: GoalResponse.ACCEPT,
                            handle_accepted_callback=partial(self._begin, kind))

    def _begin(self, kind: Any, handle: ServerGoalHandle) -> None:
        self.end(False, **self.replaced)
        self.order = kind, handle

    def end(self, reached: bool, /, **result: Any) -> None:
        """Answer it, if there is one."""
        if self.order is not None:
            kind, handle = self.order
            self.order = None
            self.results[bytes(handle.goal_id.uuid)] = reached, kind.Result(**result)
            handle.execute()

    def _result(self, handle: ServerGoalHandle) -> Any:
        reached, result = self.results.pop(bytes(handle.goal_id.uuid))
        (handle.succeed if reached else handle.abort)()
        return result
