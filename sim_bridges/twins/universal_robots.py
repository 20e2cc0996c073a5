"""The twin of a Universal Robots UR5e: ur_robot_driver's topics and services.

See docs/robots/ur.md. The twin also plays the rest of a lab: it reports the goal and resets the
scene. It simulates kinematics without contacts. The parameter ``inject`` sets its current fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, WrenchStamped
from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor, SetParametersResult
from rclpy.action import ActionServer
from rclpy.action.server import ServerGoalHandle
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from rlinf_msgs.action import ResetScene
from rlinf_msgs.msg import TaskStatus
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory
from ur_dashboard_msgs.msg import RobotMode, SafetyMode

from rlinf_ros.conversions import NS, pose_values, set_pose, to_ns
from rlinf_ros.diagnostics import Diagnostics
from rlinf_ros.qos import publisher
from rlinf_ros.spinning import run
from rlinf_ros.station_node import ControlNode
from sim_bridges.twins.injection import declare_inject, injection_health
from sim_bridges.twins.universal_robots_state import (
    FROZEN,
    HOME,
    IDLE,
    INJECTIONS,
    RUNNING,
    SILENT,
    Control,
    joints_at,
    tool_pose,
)

TICK_S = 0.01  # 100 Hz; the driver runs at 500 Hz
NEAR_M, NOISE_A = 0.02, 0.01
ARM = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)
DRIVER = "/ur_twin"  # the driver's namespace
SERVO_TIMEOUT_S = 0.1  # MoveIt Servo's own default
FOLLOWS = f"{DRIVER}/scaled_joint_trajectory_controller/joint_trajectory"
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class UniversalRobotsTwin(ControlNode):
    """One arm, with its driver in the namespace ``/ur_twin``.

    Without a namespace it would answer in place of a real arm.
    """

    def __init__(self) -> None:
        super().__init__("twin")
        self.declare_parameter(
            "locked_s",
            5.0,
            ParameterDescriptor(
                description="time before a protective stop can be unlocked [s]",
                floating_point_range=[FloatingPointRange(from_value=0.0, to_value=60.0)],
            ),
        )
        self.control, self.goal = Control(), tool_pose(np.array(HOME))
        self.published: dict[str, Any] = {}
        self.random = np.random.default_rng(0)
        self.currents = [0.0] * len(ARM)
        self._make_interfaces()
        self.add_on_set_parameters_callback(self._set_locked)
        declare_inject(self, INJECTIONS, lambda fault: self.control.inject(fault, time.monotonic()))
        self.diagnostics = Diagnostics(self, lambda: injection_health(self))
        self.create_timer(TICK_S, self._tick)

    def _make_interfaces(self) -> None:
        status = f"{DRIVER}/io_and_status_controller"
        kinds = {
            f"{status}/safety_mode": SafetyMode,
            f"{status}/robot_mode": RobotMode,
            f"{status}/robot_program_running": Bool,
        }
        self.latched = {
            name: self.create_publisher(kind, name, LATCHED) for name, kind in kinds.items()
        }
        self.joints = self.create_publisher(JointState, f"{DRIVER}/joint_states", 10)
        self.poses = self.create_publisher(PoseStamped, f"{DRIVER}/tcp_pose_broadcaster/pose", 10)
        self.wrenches = self.create_publisher(
            WrenchStamped, f"{DRIVER}/force_torque_sensor_broadcaster/wrench", 10
        )
        self.scaling = self.create_publisher(
            Float64, f"{DRIVER}/speed_scaling_state_broadcaster/speed_scaling", 10
        )
        self.create_subscription(JointTrajectory, FOLLOWS, self._on_trajectory, 10)
        self.create_subscription(
            Float64MultiArray,
            f"{DRIVER}/forward_position_controller/commands",
            self._on_positions,
            10,
        )
        self.create_subscription(
            PoseStamped, f"{DRIVER}/servo_node/pose_target_cmds", self._on_servo, 10
        )
        for name, do in (
            (f"{DRIVER}/dashboard_client/close_safety_popup", lambda: ""),
            (
                f"{DRIVER}/dashboard_client/unlock_protective_stop",
                lambda: self.control.unlock(time.monotonic()),
            ),
            (f"{DRIVER}/dashboard_client/power_on", lambda: self.control.power(IDLE)),
            (f"{DRIVER}/dashboard_client/brake_release", lambda: self.control.power(RUNNING)),
            (f"{DRIVER}/dashboard_client/play", self.control.start),
            (f"{status}/resend_robot_program", self.control.start),
        ):
            self.create_service(Trigger, name, partial(self._answer, do))
        self.goals = publisher(self, "goal_pose")
        self.successes = publisher(self, "task/success")
        self.server = ActionServer(self, ResetScene, "reset_scene", self._on_reset)

    def _answer(self, do: Callable[[], str], _: Any, response: Any) -> Any:
        response.message = do()
        response.success = not response.message
        return response

    def _set_locked(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            if parameter.name == "locked_s":
                self.control.locked_s = parameter.value
        return SetParametersResult(successful=True)

    def _on_trajectory(self, trajectory: JointTrajectory) -> None:
        points, names = trajectory.points, list(trajectory.joint_names)
        is_complete = all(len(point.positions) == len(ARM) for point in points)
        # the controller refuses other trajectories
        if points and is_complete and sorted(names) == sorted(ARM):
            order = [names.index(name) for name in ARM]
            self.control.command(
                [to_ns(point.time_from_start) / NS for point in points],
                np.array([point.positions for point in points])[:, order],
            )

    def _on_positions(self, positions: Float64MultiArray) -> None:
        """Forward a forward position controller's command: all joints, in the limits' order."""
        if len(positions.data) == len(ARM):  # the controller refuses other commands
            self.control.command([0.0], np.array([positions.data]))

    def _on_servo(self, pose: PoseStamped) -> None:
        """Play MoveIt Servo: accept a fresh pose in the base frame.

        A pose older than its incoming_command_timeout is ignored.
        """
        age_ns = self.get_clock().now().nanoseconds - to_ns(pose.header.stamp)
        if pose.header.frame_id == "base" and age_ns < SERVO_TIMEOUT_S * NS:
            target = np.array(pose_values(pose.pose))
            self.control.command([0.0], joints_at(target, self.control.points[-1])[None])

    def _on_reset(self, handle: ServerGoalHandle) -> ResetScene.Result:
        """Draw another goal within reach, and put the arm at its home at once.

        A lab would drive the arm there.
        """
        random = np.random.default_rng(handle.request.seed)
        self.control.place(np.array(HOME))
        self.goal = tool_pose(np.array(HOME) + random.uniform(-0.3, 0.3, 6))
        handle.succeed()
        return ResetScene.Result(success=True, stamp=self.get_clock().now().to_msg())

    # Published state
    def _tick(self) -> None:
        control = self.control
        control.advance(TICK_S)
        if control.injected == SILENT:
            return
        for (name, output), message in zip(
            self.latched.items(),
            (
                SafetyMode(mode=control.safety),
                RobotMode(mode=control.robot),
                Bool(data=control.program),
            ),
            strict=True,
        ):
            if self.published.get(name) != message:  # publish at a change only
                self.published[name] = message
                output.publish(message)
        pose, now = tool_pose(control.joints), self.get_clock().now().to_msg()
        self.scaling.publish(Float64(data=control.scaling))
        names = sorted(ARM)  # the broadcaster has its own order
        # the driver repeats the last values of a robot that it no longer hears
        if control.injected != FROZEN:
            self.currents = self.random.normal(0.0, NOISE_A, len(ARM)).tolist()
        joints = JointState(
            name=names,
            position=[float(control.joints[ARM.index(name)]) for name in names],
            effort=self.currents,
        )
        success = TaskStatus(success=float(np.linalg.norm(pose[:3] - self.goal[:3]) < NEAR_M))
        for output, message, frame in (
            (self.joints, joints, "base_link"),
            (self.poses, _stamped_pose(pose), "base"),
            (self.wrenches, WrenchStamped(), "tool0"),
            (self.goals, _stamped_pose(self.goal), "base"),
            (self.successes, success, ""),
        ):
            message.header.stamp, message.header.frame_id = now, frame
            output.publish(message)


def _stamped_pose(values: np.ndarray) -> PoseStamped:
    message = PoseStamped()
    set_pose(message.pose, values.tolist())
    return message


def main() -> None:
    """Entry point."""
    run(UniversalRobotsTwin, listens=False)


if __name__ == "__main__":
    main()
