"""GripperCommand: commands a gripper's controller by its action (docs/robots/interface.md).

An unanswered or refused command silences ``gripper/state``, and the interlock holds until it
succeeds. The command is repeated while the interlock's command lasts. If the interlock is disarmed,
in fault or silent, a person may be at the fingers: the command is forgotten.
"""

from __future__ import annotations

import math
import time
from typing import Any

from control_msgs.action import GripperCommand
from control_msgs.msg import GripperCommand as Command
from rclpy.action import ActionClient
from rclpy.node import Node
from rlinf_msgs.msg import GripperWidth, SafetyState
from sensor_msgs.msg import JointState

from rlinf_core.robots.grippers.gripper_command import Gripper
from rlinf_ros.action_clients import GRIPPER_JOINTS, GripperActionClient
from rlinf_ros.diagnostics import ERROR, OK, Diagnostics, Health, is_active
from rlinf_ros.lifecycle_node import Managed
from rlinf_ros.qos import lazy_profile, publisher, subscription
from rlinf_ros.spinning import run
from rlinf_ros.station_node import ControlNode

TICK_S = 0.02
SILENT_S = SETTLED_S = 0.5  # value of S3
SAFETY_S = 0.5  # the interlock reports its state several times in this time
MAY_MOVE = (SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD)
QUEUE_DEPTH = 10  # messages of other joints on the same topic


class GripperCommandClient(GripperActionClient):
    """Sends commands to one action."""

    def __init__(self, node: Node, settings: Gripper) -> None:
        super().__init__(node, settings.width, settings.timeout_s)
        self.node, self.settings = node, settings
        self.action = ActionClient(node, GripperCommand, settings.action)
        self.armed_at = 0.0
        subscription(node, "safety", self._on_safety)
        self.restart()

    def restart(self) -> None:
        """Start anew, without earlier commands.

        The interlock's first commands, from before it has heard the width, are ignored, too.
        """
        self.forget("no command yet")
        self.restarted_at = time.monotonic()

    def _on_command(self, command: GripperWidth) -> None:
        if is_active(self.node) and time.monotonic() - self.restarted_at > SETTLED_S:
            super()._on_command(command)

    def _on_safety(self, safety: SafetyState) -> None:
        if safety.state in MAY_MOVE:
            self.armed_at = time.monotonic()
        elif self.fault:
            self.restart()

    def update(self) -> None:
        """Repeat an unanswered command while the arm may move; else forget the command."""
        if self.is_pending and self.fault:
            if time.monotonic() - self.armed_at > SAFETY_S:
                self.restart()
            elif self.is_overdue and self.target is not None:
                self.start_command(self.target)
        super().update()

    def goal(self, verb: str, width: float) -> tuple[ActionClient, Any]:
        position = self.settings.position(width)
        return self.action, GripperCommand.Goal(
            command=Command(position=position, max_effort=self.settings.max_effort)
        )

    def outcome(self, result: Any) -> str:
        if result.reached_goal:
            return "done"
        return "stalled" if result.stalled else "ended elsewhere"

    def finish_command(self, number: int, outcome: str) -> None:
        """Record the answer; a refusal is a fault, because the fingers would stay still."""
        if outcome == "refused" and number == self.number:
            self.fault = f"gripper ({self.settings.action} refused {self.command_text()})"
        else:
            super().finish_command(number, outcome)


class GripperNode(Managed, ControlNode):
    """Sends ``gripper/command`` to the action and publishes ``gripper/state``, while active."""

    def __init__(self) -> None:
        super().__init__("gripper")
        self.settings = self.declare_settings("settings", Gripper)
        self.commands = GripperCommandClient(self, self.settings)
        self.received_at = 0.0
        self.implausible = ""
        self.widths = publisher(self, "gripper/state")
        self.create_subscription(
            JointState, self.settings.states, self._on_states, lazy_profile(QUEUE_DEPTH)
        )
        self.create_timer(TICK_S, self._poll)
        self.diagnostics = Diagnostics(self, self._health)

    def activate(self) -> str:
        """Forget earlier commands."""
        self.commands.restart()
        return ""

    def deactivate(self) -> None:
        """Send the fingers no further command; without ``gripper/state`` the interlock holds."""
        self.commands.restart()

    def _poll(self) -> None:
        if self.active:
            self.commands.update()

    @property
    def silent(self) -> bool:
        return time.monotonic() - self.received_at > SILENT_S

    def _on_states(self, state: JointState) -> None:
        if self.settings.joint not in state.name:
            return
        place = list(state.name).index(self.settings.joint)
        if place >= len(state.position):
            return
        width = self.settings.opening(state.position[place])
        self.implausible = "" if math.isfinite(width) else f"{state.position[place]:g}"
        if self.implausible:
            return
        if self.silent:
            self.commands.restart()
        self.received_at = time.monotonic()
        self.commands.width = width
        if self.active and not self.commands.fault:
            self.widths.publish(
                JointState(header=state.header, name=GRIPPER_JOINTS, position=[self.commands.width])
            )

    def _health(self) -> Health:
        settings, commands = self.settings, self.commands
        values = {"order": commands.last_result, "width": commands.width, "action": settings.action}
        if self.implausible:
            return Health(
                ERROR,
                f"joint '{settings.joint}': expected a position between gripper.closed_at "
                f"({settings.closed_at:g}) and gripper.open_at ({settings.open_at:g}), got "
                f"{self.implausible}. Is it in degrees or per cent? Correct both",
                values,
            )
        if self.silent:
            return Health(
                ERROR,
                f"no joint '{settings.joint}' on {settings.states}. Start the gripper's driver, "
                "or set gripper.joint and gripper.states",
                values,
            )
        if commands.fault:
            return Health(ERROR, commands.fault, values)
        return Health(OK, commands.last_result, values)


def main() -> None:
    """Entry point."""
    run(GripperNode, listens=False)


if __name__ == "__main__":
    main()
