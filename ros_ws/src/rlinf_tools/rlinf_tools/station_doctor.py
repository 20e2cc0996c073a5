"""Checks a robot side before anything commands it: every topic that limits and task need.

    rlinf doctor station RECIPE

It listens for each topic, and checks its type, rate, stamps and content.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import rclpy
from geometry_msgs.msg import Pose
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from rlinf_core.cli.doctor import Finding, print_findings
from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock import Limits, load_limits
from rlinf_core.recipes import Recipe, load_recipe, station_robot, station_task
from rlinf_core.robots.cameras import DeviceCamera
from rlinf_core.specs.topics import VECTORS, arm_of, topic
from rlinf_interlock.interlock_inputs import NO_ESTOP, needs
from rlinf_ros.arms import arm_topic
from rlinf_ros.conversions import NS
from rlinf_ros.qos import SHARED, kind, lazy_profile, subscription
from rlinf_ros.station_state import command_context, command_node

LISTEN_S = 4.0
LATE_S = 0.05
MIN_RATE_SHARE = 0.7  # share of the required rate
UNIT = 1e-2  # tolerance of a quaternion's norm
REACH_M = 2.0  # largest distance of an arm from its workspace
# tolerance beyond a limit, for noise
EDGE_M = 0.02
EDGE_RAD = 0.02
TURN_RAD = 7.0  # largest angle of any joint
ENCODINGS = ("rgb8", "bgr8")
IMAGE = "sensor_msgs/msg/Image"
# words in the names of topics that command an arm
COMMANDS = ("target", "command", "goal", "desired", "reference")
# topics that the doctor never suggests, since a wrong one would deceive the interlock
UNSUGGESTED = ("estop/", "enable", "task/success", "distance")
PING_MS = 1.0  # largest round trip to a controller at 1 kHz
STATION_NODES = ("driver", "recorder")  # nodes of the station that hear a target and move no arm
STAMPED = ("PoseStamped", "TwistStamped", "WrenchStamped", "JointState", "Image", "TaskStatus")


class TopicProbe:
    """One topic of the robot interface.

    For joints it counts the messages that hold each of ``joints``. Others, such as a gripper's
    driver, may publish on the same topic; the station ignores their messages.
    """

    def __init__(
        self, node: Node, name: str, full_name: str, of_tool: bool, joints: tuple[str, ...]
    ) -> None:
        self.name = name
        self.full = full_name
        self.type = topic(name).type
        self.of_tool = of_tool
        self.joints = joints if topic(name).name == SHARED else ()
        self.passed_over = list[str]()
        self.times: list[float] = []
        self.offsets: list[float] = []
        self.newest = b""
        subscription(node, name, self._on_raw, quality=lazy_profile(50), at=full_name, raw=True)

    def _on_raw(self, raw: bytes) -> None:
        if self.joints:
            message = deserialize_message(raw, JointState)
            names = [name for name, _ in zip(message.name, message.position, strict=False)]
            if not set(self.joints) <= set(names):
                self.passed_over = names
                return
        self.times.append(time.monotonic())
        self.newest = bytes(raw)
        if self.type.rpartition("/")[2] in STAMPED:
            seconds, nanoseconds = struct.unpack_from("<iI", raw, 4)
            self.offsets.append(time.time() - seconds - nanoseconds / NS)

    @property
    def hz(self) -> float:
        """Rate of the messages [Hz]."""
        if len(self.times) < 2:
            return 0.0
        return (len(self.times) - 1) / max(self.times[-1] - self.times[0], 1e-3)


def _estops(no_estop_reason: str, port: int) -> Finding:
    """Return the finding on a robot with hardware that names no e-stop source."""
    if no_estop_reason:
        return Finding("e-stops", f"none, confirmed: {no_estop_reason}", "")
    if port:
        return Finding(
            "e-stops",
            "the page's STOP is the only e-stop. While no browser shows the page, arming is "
            "refused and the interlock is in FAULT",
            "",
        )
    return Finding(
        "e-stops", "no e-stop source is named", f"arming is refused until then: {NO_ESTOP}"
    )


def findings(node: Node, recipe: Recipe, spin: Callable[[], Any]) -> Iterator[Finding]:
    """Listen for LISTEN_S, spinning with ``spin``, then yield a line for each topic."""
    robot = station_robot(recipe)
    task = station_task(recipe)
    root = f"/{recipe.station.name}"
    limits_by_arm = {arm: load_limits(path) for arm, path in robot.limits_by_arm.items()}
    used_topics = {
        *task.channels,
        *(f"estop/{name}" for name in robot.estops),
        *(["distance"] if robot.distance else []),
    }
    unused_images = {f"camera/{name}/image" for name in robot.cameras} - used_topics
    used_topics |= {
        arm_topic(arm, name)
        for arm, limits in limits_by_arm.items()
        for name in needs(limits) | {"current_pose"}
    }
    first_limits = next(iter(limits_by_arm.values()))
    limits_by_topic = {
        name: limits_by_arm.get(arm_of(name), first_limits)
        for name in sorted(used_topics | unused_images)
    }
    probes = [
        TopicProbe(
            node,
            name,
            robot.topics.get(name, f"{root}/{name}"),
            name in robot.tool_axes,
            limits.joint_names,
        )
        for name, limits in limits_by_topic.items()
    ]
    used_names = frozenset(robot.topics.values()) | frozenset(probe.full for probe in probes)
    if robot.controller:
        used_names |= {robot.controller.topic}
    faults: dict[str, list[str]] = {arm_topic(arm, "robot/fault"): [] for arm in limits_by_arm}
    for name, fault_text in faults.items():
        subscription(node, name, partial(_note, fault_text))
    deadline = time.monotonic() + LISTEN_S
    while time.monotonic() < deadline:
        spin()
    for name, texts in faults.items():
        if texts and (fault := texts[-1]):
            fix = (
                "end the named cause, at the robot if the robot itself reports it. Then: rlinf "
                "fault reset (docs/robots/franka.md)"
            )
            yield Finding(name, fault, fix)
        elif texts:
            yield Finding(name, "none", "")
    if not (robot.estops or robot.without_hardware):
        yield _estops(robot.no_estop_reason, recipe.station.web.port)
    for probe in probes:
        limits = limits_by_topic[probe.name]
        finding = _finding(node, probe, limits, task.spec.control_hz, used_names)
        if finding.fix and probe.name.startswith("camera/"):
            camera = robot.device_cameras.get(probe.name.split("/")[1])
            if camera:
                finding = replace(finding, fix=_device(camera))
        # images that the task does not use may be missing
        yield replace(finding, needed=probe.name not in unused_images)
    yield from _listeners(node, recipe, limits_by_arm)
    for arm, limits in limits_by_arm.items():
        yield Finding(
            arm_topic(arm, "limits"),
            f"{limits.hash}, box {list(limits.box_low)} to {list(limits.box_high)} m, "
            f"{limits.speed:g} m/s, of {robot.limits_by_arm[arm]}",
        )
    for name, state, fix in robot.driver_node.findings() if robot.driver_node is not None else ():
        yield Finding(name, state, fix, needed=not robot.without_hardware)
    if robot.driver_node is not None and robot.driver_node.address:
        yield _ping(robot.driver_node.address)
    profiles = os.environ.get("FASTDDS_DEFAULT_PROFILES_FILE", "none")
    yield Finding("DDS profile", f"{profiles}; a camera driver needs it in its shell, too")
    yield _kernel()


def _note(faults: list[str], fault: String) -> None:
    faults.append(fault.data)


def _device(camera: DeviceCamera) -> str:
    """Return whether the device of an unpublished camera is present."""
    try:
        camera.open().close()
    except RlinfError as error:
        return str(error)
    return f"the device '{camera.where}' exists and opens. rlinf up publishes its images"


def _ping(address: str) -> Finding:
    """Measure the round trip to the robot's controller."""
    try:
        ran = subprocess.run(
            ["ping", "-c", "50", "-i", "0.01", "-q", "-W", "1", address],
            text=True,
            capture_output=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(
            "robot's address",
            f"{address}: {error}",
            "apt-get install iputils-ping, or repair the network",
        )
    times = re.search(r"= [\d.]+/([\d.]+)/([\d.]+)/", ran.stdout)
    lost = re.search(r"([\d.]+)% packet loss", ran.stdout)
    if ran.returncode or times is None or lost is None or float(lost[1]) > 0.0:
        lines = (ran.stdout + ran.stderr).strip().splitlines()
        return Finding(
            "robot's address",
            f"{address}: {(lines or ['silent'])[-1]}",
            "connect the robot to this machine by a direct cable; set options.address in "
            "robot.yaml",
        )
    slow = float(times[2]) > PING_MS
    return Finding(
        "robot's address",
        f"{address}: {times[1]} ms, at most {times[2]} of 50",
        ""
        if not slow
        else f"expected {PING_MS:g} ms at most. Avoid switches, wireless links and power saving "
        "of the port",
    )


def _finding(
    node: Node, probe: TopicProbe, limits: Limits, control_hz: float, used_names: frozenset[str]
) -> Finding:
    """Return the finding on one topic: its publishers, type, rate and content."""
    publishers = node.get_publishers_info_by_topic(probe.full)
    others = {info.topic_type for info in publishers} - {probe.type}
    text = f"{probe.hz:.0f} Hz on {probe.full}"
    rate = re.match(r"(\d+) Hz", topic(probe.name).rate)
    least = float(rate[1]) if rate else control_hz
    if others:
        return Finding(
            probe.name,
            f"{', '.join(others)} on {probe.full}",
            f"expected {probe.type}: name another topic, or run a node that converts it",
        )
    if not publishers:
        return Finding(
            probe.name, f"no publisher of {probe.full}", _suggested(node, probe, used_names)
        )
    if len(publishers) > 1:
        text += ", from " + ", ".join(
            sorted(f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in publishers)
        )
        if not probe.joints:
            return Finding(probe.name, text, "expected one publisher. Stop the others")
    if probe.passed_over and not probe.times:
        lacks = sorted(set(probe.joints) - set(probe.passed_over))
        return Finding(
            probe.name,
            f"{probe.full}: {', '.join(probe.passed_over)}",
            f"expected joint_names of the limits; missing: {', '.join(lacks)}",
        )
    if not probe.times:
        publishers_text = ", ".join(
            f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in publishers
        )
        return Finding(
            probe.name,
            f"{publishers_text} offers {probe.full} but publishes nothing",
            "its source is silent. Is that node running in its namespace, and is the device on "
            "and activated? /diagnostics has details",
        )
    if probe.hz < MIN_RATE_SHARE * least:
        return Finding(probe.name, text, f"expected {least:.0f} Hz: raise the driver's rate")
    return _content(probe, limits, text)


def _content(probe: TopicProbe, limits: Limits, summary: str) -> Finding:
    """Return the finding on the newest message of a topic."""
    late = statistics.median(probe.offsets) if probe.offsets else 0.0
    if abs(late) > LATE_S:
        return Finding(
            probe.name,
            f"{summary}, stamped {late:.2f} s ago",
            "use one clock for driver and station: chrony, or stamp on arrival",
        )
    message = deserialize_message(probe.newest, kind(probe.name))
    if topic(probe.name).name == "current_pose" and message.header.frame_id != limits.frame:
        return Finding(
            probe.name,
            f"{summary}, in '{message.header.frame_id}'",
            f"frame of the limits: expected '{limits.frame}'",
        )
    if topic(probe.name).name == "current_pose" and (trouble := pose_trouble(message.pose, limits)):
        return Finding(probe.name, summary, trouble)
    if topic(probe.name).name == SHARED and (trouble := joints_trouble(message, limits)):
        return Finding(probe.name, summary, trouble)
    if probe.type == IMAGE and (trouble := image_trouble(message)):
        return Finding(probe.name, f"{summary}, {message.encoding}", trouble)
    if (
        topic(probe.name).name in VECTORS
        and message.header.frame_id not in ("", limits.frame)
        and not probe.of_tool
    ):
        return Finding(
            probe.name,
            f"{summary}, in '{message.header.frame_id}'",
            f"expected values along the axes of '{limits.frame}'. If these are the tool's axes, "
            f"set tool_axes: [{probe.name}] in robot.yaml",
        )
    return Finding(probe.name, summary)


def pose_trouble(pose: Pose, limits: Limits) -> str:
    """Return why a pose is not one in metres with a unit quaternion; empty if it is."""
    p, q = pose.position, pose.orientation
    position, norm = (p.x, p.y, p.z), math.hypot(q.x, q.y, q.z, q.w)
    if not (all(map(math.isfinite, position)) and abs(norm - 1.0) <= UNIT):
        return (
            "expected finite metres and a quaternion xyzw of norm 1, got position "
            f"{list(position)} and norm {norm:.3g}. Correct the driver"
        )
    far = max(map(abs, (*limits.box_low, *limits.box_high))) + REACH_M
    if math.hypot(*position) > far:
        return (
            f"expected metres, at most {far:.1f} from '{limits.frame}', got {list(position)}. Are "
            "these millimetres?"
        )
    if any(
        not low - EDGE_M <= value <= high + EDGE_M
        for low, value, high in zip(limits.box_low, position, limits.box_high, strict=True)
    ):
        return (
            f"expected metres within the limits' box, {list(limits.box_low)} to "
            f"{list(limits.box_high)}, got {list(position)}. Are these other units, or another "
            "frame's axes? If the arm really is there, guide it into the box. Outside the box "
            "arming is refused"
        )
    return ""


def joints_trouble(message: JointState, limits: Limits) -> str:
    """Return why joint angles cannot be the arm's in radians; empty if they can."""
    angles = dict(zip(message.name, message.position, strict=False))
    names = limits.joint_names or tuple(angles)
    low = limits.joint_low or (-TURN_RAD,) * len(names)
    high = limits.joint_high or (TURN_RAD,) * len(names)
    for name, least, most in zip(names, low, high, strict=False):
        angle = angles[name]
        if not math.isfinite(angle):
            return f"expected a finite angle of '{name}', got {angle}. Correct the driver"
        if not least - EDGE_RAD <= angle <= most + EDGE_RAD:
            in_degrees = all(
                least <= math.radians(angles[joint]) <= most
                for joint, least, most in zip(names, low, high, strict=False)
            )
            return (
                f"expected radians, '{name}' within {least:g} to {most:g} (limits), got {angle:g}"
                + (
                    ". Are these degrees?"
                    if in_degrees
                    else ". Guide it back, or correct the limits"
                )
            )
    return ""


def image_trouble(image: Image) -> str:
    """Return why a station cannot use an image; empty if it can."""
    if image.encoding not in ENCODINGS:
        return (
            f"expected {' or '.join(ENCODINGS)}, got '{image.encoding}'. Set the camera driver's "
            "encoding"
        )
    if not image.height or not image.width or len(image.data) != image.height * image.step:
        return (
            f"expected height x step bytes, got {image.height}x{image.width} with step "
            f"{image.step} and {len(image.data)} bytes. Correct the driver"
        )
    return ""


def _suggested(node: Node, probe: TopicProbe, used_names: frozenset[str]) -> str:
    """Return a line for the robot's YAML, with the driver's topics of the same type.

    It suggests neither topics that robot.yaml names already, among them the station's commands, nor
    commands of another arm. If there are several, the line names none: a person chooses.
    """
    candidates = [
        name
        for name, types in node.get_topic_names_and_types()
        if probe.type in types
        and node.count_publishers(name)
        and name not in used_names
        and not name.startswith(f"{node.get_namespace()}/")
        and not any(word in name.lower() for word in COMMANDS)
    ]
    remark = f"; topics of this type: {', '.join(candidates)}" if candidates else ""
    certain = len(candidates) == 1 and not probe.name.startswith(UNSUGGESTED)
    example = candidates[0] if certain else "/the/drivers/name"
    return (
        f"start its driver, or name it in robot.yaml, topics: {{{probe.name}: {example}}}{remark}"
    )


def _listeners(node: Node, recipe: Recipe, limits_by_arm: dict[str, Limits]) -> Iterator[Finding]:
    robot, root = station_robot(recipe), f"/{recipe.station.name}"
    for arm, limits in limits_by_arm.items():
        command_topic = "target_joints" if limits.control_mode == "joint_delta" else "target_pose"
        name = arm_topic(arm, command_topic)
        full = (
            robot.controller.topic if robot.controller else robot.topics.get(name, f"{root}/{name}")
        )
        yield _listener(node, name, full, "" if robot.controller else topic(name).type)
        has_gripper = robot.grippers.get(arm) is not None or (
            robot.driver_node is not None and robot.driver_node.has_gripper
        )
        if limits.gripper_width and not has_gripper and not robot.without_hardware:
            name = arm_topic(arm, "gripper/command")
            yield _listener(node, name, robot.topics.get(name, f"{root}/{name}"), topic(name).type)


def _listener(node: Node, name: str, full: str, kind: str) -> Finding:
    """Return the finding on the subscribers of a command topic."""
    infos = [
        info
        for info in node.get_subscriptions_info_by_topic(full)
        if info.node_name.removesuffix("_inputs") not in STATION_NODES
    ]
    if others := {info.topic_type for info in infos} - {kind} if kind else ():
        return Finding(
            name,
            f"{', '.join(others)} on {full}",
            f"expected subscriptions of {kind}. Change the subscribing node, or convert the "
            "messages",
        )
    return Finding(
        name,
        f"{len(infos)} subscriber{'' if len(infos) == 1 else 's'} on {full}",
        ""
        if infos
        else "no subscriber would follow the targets. Start the controller, or name its topic "
        "in robot.yaml (topics, controller)",
    )


def _kernel() -> Finding:
    realtime = Path("/sys/kernel/realtime").exists()
    return Finding(
        "real-time kernel",
        "PREEMPT_RT" if realtime else "none",
        ""
        if realtime
        else "use a kernel with PREEMPT_RT if the driver's controller runs on this machine",
        needed=False,
    )


def main() -> None:
    """Run with recipe and overrides; the exit code is 1 if a required topic is missing."""
    with command_context():
        recipe = load_recipe(sys.argv[1], sys.argv[2:])
        node = command_node(recipe.station.name)
        raise SystemExit(
            print_findings(
                list(findings(node, recipe, lambda: rclpy.spin_once(node, timeout_sec=0.05)))
            )
        )


if __name__ == "__main__":
    main()
