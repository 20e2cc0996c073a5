"""Recordings hold standard messages, with their quality of service: what Foxglove, RViz and ros2 bag play show of them."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from rclpy.action import ActionClient
from rclpy.serialization import serialize_message
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import TimeStep
from rosbags.rosbag2 import Reader

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.messages import standard, to_ns, typestore
from rlinf_core.episodes.ring import Message
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.specs.topics import topic
from rlinf_station.recorder import sampled, stamp_ns, step_type
from tests.ros.conftest import peer_in
from tests.ros.played import assert_played
from tests.test_views import strings

pytestmark = [pytest.mark.ros, pytest.mark.lockstep, pytest.mark.timeout(300)]
URDF = '<robot name="two_links"><link name="base_link"/><link name="tool0"/></robot>'


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Recorded episode, and publishers by topic, of a simulated station with one camera.

    Its robot has a URDF.
    """
    folder = tmp_path_factory.mktemp("shown")
    robot = folder / "robot"
    robot.mkdir()
    ours = Path("sim_bridges/simulators/franka_mujoco/franka_sim")
    (robot / "limits.yaml").write_text((ours / "limits.yaml").read_text())
    (robot / "arm.urdf").write_text(URDF)
    (robot / "robot.yaml").write_text((ours / "robot.yaml").read_text() + "urdf: arm.urdf\n")
    recipe = load_recipe("demo", [f"station.robot={robot}", "station.observe_cameras=[wrist]", "station.task=reach",
                                  "station.real_time_factor=0.3"])  # of a topic the recorder keeps five time steps
    with peer_in(folder, 117) as peer:
        for process in station_processes(recipe, folder, without=("policy", "uplink")):
            peer.supervisor.start(process)
        runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        peer.spin(runner.server_is_ready, what="the environment")
        sent = runner.send_goal_async(RunEpisodes.Goal(count=2, mode="demonstration"))
        peer.spin(sent.done, what="the goal")
        answer = sent.result().get_result_async()
        peer.spin(answer.done, what="two episodes")
        assert answer.result().result.success, answer.result().result.message
        publishers = {name: peer.node.count_publishers(name) for name in shown_topics()}
        graph = {name.removeprefix("/station_a/"): (peer.node.get_publishers_info_by_topic(name),
                                                    peer.node.get_subscriptions_info_by_topic(name))
                 for name, _ in peer.node.get_topic_names_and_types() if name.startswith("/station_a/")}
    return sorted((folder / "spool/closed").iterdir())[-1], publishers, graph


def shown_topics():
    """Topics in Foxglove's layout and RViz's displays, with the station's only camera for each."""
    layout = json.loads(Path("configs/foxglove.json").read_text())
    rviz = yaml.safe_load(Path("configs/station.rviz").read_text())
    names = {re.sub(r"\[.*?\]", "", text).split(".")[0] for text in strings([layout, rviz])
             if text.startswith("/station_a/")}
    return {re.sub("camera/[^/]+/", "camera/wrist/", name).removesuffix("/compressed") for name in names}


@pytest.fixture(scope="module")
def episode(played):
    return played[0]


def test_somebody_publishes_each_topic_that_foxglove_and_rviz_show(played):
    assert len(played[1]) >= 12 and "/station_a/camera/wrist/image" in played[1]
    silent = [name for name, publishers in played[1].items() if publishers != 1]
    assert silent == ["/station_a/goal_pose"], "this task alone has no goal"


def nodes(endpoints):
    """Words of the table for the nodes of a topic's endpoints; hidden nodes belong to the one that they are named after."""
    names = {re.sub("_(inputs|poses|desk)$", "", endpoint.node_name) for endpoint in endpoints} - {"peer"}
    return {"robot side" if name == "sim_bridge" else name for name in names}


def test_each_sender_and_receiver_of_a_running_station_stands_in_the_table_of_topics(played):
    rows = {name: topic(name) for name in played[2] if not re.search("/_action/|^interlock/|^tf", name)}
    assert len(rows) > 25
    for name, row in rows.items():
        speakers, listeners = map(nodes, played[2][name])
        assert row.sender.startswith("each node") or speakers <= set(row.sender.split(", ")), name
        assert listeners <= set(row.listeners.split(", ")), name


@pytest.fixture(scope="module")
def recorded(episode):
    """Messages by topic."""
    by_topic = {}
    with Reader(episode) as reader:
        for connection, _, raw in reader.messages():
            by_topic.setdefault(connection.topic, []).append(typestore().deserialize_cdr(raw, connection.msgtype))
    return by_topic


def test_each_time_step_comes_with_the_state_of_its_own_time(recorded, episode):
    steps = {to_ns(step.header.stamp) for step in recorded["/station_a/timestep"]}
    for name in ("current_pose", "joint_states", "gripper/state", "current_twist", "wrench", "object_pose",
                 "camera/wrist/camera_info", "camera/wrist/image/compressed"):
        stamps = [to_ns(message.header.stamp) for message in recorded[f"/station_a/{name}"]]
        assert steps <= set(stamps) and stamps == sorted(stamps), name
    assert "/station_a/camera/wrist/image" not in recorded, "the observation has its pixels"
    assert len(read_episode(episode, sealed=True)) == len(steps) - 1, "and what learns reads it as before"


def test_limits_and_full_specs_are_attached(episode):
    recipe = load_recipe("demo", ["station.observe_cameras=[wrist]", "station.task=reach"])
    with next(episode.glob("*.mcap")).open("rb") as file:
        attached = {file_.name: file_.data for file_ in make_reader(file, validate_crcs=True).iter_attachments()}
    assert json.loads(attached["specs.json"]) == json.loads(json.dumps(station_task(recipe).spec.to_dict()))
    assert b"box_low" in attached["limits.yaml"] or b"extends" in attached["limits.yaml"]


def test_the_picture_is_that_of_the_observation_and_the_camera_says_how_it_sees(recorded):
    step, shown = recorded["/station_a/timestep"][3], recorded["/station_a/camera/wrist/image/compressed"]
    jpeg = next(image for image in shown if image.header.stamp == step.header.stamp)
    picture = cv2.imdecode(jpeg.data, cv2.IMREAD_COLOR)[:, :, ::-1].astype(float)
    observed = step.images[0].data.reshape(64, 64, 3).astype(float)
    assert jpeg.format == "rgb8; jpeg compressed bgr8" and np.abs(picture - observed).mean() < 4.0
    assert np.abs(picture[:, :, ::-1] - observed).mean() > np.abs(picture - observed).mean(), "red is red"
    info = recorded["/station_a/camera/wrist/camera_info"][0]
    assert (info.width, info.height) == (64, 64) and info.k[0] == info.k[4] > 10 and list(info.k[2::3]) == [32.0, 32.0, 1.0]
    assert info.header.frame_id == jpeg.header.frame_id == "wrist_optical_frame"


def test_the_tool_is_a_transform_and_the_robot_described(recorded):
    poses, moved = recorded["/station_a/current_pose"], [message.transforms[0] for message in recorded["/tf"]]
    assert {(stamped.header.frame_id, stamped.child_frame_id) for stamped in moved} == {("base_link", "tool0")}
    for pose, transform in zip(poses, moved, strict=True):
        assert pose.header.stamp == transform.header.stamp
        assert (pose.pose.position.x, pose.pose.orientation.w) == (transform.transform.translation.x,
                                                                  transform.transform.rotation.w)
    assert [robot.data for robot in recorded["/station_a/robot_description"]] == [URDF], "with each episode, once"


def test_played_into_a_running_graph_every_topic_is_heard_as_it_was_recorded(episode):
    assert_played(episode, domain=118, least=11, others=["camera/wrist/image/compressed"])


def test_what_is_sampled_is_of_each_arm_and_each_camera():
    names = sampled(["left", "right"], ["front"])
    assert {"left/current_pose", "right/target_pose", "camera/front/camera_info"} <= set(names)
    assert "current_pose" not in names and not any("<" in name for name in names)


@pytest.mark.parametrize("name, kind, raw, stamp", [
    ("camera/front/image", "sensor_msgs/msg/Image", b"\0\1\0\0\2\0\0\0\3\0\0\0", 2_000_000_003),
    ("camera/front/image", "sensor_msgs/msg/Image", b"\0\0\0\0\0\0\0\2\0\0\0\3", 2_000_000_003),
    ("current_pose", "geometry_msgs/msg/PoseStamped", b"", 0),
    ("wrench", "geometry_msgs/msg/WrenchStamped", b"\0\1\0\0", 0),
    ("wrench", "geometry_msgs/msg/WrenchStamped", b"\0\1\0\0\2\0\0\0\3\0\0", 0)])
def test_what_cannot_be_read_is_kept_as_it_came(name, kind, raw, stamp):
    message = Message(f"/s/{name}", kind, 7, raw)
    assert standard(name, message) == [message] and stamp_ns(raw) == stamp


def test_an_image_of_another_encoding_is_kept_as_it_is():
    store = typestore()
    header = store.types["std_msgs/msg/Header"](stamp=store.types["builtin_interfaces/msg/Time"](sec=3, nanosec=4),
                                                frame_id="depth")
    depth = store.types["sensor_msgs/msg/Image"](header=header, height=2, width=2, encoding="16UC1", is_bigendian=0, step=4,
                                                 data=np.zeros(8, np.uint8))
    raw = bytes(store.serialize_cdr(depth, "sensor_msgs/msg/Image"))
    message = Message("/s/camera/depth/image", "sensor_msgs/msg/Image", 7, raw)
    assert standard("camera/depth/image", message) == [message] and stamp_ns(raw) == 3_000_000_004


@pytest.mark.parametrize("frame", ["", "base", "a_long_name_of_a_frame"])
@pytest.mark.parametrize("kind", [TimeStep.FIRST, TimeStep.MID, TimeStep.LAST])
def test_a_time_steps_kind_is_found_without_reading_it(frame, kind):
    step = TimeStep(step_type=kind, reward=0.5)
    step.header.frame_id = frame
    raw = serialize_message(step)
    assert step_type(raw) == kind
    assert step_type(raw[:14]) == -1
