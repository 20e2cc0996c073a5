"""Foxglove's layout, RViz's displays and package.xml name topics, fields and packages that
exist.
"""

import ast
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from rosbags.rosbag2 import Writer

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError
from rlinf_core.episodes.messages import typestore
from rlinf_core.launch.layouts import (
    LayoutContent,
    content_of_recipe,
    content_of_recording,
    foxglove,
    rename_topics,
    rviz,
    rviz_command,
)
from rlinf_core.recipes import load_recipe
from rlinf_core.specs.topics import DERIVED, EPISODE, topic

ROOT = Path(__file__).resolve().parent.parent
SHOWS = {
    "MarkerArray": "visualization_msgs/msg/MarkerArray",
    "Image": "sensor_msgs/msg/CompressedImage",
    "RobotModel": "std_msgs/msg/String",
}
# make setup brings them, and what they need
DISTRIBUTION = {
    "rlinf_core",
    "sim_bridges",
    "station",
    "torch",
}
RUNS_WITH = {  # launch files, configs/fastdds.xml, the nodes that launch files start
    "rlinf_ros": {"rmw_fastrtps_cpp", "tf2_msgs", "visualization_msgs"},
    "rlinf_bringup": {
        "ros2launch",
        "rlinf_interlock",
        "rlinf_station",
        "rlinf_operator",
        "rlinf_drivers",
        "rlinf_tools",
        "rlinf_description",
    },
}
ROSDEP = {"numpy": "python3-numpy", "cv2": "python3-opencv", "yaml": "python3-yaml"}


def strings(data):
    if isinstance(data, dict):
        data = [*data, *data.values()]
    if isinstance(data, list):
        for element in data:
            yield from strings(element)
    elif isinstance(data, str):
        yield data


def field(kind, path):
    """The type at ``pose.position.x`` in a message, as rosbags describes it; a list's is that of
    its items.
    """
    for name in path:
        fields = dict(typestore().fielddefs[kind][1])
        assert name in fields, f"{kind} has no {name}, but {', '.join(fields)}"
        sort, what = fields[name]
        kind = what[0][1] if int(sort) > 2 else what
    return kind


LAYOUTS = {
    "station_a": LayoutContent("station_a", ("wrist", "front")),
    "lab_2": LayoutContent("lab_2", ("top",), ("left", "right"), "left_base_link", clock=True),
    "bare": LayoutContent("bare", (), base="base", tool="tcp"),
}


@pytest.mark.parametrize("station", LAYOUTS)
def test_every_path_of_the_foxglove_layout_is_a_field_of_a_topic_of_the_interface(station):
    layout = json.loads(foxglove(LAYOUTS[station]))
    paths = [text for text in strings(layout["configById"]) if text.startswith(f"/{station}/")]
    assert len(paths) > 15 and (station == "station_a" or "station_a" not in json.dumps(layout))
    for text in paths:
        name, *path = re.sub(r"\[.*?\]", "", text.removeprefix(f"/{station}/")).split(".")
        row = topic(name)
        field(row.type, path)
        assert row.sampled or row.recorded in (EPISODE, DERIVED) or name.endswith("/compressed"), (
            f"{name} is not recorded"
        )
    panels = set(strings(layout["layout"])) - {
        "first",
        "second",
        "direction",
        "splitPercentage",
        "row",
        "column",
    }
    assert panels == set(layout["configById"])
    cameras = {panel for panel in panels if panel.startswith("Image!")}
    assert cameras == {f"Image!{camera}" for camera in LAYOUTS[station].cameras}


@pytest.mark.parametrize("station", LAYOUTS)
def test_every_display_of_rviz_shows_a_topic_of_the_interface_of_its_type(station):
    shown = LAYOUTS[station]
    document = yaml.safe_load(rviz(shown))["Visualization Manager"]
    assert document["Global Options"]["Fixed Frame"] == f"{station}/{shown.base}"
    displays = {display["Name"]: display for display in document["Displays"]}
    topics = {
        name: display.get("Topic", display.get("Description Topic"))["Value"]
        for name, display in displays.items()
        if "Topic" in display or "Description Topic" in display
    }
    assert len(topics) == 2 + len(shown.cameras), "robot, workspace and state, images"
    for name, full in topics.items():
        assert (
            topic(full.removeprefix(f"/{station}/")).type
            == SHOWS[displays[name]["Class"].split("/")[1]]
        ), name
    frames = {
        display["Reference Frame"] for display in displays.values() if "Reference Frame" in display
    }
    tool = f"{station}/left_tool0" if shown.arms else f"{station}/{shown.tool}"
    assert (
        tool in frames
        and len(frames) == 3 * max(1, len(shown.arms))
        and displays["Robot"]["TF Prefix"] == station
    )
    command = " ".join(rviz_command("f", shown))
    assert (
        f"/tf:=/{station}/tf" in command and (f"/clock:=/{station}/clock" in command) is shown.clock
    )


def test_topics_that_a_driver_names_otherwise_are_shown_by_its_names():
    shown = LayoutContent(
        "cell",
        ("wrist",),
        topics=(
            ("camera/wrist/image", "/cam/color"),
            ("joint_states", "/joint_states"),
            ("robot_description", "/robot_description"),
        ),
    )
    texts = {*strings(json.loads(foxglove(shown))), *strings(yaml.safe_load(rviz(shown)))}
    assert {"/cam/color/compressed", "/joint_states.position[:]", "/robot_description"} <= texts
    assert not any(
        re.match("/cell/(camera/wrist/image|joint_states|robot_description)", text)
        for text in texts
    )
    assert "/cell/camera/wrist/camera_info" in texts


def test_the_command_writes_the_layouts_of_a_recipes_station(tmp_path, capsys):
    changes = ["station.name=lab_3", "station.observe_cameras=[front]"]
    assert main(["view", "demo", f"--out={tmp_path}", "--set", *changes]) == 0
    written = yaml.safe_load((tmp_path / "lab_3.rviz").read_text())["Visualization Manager"]
    assert "lab_3" in (tmp_path / "lab_3.foxglove.json").read_text()
    assert [
        display["Name"] for display in written["Displays"] if display["Class"].endswith("/Image")
    ] == ["Front"]
    assert (
        "rviz2 -d" in (printed := capsys.readouterr().out)
        and "/tf_static:=/lab_3/tf_static" in printed
    )


def test_a_path_that_no_message_has_is_found():
    with pytest.raises(AssertionError, match="geometry_msgs/msg/Point has no w"):
        field("geometry_msgs/msg/PoseStamped", ["pose", "position", "w"])


@pytest.mark.parametrize(
    "package", sorted(path.parent.name for path in ROOT.glob("ros_ws/src/*/setup.py"))
)
def test_rosdep_can_satisfy_every_import_of_a_ros_package(package):
    files = [*(ROOT / f"ros_ws/src/{package}/{package}").glob("*.py")]
    files += {
        "rlinf_drivers": [ROOT / "sim_bridges/core/ros_bridge.py"],
        "rlinf_bringup": ROOT.glob("launch/*.py"),
    }.get(package, [])
    imported = {
        module.split(".")[0]
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
    }
    needed = {
        ROSDEP.get(name, name)
        for name in imported - set(sys.stdlib_module_names) - DISTRIBUTION - {package}
    }
    needed |= RUNS_WITH.get(package, set())
    declared = {
        element.text
        for element in ElementTree.parse(ROOT / f"ros_ws/src/{package}/package.xml")
        .getroot()
        .iter("exec_depend")
    }
    assert needed <= declared, f"package.xml lacks {', '.join(sorted(needed - declared))}"
    assert declared - needed == set(), "and nothing more"


def test_the_metapackage_needs_every_package():
    declared = {
        element.text
        for element in ElementTree.parse(ROOT / "ros_ws/src/rlinf/package.xml")
        .getroot()
        .iter("exec_depend")
    }
    assert declared == {path.parent.name for path in ROOT.glob("ros_ws/src/*/package.xml")} - {
        "rlinf"
    }


def test_the_repositories_beside_a_franka_are_those_that_its_page_speaks_of():
    repositories = yaml.safe_load((ROOT / "ros_ws/franka.repos").read_text())["repositories"]
    assert all(
        repository.keys() == {"type", "url", "version"} and repository["type"] == "git"
        for repository in repositories.values()
    )
    assert all(
        repository["url"] == f"https://github.com/{repository['url'].split('/')[3]}/{name}.git"
        for name, repository in repositories.items()
    )
    version = repositories["franka_ros2"]["version"].removeprefix("v")
    assert f"franka_ros2 {version} (Jazzy)" in (ROOT / "ros_ws/definitions/README.md").read_text()
    assert (
        f"franka_ros2 {version.rpartition('.')[0]} (Jazzy)"
        in (ROOT / "docs/robots/franka.md").read_text()
    )
    assert all(
        re.fullmatch(r"v\d+\.\d+\.\d+", repository["version"])
        for repository in repositories.values()
    ), "releases, no branches"
    assert (
        f"crisp_controllers {repositories['crisp_controllers']['version'][1:]})"
        in (ROOT / "docs/robots/franka.md").read_text()
    )
    package = ElementTree.parse(ROOT / "ros_ws/src/rlinf_drivers/package.xml").getroot()
    ours = {
        element.text
        for element in package.iter("exec_depend")
        if element.get("condition") == "$RLINF_ROBOT == franka"
    }
    others = {
        element.text
        for element in package.iter("exec_depend")
        if element.get("condition") == "$RLINF_ROBOT == ur"
    }
    every = {
        element.text
        for path in ROOT.glob("ros_ws/src/*/package.xml")
        for element in ElementTree.parse(path).iter("exec_depend")
        if element.get("condition") is None
    }
    defined = {path.parent.name for path in (ROOT / "ros_ws/definitions").glob("*/package.xml")}
    assert ours | others == defined - every and not ours & others


def test_rosdep_can_satisfy_every_message_of_ours():
    folder = ROOT / "ros_ws/src/rlinf_msgs"
    used = {
        package
        for file in folder.glob("*/*.*")
        if file.suffix in (".msg", ".srv", ".action")
        for package in re.findall(r"^(\w+)/\w+", file.read_text(), re.M)
    }
    declared = {element.text for element in ElementTree.parse(folder / "package.xml").getroot()}
    assert used <= declared and {"std_msgs", "sensor_msgs"} <= used


BOTH = LayoutContent(
    "lab_2",
    ("top", "side"),
    ("left", "right"),
    "left_base_link",
    clock=True,
    topics=(("left/joint_states", "/l/js"),),
)


def test_rviz_shows_frames_of_every_arm_and_an_image_of_every_camera():
    displays = yaml.safe_load(rviz(BOTH))["Visualization Manager"]["Displays"]
    assert [(display["Class"].split("/")[1], display["Name"]) for display in displays] == [
        ("Grid", "Grid"),
        ("TF", "TF"),
        ("RobotModel", "Robot"),
        *(("Axes", f"{arm} {name}") for name in FRAMES for arm in ("left", "right")),
        ("MarkerArray", "Workspace and state"),
        ("Image", "Top"),
        ("Image", "Side"),
    ]
    axes = {display["Name"]: display for display in displays if "Length" in display}
    assert axes["right Tool"] == {
        "Class": "rviz_default_plugins/Axes",
        "Name": "right Tool",
        "Enabled": True,
        "Length": 0.1,
        "Radius": 0.01,
        "Reference Frame": "lab_2/right_tool0",
    }
    assert displays[-1]["Topic"] == {
        "Value": "/lab_2/camera/side/image/compressed",
        "Depth": 2,
        "Reliability Policy": "Best Effort",
    }
    text = rviz(BOTH)
    assert text.index("Panels") < text.index("Visualization Manager"), "as the file has it"
    bare = yaml.safe_load(rviz(LayoutContent("bare", (), tool="")))["Visualization Manager"]
    frames = [display["Reference Frame"] for display in bare["Displays"] if "Length" in display]
    assert frames == ["bare/target", "bare/object"], "without a frame of the tool"


FRAMES = ("Tool", "Target", "Object")


def test_foxglove_has_a_line_of_every_arm_and_a_column_of_cameras():
    document = json.loads(foxglove(BOTH))
    panels = document["configById"]
    scene = panels["3D!scene"]
    assert scene["followTf"] == "lab_2/left_base_link" and scene["transforms"] == {
        f"frame:lab_2/{arm}_{name}": {"visible": True}
        for arm in ("left", "right")
        for name in ("tool0", "target", "object", "goal")
    }
    assert panels["Image!side"] == {
        "imageMode": {
            "imageTopic": "/lab_2/camera/side/image/compressed",
            "calibrationTopic": "/lab_2/camera/side/camera_info",
        }
    }
    assert {"Image!wrist", "Image!front"}.isdisjoint(panels)
    joints = [line["value"] for line in panels["Plot!joints"]["paths"]]
    assert joints == ["/l/js.position[:]", "/lab_2/right/joint_states.position[:]"]
    assert panels["StateTransitions!who"]["paths"][:2] == [
        {"value": f"/lab_2/{arm}/safety.state", "label": "interlock"} for arm in ("left", "right")
    ]
    assert panels["Plot!reward"]["paths"][0]["value"] == "/lab_2/timestep.reward", "the station's"
    assert document["layout"]["first"] == {
        "first": "3D!scene",
        "second": {"first": "Image!top", "second": "Image!side", "direction": "column"},
        "direction": "row",
        "splitPercentage": 65,
    }
    assert foxglove(BOTH).endswith("}\n") and '\n "configById"' in foxglove(BOTH)


@pytest.mark.parametrize(
    "cameras, column",
    [
        ((), None),
        (("a",), "Image!a"),
        (
            ("a", "b", "c"),
            {
                "first": "Image!a",
                "second": {"first": "Image!b", "second": "Image!c", "direction": "column"},
                "direction": "column",
            },
        ),
    ],
)
def test_cameras_are_below_each_other_beside_the_scene(cameras, column):
    first = json.loads(foxglove(LayoutContent("one", cameras)))["layout"]["first"]
    assert (first if column is None else first["second"]) == (column or "3D!scene")
    transforms = json.loads(foxglove(LayoutContent("one", (), tool="")))["configById"]["3D!scene"]
    assert list(transforms["transforms"]) == [
        f"frame:one/{name}" for name in ("target", "object", "goal")
    ]


@pytest.mark.parametrize(
    "clock, words",
    [
        (False, "-r /tf:=/lab/tf -r /tf_static:=/lab/tf_static"),
        (
            True,
            "-p use_sim_time:=true -r /tf:=/lab/tf -r /tf_static:=/lab/tf_static "
            "-r /clock:=/lab/clock",
        ),
    ],
)
def test_rviz_is_opened_in_the_time_and_the_frames_of_its_station(clock, words):
    shown = LayoutContent("lab", (), clock=clock)
    assert rviz_command("a file", shown) == ["rviz2", "-d", "a file", "--ros-args", *words.split()]


@pytest.mark.parametrize(
    "text, shown",
    [
        ("station_a", "lab"),
        ("station_a/tool0", "lab/tool0"),
        ("/station_a/joint_states", "/js"),
        ("/station_a/joint_states.position[0]", "/js.position[0]"),
        ("/station_a/joint_states/compressed", "/js/compressed"),
        ("/station_a/joint_states_2", "/lab/joint_states_2"),
        ("/station_a/joint_states/raw", "/lab/joint_states/raw"),
        ("my_station_a", "my_station_a"),
        (7, 7),
        ([None, "station_a"], [None, "lab"]),
        ({"station_a/x": {"a": "station_a"}}, {"lab/x": {"a": "lab"}}),
    ],
)
def test_only_names_of_the_station_and_whole_topics_of_a_driver_are_replaced(text, shown):
    layout = LayoutContent("lab", (), topics=(("joint_states", "/js"),))
    assert rename_topics(text, layout) == shown


@pytest.mark.parametrize(
    "overrides, content",
    [
        (
            ["station.name=lab", "station.observe_cameras=[front]"],
            LayoutContent("lab", ("front",), (), "base_link", "tool0", True),
        ),
        (
            ["station.lockstep=false"],
            LayoutContent("station_a", (), (), "base_link", "tool0", False),
        ),
        (
            ["station.robot=ur5e", "station.task=ur5e_reach", "station.operator.kind=keyboard"],
            LayoutContent(
                "station_a",
                ("wrist",),  # also those that the policy does not observe
                (),
                "base",
                "tcp",
                False,
                (
                    ("current_pose", "/tcp_pose_broadcaster/pose"),
                    ("joint_states", "/joint_states"),
                    ("robot_description", "/robot_description"),
                    ("wrench", "/force_torque_sensor_broadcaster/wrench"),
                ),
            ),
        ),
        (
            ["station.robot=two_franka_sim", "station.task=reach_both"],
            LayoutContent("station_a", (), ("left", "right"), "left_base_link", "tool0", True),
        ),
    ],
)
def test_a_layout_is_that_of_its_recipes_station(overrides, content):
    assert content_of_recipe(load_recipe("demo", overrides)) == content


MARKERS = "visualization_msgs/msg/MarkerArray"


def recording(folder, *topics, frames=("lab/left_base_link",)):
    """Return a recording with these topics, empty but for the markers in these frames."""
    store = typestore()
    types = store.types
    with Writer(folder, version=9) as writer:
        for name in topics:
            kind = MARKERS if name.endswith("markers") else "std_msgs/msg/String"
            connection = writer.add_connection(name, kind, typestore=store)
            for frame in frames if kind == MARKERS else ():
                stamp = types["builtin_interfaces/msg/Time"](0, 0)
                header = types["std_msgs/msg/Header"](stamp, frame)
                marker = blank(store, "visualization_msgs/msg/Marker")
                marker.header = header
                message = types[MARKERS]([marker] if frame else [])
                writer.write(connection, 1, store.serialize_cdr(message, MARKERS))
    return folder


def blank(store, kind):
    """Return a message of zeros."""
    fields = {}
    for name, (sort, what) in store.fielddefs[kind][1]:
        if int(sort) == 2:
            fields[name] = blank(store, what)
        elif int(sort) > 2:
            fields[name] = [] if int(what[0][0]) == 2 else np.zeros(0, np.uint8)
        else:
            fields[name] = "" if what[0] == "string" else False if what[0] == "bool" else 0
    return store.types[kind](**fields)


def test_a_layout_of_a_recording_is_that_of_what_it_holds(tmp_path):
    folder = recording(
        tmp_path / "one",
        "/lab/camera/wrist/image",
        "/lab/camera/front/image/compressed",
        "/lab/camera/front/camera_info",
        "/lab/right/safety",
        "/lab/left/current_pose",
        "/lab/tf_static",
        "/lab/markers",
        "/lab/mine/other",
        "/diagnostics",
        "/labs/left/camera/top/image",
    )
    assert content_of_recording(folder) == LayoutContent(
        "lab", ("front", "wrist"), ("left", "right"), "left_base_link"
    )


@pytest.mark.parametrize("frames, base", [((), "base_link"), (("", "lab/base"), "base")])
def test_a_recording_without_markers_has_the_usual_base(tmp_path, frames, base):
    folder = recording(tmp_path / "one", "/lab/tf_static", "/lab/markers", frames=frames)
    assert content_of_recording(folder) == LayoutContent("lab", (), (), base)


def test_a_recording_of_a_version_without_tf_has_no_layout(tmp_path):
    with pytest.raises(RecipeError, match="one: expected a recording with the topic tf_static"):
        content_of_recording(recording(tmp_path / "one", "/lab/safety"))
