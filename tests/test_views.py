"""Foxglove's layout, RViz's displays and package.xml name topics, fields and packages that
exist.
"""

import ast
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from rlinf_core.cli.main import main
from rlinf_core.episodes.messages import typestore
from rlinf_core.launch.layouts import LayoutContent, foxglove, rviz, rviz_command
from rlinf_core.specs.topics import DERIVED, EPISODE, topic

ROOT = Path(__file__).resolve().parent.parent
SHOWS = {
    "MarkerArray": "visualization_msgs/msg/MarkerArray",
    "Image": "sensor_msgs/msg/CompressedImage",
    "RobotModel": "std_msgs/msg/String",
}
DISTRIBUTION = {
    "rlinf_core",
    "sim_bridges",
    "station",
    "torch",
}  # make setup brings them, and what they need
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
