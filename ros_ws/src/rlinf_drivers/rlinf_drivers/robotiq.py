"""Robotiq: a 2F gripper on its serial port (docs/robots/interface.md).

It follows the interlock's commands. If it is silent, or reports that it would not move,
``gripper/state`` stops: the interlock holds until it is well. Only a person activates its fingers,
by the service ``gripper/activate``: they open and close once.
"""

from __future__ import annotations

import math
import threading
import time

from rlinf_msgs.msg import GripperWidth
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from rlinf_core.robots.grippers.robotiq import (
    ACTIVATING,
    ACTIVE,
    CommandTracker,
    Gripper,
    Robotiq,
    Status,
)
from rlinf_drivers.device import DeviceNode
from rlinf_ros.action_clients import GRIPPER_JOINTS
from rlinf_ros.diagnostics import ERROR, INACTIVE, OK, Diagnostics, Health
from rlinf_ros.qos import publisher, subscription
from rlinf_ros.spinning import run

PERIOD_S = 0.02
SETTLED_S = 0.5  # commands from before the interlock has heard the gripper's width are ignored
# gOBJ
OBJECTS = (
    "moving",
    "stopped at an object while opening",
    "holds something",
    "at the commanded position",
)


class RobotiqNode(DeviceNode):
    """Writes ``gripper/command`` to the gripper and publishes its position as ``gripper/state``.

    While inactive, the node only reads the gripper.
    """

    def __init__(self) -> None:
        super().__init__("gripper")
        self.settings = self.declare_settings("settings", Gripper)
        self.device_name = f"Robotiq gripper at {self.settings.device}"
        self.activation = threading.Event()
        self.status: Status | None = None
        self.target: int | None = None
        # time of the start or of the last trouble; infinite while the gripper is silent
        self.trouble_at = time.monotonic()
        self.command_tracker = CommandTracker(self.trouble_at)
        self.widths = publisher(self, "gripper/state")
        subscription(self, "gripper/command", self._on_command)
        self.create_service(Trigger, "gripper/activate", self._on_activate)
        self.diagnostics = Diagnostics(self, self._health)
        self.begin()

    def activate(self) -> str:
        """Forget earlier commands."""
        self.target = None
        self.trouble_at = time.monotonic()
        return ""

    def deactivate(self) -> None:
        """Send the fingers no further command; without ``gripper/state`` the interlock holds."""
        self.target = None
        self.activation.clear()

    def _on_command(self, command: GripperWidth) -> None:
        if (
            self.active
            and math.isfinite(command.width)
            and time.monotonic() - self.trouble_at > SETTLED_S
        ):
            self.target = round(self.settings.position(command.width))

    def _on_activate(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Activate the fingers, at the request of a person whose hands are away."""
        status = self.status
        if not self.active:
            response.message = f"the gripper's node is {INACTIVE}"
        elif status is None:
            response.message = f"the gripper does not answer: {self.trouble}"
        elif status.state == ACTIVE and not status.fault:
            response.message = "the gripper is active already and has no fault"
        else:
            self.activation.set()
            response.success = True
            response.message = (
                "the fingers open and close once; /diagnostics shows when the gripper is ready"
            )
        return response

    # In the reading thread
    def open(self) -> Robotiq:
        self.status = None
        self.target = None
        self.trouble_at = time.monotonic()
        # a request from before an unplugging is void: a hand may be at the gripper now
        self.activation.clear()
        return Robotiq(self.settings)

    def poll(self, device: Robotiq) -> None:
        try:
            self.status = status = device.status()
        except Exception:
            self.status = None
            self.target = None
            self.trouble_at = math.inf
            raise
        now, target = time.monotonic(), self.target if self.active else None
        if self.activation.is_set():
            self.activation.clear()
            device.activate()
        if (position := self.command_tracker.next(status, target, now)) is not None:
            device.go(position)
        if status.trouble:
            self.target = None
            self.trouble_at = now
        self.log_trouble(self._trouble(status))
        if self.active and not self.trouble:
            state = JointState(
                name=GRIPPER_JOINTS, position=[self.settings.opening(status.position)]
            )
            state.header.stamp = self.get_clock().now().to_msg()
            self.widths.publish(state)
        self.stopping.wait(PERIOD_S)

    def _trouble(self, status: Status) -> str:
        if not status.trouble:
            if time.monotonic() - self.command_tracker.accepted_at <= self.settings.timeout_s:
                return ""
            return (
                f"it has not executed the command {self.command_tracker.command} for "
                f"{self.settings.timeout_s:g} s"
            )
        if status.state == ACTIVATING:
            return status.trouble
        return (
            f"{status.trouble}. Keep clear of its fingers, which open and close once, and run: "
            "rlinf gripper activate (with ROS: ros2 service call "
            f"{self.resolve_service_name('gripper/activate')} std_srvs/srv/Trigger)"
        )

    def _health(self) -> Health:
        status = self.status
        values = {
            "device": self.settings.device,
            "position": status.position if status else "",
            "ordered": status.requested_position if status else "",
        }
        if self.trouble or status is None:
            return Health(ERROR, self.trouble or "no answer yet", values)
        return Health(OK, OBJECTS[status.object], values)


def main() -> None:
    """Entry point."""
    run(RobotiqNode, listens=False)


if __name__ == "__main__":
    main()
