"""tf and parameters of a running station, as tf2 and ROS's tools read them."""

import json
import subprocess

import pytest
from geometry_msgs.msg import PoseStamped
from rcl_interfaces.srv import DescribeParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile

from rlinf_core.core.ros import ros_environment
from rlinf_core.launch.graph import station_processes
from rlinf_core.launch.supervisor import command_line
from rlinf_core.recipes import load_recipe
from rlinf_ros.conversions import to_ns
from rlinf_ros.parameters import LIVE, MEANINGS, RANGES
from rlinf_ros.qos import profile
from tests.ros.stand_ins import start

tf2_msgs = pytest.importorskip("tf2_msgs.msg", reason="rlinf messages builds tf2_msgs")
pytestmark = [pytest.mark.ros, pytest.mark.timeout(180)]
STATIC = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
REAL = ("station.lockstep=false", "station.robot=franka_twin_devices", "station.task=reach")


def listen(peer, topic, quality):
    got = []
    peer.node.create_subscription(
        tf2_msgs.TFMessage, topic, lambda message: got.extend(message.transforms), quality
    )
    return got


@pytest.mark.domain(126)
def test_the_tool_moves_on_tf_while_nothing_is_recorded_and_the_cameras_stand_on_tf_static(peer):
    poses = peer.node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
    pose = PoseStamped()
    pose.header.frame_id, pose.pose.position.x = "base_link", 0.5
    pose.pose.orientation.y, pose.pose.orientation.w = 1.0, 0.0

    def say():
        pose.header.stamp = peer.node.get_clock().now().to_msg()
        poses.publish(pose)

    peer.every(0.01, say)
    moving = listen(peer, "tf", 100)
    start(peer, "recorder", *REAL)
    peer.spin(lambda: len(moving) > 3, what="transforms")
    late = listen(peer, "tf_static", STATIC)  # long after it was published
    peer.spin(lambda: len(late) >= 3, what=lambda: f"the cameras: {late}")
    assert {(transform.header.frame_id, transform.child_frame_id) for transform in moving} == {
        ("station_a/base_link", "station_a/tool0")
    }
    assert {(transform.child_frame_id, transform.header.frame_id) for transform in late} >= {
        ("station_a/wrist_optical_frame", "station_a/tool0"),
        ("station_a/front_optical_frame", "station_a/base_link"),
        ("station_a/base", "station_a/base_link"),
        ("station_a/fr3_link0", "station_a/base"),
    }, "with franka_ros2's root"
    assert (moving[-1].transform.translation.x, moving[-1].transform.rotation.y) == (0.5, 1.0)
    stamps = [to_ns(transform.header.stamp) for transform in moving]
    assert stamps == sorted(set(stamps)), "of the pose, each once"
    wrist = next(
        transform
        for transform in late
        if transform.child_frame_id == "station_a/wrist_optical_frame"
    ).transform
    assert wrist.translation.z == -0.08 and wrist.rotation.w == pytest.approx(0.7071068)


def test_two_arms_have_a_tool_each_and_a_robot_may_have_none(tmp_path):
    def recorder(*overrides):
        recipe = load_recipe("demo", ["station.operator.kind=keyboard", *overrides])
        return next(
            process for process in station_processes(recipe, tmp_path) if process.name == "recorder"
        ).parameters

    both = recorder("station.robot=two_franka_sim", "station.task=reach_both")
    assert (
        both["arms"] == ["left", "right"] and both["tool_frame"] == "tool0" and "mounts" not in both
    )
    ur5e = recorder("station.robot=ur5e", "station.task=ur5e_reach")
    assert ur5e["tool_frame"] == "tcp" and "mounts" not in ur5e, (
        "its limits' frame is in its driver's tree"
    )


@pytest.mark.domain(127)
def test_a_control_nodes_parameters_are_listed_described_with_their_range_and_fixed(peer):
    start(peer, "environment", *REAL)

    def ask(kind, name, request):
        client = peer.node.create_client(kind, f"environment/{name}")
        peer.spin(client.service_is_ready, what=name)
        future = client.call_async(request)
        peer.spin(future.done, what=name)
        return future.result()

    names = ask(ListParameters, "list_parameters", ListParameters.Request()).result.names
    documented = [name for name in names if name.split(".")[0] in MEANINGS]
    assert {"axes.wrench.frame", "joints.joint_states"} <= set(documented)
    assert {"task_file", "patience_s", "retries", "lockstep"} <= set(documented)
    descriptors = dict(
        zip(
            documented,
            ask(
                DescribeParameters,
                "describe_parameters",
                DescribeParameters.Request(names=documented),
            ).descriptors,
            strict=True,
        )
    )
    assert all(descriptor.description for descriptor in descriptors.values())
    live = {name for name, descriptor in descriptors.items() if not descriptor.read_only}
    assert live == {"instruction", "retries"} <= {*LIVE}
    [patience] = descriptors["patience_s"].floating_point_range
    [retries] = descriptors["retries"].integer_range
    assert ((patience.from_value, patience.to_value), (retries.from_value, retries.to_value)) == (
        RANGES["patience_s"],
        RANGES["retries"],
    )
    for name, value, is_taken in (
        ("retries", 7, True),
        ("retries", -1, False),
        ("patience_s", 7.0, False),
    ):
        [answer] = ask(
            SetParameters,
            "set_parameters",
            SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()]),
        ).results
        assert answer.successful is is_taken and bool(answer.reason) is not is_taken, (name, value)


@pytest.mark.parametrize(
    "name, value, error",
    [
        ("retries", -1, "parameter retries: expected an integer from 0 to 1e+06, got -1"),
        (
            "patience_s",
            "long",
            "parameter patience_s: expected a number from 0 to 3600, got 'long'",
        ),
        ("lockstep", 1, "parameter lockstep: expected true or false, got 1"),
    ],
)
def test_what_a_parameter_cannot_be_is_said_in_a_line(tmp_path, name, value, error):
    process = next(
        node
        for node in station_processes(load_recipe("demo", REAL), tmp_path)
        if node.name == "environment"
    )
    process.parameters[name] = value
    ran = subprocess.run(
        command_line(process, tmp_path),
        env=ros_environment(128),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ran.returncode == 1 and error in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


def test_every_parameter_of_a_stations_graph_has_a_meaning(tmp_path):
    for recipe in ("demo", "franka_twin_devices"):
        for process in station_processes(load_recipe(recipe), tmp_path):
            for name in process.parameters:
                assert name in MEANINGS or name.startswith("qos_overrides"), (
                    f"{process.name}: {name}"
                )
    assert RANGES.keys() <= MEANINGS.keys() and json.dumps(RANGES)
