"""One table of topics: what nodes, recordings and pages make of it."""

import re
from pathlib import Path

import pytest

from rlinf_core.errors import RlinfError
from rlinf_core.interface import EPISODE, TOPICS, topic

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name, row", [
    ("current_pose", "current_pose"), ("left/current_pose", "current_pose"), ("right/gripper/state", "gripper/state"),
    ("camera/wrist/image", "camera/<name>/image"), ("estop/pendant", "estop/<name>"), ("clock", "clock")])
def test_a_topic_is_found_for_any_camera_estop_or_arm(name, row):
    assert topic(name).name == row


@pytest.mark.parametrize("name, said", [
    ("curent_pose", "did you mean 'current_pose'"), ("left/timestep", "topic 'left/timestep': expected one of the robot"),
    ("camera/wrist", "expected one of the robot interface"), ("estop", "expected one of the robot interface")])
def test_another_name_is_refused(name, said):
    with pytest.raises(RlinfError, match=said):
        topic(name)


def test_every_topic_that_a_page_for_robots_names_is_in_the_table():
    page = (ROOT / "docs/real_robot.md").read_text()
    rows = re.findall(r"^\| (?:in|out) \| ([^|]+) \|", page, re.M)
    assert len(rows) >= 8
    for name in (name for row in rows for name in re.findall(r"`([^`]+)`", row)):
        assert topic(name).name == name


def test_what_makes_an_episode_is_kept_for_a_recorder_that_is_late():
    """A takeover of lockstep brings a dozen chunks at once: with ten of them kept, the one in play was lost."""
    rates = ("control rate", "each chunk", "each action")
    late = {row.name: row.depth for row in TOPICS if row.recorded == EPISODE and row.rate in rates}
    assert {"timestep", "policy/action", "teleop/action", "applied"} <= late.keys() and min(late.values()) >= 50


@pytest.mark.ros
def test_ros_makes_its_classes_and_its_quality_of_service_of_it():
    from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

    from rlinf.qos import kind, profile, received

    for row in TOPICS:
        made = kind(row.name)
        assert f"{made.__module__.split('.')[0]}/msg/{made.__name__}" == row.type
        quality = profile(row.name)
        assert quality.depth == row.depth and quality.reliability == ReliabilityPolicy.RELIABLE
        assert (quality.durability == DurabilityPolicy.TRANSIENT_LOCAL) is row.latched
        assert received(row.name, True).reliability == ReliabilityPolicy.RELIABLE, "in lockstep nothing may be lost"
        assert (received(row.name, False).reliability == ReliabilityPolicy.BEST_EFFORT) is row.newest
    assert profile("left/robot/fault").durability == DurabilityPolicy.TRANSIENT_LOCAL
