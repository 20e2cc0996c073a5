"""Foxglove's layout, RViz's displays and package.xml name what there is."""

import ast
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from rlinf_core.episodes.messages import typestore
from rlinf_core.specs.topics import topic

ROOT = Path(__file__).resolve().parent.parent
SHOWS = {"Pose": "geometry_msgs/msg/PoseStamped", "Image": "sensor_msgs/msg/Image", "RobotModel": "std_msgs/msg/String",
         "Wrench": "geometry_msgs/msg/WrenchStamped"}
IN_RECORDINGS = "/compressed"  # of an image
DISTRIBUTION = {"rlinf_core", "sim_bridges", "station", "torch"}  # make setup brings them, and what they need
RUNS_WITH = {  # launch files, configs/fastdds.xml, the nodes that launch files start
    "rlinf_ros": {"rmw_fastrtps_cpp"},
    "rlinf_bringup": {"ros2launch", "rlinf_interlock", "rlinf_station", "rlinf_operator", "rlinf_drivers", "rlinf_tools",
                      "rlinf_description"},
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
    """The type at ``pose.position.x`` in a message, as rosbags describes it; a list's is that of its items."""
    for name in path:
        fields = dict(typestore().fielddefs[kind][1])
        assert name in fields, f"{kind} has no {name}, but {', '.join(fields)}"
        sort, what = fields[name]
        kind = what[0][1] if int(sort) > 2 else what
    return kind


def test_every_path_of_the_foxglove_layout_is_a_field_of_a_topic_of_the_interface():
    layout = json.loads((ROOT / "configs/foxglove.json").read_text())
    paths = [text for text in strings(layout["configById"]) if text.startswith("/station_a/")]
    assert len(paths) > 15
    for text in paths:
        name, *path = re.sub(r"\[.*?\]", "", text.removeprefix("/station_a/")).split(".")
        row = topic(name.removesuffix(IN_RECORDINGS))
        field(row.type, path)
        assert row.sampled or row.recorded == "episode", f"{name} is in no recording"
    panels = set(strings(layout["layout"])) - {"first", "second", "direction", "splitPercentage", "row", "column"}
    assert panels == set(layout["configById"])


def test_every_display_of_rviz_shows_a_topic_of_the_interface_of_its_type():
    displays = yaml.safe_load((ROOT / "configs/station.rviz").read_text())["Visualization Manager"]["Displays"]
    shown = {
        display["Name"]: (
            display["Class"].split("/")[1],
            display.get("Topic", display.get("Description Topic"))["Value"],
        )
        for display in displays
        if "Topic" in display or "Description Topic" in display
    }
    assert len(shown) >= 6
    for name, (kind, full) in shown.items():
        assert topic(full.removeprefix("/station_a/")).type == SHOWS[kind], name


def test_a_path_that_no_message_has_is_found():
    with pytest.raises(AssertionError, match="geometry_msgs/msg/Point has no w"):
        field("geometry_msgs/msg/PoseStamped", ["pose", "position", "w"])


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("ros_ws/src/*/setup.py")))
def test_rosdep_can_satisfy_every_import_of_a_ros_package(package):
    files = [*(ROOT / f"ros_ws/src/{package}/{package}").glob("*.py")]
    files += {"rlinf_drivers": [ROOT / "sim_bridges/core/ros_bridge.py"],
              "rlinf_bringup": ROOT.glob("launch/*.py")}.get(package, [])
    imported = {module.split(".")[0] for file in files for node in ast.walk(ast.parse(file.read_text()))
                for module in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                               [node.module] if isinstance(node, ast.ImportFrom) and node.module else [])}
    needed = {ROSDEP.get(name, name) for name in imported - set(sys.stdlib_module_names) - DISTRIBUTION - {package}}
    needed |= RUNS_WITH.get(package, set())
    declared = {element.text for element in
                ElementTree.parse(ROOT / f"ros_ws/src/{package}/package.xml").getroot().iter("exec_depend")}
    assert needed <= declared, f"package.xml lacks {', '.join(sorted(needed - declared))}"
    assert declared - needed == set(), "and nothing more"


def test_the_metapackage_needs_every_package():
    declared = {element.text for element in
                ElementTree.parse(ROOT / "ros_ws/src/rlinf/package.xml").getroot().iter("exec_depend")}
    assert declared == {path.parent.name for path in ROOT.glob("ros_ws/src/*/package.xml")} - {"rlinf"}


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
    assert f"franka_ros2 {version.rpartition('.')[0]} (Jazzy)" in (ROOT / "docs/robots/franka.md").read_text()
    assert all(
        re.fullmatch(r"v\d+\.\d+\.\d+", repository["version"])
        for repository in repositories.values()
    ), "releases, no branches"
    assert (
        f"crisp_controllers {repositories['crisp_controllers']['version'][1:]})"
        in (ROOT / "docs/robots/franka.md").read_text()
    )
    package = ElementTree.parse(ROOT / "ros_ws/src/rlinf_drivers/package.xml").getroot()
    ours = {element.text for element in package.iter("exec_depend") if element.get("condition") == "$RLINF_ROBOT == franka"}
    others = {element.text for element in package.iter("exec_depend") if element.get("condition") == "$RLINF_ROBOT == ur"}
    every = {element.text for path in ROOT.glob("ros_ws/src/*/package.xml")
             for element in ElementTree.parse(path).iter("exec_depend") if element.get("condition") is None}
    defined = {path.parent.name for path in (ROOT / "ros_ws/definitions").glob("*/package.xml")}
    assert ours | others == defined - every and not ours & others


def test_rosdep_can_satisfy_every_message_of_ours():
    folder = ROOT / "ros_ws/src/rlinf_msgs"
    used = {package for file in folder.glob("*/*.*") if file.suffix in (".msg", ".srv", ".action")
            for package in re.findall(r"^(\w+)/\w+", file.read_text(), re.M)}
    declared = {element.text for element in ElementTree.parse(folder / "package.xml").getroot()}
    assert used <= declared and {"std_msgs", "sensor_msgs"} <= used
