"""Foxglove and RViz show a station while it runs, and its recordings: a test subscribes as their
layouts do.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from rclpy.action import ActionClient
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import TimeStep
from rosbags.rosbag2 import Reader

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import compress_image, to_ns, typestore
from rlinf_core.episodes.ring import Message
from rlinf_core.episodes.view import View
from rlinf_core.interlock import load_limits
from rlinf_core.launch.graph import station_processes
from rlinf_core.launch.layouts import (
    LayoutContent,
    content_of_recipe,
    content_of_recording,
    foxglove,
    rviz,
)
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.specs.topics import topic
from rlinf_ros.qos import kind, profile
from rlinf_station.recorder import sampled, stamp_ns, step_type
from tests.ros.conftest import peer_in
from tests.ros.play_recording import assert_played
from tests.test_views import strings

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
pytest.importorskip("tf2_msgs.msg", reason="rlinf messages builds tf2_msgs")
STATION = "lab_2"
FRAME = "table"  # of the limits: another than the default
NEEDS_MARKERS = "visualization_msgs (make setup, or apt-get install ros-jazzy-visualization-msgs)"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Recorded episode, messages that viewers got live, and endpoints by topic, of a station with
    one camera.
    """
    folder = tmp_path_factory.mktemp("shown")
    robot = folder / "robot"
    robot.mkdir()
    ours = Path("sim_bridges/simulators/franka_mujoco/franka_sim")
    (robot / "limits.yaml").write_text(f"{(ours / 'limits.yaml').read_text()}frame: {FRAME}\n")
    (robot / "panda.urdf").write_text((ours / "panda.urdf").read_text())
    (robot / "robot.yaml").write_text((ours / "robot.yaml").read_text())
    recipe = load_recipe(
        "demo",
        [
            f"station.robot={robot}",
            "station.observe_cameras=[wrist]",
            "station.task=reach",
            "station.real_time_factor=0.3",  # of a topic the recorder keeps five time steps
            f"station.name={STATION}",
        ],
    )
    with peer_in(folder, 117, STATION) as peer:
        live = watch(peer.node, content_of_recipe(recipe))
        for process in station_processes(recipe, folder, without=("policy", "uplink")):
            peer.supervisor.start(process)
        runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(runner.server_is_ready, what="the environment")
        sent = runner.send_goal_async(RunEpisodes.Goal(count=2, mode="demonstration"))
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        peer.spin(answer.done, what="two episodes")
        assert answer.result().result.success, answer.result().result.message
        graph = {
            name.removeprefix(f"/{STATION}/"): (
                peer.node.get_publishers_info_by_topic(name),
                peer.node.get_subscriptions_info_by_topic(name),
            )
            for name, _ in peer.node.get_topic_names_and_types()
            if name.startswith(f"/{STATION}/")
        }
    return sorted((folder / "spool/closed").iterdir())[-1], live, graph


def watch(node, shown):
    """Return the messages of both layouts by topic, subscribed like RViz and Foxglove."""
    got = {}
    for name in shown_topics(shown):
        relative = name.removeprefix(f"/{shown.station}/")
        row = topic(relative)
        if find_spec(row.type.partition("/")[0]) is None:
            continue
        quality = QoSProfile(
            depth=row.depth if row.latched else 10,
            durability=profile(relative).durability,
            reliability=ReliabilityPolicy.RELIABLE
            if row.latched
            else ReliabilityPolicy.BEST_EFFORT,
        )
        got[name] = []
        node.create_subscription(kind(relative), name, got[name].append, quality)
    return got


def shown_topics(shown):
    """Topics in Foxglove's layout and RViz's displays, and those of tf2."""
    texts = strings([json.loads(foxglove(shown)), yaml.safe_load(rviz(shown))])
    names = {
        re.sub(r"\[.*?\]", "", text).split(".")[0]
        for text in texts
        if text.startswith(f"/{shown.station}/")
    }
    return names | {f"/{shown.station}/tf", f"/{shown.station}/tf_static"}


@pytest.fixture(scope="module")
def episode(played):
    return played[0]


def frames(messages):
    """Parents by child, of transforms in TFMessages of rclpy or rosbags."""
    return {
        moved.child_frame_id: moved.header.frame_id
        for message in messages
        for moved in message.transforms
    }


LINKS = {
    f"{STATION}/panda_link{number}": f"{STATION}/panda_link{number - 1}" for number in range(1, 8)
}
MOVING = LINKS | {
    f"{STATION}/{name}": f"{STATION}/{FRAME}" for name in ("tool0", "target", "object")
}


def test_live_each_topic_of_both_layouts_comes_and_all_frames_are_one_tree(played):
    live = {name.removeprefix(f"/{STATION}/"): messages for name, messages in played[1].items()}
    assert {
        "robot_description",
        "tf",
        "tf_static",
        "safety",
        "camera/wrist/image/compressed",
    } <= live.keys()
    assert [name for name, messages in live.items() if not messages] == []
    tree = frames(live["tf"] + live["tf_static"])
    assert tree.items() >= MOVING.items()
    assert set(tree.values()) - set(tree) == {f"{STATION}/{FRAME}"}, "one root"
    picture = live["camera/wrist/image/compressed"][-1]
    assert cv2.imdecode(np.frombuffer(picture.data, np.uint8), cv2.IMREAD_COLOR).shape == (
        64,
        64,
        3,
    )
    assert live["robot_description"][0].data.startswith("<?xml")


def test_live_the_workspace_and_the_state_are_markers(played):
    pytest.importorskip("visualization_msgs.msg", reason=NEEDS_MARKERS)
    messages = played[1][f"/{STATION}/markers"]
    assert_markers(messages)


def assert_markers(messages):
    texts = {marker.text for message in messages for marker in message.markers if marker.text}
    assert "ACTIVE" in texts, texts
    [box] = [marker for marker in messages[-1].markers if marker.ns == "workspace"]
    limits = load_limits(Path("sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml"))
    corners = np.array([(point.x, point.y, point.z) for point in box.points])
    np.testing.assert_allclose([corners.min(0), corners.max(0)], [limits.box_low, limits.box_high])
    assert box.header.frame_id == f"{STATION}/{FRAME}" and len(corners) == 24
    sides = np.abs(corners[::2] - corners[1::2])
    assert ((sides > 0).sum(1) == 1).all(), "each line is an edge"


def nodes(endpoints):
    """Words of the table for the nodes of a topic's endpoints; hidden nodes belong to the one that
    they are named after.
    """
    names = {
        re.sub("_(inputs|poses|services)$", "", endpoint.node_name) for endpoint in endpoints
    } - {"peer"}
    return {"robot side" if name == "sim_bridge" else name for name in names}


def test_each_sender_and_receiver_of_a_running_station_stands_in_the_table_of_topics(played):
    rows = {
        name: topic(name)
        for name in played[2]
        if not re.search("/_action/|/transition_event$|^interlock/", name)
    }
    assert len(rows) > 25
    for name, row in rows.items():
        publisher_ids, listeners = map(nodes, played[2][name])
        assert row.sender.startswith("each node") or publisher_ids <= set(row.sender.split(", ")), (
            name
        )
        assert listeners <= set(row.listeners.split(", ")), name


@pytest.fixture(scope="module")
def recorded(episode):
    """Messages by topic."""
    by_topic = {}
    with Reader(episode) as reader:
        for connection, _, raw in reader.messages():
            by_topic.setdefault(connection.topic, []).append(
                typestore().deserialize_cdr(raw, connection.msgtype)
            )
    return by_topic


def test_each_time_step_comes_with_the_state_of_its_own_time(recorded, episode):
    steps = {to_ns(step.header.stamp) for step in recorded[f"/{STATION}/timestep"]}
    for name in (
        "current_pose",
        "joint_states",
        "gripper/state",
        "current_twist",
        "wrench",
        "object_pose",
        "camera/wrist/camera_info",
        "camera/wrist/image/compressed",
    ):
        stamps = [to_ns(message.header.stamp) for message in recorded[f"/{STATION}/{name}"]]
        assert steps <= set(stamps) and stamps == sorted(stamps), name
    assert f"/{STATION}/camera/wrist/image" not in recorded, "the observation has its pixels"
    assert len(read_episode(episode, sealed=True)) == len(steps) - 1, (
        "and what learns reads it as before"
    )


def test_limits_and_full_specs_are_attached(episode):
    recipe = load_recipe("demo", ["station.observe_cameras=[wrist]", "station.task=reach"])
    with next(episode.glob("*.mcap")).open("rb") as file:
        attached = {
            file_.name: file_.data
            for file_ in make_reader(file, validate_crcs=True).iter_attachments()
        }
    assert json.loads(attached["specs.json"]) == json.loads(
        json.dumps(station_task(recipe).spec.to_dict())
    )
    assert b"box_low" in attached["limits.yaml"] or b"extends" in attached["limits.yaml"]


def test_the_picture_is_that_of_the_observation_and_the_camera_says_how_it_sees(recorded):
    step = recorded[f"/{STATION}/timestep"][3]
    shown = recorded[f"/{STATION}/camera/wrist/image/compressed"]
    jpeg = next(image for image in shown if image.header.stamp == step.header.stamp)
    picture = cv2.imdecode(jpeg.data, cv2.IMREAD_COLOR)[:, :, ::-1].astype(float)
    observed = step.images[0].data.reshape(64, 64, 3).astype(float)
    assert jpeg.format == "rgb8; jpeg compressed bgr8" and np.abs(picture - observed).mean() < 4.0
    assert np.abs(picture[:, :, ::-1] - observed).mean() > np.abs(picture - observed).mean(), (
        "red is red"
    )
    info = recorded[f"/{STATION}/camera/wrist/camera_info"][0]
    assert (
        (info.width, info.height) == (64, 64)
        and info.k[0] == info.k[4] > 10
        and list(info.k[2::3]) == [32.0, 32.0, 1.0]
    )
    assert info.header.frame_id == jpeg.header.frame_id == f"{STATION}/wrist_optical_frame"


def test_recorded_the_robot_its_tool_and_the_workspace_are_there_too(recorded, episode):
    poses, moved = recorded[f"/{STATION}/current_pose"], recorded[f"/{STATION}/tf"]
    tools = [
        transform
        for message in moved
        for transform in message.transforms
        if transform.child_frame_id == f"{STATION}/tool0"
    ]
    for pose, transform in zip(poses, tools, strict=True):
        assert pose.header.stamp == transform.header.stamp
        assert (pose.pose.position.x, pose.pose.orientation.w) == (
            transform.transform.translation.x,
            transform.transform.rotation.w,
        )
    tree = frames([*moved, *recorded[f"/{STATION}/tf_static"]])
    assert tree.items() >= MOVING.items() and set(tree.values()) - set(tree) == {
        f"{STATION}/{FRAME}"
    }
    assert [robot.data[:5] for robot in recorded[f"/{STATION}/robot_description"]] == ["<?xml"], (
        "with each episode, once"
    )
    assert_markers(recorded[f"/{STATION}/markers"])
    assert content_of_recording(episode) == LayoutContent(STATION, ("wrist",), base=FRAME)
    missing = shown_topics(content_of_recording(episode)) - recorded.keys()
    assert missing == {f"/{STATION}/goal_pose"} & missing, (
        "a recording holds all that both layouts show"
    )


def test_played_into_a_running_graph_every_topic_is_heard_as_it_was_recorded(episode):
    others = [
        "camera/wrist/image/compressed",
        *([] if find_spec("visualization_msgs") else ["markers"]),
    ]
    assert_played(episode, domain=118, least=13, others=others, station=STATION)


def test_what_is_sampled_is_of_each_arm_and_each_camera():
    names = sampled(["left", "right"], ["front"])
    assert {"left/current_pose", "right/target_pose", "camera/front/camera_info"} <= set(names)
    assert "current_pose" not in names and not any("<" in name for name in names)


@pytest.mark.parametrize(
    "name, kind, raw, stamp",
    [
        ("camera/front/image", "sensor_msgs/msg/Image", b"\0\1\0\0\2\0\0\0\3\0\0\0", 2_000_000_003),
        ("camera/front/image", "sensor_msgs/msg/Image", b"\0\0\0\0\0\0\0\2\0\0\0\3", 2_000_000_003),
        ("current_pose", "geometry_msgs/msg/PoseStamped", b"", 0),
        ("wrench", "geometry_msgs/msg/WrenchStamped", b"\0\1\0\0", 0),
        ("wrench", "geometry_msgs/msg/WrenchStamped", b"\0\1\0\0\2\0\0\0\3\0\0", 0),
    ],
)
def test_what_cannot_be_read_is_kept_as_it_came(name, kind, raw, stamp):
    message = Message(f"/s/{name}", kind, 7, raw)
    assert compress_image(message) == message and stamp_ns(raw) == stamp
    view = View("s", {"": "base_link"}, "tool0", {})
    assert view.moving_frames(name, raw) is None


def test_an_image_of_another_encoding_is_kept_as_it_is():
    store = typestore()
    header = store.types["std_msgs/msg/Header"](
        stamp=store.types["builtin_interfaces/msg/Time"](sec=3, nanosec=4), frame_id="depth"
    )
    depth = store.types["sensor_msgs/msg/Image"](
        header=header,
        height=2,
        width=2,
        encoding="16UC1",
        is_bigendian=0,
        step=4,
        data=np.zeros(8, np.uint8),
    )
    raw = bytes(store.serialize_cdr(depth, "sensor_msgs/msg/Image"))
    message = Message("/s/camera/depth/image", "sensor_msgs/msg/Image", 7, raw)
    assert compress_image(message) == message and stamp_ns(raw) == 3_000_000_004


@pytest.mark.parametrize("frame", ["", "base", "a_long_name_of_a_frame"])
@pytest.mark.parametrize("kind", [TimeStep.FIRST, TimeStep.MID, TimeStep.LAST])
def test_a_time_steps_kind_is_found_without_reading_it(frame, kind):
    step = TimeStep(step_type=kind, reward=0.5)
    step.header.frame_id = frame
    raw = serialize_message(step)
    assert step_type(raw) == kind
    assert step_type(raw[:14]) == -1
