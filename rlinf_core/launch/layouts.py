"""Layouts of RViz and Foxglove for one station, made from the templates in ``configs``."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.core.paths import data_folder
from rlinf_core.episodes.messages import TOOL
from rlinf_core.interlock import load_limits
from rlinf_core.recipes.schema import Recipe
from rlinf_core.recipes.station import station_robot
from rlinf_core.specs.topics import arm_of, of_arms, topic

TEMPLATE_STATION = "station_a"


@dataclass(frozen=True)
class LayoutContent:
    """The content of a layout.

    Attributes:
        station: name of the station.
        cameras: names of the cameras.
        arms: names of the arms; empty for one arm without a name.
        base: fixed frame of the view.
        tool: frame of the tool; empty if there is none.
        clock: whether the time is simulated.
        topics: (topic of the station, name in the robot's driver).
    """

    station: str
    cameras: tuple[str, ...]
    arms: tuple[str, ...] = ()
    base: str = "base_link"
    tool: str = TOOL
    clock: bool = False
    topics: tuple[tuple[str, str], ...] = ()


def content_of_recipe(recipe: Recipe) -> LayoutContent:
    """Return the content for a recipe's station."""
    robot = station_robot(recipe)
    cameras = recipe.station.observe_cameras if robot.without_hardware else robot.cameras
    base = load_limits(next(iter(robot.limits_by_arm.values()))).frame
    return LayoutContent(
        recipe.station.name,
        tuple(cameras),
        tuple(robot.arms),
        base,
        robot.tool_frame,
        robot.without_hardware and recipe.station.lockstep,
        tuple(sorted(robot.topics.items())),
    )


def content_of_recording(folder: Path) -> LayoutContent:
    """Return the content for a recorded episode.

    Raises RecipeError if its version recorded no tf.
    """
    from rosbags.rosbag2 import Reader

    with Reader(folder) as reader:
        names = [connection.topic for connection in reader.connections]
    stations = [name.strip("/").partition("/")[0] for name in names if name.endswith("/tf_static")]
    if not stations:
        raise RecipeError(
            f"{folder}: expected a recording with the topic tf_static, got one of an earlier "
            "version without it. Foxglove shows its topics without a layout"
        )
    relative = [
        name.removeprefix(f"/{stations[0]}/")
        for name in names
        if name.startswith(f"/{stations[0]}/")
    ]
    cameras = sorted({name.split("/")[1] for name in relative if name.startswith("camera/")})
    arms = sorted({arm for name in relative if (arm := _arm(name))})
    return LayoutContent(
        stations[0], tuple(cameras), tuple(arms), _base(folder, f"/{stations[0]}/markers")
    )


def _arm(name: str) -> str:
    try:
        topic(name)
    except RlinfError:  # not a topic of ours
        return ""
    return arm_of(name)


def _base(folder: Path, name: str) -> str:
    from rosbags.rosbag2 import Reader

    from rlinf_core.episodes.messages import typestore

    with Reader(folder) as reader:
        for connection, _, raw in reader.messages(
            [connection for connection in reader.connections if connection.topic == name]
        ):
            markers = typestore().deserialize_cdr(raw, connection.msgtype).markers
            if markers:
                return str(markers[0].header.frame_id).partition("/")[2]
    return "base_link"


def rviz(shown: LayoutContent) -> str:
    """Return the RViz configuration."""
    document = yaml.safe_load((data_folder() / "configs/station.rviz").read_text())
    manager = document["Visualization Manager"]
    displays = []
    for display in manager["Displays"]:
        kind = display["Class"].rpartition("/")[2]
        if kind == "Axes":
            displays += _axes(display, shown)
        elif kind != "Image":
            displays.append(display)
    image = next(display for display in manager["Displays"] if display["Class"].endswith("/Image"))
    for camera in shown.cameras:
        displays.append(copy.deepcopy(image) | {"Name": camera.capitalize()})
        displays[-1]["Topic"]["Value"] = f"/{TEMPLATE_STATION}/camera/{camera}/image/compressed"
    manager["Displays"] = displays
    manager["Global Options"]["Fixed Frame"] = f"{TEMPLATE_STATION}/{shown.base}"
    return yaml.safe_dump(rename_topics(document, shown), sort_keys=False)


def _axes(display: dict[str, Any], shown: LayoutContent) -> list[dict[str, Any]]:
    frame = display["Reference Frame"].rpartition("/")[2]
    frame = shown.tool if frame == TOOL else frame
    return [
        display
        | {
            "Name": " ".join(filter(None, (arm, display["Name"]))),
            "Reference Frame": f"{TEMPLATE_STATION}/{f'{arm}_{frame}' if arm else frame}",
        }
        for arm in shown.arms or ("",)
        if frame
    ]


def foxglove(shown: LayoutContent) -> str:
    """Return the Foxglove layout (menu Layouts, Import)."""
    document = json.loads((data_folder() / "configs/foxglove.json").read_text())
    panels: dict[str, Any] = document["configById"]
    images = [name for name in panels if name.startswith("Image!")]
    template = panels[images[0]]
    for name in images:
        del panels[name]
    for camera in shown.cameras:
        panels[f"Image!{camera}"] = json.loads(
            json.dumps(template).replace("/camera/wrist/", f"/camera/{camera}/")
        )
    document["layout"]["first"] = _columns(
        "3D!scene", [f"Image!{camera}" for camera in shown.cameras]
    )
    panels["3D!scene"]["followTf"] = f"{TEMPLATE_STATION}/{shown.base}"
    panels["3D!scene"]["transforms"] = {
        f"frame:{TEMPLATE_STATION}/{f'{arm}_{frame}' if arm else frame}": {"visible": True}
        for arm in shown.arms or ("",)
        for frame in (shown.tool, "target", "object", "goal")
        if frame
    }
    return json.dumps(rename_topics(_by_arm(document, shown.arms), shown), indent=1) + "\n"


def _columns(left: str, right: Sequence[str]) -> Any:
    if not right:
        return left
    column: Any = right[-1]
    for name in reversed(right[:-1]):
        column = {"first": name, "second": column, "direction": "column"}
    return {"first": left, "second": column, "direction": "row", "splitPercentage": 65}


def _by_arm(part: Any, arms: Sequence[str]) -> Any:
    """Return a part of the layout with one line per arm in each plot."""
    if isinstance(part, dict):
        return {key: _by_arm(value, arms) for key, value in part.items()}
    if not isinstance(part, list) or not arms:
        return part
    lines = []
    for entry in part:
        value = entry.get("value", "") if isinstance(entry, dict) else ""
        name, dot, field = value.removeprefix(f"/{TEMPLATE_STATION}/").partition(".")
        lines += (
            [
                entry | {"value": f"/{TEMPLATE_STATION}/{full}{dot}{field}"}
                for full in of_arms(name, arms)
            ]
            if value
            else [entry]
        )
    return lines


def rename_topics(part: Any, shown: LayoutContent) -> Any:
    """Return a part of the layout with the station's name and its driver's topic names."""
    if isinstance(part, dict):
        return {
            rename_topics(key, shown): rename_topics(value, shown) for key, value in part.items()
        }
    if isinstance(part, list):
        return [rename_topics(entry, shown) for entry in part]
    if not isinstance(part, str):
        return part
    for name, vendor_topic in shown.topics:  # a field or /compressed may follow
        if re.match(rf"/{TEMPLATE_STATION}/{re.escape(name)}(?=$|\.|/compressed$)", part):
            return vendor_topic + part.removeprefix(f"/{TEMPLATE_STATION}/{name}")
    return (
        shown.station
        if part == TEMPLATE_STATION
        else part.replace(f"{TEMPLATE_STATION}/", f"{shown.station}/")
    )


def rviz_command(file: str, shown: LayoutContent) -> list[str]:
    """Return the command that opens an RViz configuration."""
    remapped = [
        f"/{name}:=/{shown.station}/{name}"
        for name in ("tf", "tf_static", *(["clock"] if shown.clock else []))
    ]
    simulated = ["-p", "use_sim_time:=true"] if shown.clock else []
    return [
        "rviz2",
        "-d",
        file,
        "--ros-args",
        *simulated,
        *(part for name in remapped for part in ("-r", name)),
    ]
