"""The twin of a Franka FR3: franka_ros2's topics, services and actions around a simulator.

See docs/robots/franka.md. The twin also plays the rest of a lab: a Cartesian impedance controller
on ``target_pose`` with CRISP's ``current_twist``, cameras, an object tracker, and a person who
resets the scene. The parameter ``inject`` sets its current fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from controller_manager_msgs.srv import SetHardwareComponentState, SwitchController
from franka_msgs.action import ErrorRecovery, Grasp, Homing, Move
from franka_msgs.msg import Errors, FrankaRobotState
from geometry_msgs.msg import PoseStamped, WrenchStamped
from lifecycle_msgs.msg import State
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.action import ActionServer
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from rlinf_core.core.rotation import inverse, rotate
from rlinf_ros.conversions import NS, set_pose, to_stamp
from rlinf_ros.qos import LAZY_PROFILE
from rlinf_ros.spinning import run
from sim_bridges.core.ros_bridge import SimBridge
from sim_bridges.twins.franka_state import (
    BROADCASTER,
    HAND_NOT_HOMED,
    HAND_SILENT,
    JOINTS,
    WIDEST_M,
    Control,
    Controlled,
)
from sim_bridges.twins.gripper_command import GripperGoals
from sim_bridges.twins.injection import declare_inject

HOMING_SPEED = 0.05
SILENT = "libfranka gripper: UDP receive: Timeout"
NOT_HOMED = "libfranka gripper: Command failed!"


class Hand(GripperGoals):
    """Fingers that move towards the newest goal and stop at an object between them.

    Args:
        node: the node that owns the topics.
        object_width: returns the object's current width [m].
        answers: returns False while the hand is cut off.
        homed: returns False while the hand refuses to open, as it does before its homing.
    """

    def __init__(
        self,
        node: Node,
        object_width: Callable[[], float],
        answers: Callable[[], bool],
        homed: Callable[[], bool],
    ) -> None:
        self.node, self.object_width = node, object_width
        self.answers, self.homed = answers, homed
        super().__init__(success=False, error="command aborted")
        self.width = WIDEST_M
        self.states = node.create_publisher(JointState, "franka_gripper/joint_states", 1)
        self.servers = [
            self.serve(node, kind, f"franka_gripper/{name}")
            for name, kind in (("move", Move), ("grasp", Grasp), ("homing", Homing))
        ]
        node.create_service(Trigger, "franka_gripper/stop", self._stop)

    def advance(self, seconds: float) -> None:
        """Move the fingers for ``seconds`` [s], and answer a goal that is complete."""
        if self.active is None or not self.answers():
            return
        kind, handle = self.active
        if kind is Move and not self.homed():
            self.finish(False, success=False, error=NOT_HOMED)
            return
        goal = handle.request
        target, speed = (WIDEST_M, HOMING_SPEED) if kind is Homing else (goal.width, goal.speed)
        delta = max(target, self.object_width()) - self.width
        self.width += min(max(delta, -speed * seconds), speed * seconds)
        if abs(delta) > 1e-4:
            return
        inner, outer = (goal.epsilon.inner, goal.epsilon.outer) if kind is Grasp else (1e-3, 1e-3)
        reached = target - inner <= self.width <= target + outer
        self.finish(reached, success=reached, error="" if reached else "the width was not reached")

    def publish_state(self, stamp: Any, names: list[str]) -> JointState:
        """Publish the width, and return the message."""
        state = JointState(
            name=names, position=[self.width / 2] * 2, velocity=[0.0] * 2, effort=[0.0] * 2
        )
        state.header.stamp = stamp
        self.states.publish(state)
        return state

    def _stop(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = self.answers()
        response.message = "" if response.success else SILENT
        if response.success:
            self.finish(False, **self.replaced_result)
        return response


ARM = [f"fr3_joint{number}" for number in range(1, 8)]
FINGERS = ["fr3_finger_joint1", "fr3_finger_joint2"]
# 33 and 14 Hz, about the rates of franka.launch.py and franka_gripper
JOINT_TICKS, HAND_TICKS = 3, 7
BASE, TOOL = "base", "fr3_hand_tcp"


class FrankaTwin(SimBridge):
    """One arm. It publishes its state at the simulator's 100 Hz; franka_ros2 does so at 1 kHz."""

    def __init__(self) -> None:
        self.control = Control(Errors.get_fields_and_field_types())
        super().__init__("twin")
        self.messages["current_twist"].header.frame_id = TOOL
        self.hand = Hand(
            self,
            self.arm.gripper_width,
            lambda: self.control.injected != HAND_SILENT,
            lambda: self.control.injected != HAND_NOT_HOMED,
        )
        self.state = FrankaRobotState(control_command_success_rate=1.0)
        names = {
            name: f"{BROADCASTER}/{name}"
            for name in ("current_pose", "external_wrench_in_base_frame")
        }
        self.states = self.create_publisher(FrankaRobotState, f"{BROADCASTER}/robot_state", 10)
        self.poses = self.create_publisher(PoseStamped, names["current_pose"], LAZY_PROFILE)
        self.wrenches = self.create_publisher(
            WrenchStamped, names["external_wrench_in_base_frame"], LAZY_PROFILE
        )
        self.measured = self.create_publisher(
            JointState, f"{BROADCASTER}/measured_joint_states", LAZY_PROFILE
        )
        self.joints = self.create_publisher(JointState, "joint_states", 10)
        self.recovering = ActionServer(
            self, ErrorRecovery, "action_server/error_recovery", self._recover
        )
        self.create_service(
            SetHardwareComponentState,
            "controller_manager/set_hardware_component_state",
            self._hardware,
        )
        self.create_service(SwitchController, "controller_manager/switch_controller", self._switch)
        declare_inject(self, self.control.options, self.control.inject)
        self.declare_parameter(
            "clock_offset_s",
            0.0,
            ParameterDescriptor(
                description="offset of the clock of franka_ros2's machine ahead of this one [s]"
            ),
        )

    def wrap(self, simulator: Any) -> Any:
        """Wrap the simulator so that the arm moves only as its controller lets it."""
        self.arm = simulator
        return Controlled(simulator, self.control)

    # Requests to franka_ros2
    def _recover(self, handle: ServerGoalHandle) -> ErrorRecovery.Result:
        (handle.succeed if self.control.recover() else handle.abort)()
        return ErrorRecovery.Result()

    def _hardware(self, request: Any, response: Any) -> Any:
        active = (
            request.target_state.id == State.PRIMARY_STATE_ACTIVE
            or request.target_state.label == "active"
        )
        response.ok = self.control.set_hardware(request.name, active)
        response.state = State(label="active" if self.control.hardware else "unconfigured")
        return response

    def _switch(self, request: Any, response: Any) -> Any:
        response.ok = self.control.switch(
            request.activate_controllers, request.deactivate_controllers
        )
        response.message = (
            "" if response.ok else "the hardware is not active, or there is no such controller"
        )
        return response

    # Published state
    def _publish(self) -> None:
        super()._publish()
        self.hand.advance(self.simulator.tick_s)
        ahead_ns = round(self.get_parameter("clock_offset_s").value * NS)
        stamp, channels = to_stamp(self.now_ns + ahead_ns), self.arm.channels()
        if self.index % HAND_TICKS == 0:
            self.hand.publish_state(stamp, FINGERS)
        position = channels["joint_states"].tolist()
        if self.control.is_active(JOINTS) and self.index % JOINT_TICKS == 0:
            joints = JointState(name=ARM + FINGERS, position=position + [self.hand.width / 2] * 2)
            joints.header.stamp = stamp
            self.joints.publish(joints)
        if self.control.is_active(BROADCASTER):
            self._fill(stamp, channels, position)
            self.states.publish(self.state)
            self.poses.publish(self.state.o_t_ee)
            self.wrenches.publish(self.state.o_f_ext_hat_k)
            self.measured.publish(self.state.measured_joint_state)

    def _fill(self, stamp: Any, channels: dict[str, np.ndarray], position: list[float]) -> None:
        state, control, pose = self.state, self.control, channels["current_pose"].tolist()
        measured, target = state.measured_joint_state, self.targets[""]
        state.header.stamp, state.header.frame_id = stamp, BASE
        measured.name, measured.position = ARM, position
        for message, frame in (
            (measured, BASE),
            (state.o_t_ee, BASE),
            (state.o_t_ee_d, BASE),
            (state.o_f_ext_hat_k, BASE),
            (state.k_f_ext_hat_k, TOOL),
        ):
            message.header.stamp, message.header.frame_id = stamp, frame
        set_pose(state.o_t_ee.pose, pose)
        set_pose(state.o_t_ee_d.pose, pose if target is None else target.tolist())
        exerted = (-channels["wrench"]).tolist()  # wrench that the robot exerts
        for wrench, turn in (
            (state.o_f_ext_hat_k.wrench, (0.0, 0.0, 0.0, 1.0)),
            (state.k_f_ext_hat_k.wrench, inverse(tuple(pose[3:]))),
        ):
            for part, values in ((wrench.force, exerted[:3]), (wrench.torque, exerted[3:])):
                part.x, part.y, part.z = rotate(turn, values)
        state.time = self.index * self.simulator.tick_s
        state.robot_mode = control.mode
        for errors, names in (
            (state.current_errors, control.errors),
            (state.last_motion_errors, control.last_errors),
        ):
            for name in control.flags:
                setattr(errors, name, name in names)


def main() -> None:
    """Entry point."""
    run(FrankaTwin)


if __name__ == "__main__":
    main()
