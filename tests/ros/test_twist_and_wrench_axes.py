"""Twists and wrenches that a driver says along the tool's axes, or along others, and what the
environment makes of them.
"""

import pytest
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from sensor_msgs.msg import Image

from rlinf_core.core.errors import SpecError
from rlinf_ros.latest_messages import Latest
from rlinf_ros.qos import publisher

pytestmark = [pytest.mark.ros, pytest.mark.domain(9)]
MESSAGE_TYPES = {
    "current_twist": TwistStamped,
    "wrench": WrenchStamped,
    "current_pose": PoseStamped,
}


@pytest.fixture
def axes_inputs(peer):
    axes = {
        "current_twist": {"frame": "base_link", "tool": True},
        "wrench": {"frame": "base_link", "tool": False},
    }
    return Latest(peer.node, set(MESSAGE_TYPES), True, axes=axes), {
        name: publisher(peer.node, name) for name in MESSAGE_TYPES
    }


def say(say, name, frame, first, second=(0.0, 0.0, 0.0)):
    message = MESSAGE_TYPES[name]()
    message.header.frame_id, message.header.stamp.sec = frame, 7
    inside = message.twist if name == "current_twist" else message.wrench
    parts = (
        (inside.linear, inside.angular)
        if name == "current_twist"
        else (inside.force, inside.torque)
    )
    for part, values in zip(parts, (first, second), strict=True):
        part.x, part.y, part.z = values
    say[name].publish(message)


def test_what_is_along_the_tools_axes_is_turned_by_its_pose_and_what_is_in_the_base_frame_stays(
    peer, axes_inputs
):
    inputs, publishers = axes_inputs
    peer.spin(
        lambda: all(sender.get_subscription_count() for sender in publishers.values()),
        what="who hears",
    )
    say(publishers, "current_twist", "fr3_hand_tcp", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    peer.for_s(0.3)
    inputs.pull()
    assert "current_twist" not in inputs.channels, "nobody knows how the tool is turned"
    pose = PoseStamped()
    # it looks down, x forward
    pose.header.stamp.sec = 7
    pose.pose.orientation.x = 1.0
    pose.pose.orientation.w = 0.0
    publishers["current_pose"].publish(pose)
    say(publishers, "current_twist", "fr3_hand_tcp", (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    say(publishers, "wrench", "base_link", (1.0, 2.0, 3.0))

    def pulled():
        inputs.pull()
        return set(inputs.channels) == set(MESSAGE_TYPES)

    peer.spin(pulled, what=lambda: f"all of them: {list(inputs.channels)}")
    assert inputs.channels["current_twist"] == pytest.approx([0.1, -0.2, -0.3, 1.0, -2.0, -3.0])
    assert inputs.channels["wrench"] == pytest.approx([1.0, 2.0, 3.0, 0.0, 0.0, 0.0])
    say(publishers, "current_twist", "base_link", (0.1, 0.2, 0.3))
    peer.spin(
        lambda: pulled() and inputs.channels["current_twist"][1] == pytest.approx(0.2),
        what="that in the base frame",
    )


def test_a_pose_that_is_no_rotation_turns_nothing(peer, axes_inputs):
    inputs, publishers = axes_inputs
    peer.spin(
        lambda: all(sender.get_subscription_count() for sender in publishers.values()),
        what="who hears",
    )
    pose = PoseStamped()
    pose.header.stamp.sec, pose.pose.orientation.w = 7, 0.0
    publishers["current_pose"].publish(pose)
    say(publishers, "current_twist", "fr3_hand_tcp", (0.1, 0.2, 0.3))
    peer.for_s(0.3)
    inputs.pull()
    assert set(inputs.channels) == {"current_pose"}


def test_a_refused_frame_ends_nobody_who_looks_through_two_cameras(peer):
    """The first image takes what is here by then: what it refuses is said by whoever pulls, and not
    by the executor.
    """
    cameras = ("camera/front/image", "camera/wrist/image")
    frames = {"wrench": {"frame": "base_link", "tool": False}}
    inputs = Latest(peer.node, {"wrench", *cameras}, False, on_image=lambda: None, axes=frames)
    publishers = {name: publisher(peer.node, name) for name in ("wrench", *cameras)}
    peer.spin(
        lambda: all(sender.get_subscription_count() for sender in publishers.values()),
        what="who hears",
    )
    for _ in range(20):
        say(publishers, "wrench", "tool0_controller", (1.0, 2.0, 3.0))
        for name in cameras:
            publishers[name].publish(
                Image(height=1, width=1, step=3, encoding="rgb8", data=bytes(3))
            )
        peer.for_s(0.02)
    assert "wrench" not in inputs.channels
    say(publishers, "wrench", "tool0_controller", (1.0, 2.0, 3.0))
    peer.for_s(0.3)
    with pytest.raises(SpecError, match="tool0_controller"):
        inputs.pull()


def test_what_is_along_the_axes_of_another_frame_is_refused_with_what_to_write(peer, axes_inputs):
    inputs, publishers = axes_inputs
    peer.spin(
        lambda: all(sender.get_subscription_count() for sender in publishers.values()),
        what="who hears",
    )
    say(publishers, "wrench", "tool0_controller", (1.0, 2.0, 3.0))

    def refused():
        try:
            inputs.pull()
        except SpecError as error:
            return str(error)
        return ""

    words = []
    peer.spin(lambda: words.append(refused()) or words[-1], what="the refusal")
    assert (
        "wrench: expected values along the axes of the limits' frame 'base_link', got "
        "'tool0_controller'" in words[-1]
    )
    assert "tool_axes: [wrench] in robot.yaml" in words[-1] and "wrench" not in inputs.channels
