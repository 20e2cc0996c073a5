"""The twin's hand: franka_gripper's actions, service and joint states around two fingers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from franka_msgs.action import Grasp, Homing, Move
from rclpy.action import ActionServer, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from sim_bridges.twins.franka_state import WIDEST_M

HOMING_SPEED = 0.05
SILENT = "libfranka gripper: UDP receive: Timeout"


class Hand:
    """Fingers that go towards the newest order, and close no further than what is between them.

    Args:
        node: whose topics they are.
        between: how wide that is now [m].
        answers: False while the hand is cut off.
    """

    def __init__(self, node: Node, between: Callable[[], float], answers: Callable[[], bool]) -> None:
        self.node, self.between, self.answers = node, between, answers
        self.width, self.order, self.results = WIDEST_M, None, {}
        self.states = node.create_publisher(JointState, "franka_gripper/joint_states", 1)
        self.servers = [ActionServer(node, kind, f"franka_gripper/{name}", self._result,
                                     goal_callback=lambda _: GoalResponse.ACCEPT,
                                     handle_accepted_callback=partial(self._begin, kind))
                        for name, kind in (("move", Move), ("grasp", Grasp), ("homing", Homing))]
        node.create_service(Trigger, "franka_gripper/stop", self._stop)

    order: tuple[Any, ServerGoalHandle] | None
    results: dict[bytes, Any]

    def _begin(self, kind: Any, handle: ServerGoalHandle) -> None:
        self._end(False, "command aborted")
        self.order = kind, handle

    def advance(self, seconds: float) -> None:
        """Move for so long; an order that is through is answered."""
        if self.order is None or not self.answers():
            return
        kind, handle = self.order
        goal = handle.request
        wanted, speed = (WIDEST_M, HOMING_SPEED) if kind is Homing else (goal.width, goal.speed)
        way = max(wanted, self.between()) - self.width
        self.width += min(max(way, -speed * seconds), speed * seconds)
        if abs(way) > 1e-4:
            return
        inner, outer = (goal.epsilon.inner, goal.epsilon.outer) if kind is Grasp else (1e-3, 1e-3)
        reached = wanted - inner <= self.width <= wanted + outer
        self._end(reached, "" if reached else "the width was not reached")

    def say(self, stamp: Any, names: list[str]) -> JointState:
        """Publish how wide it is."""
        state = JointState(name=names, position=[self.width / 2] * 2, velocity=[0.0] * 2, effort=[0.0] * 2)
        state.header.stamp = stamp
        self.states.publish(state)
        return state

    def _end(self, success: bool, error: str) -> None:
        if self.order is not None:
            kind, handle = self.order
            self.order = None
            self.results[bytes(handle.goal_id.uuid)] = kind.Result(success=success, error=error)
            handle.execute()

    def _result(self, handle: ServerGoalHandle) -> Any:
        result = self.results.pop(bytes(handle.goal_id.uuid))
        (handle.succeed if result.success else handle.abort)()
        return result

    def _stop(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = self.answers()
        response.message = "" if response.success else SILENT
        if response.success:
            self._end(False, "command aborted")
        return response
