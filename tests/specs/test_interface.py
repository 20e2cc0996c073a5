"""One table of topics: what nodes, recordings and pages make of it."""

import ast
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlinf_core.core.errors import RlinfError, SpecError
from rlinf_core.specs.topics import EPISODE, TOPICS, topic

ROOT = Path(__file__).resolve().parents[2]
# ROS's own, the drill's, and those of drivers, as their settings or their user name them
NOT_OURS = {
    '"/diagnostics"',
    '"/parameter_events"',
    '"inject"',
    '"injected"',
    '"drill/do"',
    '"drill/stalls"',
    'controller.py: self.declare_parameter("topic", "").value',
    "controller.py: slowed_by",
    "fault_injector.py: source",
    "fault_injector.py: target",
    "arm_driver.py: self.resolve_topic_name(name)",
    'franka.py: f"{prefix}franka_gripper/joint_states"',
    "gripper_command.py: self.settings.states",
    "universal_robots.py: prefix + topic",
    "operator.py: GOALS",
}
ELSEWHERE = ("qos.py", "station_node.py", "memory_bus.py")


@pytest.mark.parametrize(
    "name, row",
    [
        ("current_pose", "current_pose"),
        ("left/current_pose", "current_pose"),
        ("right/gripper/state", "gripper/state"),
        ("camera/wrist/image", "camera/<name>/image"),
        ("estop/pendant", "estop/<name>"),
        ("clock", "clock"),
    ],
)
def test_a_topic_is_found_for_any_camera_estop_or_arm(name, row):
    assert topic(name).name == row


@pytest.mark.parametrize(
    "name, error",
    [
        ("curent_pose", "did you mean 'current_pose'"),
        ("left/timestep", "topic 'left/timestep': expected one of the robot"),
        ("camera/wrist", "expected one of the robot interface"),
        ("estop", "expected one of the robot interface"),
    ],
)
def test_another_name_is_refused(name, error):
    with pytest.raises(RlinfError, match=error):
        topic(name)


def test_every_topic_that_a_page_for_robots_names_is_in_the_table():
    page = (ROOT / "docs/robots/index.md").read_text()
    rows = re.findall(r"^\| (?:in|out) \| ([^|]+) \|", page, re.M)
    assert len(rows) >= 8
    for name in (name for row in rows for name in re.findall(r"`([^`]+)`", row)):
        assert topic(name).name == name


def test_what_makes_an_episode_is_kept_for_a_recorder_that_is_late():
    """A takeover of lockstep brings a dozen chunks at once: with ten of them kept, the one in play
    was lost.
    """
    rates = ("control rate", "each chunk", "each action")
    late = {row.name: row.depth for row in TOPICS if row.recorded == EPISODE and row.rate in rates}
    assert {"timestep", "policy/action", "teleop/action", "applied"} <= late.keys() and min(
        late.values()
    ) >= 50


@pytest.mark.ros
def test_ros_makes_its_classes_and_its_quality_of_service_of_it():
    from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

    from rlinf_ros.qos import kind, profile, received

    for row in TOPICS:
        if find_spec(row.type.partition("/")[0]) is None:  # of viewers: a station runs without
            assert row.receivers == "RViz, Foxglove"
            continue
        message_class = kind(row.name)
        assert f"{message_class.__module__.split('.')[0]}/msg/{message_class.__name__}" == row.type
        quality = profile(row.name)
        assert quality.depth == row.depth and quality.reliability == ReliabilityPolicy.RELIABLE
        assert (quality.durability == DurabilityPolicy.TRANSIENT_LOCAL) is row.latched
        assert received(row.name, True).reliability == ReliabilityPolicy.RELIABLE, (
            "in lockstep nothing may be lost"
        )
        assert (
            received(row.name, False).reliability == ReliabilityPolicy.BEST_EFFORT
        ) is row.newest
    assert profile("left/robot/fault").durability == DurabilityPolicy.TRANSIENT_LOCAL


def test_nodes_know_type_and_quality_of_a_topic_from_the_table_alone():
    """A second definition in a node could differ, and the topic would not connect."""
    topics = set()
    for path in ROOT.glob("ros_ws/src/*/rlinf_*/*.py"):
        source = path.read_text() if path.name not in ELSEWHERE else ""
        nodes = list(ast.walk(ast.parse(source)))
        calls = {node.func: node.args for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in (
                "create_publisher",
                "create_subscription",
            ):
                topic = (
                    ast.get_source_segment(source, calls[node][1])
                    if node in calls
                    else "kept for later"
                )
                topics.add(topic if topic in NOT_OURS else f"{path.name}: {topic}")
    assert topics == NOT_OURS, "rlinf_ros.qos has publisher and subscription"


@pytest.mark.ros
def test_a_topic_is_as_the_table_says_by_whichever_name_the_node_knows_it_and_no_other_is_made():
    rclpy = pytest.importorskip("rclpy")
    from rclpy.qos import DurabilityPolicy

    from rlinf_ros.qos import LAZY_PROFILE, publisher, subscription

    context = rclpy.Context()
    rclpy.init(context=context, domain_id=199)
    node = rclpy.create_node(
        "one", namespace="/station_a", context=context, start_parameter_services=False
    )
    try:
        assert publisher(node, "left/robot/fault").topic_name == "/station_a/left/robot/fault"
        (publisher_info,) = node.get_publishers_info_by_topic("/station_a/left/robot/fault")
        assert publisher_info.topic_type == "std_msgs/msg/String"
        assert publisher_info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
        subscription(node, "camera/wrist/image", print, quality=LAZY_PROFILE, at="/theirs/image")
        (subscriber_info,) = node.get_subscriptions_info_by_topic("/theirs/image")
        assert (
            subscriber_info.topic_type == "sensor_msgs/msg/Image"
            and subscriber_info.qos_profile.reliability == LAZY_PROFILE.reliability
        )
        for make in (publisher, partial(subscription, callback=print)):
            with pytest.raises(
                RlinfError, match="topic 'curent_pose': .*did you mean 'current_pose'"
            ):
                make(node, "curent_pose")
    finally:
        node.destroy_node()
        rclpy.try_shutdown(context=context)


@pytest.mark.ros
def test_what_has_a_channel_is_read_as_one_and_what_cannot_be_is_not_asked_for():
    from rlinf_ros.latest_messages import CHANNELS, Latest
    from rlinf_ros.qos import kind

    assert all(kind(row.name) in CHANNELS for row in TOPICS if row.channel is not None)
    with pytest.raises(
        SpecError, match="topic 'distance': expected a topic with numbers or an image .* got Range"
    ):
        Latest(None, {"distance"}, False)


@pytest.mark.ros
@pytest.mark.parametrize(
    "harm",
    [{"step": 0}, {"step": 5}, {"data": b""}, {"data": bytes(23)}, {"height": 0, "data": b""}],
)
def test_an_image_that_is_none_is_refused_in_words(harm):
    from sensor_msgs.msg import Image

    from rlinf_ros.conversions import from_image

    fields = {"height": 2, "width": 4, "step": 12, "encoding": "rgb8", "data": bytes(24)}
    assert from_image(Image(**fields)).shape == (2, 4, 3)
    with pytest.raises(
        SpecError, match="image '': expected . rows of .* bytes for 4 pixels of 3, got .* bytes"
    ):
        from_image(Image(**fields | harm))


@pytest.mark.ros
def test_joints_are_read_by_name_and_what_others_say_on_their_topic_is_not_theirs():
    from sensor_msgs.msg import JointState

    from rlinf_ros.latest_messages import Latest

    latest = Latest.__new__(Latest)
    latest.channels, latest.messages, latest.stamps_ns, latest.taken_at = {}, {}, {}, {}
    latest.joints, latest.axes = {"joint_states": ["b", "a"]}, {}
    latest._keep("joint_states", JointState(name=["a", "finger", "b"], position=[1.0, 9.0, 2.0]))
    latest._keep("joint_states", JointState(name=["finger"], position=[9.0]))
    assert latest.channels["joint_states"].tolist() == [2.0, 1.0]
    assert latest.messages["joint_states"].name == ["b", "a"]
