"""The frames and markers of a station, as RViz and Foxglove get them."""

import math

import cv2
import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.episodes.messages import (
    COMPRESSED,
    IMAGE,
    POSE,
    TRANSFORMS,
    compress_image,
    typestore,
)
from rlinf_core.episodes.ring import Message
from rlinf_core.episodes.view import JOINTS, MARKERS, View, text_of

STAMP = (12, 345)
BOX = ((-0.1, -0.2, 0.0), (0.3, 0.4, 0.5))
HALF = math.sqrt(0.5)
# a plate on a flange behind a turning shoulder and a slider
URDF = """<robot name="r">
  <link name="stand"/><link name="shoulder"/><link name="slider"/><link name="flange"/>
  <joint name="turn" type="revolute">
    <parent link="stand"/><child link="shoulder"/><origin xyz="0 0 1"/><axis xyz="0 0 1"/>
  </joint>
  <joint name="slide" type="prismatic">
    <parent link="shoulder"/><child link="slider"/><origin xyz="0.5 0 0"/><axis xyz="1 0 0"/>
  </joint>
  <joint name="plate" type="fixed">
    <parent link="slider"/><child link="flange"/><origin xyz="0 0 0.1"/>
  </joint>
</robot>"""


def view(bases=("",), **how):
    names = {arm: f"{arm}_base" if arm else "table" for arm in bases}
    return View("lab", names, how.pop("tool", "tool0"), how.pop("mounts", {}), **how)


def cdr(kind, **fields):
    """A message with a header of STAMP, as CDR."""
    types = typestore().types
    header = types["std_msgs/msg/Header"](
        types["builtin_interfaces/msg/Time"](*STAMP), fields.pop("frame", "")
    )
    return bytes(typestore().serialize_cdr(types[kind](header=header, **fields), kind))


def pose(frame="", position=(0.1, 0.2, 0.3), orientation=(0.0, 0.0, HALF, HALF)):
    types = typestore().types
    return cdr(
        POSE,
        frame=frame,
        pose=types["geometry_msgs/msg/Pose"](
            types["geometry_msgs/msg/Point"](*position),
            types["geometry_msgs/msg/Quaternion"](*orientation),
        ),
    )


def joints(**positions):
    nothing = np.zeros(0)
    return cdr(
        JOINTS,
        name=[*positions],
        position=np.array([*positions.values()], float),
        velocity=nothing,
        effort=nothing,
    )


def numbers(message, names):
    return tuple(getattr(message, name) for name in names)


def frames(raw):
    """{child: (parent, position, orientation)}; every one has STAMP."""
    placed = {}
    for one in typestore().deserialize_cdr(raw, TRANSFORMS).transforms:
        assert (one.header.stamp.sec, one.header.stamp.nanosec) == STAMP
        placed[one.child_frame_id] = (
            one.header.frame_id,
            numbers(one.transform.translation, "xyz"),
            numbers(one.transform.rotation, "xyzw"),
        )
    return placed


STILL = (0.0, 0.0, 0.0, 1.0)


def test_mounts_and_fixed_links_are_placed_once():
    mounts = {
        "camera": {"frame": "table", "position": [1, 2, 3], "orientation": [0, 0, HALF, HALF]}
    }
    shown = view(mounts=mounts)
    camera = {"lab/camera": ("lab/table", (1.0, 2.0, 3.0), (0.0, 0.0, HALF, HALF))}
    assert frames(shown.fixed_frames(STAMP)) == camera
    shown.describe(URDF)
    assert frames(shown.fixed_frames(STAMP)) == camera | {
        "lab/flange": ("lab/slider", (0.0, 0.0, 0.1), STILL),
        "lab/stand": ("lab/table", (0.0, 0.0, 0.0), STILL),
    }, "the robot stands in the frame of the limits"


def test_a_robot_that_has_the_frame_of_the_limits_or_is_mounted_is_not_placed_again():
    with_base = view()
    with_base.describe(URDF.replace("stand", "table"))
    assert frames(with_base.fixed_frames(STAMP)).keys() == {"lab/flange"}
    mounted = view(
        mounts={"stand": {"frame": "floor", "position": (0, 0, 1), "orientation": STILL}}
    )
    mounted.describe(URDF)
    assert frames(mounted.fixed_frames(STAMP))["lab/stand"] == ("lab/floor", (0.0, 0.0, 1.0), STILL)
    with pytest.raises(RecipeError, match="robot_description: expected a URDF"):
        with_base.describe("no XML")
    assert frames(with_base.fixed_frames(STAMP)).keys() == {"lab/flange"}, "the last one stays"


@pytest.mark.parametrize(
    "name, frame, child, parent",
    [
        ("current_pose", "world", "lab/tool0", "lab/world"),
        ("current_pose", "", "lab/tool0", "lab/table"),
        ("target_pose", "world", "lab/target", "lab/world"),
        ("object_pose", "", "lab/object", "lab/table"),
        ("goal_pose", "", "lab/goal", "lab/table"),
    ],
)
def test_a_pose_places_its_frame_in_that_of_its_header(name, frame, child, parent):
    assert frames(view().moving_frames(name, pose(frame))) == {
        child: (parent, (0.1, 0.2, 0.3), (0.0, 0.0, HALF, HALF))
    }


def test_frames_of_an_arm_have_its_name():
    shown = view(("left", "right"))
    assert frames(shown.moving_frames("right/current_pose", pose())).popitem() == (
        "lab/right_tool0",
        ("lab/right_base", (0.1, 0.2, 0.3), (0.0, 0.0, HALF, HALF)),
    )
    assert frames(shown.moving_frames("left/target_pose", pose())).keys() == {"lab/left_target"}
    unnamed = frames(shown.moving_frames("object_pose", pose()))
    assert unnamed["lab/object"][0] == "lab/base_link", "an object of no arm"


def test_links_follow_the_joints():
    shown = view()
    shown.describe(URDF)
    placed = frames(
        shown.moving_frames("joint_states", joints(turn=math.pi / 2, other=7.0, slide=0.2))
    )
    assert placed.keys() == {"lab/shoulder", "lab/slider"}
    assert placed["lab/shoulder"][:2] == ("lab/stand", (0.0, 0.0, 1.0))
    assert placed["lab/shoulder"][2] == pytest.approx((0.0, 0.0, HALF, HALF))
    assert placed["lab/slider"] == ("lab/shoulder", (0.7, 0.0, 0.0), STILL)
    assert frames(shown.moving_frames("joint_states", joints(turn=0.0))).keys() == {"lab/shoulder"}


def test_joints_of_an_arm_are_those_with_its_name():
    shown = view(("left", "right"))
    shown.describe(URDF.replace('name="slide"', 'name="right_slide"'))
    placed = frames(shown.moving_frames("right/joint_states", joints(slide=0.1, turn=1.0)))
    assert placed == {"lab/slider": ("lab/shoulder", (0.6, 0.0, 0.0), STILL)}
    assert shown.moving_frames("left/joint_states", joints(slide=0.1)) is None


def test_what_places_nothing_is_none():
    shown = view()
    assert shown.moving_frames("joint_states", joints(turn=1.0)) is None, "no URDF"
    assert shown.moving_frames("current_pose", b"damaged") is None
    assert shown.moving_frames("wrench", pose()) is None
    assert view(tool="").moving_frames("current_pose", pose()) is None
    assert view(("left",), tool="").moving_frames("left/current_pose", pose()) is None
    flange = view(tool="flange")
    assert flange.moving_frames("current_pose", pose()) is not None
    flange.describe(URDF)
    assert flange.moving_frames("current_pose", pose()) is None, "the URDF places it"


def test_a_state_changes_the_markers_once():
    shown = view()
    assert shown.update("", 2, "") is True and shown.update("", 2, "") is False
    assert shown.update("", 3, "") and shown.update("", 3, "e-stop") and shown.update("left", 3, "")
    assert not shown.update("", 3, "e-stop")


def markers(shown):
    return {
        marker.ns: marker
        for marker in typestore().deserialize_cdr(shown.markers(STAMP), MARKERS).markers
    }


def colour(marker):
    return [round(value, 3) for value in numbers(marker.color, "rgba")]


def test_a_workspace_is_a_box_of_lines_with_the_state_above_it():
    shown = view(boxes={"": BOX})
    assert list(markers(shown)) == ["workspace", "state"]
    box, state = markers(shown).values()
    for marker in (box, state):
        assert marker.header.frame_id == "lab/table"
        assert (marker.header.stamp.sec, marker.header.stamp.nanosec) == STAMP
        assert (marker.id, marker.action, marker.frame_locked) == (0, 0, False)
        assert numbers(marker.pose.orientation, "xyzw") == STILL
        assert (marker.lifetime.sec, marker.lifetime.nanosec) == (0, 0), "until the next one"
        assert marker.mesh_resource == marker.texture_resource == ""
        assert marker.mesh_use_embedded_materials is False
        assert not len(marker.mesh_file.data) and not len(marker.texture.data)
        assert marker.mesh_file.filename == marker.texture.format == ""
        assert len(marker.colors) == len(marker.uv_coordinates) == 0
        assert colour(marker) == [0.6, 0.6, 0.6, 1.0]
    assert (box.type, state.type) == (5, 9), "LINE_LIST and TEXT_VIEW_FACING"
    assert numbers(box.pose.position, "xyz") == (0.0, 0.0, 0.0)
    assert numbers(box.scale, "xyz") == (0.004, 0.0, 0.0) and box.text == ""
    assert numbers(state.pose.position, "xyz") == pytest.approx((0.1, 0.1, 0.55))
    assert numbers(state.scale, "xyz") == (0.0, 0.0, 0.05)
    assert state.text == "DISARMED" and len(state.points) == 0
    points = [numbers(point, "xyz") for point in box.points]
    lines = {frozenset(pair) for pair in zip(points[::2], points[1::2], strict=True)}
    corners = {(x, y, z) for x in (-0.1, 0.3) for y in (-0.2, 0.4) for z in (0.0, 0.5)}
    assert lines == {
        frozenset((a, b))
        for a in corners
        for b in corners
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1
    }, "its twelve edges"
    assert len(points) == 24


@pytest.mark.parametrize(
    "state, text, expected",
    [
        (0, "DISARMED", [0.6, 0.6, 0.6, 1.0]),
        (1, "ARMED", [0.2, 0.5, 1.0, 1.0]),
        (2, "ACTIVE", [0.1, 0.8, 0.2, 1.0]),
        (3, "HOLD", [1.0, 0.75, 0.0, 1.0]),
        (4, "FAULT", [1.0, 0.1, 0.1, 1.0]),
        (5, "5", [1.0, 0.1, 0.1, 1.0]),
    ],
)
def test_each_state_has_its_word_and_colour(state, text, expected):
    shown = view(boxes={"": BOX})
    shown.update("", state, "door open")
    assert markers(shown)["state"].text == f"{text} door open"
    assert [colour(marker) for marker in markers(shown).values()] == [expected] * 2


def test_each_arm_has_its_workspace_and_state():
    shown = view(("left", "right"), boxes={"left": BOX, "right": BOX, "third": BOX})
    shown.update("right", 2, "")
    by_name = markers(shown)
    assert list(by_name) == [
        f"{arm}_{what}" for arm in ("left", "right", "third") for what in ("workspace", "state")
    ]
    assert by_name["right_state"].text == "right ACTIVE"
    assert by_name["left_state"].text == "left DISARMED"
    assert by_name["left_workspace"].header.frame_id == "lab/left_base"
    assert by_name["third_state"].header.frame_id == "lab/base_link"
    assert markers(view()) == {}, "without a workspace there is nothing to show"


def test_the_text_of_a_description_is_read():
    types = typestore().types
    raw = typestore().serialize_cdr(types["std_msgs/msg/String"](URDF), "std_msgs/msg/String")
    assert text_of(bytes(raw)) == URDF


@pytest.mark.parametrize("encoding, channel", [("rgb8", 2), ("bgr8", 0)])
def test_a_recorded_picture_keeps_its_colours(encoding, channel):
    raw = cdr(
        IMAGE,
        height=8,
        width=8,
        encoding=encoding,
        is_bigendian=0,
        step=24,
        data=np.tile(np.array([250, 0, 0], np.uint8), 64),
    )
    message = compress_image(Message("/lab/camera/front/image", IMAGE, 1, raw))
    assert message.topic == "/lab/camera/front/image/compressed" and message.kind == COMPRESSED
    picture = typestore().deserialize_cdr(message.raw, COMPRESSED)
    assert picture.format == f"{encoding}; jpeg compressed bgr8"
    decoded = cv2.imdecode(picture.data, cv2.IMREAD_COLOR)
    assert decoded[4, 4].argmax() == channel and decoded.shape == (8, 8, 3)
