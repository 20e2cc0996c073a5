"""Quality of service by ROS's parameters: of the topics that leave it to their user, and of no
other.
"""

import pytest

from rlinf_core.core.errors import RlinfError
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe
from rlinf_core.specs.topics import TOPICS, may_override, parameters

WRIST = "qos_overrides./station_a/camera/wrist/image"


def test_what_the_interlock_goes_by_is_no_users_to_change():
    free = {row.name for row in TOPICS if may_override(row.name)}
    assert (
        "camera/<name>/image" in free
        and may_override("camera/wrist/image")
        and not may_override("no/such")
    )
    for row in TOPICS:
        assert not (row.name in free and "interlock" in {row.sender, *row.receivers.split(", ")}), (
            row.name
        )
        assert bool(row.fixed) is (row.name not in free)
    assert {"camera/<name>/image/compressed", "camera/<name>/depth", "vr/pose"} <= free, (
        "nobody's motion goes by them"
    )
    for row in TOPICS:
        goes_by = "interlock" in {row.sender, *row.receivers.split(", ")}
        assert row.fixed.startswith("the interlock depends on it") <= goes_by, row.name
    fixed = {
        "enable",
        "estop/<name>",
        "safety",
        "target_pose",
        "left/current_pose",
        "label",
        "timestep",
        "clock",
    }
    assert not any(may_override(name) for name in fixed)


@pytest.mark.parametrize(
    "entry, message",
    [
        (
            "safety: {subscription: {depth: 5}}",
            "'safety': expected none, since the interlock depends on it",
        ),
        (
            "left/current_pose: {subscription: {depth: 5}}",
            "expected none, since the interlock depends on it",
        ),
        ("timestep: {publisher: {depth: 5}}", "expected none, since each message counts"),
        ("camera/wirst/imag: {subscription: {depth: 5}}", "expected one of the robot interface"),
        (
            "camera/wrist/image: {subscriber: {depth: 5}}",
            "publisher or subscription, got 'subscriber'",
        ),
        (
            "camera/wrist/image: {subscription: {durability: volatile}}",
            "reliability, history, depth, got 'durability'",
        ),
        (
            "camera/wrist/image: {subscription: {reliability: reliabel}}",
            "expected reliable or best_effort, got 'reliabel'",
        ),
        (
            "camera/wrist/image: {subscription: {depth: 0}}",
            "depth: expected a number from 1 to 1000, got 0",
        ),
        ("camera/wrist/image: {subscription: {depth: 1001}}", "from 1 to 1000, got 1001"),
        ("camera/wrist/image: {subscription: {depth: five}}", "from 1 to 1000, got 'five'"),
    ],
)
def test_a_recipe_that_asks_for_what_cannot_be_is_refused(entry, message):
    with pytest.raises(RlinfError) as error:
        load_recipe("demo", [f"station.qos_overrides={{{entry}}}"])
    assert message in str(error.value) and "station.qos_overrides" in str(error.value)


def test_every_node_is_told_by_the_names_that_the_robots_driver_has(tmp_path):
    recipe = load_recipe(
        "demo", ["station.qos_overrides={camera/wrist/image: {subscription: {depth: 5}}}"]
    )
    for process in station_processes(recipe, tmp_path):
        assert process.parameters[f"{WRIST}.subscription.depth"] == 5, process.name
    qos_overrides = {"camera/wrist/image": {"subscription": {"reliability": "reliable"}}}
    assert parameters(qos_overrides, "/station_a", {"camera/wrist/image": "/wrist/color"}) == {
        "qos_overrides./wrist/color.subscription.reliability": "reliable"
    }


@pytest.fixture
def node():
    """Provide a station's node of the real rclpy, with arguments as on its command line."""
    rclpy = pytest.importorskip("rclpy")
    from rlinf_ros.station_node import StationNode

    context, nodes = rclpy.Context(), []
    rclpy.init(context=context, domain_id=198)

    def make(*given, renamed="far:=/near"):
        arguments = [
            "--ros-args",
            *(argument for parameter in given for argument in ("-p", parameter)),
            "-r",
            renamed,
        ]
        nodes.append(
            StationNode(
                "one",
                namespace="/station_a",
                context=context,
                cli_args=arguments,
                start_parameter_services=False,
            )
        )
        return nodes[-1]

    yield make
    for started in nodes:
        started.destroy_node()
    rclpy.try_shutdown(context=context)


def publisher_qos(node, name):
    """Return the middleware's quality of service of a subscription in real time."""
    from rlinf_ros.qos import received, subscription

    subscriber = subscription(node, name, lambda _: None, quality=received(name, False))
    (info,) = node.get_subscriptions_info_by_topic(subscriber.topic_name)
    return info.qos_profile


@pytest.mark.ros
def test_the_middleware_has_what_was_asked_for_and_only_there(node):
    from rclpy.qos import ReliabilityPolicy

    from rlinf_ros.qos import received

    one = node(
        f"{WRIST}.subscription.reliability:=reliable",
        f"{WRIST}.subscription.depth:=7",
        f"{WRIST}.publisher.depth:=9",
    )
    assert publisher_qos(one, "camera/wrist/image").reliability == ReliabilityPolicy.RELIABLE
    assert one.get_parameter(f"{WRIST}.subscription.depth").value == 7
    assert one.describe_parameter(f"{WRIST}.subscription.depth").read_only
    assert publisher_qos(one, "camera/front/image").reliability == ReliabilityPolicy.BEST_EFFORT
    assert received("camera/wrist/image", False).reliability == ReliabilityPolicy.BEST_EFFORT, (
        "the table's own stays"
    )
    publisher_qos(one, "current_pose")
    assert not one.has_parameter("qos_overrides./station_a/current_pose.subscription.depth")


@pytest.mark.ros
@pytest.mark.parametrize(
    "given, message",
    [
        ("qos_overrides./station_a/safety.subscription.depth:=5", "'safety': expected none"),
        (
            "qos_overrides./station_a/curent_pose.subscription.depth:=5",
            "did you mean 'current_pose'",
        ),
        (f"{WRIST}.subscription.depth:=0", "expected a number from 1 to 1000, got 0"),
        (f"{WRIST}.subscription.depth:=true", "expected a number from 1 to 1000, got True"),
        (f"{WRIST}.subscription:=5", "expected reliability, history, depth, got ''"),
    ],
)
def test_a_node_that_is_asked_for_what_cannot_be_says_so_and_ends(node, given, message):
    with pytest.raises(RlinfError) as error:
        node(given)
    assert message in str(error.value)


@pytest.mark.ros
def test_another_stations_topic_is_theirs_to_judge_and_a_drivers_name_is_known(node):
    node(
        "qos_overrides./station_b/safety.subscription.depth:=5",
        "qos_overrides./tf.subscription.depth:=5",
    )
    one = node("qos_overrides./near.subscription.depth:=5", renamed="current_pose:=/near")
    with pytest.raises(RlinfError, match="'current_pose': expected none, since the interlock"):
        publisher_qos(one, "current_pose")
    one = node(
        "qos_overrides./near.subscription.reliability:=reliable",
        renamed="camera/wrist/image:=/near",
    )
    assert publisher_qos(one, "camera/wrist/image").reliability.name == "RELIABLE"
