"""The box and the home that a hand shows: numbers, a YAML's text and a picture."""

import numpy as np
import pytest
import yaml

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock.limits_file import load_limits, with_values
from rlinf_core.robots.calibration.guided import GuidedPath, draw, tool_deviation
from rlinf_core.robots.calibration.yaml_edits import publish, with_keys

LIMITS = """# Ours.
box_low: [0.3, -0.2, 0.0]   # the table
speed: 0.25
"""


def guided(*points, home=None):
    guide = GuidedPath(home=home)
    for point in points:
        guide.add(np.array(point))
    return guide


def test_the_box_lies_within_what_was_guided_in_whole_millimetres():
    path = guided([0.3004, -0.2, 0.0201], [0.6, 0.1, 0.3], [0.45, 0.2, 0.1])
    assert path.box(0.01) == ([0.311, -0.19, 0.031], [0.59, 0.19, 0.29])
    assert path.box(0.0) == ([0.301, -0.2, 0.021], [0.6, 0.2, 0.3])
    assert len(guided([0, 0, 0], [0, 0, 0.0005], [np.nan, 0, 0], [0, 0, 0.002]).path) == 2, (
        "no noise, and no number"
    )


@pytest.mark.parametrize(
    "path, margin, error",
    [
        (guided(), 0.01, "no pose was received yet"),
        (
            guided([0.3, -0.2, 0.1], [0.6, 0.2, 0.112]),
            0.0,
            r"z: expected a box of at least 0.02 m, got 0.012 m",
        ),
        (
            guided([0.3, -0.2, 0.1], [0.6, 0.2, 0.4]),
            0.2,
            r"x: expected .* within a margin of 0.2 m",
        ),
        (
            guided([0.3, -0.2, 0.1], [0.6, 0.2, 0.4], home=np.array([0.3, 0.0, 0.2])),
            0.01,
            "home: expected it within the box",
        ),
    ],
)
def test_what_was_not_shown_is_named(path, margin, error):
    with pytest.raises(RlinfError, match=error):
        path.box(margin)


@pytest.mark.parametrize(
    "degrees, has_orientation", [(0, False), (14, False), (15, True), (-90, True), (180, True)]
)
def test_a_tool_beyond_half_of_the_cone_has_its_own_orientation(degrees, has_orientation):
    # a cone of 0.5 rad, half of which are 14.3 degrees
    limits = load_limits("robots/franka_fr3/limits.yaml")
    half = np.radians(degrees) / 2
    shown = np.array([np.cos(half), np.sin(half), 0.0, 0.0])  # the hand, turned about the vertical
    angle_rad, orientation = tool_deviation(limits, 1.001 * shown)
    assert angle_rad == pytest.approx(np.radians(abs(degrees)), abs=1e-9)
    assert orientation == (pytest.approx(shown, abs=1e-5) if has_orientation else [])
    joints = with_values(limits, {"control_mode": "joint_delta"})
    assert tool_deviation(joints, shown)[1] == [], "nobody holds it there"


def test_a_yaml_keeps_its_comments_and_its_other_keys():
    new = with_keys(LIMITS, {"box_low": [0.311, -0.19, 0.03], "box_high": [0.6, 0.2, 0.3]})
    assert (
        new == "# Ours.\nbox_low: [0.311, -0.19, 0.03]   # the table\nspeed: 0.25\nbox_high: [0.6, "
        "0.2, 0.3]\n"
    )
    home = {"home": {"position": [0.4, 0.1, 0.3]}}
    robot = with_keys(
        "driver: external\nlimits: limits.yaml\n# home: {position: [0.5, 0.0, 0.3]}\n", home
    )
    assert yaml.safe_load(robot) == {"driver": "external", "limits": "limits.yaml", **home}


@pytest.mark.parametrize(
    "text",
    ["box_low: [0.3,\n  -0.2, 0.0]\n", "box_low:\n- 0.3\n- -0.2\n- 0.0\n", "{speed: 0.25}\n"],
)
def test_a_yaml_written_otherwise_is_left_as_it_is_with_the_lines_to_write(text):
    with pytest.raises(RlinfError, match=r"Write by hand:\nbox_low: \[0.1, 0.2, 0.3\]"):
        with_keys(text, {"box_low": [0.1, 0.2, 0.3]})


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text("a: 1\n")
    path.chmod(0o640)
    publish(path, "a: 2\n")
    assert path.read_text() == "a: 2\n" and [entry.name for entry in tmp_path.iterdir()] == [
        "limits.yaml"
    ]
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_picture_shows_box_and_home_where_they_are(tmp_path):
    import cv2

    path = guided([0.3, -0.2, 0.1], [0.6, 0.2, 0.4], home=np.array([0.45, 0.0, 0.25]))
    draw(path, [0.31, -0.19, 0.11], [0.59, 0.19, 0.39], tmp_path / "a.png")
    picture = cv2.imread(str(tmp_path / "a.png"))
    height, width = picture.shape[:2]
    assert width == 3 * height
    for view in range(3):  # all three are centred on the home here
        blue, _, red = picture[height // 2, view * height + height // 2].astype(int)
        assert red > blue + 100
    with pytest.raises(RlinfError, match="expected a writable picture path"):
        draw(path, [0.31, -0.19, 0.11], [0.59, 0.19, 0.39], tmp_path / "nowhere/a.png")
