"""The twin of a servo arm: its bus on a pseudo-terminal, a goal, and a scene that resets itself.

``rlinf param set twin say "fault 3"`` passes words to ``sim_bridges.twins.servos``.
"""

from __future__ import annotations

import time

import numpy as np
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.action import ActionServer
from rclpy.action.server import ServerGoalHandle
from rclpy.parameter import Parameter
from rlinf_msgs.action import ResetScene

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.drivers.servo_arm import Driver
from rlinf_ros.diagnostics import OK, Diagnostics, Health
from rlinf_ros.qos import publisher
from rlinf_ros.spinning import run
from rlinf_ros.station_node import ControlNode
from sim_bridges.twins.servos import Servos

TICK_S, READ_S, GOAL_RAD = 0.05, 0.1, 0.35
HOME_RAD = (0.0, -0.6, 0.6, 0.6, 0.0)  # home of an SO-101: folded above the table


class ServoArmTwin(ControlNode):
    """One arm on the port that the driver's settings name."""

    def __init__(self) -> None:
        super().__init__("twin")
        settings = self.declare_settings("settings", Driver)
        self.declare_parameter(
            "say",
            "",
            ParameterDescriptor(
                description="command of the twin: '1 0.5' turns servo 1, 'fault 3', 'fault 0', "
                "silent, rest, garbage"
            ),
        )
        self.diagnostics = Diagnostics(
            self, lambda: Health(OK, "follows the commands of its servos")
        )
        self.settings = settings
        self.description = settings.description()
        self.servos = Servos(settings.device, settings.bus, settings.ids)
        self.home = np.resize(HOME_RAD, len(settings.joints))
        self._place(self.home)
        self.goal = self._tool(self.home + GOAL_RAD / 2)
        self.goals = publisher(self, "goal_pose")
        self.server = ActionServer(self, ResetScene, "reset_scene", self._on_reset)
        self.add_on_set_parameters_callback(self._on_say)
        self.create_timer(TICK_S, self._tick)

    def _place(self, angles: np.ndarray) -> None:
        joints = self.settings.joints.values()
        self.servos.place(
            {joint.id: joint.ticks(angle) for joint, angle in zip(joints, angles, strict=True)}
        )

    def _tool(self, angles: np.ndarray) -> list[float]:
        """Return the position (3,) of the tool [m]."""
        positions = dict(zip(self.settings.joints, angles.tolist(), strict=True))
        return list(self.description.pose(self.settings.tool, positions)[0])

    def _on_say(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            if parameter.name == "say" and parameter.value:
                try:
                    self.servos.execute(parameter.value)
                except DeviceError as error:
                    return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _on_reset(self, handle: ServerGoalHandle) -> ResetScene.Result:
        """Place the goal elsewhere within reach, and the arm at its home.

        The answer comes once the driver has read and published the new place.
        """
        random = np.random.default_rng(handle.request.seed)
        self._place(self.home)
        self.goal = self._tool(self.home + random.uniform(-GOAL_RAD, GOAL_RAD, len(self.home)))
        time.sleep(READ_S)
        handle.succeed()
        return ResetScene.Result(success=True, stamp=self.get_clock().now().to_msg())

    def _tick(self) -> None:
        goal = PoseStamped()
        goal.header.stamp = self.get_clock().now().to_msg()
        goal.header.frame_id = "base_link"
        position = goal.pose.position
        position.x, position.y, position.z = self.goal
        goal.pose.orientation.w = 1.0
        self.goals.publish(goal)

    def destroy_node(self) -> None:
        """Remove the port, too."""
        self.servos.unplug()
        super().destroy_node()


def main() -> None:
    """Entry point."""
    run(ServoArmTwin, priority=25, listens=False)


if __name__ == "__main__":
    main()
