"""`rlinf doctor station`: what a driver says, against what limits and task need of it; nothing is
started or commanded.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import rclpy
from geometry_msgs.msg import PoseStamped, WrenchStamped
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64, Header, String

from rlinf_core.interlock import load_limits
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.config import load_robot
from rlinf_core.specs.topics import topic
from rlinf_ros.qos import profile
from rlinf_tools import station_doctor
from rlinf_tools.station_doctor import _listener, findings
from tests.ros.test_controller import UR5E, Driver

pytestmark = [pytest.mark.ros, pytest.mark.patient, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def a_busy_machine(monkeypatch):
    """May say a tenth of what it would."""
    monkeypatch.setattr(station_doctor, "MIN_RATE_SHARE", 0.1)


def doctor(peer, *overrides):
    """Return the findings by topic, each with its remedy."""
    node = rclpy.create_node("station_client_doctor", namespace="/station_a", context=peer.context)
    peer.executor.add_node(node)
    recipe = load_recipe("demo", [*UR5E, *overrides])
    results = list(findings(node, recipe, lambda: peer.executor.spin_once(timeout_sec=0.05)))
    peer.executor.remove_node(node)
    node.destroy_node()
    return {finding.subject: (finding.result, finding.fix) for finding in results}


@pytest.mark.domain(123)
def test_what_a_driver_lacks_is_said_by_topic_with_what_to_write(peer):
    Driver(peer)
    nodes = []
    goal = peer.node.create_publisher(PoseStamped, "goal_pose", 10)
    peer.every(0.05, lambda: goal.publish(PoseStamped(header=_now(peer))))
    report = doctor(peer)
    assert {name for name, (_, fix) in report.items() if fix} - {"real-time kernel"} == {
        "task/success",
        "camera/wrist/image",
        "e-stops",
    }, report
    assert (
        report["e-stops"][0] == "no e-stop source is named"
        and "no_estop_reason: '<why>'" in report["e-stops"][1]
    )
    assert (
        "m/s, of " in report["limits"][0]
        and "0.25" in report["limits"][0]
        and "fastdds.xml" in report["DDS profile"][0]
    )
    assert report.keys() >= {"current_pose", "joint_states", "wrench", "goal_pose", "target_joints"}
    assert report["task/success"][0] == "no publisher of /station_a/task/success"

    # of a station that runs, they hear it and move nothing
    for name in (
        "driver_inputs",
        "recorder_inputs",
    ):
        other_node = rclpy.create_node(name, namespace="/station_a", context=peer.context)
        other_node.create_subscription(PoseStamped, "target_pose", lambda _: None, 10)
        other_node.create_publisher(WrenchStamped, "wrench", 10)
        nodes.append(other_node)
    fault = peer.node.create_publisher(String, "robot/fault", profile("robot/fault"))
    peer.every(0.1, lambda: fault.publish(String(data="idle (no controller moves the arm)")))
    # it looks below the station's name
    report = doctor(peer, "station.robot=franka_fr3", "station.task=reach")
    assert (
        report["robot/fault"][0].startswith("idle (")
        and "rlinf fault reset" in report["robot/fault"][1]
    )
    assert "topics: {current_pose: /tcp_pose_broadcaster/pose}" in report["current_pose"][1]
    assert report["target_pose"][0] == "0 subscribers on /station_a/target_pose"
    assert "no subscriber would follow" in report["target_pose"][1]

    assert "expected one publisher" in report["wrench"][1]
    nodes.pop().destroy_node()
    report = doctor(peer, "station.robot=franka_fr3", "station.task=reach")
    assert (
        report["wrench"][0]
        == "/station_a/driver_inputs offers /station_a/wrench but publishes nothing"
    )
    nodes.pop().destroy_node()

    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "doctor",
        "station",
        "demo",
        "--set",
        *UR5E,
    ]
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(
            subprocess.run, command, text=True, capture_output=True, env=peer.supervisor.environment
        )
        peer.spin(ran.done, 100, "the command")
    assert (
        ran.result().returncode == 1
        and "task/success" in ran.result().stdout
        and not ran.result().stderr
    )


@pytest.mark.domain(124)
def test_another_clock_a_slow_rate_a_strange_frame_and_a_second_voice_are_found(peer, tmp_path):
    driver = Driver(peer)
    driver.wrench_message.header.frame_id = "tool0_controller"
    driver.frame, driver.every, driver.ahead_s = "base_link", 40, -3.0
    second = peer.node.create_publisher(
        type(driver.wrench_message), "/force_torque_sensor_broadcaster/wrench", 10
    )
    report = doctor(peer)
    assert "stamped 3." in report["joint_states"][0] and "chrony" in report["joint_states"][1]
    assert report["current_pose"][1] == "expected 100 Hz: raise the driver's rate"
    assert (
        "expected one publisher" in report["wrench"][1] and "/station_a/peer" in report["wrench"][0]
    )
    peer.node.destroy_publisher(second)
    driver.every, driver.ahead_s = 1, 0.0
    report = doctor(peer)
    assert report["current_pose"][1] == "frame of the limits: expected 'base'"
    assert not report["wrench"][1], "robots/ur5e says that it is along the tool's axes"
    (tmp_path / "limits.yaml").write_text(f"extends: {load_robot('ur5e').limits}\n")
    robot_yaml = Path("robots/ur5e/robot.yaml").read_text().replace("tool_axes: [wrench]", "")
    (tmp_path / "robot.yaml").write_text(robot_yaml)
    assert (
        "tool_axes: [wrench] in robot.yaml"
        in doctor(peer, f"station.robot={tmp_path}")["wrench"][1]
    )


@pytest.mark.domain(138)
def test_a_grippers_driver_may_speak_of_its_joint_beside_the_arms_and_alone_it_is_named(peer):
    driver, knuckle = Driver(peer), JointState(name=["knuckle"], position=[0.1])
    knuckle_publisher = peer.node.create_publisher(JointState, "/joint_states", 10)
    peer.every(0.005, lambda: knuckle_publisher.publish(knuckle))  # not stamped, and twice as often
    text, fix = doctor(peer)["joint_states"]
    assert not fix and float(text.split()[0]) < 150 and text.count("/station_a/peer") == 2, (
        text,
        fix,
    )
    driver.joints = SimpleNamespace(publish=lambda _: None)
    text, fix = doctor(peer)["joint_states"]
    assert (text, fix.split(", ")[0]) == (
        "/joint_states: knuckle",
        "expected joint_names of the limits; missing: elbow_joint",
    )


@pytest.mark.parametrize(
    "position, orientation, words",
    [
        ((0.4, 0.0, 0.3), (0.0, 0.0, 0.0, 1.0), ""),
        ((0.4, 0.0, 0.3), (0.0, 0.0, 0.0, -1.0), ""),
        ((0.4, 0.0, 0.3), (0.0, 0.0, 0.0, 0.0), "norm 0"),
        ((float("nan"), 0.0, 0.3), (0.0, 0.0, 0.0, 1.0), "finite"),
        ((0.4, 0.0, 0.3), (float("nan"), 0.0, 0.0, 1.0), "norm nan"),
        ((0.4, 0.0, 0.3), (180.0, 0.0, 90.0, 0.0), "norm 201"),
        ((400.0, 0.0, 300.0), (0.0, 0.0, 0.0, 1.0), "millimetres"),
        ((4.0, 0.0, 3.0), (0.0, 0.0, 0.0, 1.0), "millimetres"),
        ((2.0, 0.0, 0.3), (0.0, 0.0, 0.0, 1.0), "within the limits' box"),
    ],
)
def test_a_pose_that_is_none_or_in_other_units_is_not_ok(position, orientation, words):
    pose = PoseStamped().pose
    pose.position.x, pose.position.y, pose.position.z = position
    pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w = orientation
    trouble = station_doctor.pose_trouble(pose, load_limits(load_robot("ur5e").limits))
    assert words in trouble and bool(trouble) == bool(words)


def test_no_topic_is_suggested_that_is_taken_or_the_stations():
    names = ("/joint_states", "/finger", "/target", "/station_a/x")
    node = SimpleNamespace(
        get_namespace=lambda: "/station_a",
        count_publishers=lambda name: 1,
        get_topic_names_and_types=lambda: [(name, ["T"]) for name in names],
    )
    taken = frozenset({"/joint_states", "/target"})
    topic = SimpleNamespace(type="T", name="gripper/state")
    assert station_doctor._suggested(node, topic, taken).endswith(
        "topics: {gripper/state: /finger}; topics of this type: /finger"
    )
    assert "/the/drivers/name" in station_doctor._suggested(node, topic, taken | {"/finger"})


@pytest.mark.parametrize("name", ["estop/pendant", "task/success", "distance"])
def test_what_the_interlock_trusts_is_never_suggested(name):
    node = SimpleNamespace(
        get_namespace=lambda: "/station_a",
        count_publishers=lambda name: 1,
        get_topic_names_and_types=lambda: [("/lamp", ["T"])],
    )
    line = station_doctor._suggested(node, SimpleNamespace(type="T", name=name), frozenset())
    assert f"topics: {{{name}: /the/drivers/name}}" in line and line.endswith(
        "topics of this type: /lamp"
    )


def test_commands_and_one_of_several_topics_are_not_suggested():
    names = ["/station_b/target_pose", "/servo/command", "/Goal", "/left/pose", "/right/pose"]
    node = SimpleNamespace(
        get_namespace=lambda: "/station_a",
        count_publishers=lambda name: 1,
        get_topic_names_and_types=lambda: [(name, ["T"]) for name in names],
    )
    line = station_doctor._suggested(
        node, SimpleNamespace(type="T", name="current_pose"), frozenset()
    )
    assert "{current_pose: /the/drivers/name}" in line and line.endswith(
        "topics of this type: /left/pose, /right/pose"
    )
    names.pop()
    line = station_doctor._suggested(
        node, SimpleNamespace(type="T", name="current_pose"), frozenset()
    )
    assert "{current_pose: /left/pose}" in line


@pytest.mark.parametrize(
    "factor, change, words",
    [
        (1.0, {}, ""),
        (57.3, {}, "Are these degrees?"),
        (1.0, {1: float("nan")}, "expected a finite angle of"),
        (1.0, {2: 20.0, 3: 400.0}, "Guide it back, or correct the limits"),
    ],
)
def test_joint_angles_in_degrees_are_not_ok(factor, change, words):
    limits = load_limits(load_robot("ur5e").limits)
    angles = [factor * angle for angle in (0.3, -1.2, 1.5, -1.2, 0.5, 0.6)]
    for index, angle in change.items():
        angles[index] = angle
    message = JointState(
        name=[*reversed(limits.joint_names), "finger"], position=[*reversed(angles), 900.0]
    )
    trouble = station_doctor.joints_trouble(message, limits)
    assert words in trouble and bool(trouble) == bool(words)


@pytest.mark.parametrize(
    "encoding, step, words",
    [
        ("rgb8", 12, ""),
        ("bgr8", 12, ""),
        ("mono8", 4, "expected rgb8 or bgr8, got 'mono8'"),
        ("16UC1", 8, "'16UC1'"),
        ("yuv422_yuy2", 8, "'yuv422_yuy2'"),
        ("rgb8", 11, "expected height x step bytes"),
    ],
)
def test_an_image_of_another_encoding_is_not_ok(encoding, step, words):
    image = Image(encoding=encoding, height=2, width=4, step=step, data=bytes(24))
    trouble = station_doctor.image_trouble(image)
    assert words in trouble and bool(trouble) == bool(words)


def _now(peer):
    return Header(stamp=peer.node.get_clock().now().to_msg())


@pytest.mark.domain(133)
def test_cameras_that_are_not_there_and_a_robot_that_does_not_answer_are_said(peer, tmp_path):
    (tmp_path / "limits.yaml").write_text("extends: " + str(load_robot("ur5e").limits) + "\n")
    (tmp_path / "robot.yaml").write_text(
        "driver: universal_robots\nlimits: limits.yaml\noptions: {address: 127.0.0.1}\ncameras:\n"
        "  wrist: {kind: realsense, serial: '007', size: [48, 64], twin: true}\n"
        "  front: {kind: uvc, device: /dev/v4l/by-id/none, size: [48, 64]}\n"
    )
    report = doctor(peer, f"station.robot={tmp_path}")
    assert (
        "the device '007' exists and opens. rlinf up publishes its images"
        in report["camera/wrist/image"][1]
    )
    assert "expected a camera at /dev/v4l/by-id/none" in report["camera/front/image"][1]
    near = station_doctor._ping("127.0.0.1")
    assert "127.0.0.1" in near.result and report["robot's address"][0].startswith("127.0.0.1")
    assert station_doctor._ping("no.such.robot.invalid").fix


@pytest.mark.parametrize(
    "reason, port, result, fix",
    [
        ("", 0, "no e-stop source is named", "no_estop_reason"),
        ("", 8080, "the page's STOP is the only e-stop", ""),
        ("its pendant cuts the power", 8080, "none, confirmed: its pendant cuts the power", ""),
    ],
)
def test_what_stops_a_real_arm_without_a_source_of_its_own(reason, port, result, fix):
    finding = station_doctor._estops(reason, port)
    assert (
        finding.result.startswith(result) and fix in finding.fix and bool(finding.fix) == bool(fix)
    )


@pytest.mark.domain(123)
def test_a_gripper_that_expects_another_type_of_message_is_named(peer):
    full = "/station_a/gripper/command"
    follower = rclpy.create_node("fingers", namespace="/station_a", context=peer.context)
    follower.create_subscription(Float64, "gripper/command", lambda _: None, 10)
    peer.spin(lambda: peer.node.get_subscriptions_info_by_topic(full), what="the gripper")
    finding = _listener(peer.node, "gripper/command", full, topic("gripper/command").type)
    assert finding.result == f"std_msgs/msg/Float64 on {full}"
    assert finding.fix.startswith(
        "expected subscriptions of rlinf_msgs/msg/GripperWidth. Change the subscribing node"
    )
    follower.destroy_node()
