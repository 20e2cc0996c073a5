"""A simulator behind the topics of the robot interface, in lockstep or real time."""

from __future__ import annotations

import array
import math
import time
from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from rclpy.action import ActionServer
from rclpy.action.server import ServerGoalHandle
from rlinf_msgs.action import ResetScene
from rlinf_msgs.msg import GripperWidth, TaskStatus
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState

from rlinf_core.specs.topics import arm_of, of_arms
from rlinf_ros.action_clients import GRIPPER_JOINTS
from rlinf_ros.arms import arm_topic
from rlinf_ros.conversions import (
    NS,
    camera_info,
    compressed,
    pose_values,
    set_pose,
    set_stamp,
    to_ns,
    to_stamp,
)
from rlinf_ros.diagnostics import OK, WARN, Diagnostics, Health
from rlinf_ros.endpoints import EndpointReport
from rlinf_ros.qos import kind, publisher, subscription
from rlinf_ros.spinning import override_of, prioritise, run
from rlinf_ros.station_node import ControlNode
from rlinf_ros.workarounds import wait_for_nobody
from sim_bridges.core.interface import as_arms, instruction_of, options_of
from sim_bridges.core.isolated import make

COMMAND_FRESH_S = 0.1  # age after which a command no longer moves the arm
SCENE_NS = 60 * NS  # scenes start at multiples of this simulated time
QUALITY = 90  # JPEG quality
VIEW_HEIGHT, VIEW_ASPECT, VIEW_S = 360, 4 / 3, 0.1  # size and period of pictures for a person
VIEW_SHARE = 0.1  # maximum fraction of the time for these pictures
CATCH_UP_S = 0.1  # maximum lag that real_time_factor catches up


class SimBridge(ControlNode):
    """The node of a simulator.

    In lockstep each target_pose is one tick of its arm; in real time a timer ticks.

    Slow topics and cameras have the control rate.

    Args:
        name: name of the node.
    """

    def __init__(self, name: str = "sim_bridge") -> None:
        super().__init__(name)
        simulator = self.declare_parameter("simulator", "franka_mujoco").value
        options = self.declare_structure("options", lambda _: options_of(simulator))
        self.simulator = as_arms(self.wrap(make(simulator, **options)))
        self.lockstep = self.declare_parameter("lockstep", True).value
        self.next_tick_at = 0.0  # if real_time_factor limits the speed
        self.declare_live("real_time_factor", 0.0, self._limit_speed)
        names = [name for name in self.declare_parameter("cameras", [""]).value if name]
        size = self.declare_parameter("image_size", [64, 64]).value
        control_hz = self.declare_parameter("control_hz", 10.0).value
        self.camera_ticks = round(
            1.0 / self.declare_parameter("camera_hz", control_hz).value / self.simulator.tick_s
        )
        self.slow_ticks = round(1.0 / control_hz / self.simulator.tick_s) if self.lockstep else 1
        self.cameras = {name: (int(size[0]), int(size[1])) for name in names}
        self.views = {
            name: (VIEW_HEIGHT, round(VIEW_HEIGHT * self._aspect(name)))
            for name in self.declare_parameter("views", [""]).value
            if name in self.simulator.cameras
        }
        self.next_view_at = 0.0
        self.view_count = 0
        self.tick_ns = round(self.simulator.tick_s * NS)
        self.now_ns = self.tick_ns
        self.index = 0
        if self.lockstep:
            EndpointReport(self)
        self._forget_commands()
        self.simulator.reset(self.declare_parameter("seed", 0).value)
        for name, (height, width) in self.cameras.items():
            # the first picture is slow: render it before the clock starts
            self.simulator.render(name, height, width)
        self._warm_views()
        self._make_interfaces()
        prioritise(self.declare_parameter("priority", 0).value)

    def _limit_speed(self, factor: float) -> None:
        self.min_tick_s = self.simulator.tick_s / factor if factor else 0.0

    def wrap(self, simulator: Any) -> Any:
        """Return the layer between topics and simulator: none."""
        return simulator

    def _aspect(self, name: str) -> float:
        """Return the aspect ratio of a view.

        It equals that of the policy's picture, for reference pictures.
        """
        height, width = self.cameras.get(name, (1.0, VIEW_ASPECT))
        return width / height

    def _warm_views(self) -> None:
        """Render the first, slow pictures. If rendering fails, the station runs without views."""
        try:
            for name, size in self.views.items():
                self.simulator.render(name, *size)
        except Exception as error:  # any failure of a renderer
            self.get_logger().warning(
                f"the page cannot show pictures of the simulator: {error}. rlinf doctor names a "
                "working renderer"
            )
            self.views = {}

    def _make_interfaces(self) -> None:
        self.messages = {topic: kind(topic)() for topic in self.simulator.channels()}
        frames = dict(
            zip(self.simulator.arms, self.declare_parameter("frames", [""]).value, strict=False)
        )
        for topic, message in self.messages.items():
            message.header.frame_id = frames.get(arm_of(topic)) or "base_link"
        for topic, names in (
            ("joint_states", self.simulator.joint_names),
            ("gripper/state", GRIPPER_JOINTS),
        ):
            for channel in of_arms(topic, [arm for arm in self.simulator.arms if arm]):
                if channel in self.messages:
                    self.messages[channel].name = list(names)
        self.outputs = {topic: publisher(self, topic) for topic in self.messages}
        self.images = {name: publisher(self, f"camera/{name}/image") for name in self.cameras}
        self.jpegs = {
            name: publisher(self, f"camera/{name}/image/compressed") for name in self.cameras
        }
        self.infos = {name: publisher(self, f"camera/{name}/camera_info") for name in self.cameras}
        self.view_outputs = {name: publisher(self, f"camera/{name}/view") for name in self.views}
        self.clock = publisher(self, "clock") if self.lockstep else None
        for arm in self.simulator.arms:
            subscription(self, arm_topic(arm, "target_pose"), partial(self._on_target, arm))
            subscription(self, arm_topic(arm, "gripper/command"), partial(self._on_gripper, arm))
        self.diagnostics = Diagnostics(self, self._health)
        self.server = ActionServer(self, ResetScene, "reset_scene", self._on_reset)
        self.create_timer(
            0.5 if self.lockstep else self.simulator.tick_s,
            self._republish if self.lockstep else self._on_timer,
        )

    def _health(self) -> Health:
        silent = [
            arm or "the arm"
            for arm, at in self.target_at.items()
            if at and time.monotonic() - at > COMMAND_FRESH_S
        ]
        level, text = (
            (WARN, f"no command for {', '.join(silent)}")
            if silent and not self.lockstep
            else (OK, "simulates")
        )
        return Health(level, text, {"ticks": self.index, "time_s": self.now_ns / NS})

    def _forget_commands(self) -> None:
        """Drop the commands of the last scene."""
        self.targets: dict[str, np.ndarray | None] = dict.fromkeys(self.simulator.arms)
        self.gripper_widths: dict[str, float | None] = dict.fromkeys(self.simulator.arms)
        self.target_at = dict.fromkeys(self.simulator.arms, 0.0)
        self.arms_with_target: set[str] = set()  # for the current time

    def _on_target(self, arm: str, message: PoseStamped) -> None:
        self.targets[arm] = np.array(pose_values(message.pose))
        self.target_at[arm] = time.monotonic()
        if self.lockstep and to_ns(message.header.stamp) == self.now_ns:
            self.arms_with_target.add(arm)
            if len(self.arms_with_target) == len(self.simulator.arms):
                self._wait_for_real_time()
                self._advance(self.targets)

    def _wait_for_real_time(self) -> None:
        """Lockstep: wait until the tick is due by real_time_factor."""
        if self.min_tick_s:
            earliest = time.monotonic() - CATCH_UP_S
            self.next_tick_at = max(self.next_tick_at + self.min_tick_s, earliest)
            time.sleep(max(0.0, self.next_tick_at - time.monotonic()))

    def _on_gripper(self, arm: str, message: GripperWidth) -> None:
        self.gripper_widths[arm] = message.width

    def _on_timer(self) -> None:
        oldest = time.monotonic() - COMMAND_FRESH_S
        self._advance(
            {
                arm: target if self.target_at[arm] > oldest else None
                for arm, target in self.targets.items()
            }
        )

    def _republish(self) -> None:
        """Lockstep: republish the current state for new subscribers.

        This allows no further tick.
        """
        self._publish()

    def _advance(self, targets: dict[str, np.ndarray | None]) -> None:
        self.simulator.advance_arms(targets, self.gripper_widths)
        self.arms_with_target.clear()
        self.index += 1
        self.now_ns = (
            self.now_ns + self.tick_ns if self.lockstep else self.get_clock().now().nanoseconds
        )
        self._publish()

    def _on_reset(self, handle: ServerGoalHandle) -> ResetScene.Result:
        self.simulator.reset(handle.request.seed)
        self.index = 0
        self._forget_commands()
        self.now_ns = self._next_scene_ns() if self.lockstep else self.get_clock().now().nanoseconds
        self._publish()
        handle.succeed()
        return ResetScene.Result(
            success=True,
            stamp=to_stamp(self.now_ns),
            instruction=instruction_of(self.simulator) or "",
        )

    def _next_scene_ns(self) -> int:
        """Return the next whole minute, so that recordings do not depend on idle time."""
        return (self.now_ns // SCENE_NS + 1) * SCENE_NS

    def _publish(self) -> None:
        """Publish the pose at every tick.

        At control ticks also cameras and the rest, and last the clock.
        """
        is_control_tick = self.index % self.slow_ticks == 0
        if is_control_tick:
            channels = self.simulator.channels()
        else:
            poses = self.simulator.tcp_poses()
            channels = {arm_topic(arm, "current_pose"): pose for arm, pose in poses.items()}
        for topic, values in channels.items():
            message = self.messages[topic]
            set_stamp(message.header.stamp, self.now_ns)
            FILL_FUNCTIONS[type(message)](message, values.tolist())
            self.outputs[topic].publish(message)
        if self.index % self.camera_ticks == 0:
            self._publish_images()
        if is_control_tick and self.clock is not None:
            self.clock.publish(Clock(clock=to_stamp(self.now_ns)))
        if self.views and time.monotonic() >= self.next_view_at:
            self._publish_view()

    def _publish_view(self) -> None:
        """Publish one of the views with subscribers, in turn; a slow renderer lowers the rate."""
        started_at = time.monotonic()
        self.next_view_at = started_at + VIEW_S
        if watched := [
            name for name, output in self.view_outputs.items() if output.get_subscription_count()
        ]:
            self.view_count += 1
            name = watched[self.view_count % len(watched)]
            self.view_outputs[name].publish(self._image(name, *self.views[name])[0])
            now = time.monotonic()
            self.next_view_at = now + max(
                VIEW_S / len(watched), (now - started_at) * (1 / VIEW_SHARE - 1)
            )

    def _image(self, name: str, height: int, width: int) -> tuple[Image, np.ndarray]:
        pixels = self.simulator.render(name, height, width)
        station = self.get_namespace().strip("/")
        message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
        message.header.frame_id = f"{station}/{name}_optical_frame"
        set_stamp(message.header.stamp, self.now_ns)
        message.data = array.array("B", pixels.tobytes())
        return message, pixels

    def _publish_images(self) -> None:
        for name, (height, width) in self.cameras.items():
            message, pixels = self._image(name, height, width)
            self.images[name].publish(message)
            if self.jpegs[name].get_subscription_count():
                self.jpegs[name].publish(compressed(message, pixels, QUALITY))
            fov = getattr(self.simulator, "vertical_fov", _unknown)(name)
            self.infos[name].publish(camera_info(message, pinhole(height, width, fov)))


def pinhole(height: int, width: int, fov: float | None) -> tuple[float, ...]:
    """Return fx, fy, cx, cy [pixels] for a vertical field of view [rad]; empty if it is unknown."""
    return () if fov is None else ((f := height / 2 / math.tan(fov / 2)), f, width / 2, height / 2)


def _unknown(_: str) -> None:
    """Return None: the simulator does not report a field of view."""


def _fill_pose(message: PoseStamped, v: list[float]) -> None:
    set_pose(message.pose, v)


def _fill_twist(message: TwistStamped, v: list[float]) -> None:
    a, b = message.twist.linear, message.twist.angular
    a.x, a.y, a.z, b.x, b.y, b.z = v


def _fill_wrench(message: WrenchStamped, v: list[float]) -> None:
    a, b = message.wrench.force, message.wrench.torque
    a.x, a.y, a.z, b.x, b.y, b.z = v


def _fill_joints(message: JointState, v: list[float]) -> None:
    message.position = v


def _fill_status(message: TaskStatus, v: list[float]) -> None:
    message.success = v[0]


FILL_FUNCTIONS = {
    PoseStamped: _fill_pose,
    TwistStamped: _fill_twist,
    WrenchStamped: _fill_wrench,
    JointState: _fill_joints,
    TaskStatus: _fill_status,
}


def main() -> None:
    """Entry point. It runs with real-time priority, because it replaces a robot's controller."""
    if override_of("priority"):
        wait_for_nobody()
    run(SimBridge)


if __name__ == "__main__":
    main()
