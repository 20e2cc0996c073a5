"""The twin of a gripper behind control_msgs/GripperCommand: its action, joint and fingers.

The parameter ``inject`` sets its current fault, and ``object_m`` the width of an object between the
fingers. Twins of other grippers share ``GripperGoals``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from control_msgs.action import GripperCommand
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.action import ActionServer, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from sensor_msgs.msg import JointState

from rlinf_core.robots.grippers.gripper_command import Gripper
from rlinf_ros.diagnostics import Diagnostics, Health
from rlinf_ros.spinning import run
from rlinf_ros.station_node import ControlNode
from sim_bridges.twins.injection import declare_inject, injection_health


class GripperGoals:
    """Serves a gripper's actions. Only the newest goal is active; ``finish`` answers it.

    Args:
        replaced_result: the result of a goal that a newer one replaces.

    Attributes:
        active: action type and handle of the active goal, if any.
    """

    def __init__(self, **replaced_result: Any) -> None:
        self.replaced_result = replaced_result
        self.active: tuple[Any, ServerGoalHandle] | None = None
        self.results: dict[bytes, tuple[bool, Any]] = {}

    def serve(self, node: Node, kind: Any, name: str) -> ActionServer:
        """Return an action server that accepts every goal."""
        return ActionServer(
            node,
            kind,
            name,
            self._result,
            goal_callback=lambda _: GoalResponse.ACCEPT,
            handle_accepted_callback=partial(self._activate, kind),
        )

    def _activate(self, kind: Any, handle: ServerGoalHandle) -> None:
        self.finish(False, **self.replaced_result)
        self.active = kind, handle

    def finish(self, reached: bool, /, **result: Any) -> None:
        """Answer the active goal, if there is one."""
        if self.active is not None:
            kind, handle = self.active
            self.active = None
            self.results[bytes(handle.goal_id.uuid)] = reached, kind.Result(**result)
            handle.execute()

    def _result(self, handle: ServerGoalHandle) -> Any:
        reached, result = self.results.pop(bytes(handle.goal_id.uuid))
        (handle.succeed if reached else handle.abort)()
        return result


TICK_S, SPEED = 0.02, 0.1  # [m/s]
SILENT, NO_JOINT = "no_answer", "no_joint"
INJECTIONS = ("", SILENT, NO_JOINT)


class GripperCommandTwin(ControlNode):
    """One gripper. A command ends at its target, or when an object stops the fingers."""

    def __init__(self) -> None:
        super().__init__("gripper_twin")
        self.settings = self.declare_settings("settings", Gripper)
        self.width = self.settings.width
        self.goals = GripperGoals()
        self.server = self.goals.serve(self, GripperCommand, self.settings.action)
        self.states = self.create_publisher(JointState, self.settings.states, 10)
        declare_inject(self, INJECTIONS)
        self.declare_parameter(
            "object_m",
            0.0,
            ParameterDescriptor(description="width of the object between the fingers [m]"),
        )
        self.diagnostics = Diagnostics(self, self._health)
        self.create_timer(TICK_S, self._tick)

    def _health(self) -> Health:
        active = self.goals.active
        position = active[1].request.command.position if active else "nothing"
        return injection_health(self, {"width": round(self.width, 4), "ordered": position})

    def _tick(self) -> None:
        injected = self.get_parameter("inject").value
        if self.goals.active is not None and injected != SILENT:
            _, handle = self.goals.active
            self._advance(self.settings.opening(handle.request.command.position))
        if injected != NO_JOINT:
            state = JointState(
                name=[self.settings.joint], position=[self.settings.position(self.width)]
            )
            state.header.stamp = self.get_clock().now().to_msg()
            self.states.publish(state)

    def _advance(self, target: float) -> None:
        object_m = self.get_parameter("object_m").value
        delta = max(target, object_m) - self.width
        self.width += min(max(delta, -SPEED * TICK_S), SPEED * TICK_S)
        if abs(delta) < 1e-4:
            reached = target >= object_m
            self.goals.finish(
                reached,
                position=self.settings.position(self.width),
                stalled=not reached,
                reached_goal=reached,
            )


def main() -> None:
    """Entry point."""
    run(GripperCommandTwin, listens=False)


if __name__ == "__main__":
    main()
