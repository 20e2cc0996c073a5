"""Rosetta's contracts (iblnkn/rosetta), read as a robot and a task.

A contract is a YAML with topics, message fields, features and a rate. It has no limits: a person
writes those before the interlock starts. The format is that of November 2026:
doc/reference/contract.md and contracts/ of the version of 2026-08-01.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from rlinf_core.core.errors import RecipeError

JOINT_STATE = "sensor_msgs/msg/JointState"
IMAGE = "sensor_msgs/msg/Image"
COMPRESSED = "sensor_msgs/msg/CompressedImage"
CONTROLLERS = {
    "trajectory_msgs/msg/JointTrajectory": "joint_trajectory",
    "std_msgs/msg/Float64MultiArray": "forward_position",
}
STEP_RAD = 0.02  # a joint's step in one time step; a contract has none
NOT_READ = ("teleop", "signals", "info", "complementary_data", "adjunct", "tasks", "rewards")
LIMITS = """# Limits of {name}, of a contract that has none.
# Fill in each line that begins with '# ', then remove its '# '.
# docs/reference/limits.md explains each key. The interlock does not start while one is missing.
control_mode: joint_delta
joint_names: [{joints}]
# joint_low: []          # [rad], from the data sheet, tighter where your table asks for it
# joint_high: []
# box_low: []            # x, y, z of the tool in the base frame [m]
# box_high: []
# orientation: []        # of the tool, quaternion x y z w
# speed: 0.1             # [m/s]
# acceleration: 1.0
# jerk: 10.0
# divergence: 0.05
# cone: 0.5
# joint_speed: 0.3       # [rad/s]
# joint_acceleration: 2.0
# joint_jerk: 20.0
# joint_divergence: 0.1
# contact_force: 30.0    # unlimited if nothing measures it
# contact_torque: 5.0
# contact_fault: 60.0
# stale_state: 0.05
# lost_state: 0.5
# tick: 0.01
"""


@dataclass
class Contract:
    """The result of reading a contract.

    Attributes:
        name: name of the robot.
        robot, task: content of robot.yaml and of a task file.
        limits: text of limits.yaml, to be filled in.
        notes: parts without a counterpart, and a person's next steps.
    """

    name: str
    robot: dict[str, Any]
    task: dict[str, Any]
    limits: str
    notes: list[str] = field(default_factory=list)


def read_contract(text: str) -> Contract:
    """Read a contract.

    Raises:
        RecipeError: the text is no contract, or the robot is no arm.
    """
    document = _check_document(yaml.safe_load(text))
    notes: list[str] = [f"'{key}' is not read" for key in NOT_READ if key in document]
    command, action = _action(document["actions"], notes)
    joints = [_joint(name) for name in command["select"]]
    topics = {"target_joints": command["channel"]["topic"]}
    cameras, observation = _observations(document["observations"], joints, topics, notes)
    robot: dict[str, Any] = {
        "driver": "external",
        "limits": "limits.yaml",
        "estops": [],
        "cameras": cameras,
        "topics": topics,
    }
    if kind := CONTROLLERS.get(command["channel"]["type"]):
        robot["controller"] = {"kind": kind, "topic": topics.pop("target_joints")}
    notes += [
        "current_pose: publish the tool's pose as geometry_msgs/PoseStamped; contracts have no "
        "such channel",
        "limits.yaml: fill in every limit",
    ]
    operators = [operator for operator in command.get("apply", []) if isinstance(operator, str)]
    if any("rad2deg" in operator for operator in operators):
        notes.append(
            "rad2deg: recordings and actions here are in rad; LeRobot data sets of the contract "
            "are in degrees"
        )
    control_hz = float(document["fps"])
    task = {
        "instruction": "",
        "control_hz": control_hz,
        "max_steps": round(30 * control_hz),
        "observation": observation,
        "action": action,
        "reward": {"kind": "external"},
    }
    name = re.sub(r"\W", "_", str(document["robot_type"]))
    return Contract(name, robot, task, LIMITS.format(name=name, joints=", ".join(joints)), notes)


def _check_document(document: Any) -> dict[str, Any]:
    """Return a document that has the keys of a ROS 2 robot's contract."""
    missing = [
        key
        for key in ("robot_type", "robot_interface", "fps", "observations", "actions")
        if not isinstance(document, dict) or key not in document
    ]
    if missing:
        raise RecipeError(
            f"contract: expected a contract of Rosetta with the keys {', '.join(missing)}, got a "
            "document without them"
        )
    if document["robot_interface"] != "ros2":
        raise RecipeError(
            f"contract: robot_interface: expected ros2, got '{document['robot_interface']}'"
        )
    return document


def _observations(
    section: dict[str, Any], joints: list[str], topics: dict[str, str], notes: list[str]
) -> tuple[dict[str, list[int]], dict[str, dict[str, Any]]]:
    """Return the cameras and the observation of a task, and add their topics.

    Raises:
        RecipeError: the commanded joints are not measured.
    """
    cameras: dict[str, list[int]] = {}
    observation: dict[str, dict[str, Any]] = {}
    for key, source in _sources(section):
        channel = source["channel"]
        if channel["type"] in (IMAGE, COMPRESSED):
            camera = re.sub(r"\W", "_", key.removeprefix("observation.images."))
            cameras[camera] = _size(source, key, notes)
            topics[f"camera/{camera}/image"] = _raw(channel, notes)
        elif channel["type"] == JOINT_STATE and set(joints) <= _positions(source):
            topics["joint_states"] = channel["topic"]
            observation["joints"] = {
                "source": "joint_states",
                "take": "all",
                "shape": [len(joints)],
                "unit": "rad",
                "low": [-6.29],
                "high": [6.29],
            }
        else:
            notes.append(
                f"{key}: {channel['topic']} ({channel['type']}) has no counterpart in the robot "
                f"interface"
            )
    if "joints" not in observation:
        raise RecipeError(
            f"contract: expected a sensor_msgs/JointState with positions of {', '.join(joints)}, "
            "the commanded joints, got none. The interlock must measure the joints that it moves"
        )
    return cameras, observation


def _positions(source: dict[str, Any]) -> set[str]:
    """Return the joints whose positions a source selects."""
    return {_joint(name) for name in source.get("select", []) if name.startswith("position.")}


def _joint(selection: str) -> str:
    """Return the joint of a selection such as ``position.elbow``."""
    return selection.partition(".")[2]


def _sources(section: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each source of each key; a list under one key is several sources."""
    for key, entry in section.items():
        for source in entry if isinstance(entry, list) else [entry]:
            if (
                not isinstance(source, dict)
                or not {"topic", "type"} <= source.get("channel", {}).keys()
            ):
                raise RecipeError(
                    f"contract: {key}: expected a channel with topic and type, got {source!r}"
                )
            yield key, source


def _action(section: dict[str, Any], notes: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the source that commands the joints, and the action of a task."""
    joints = None
    for key, source in _sources(section):
        channel, select = source["channel"], source.get("select", [])
        positions = bool(select) and all(str(name).startswith("position.") for name in select)
        if joints is None and positions and channel["type"] in (JOINT_STATE, *CONTROLLERS):
            joints = source
            continue
        notes.append(f"{key}: {channel['topic']} ({channel['type']}) is not commanded")
    if joints is None:
        raise RecipeError(
            "contract: actions: expected joint positions (select: [position.<joint>, ...]), got "
            "none. rlinf moves arms, not mobile bases"
        )
    dimensions = {
        name.partition(".")[2]: {"scale": STEP_RAD, "unit": "rad"} for name in joints["select"]
    }
    return joints, {"control_mode": "joint_delta", "dimensions": dimensions}


def _size(source: dict[str, Any], key: str, notes: list[str]) -> list[int]:
    for operator in source.get("apply", []):
        if isinstance(operator, dict) and "resize" in operator:
            return [int(side) for side in operator["resize"]]
    notes.append(f"{key}: resize is not supported. Write height and width in robot.yaml")
    return [480, 640]


def _raw(channel: dict[str, Any], notes: list[str]) -> str:
    name = str(channel["topic"])
    if channel["type"] == COMPRESSED:
        name = name.removesuffix("/compressed")
        notes.append(
            f"{name}: the station needs the raw image. The camera driver publishes it beside the "
            "compressed one. Otherwise use republish of image_transport"
        )
    return name
