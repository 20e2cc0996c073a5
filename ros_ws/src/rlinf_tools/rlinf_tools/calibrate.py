"""Makes a box and a home from the poses of an arm that a person guides by hand; commands nothing.

rlinf calibrate RECIPE [--write]
"""

from __future__ import annotations

import argparse
import math
import select
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from rlinf_msgs.msg import SafetyState
from sensor_msgs.msg import JointState

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock import Limits, Mode
from rlinf_core.interlock.limits_file import (
    load_limits,
    loosest,
    names_with_maximum,
    takes_box_from,
    with_values,
)
from rlinf_core.recipes import Recipe, load_recipe, station_robot, station_task
from rlinf_core.robots.calibration.guided import AXES, GuidedPath, draw, tool_deviation
from rlinf_core.robots.calibration.yaml_edits import flow, publish, with_keys
from rlinf_core.robots.config import Home, Robot, robot_folder
from rlinf_core.robots.operators.homing import home_goal
from rlinf_ros.arms import arm_topic, subscribe_safety
from rlinf_ros.conversions import angles_of, pose_values
from rlinf_ros.qos import lazy_profile, subscription
from rlinf_ros.station_state import command_context, command_node, silence_message

WORDS = (
    "guide the tool by hand to each end of its workspace. Then press a key and Enter: h set home "
    "here, d done, n start over, q quit without changes"
)
PATIENCE_S = 5.0
SILENT_S = 1.0
PRINT_S = 0.2


class Listener:
    """A node that hears one arm.

    Args:
        recipe: the station's recipe.
        arm: the arm's name; empty if there is only one.
    """

    def __init__(self, recipe: Recipe, arm: str) -> None:
        self.robot = station_robot(recipe)
        self.limits = load_limits(_limits_of(station_robot(recipe), arm))
        self.guided = GuidedPath()
        self.pose = np.zeros(7)
        self.joints = dict[str, float]()
        self.at = 0.0
        self.trouble = ""
        self.joints_at = 0.0
        self.node: Node = command_node(recipe.station.name)
        for name, callback in (
            (arm_topic(arm, "current_pose"), self._on_pose),
            (arm_topic(arm, "joint_states"), self._on_joints),
        ):
            subscription(
                self.node,
                name,
                callback,
                quality=lazy_profile(50),
                at=self.robot.topics.get(name, name),
            )
        subscribe_safety(self.node, list(self.robot.arms), self._on_safety)

    def _on_pose(self, message: PoseStamped) -> None:
        q = message.pose.orientation
        if message.header.frame_id != self.limits.frame:
            self.trouble = (
                f"current_pose: expected the limits' frame '{self.limits.frame}', got "
                f"'{message.header.frame_id}'. Set 'frame' in the limits, or publish the pose in "
                "that frame"
            )
        elif not (q.x or q.y or q.z or q.w):
            self.trouble = "current_pose: expected a unit quaternion in orientation, got 0, 0, 0, 0"
        elif np.isfinite(pose := np.array(pose_values(message.pose))).all():
            self.pose = pose
            self.at = time.monotonic()
            self.guided.add(pose[:3])

    def _on_joints(self, message: JointState) -> None:
        """Take a message that has all joints of the limits.

        A gripper's driver may publish its own joints on the same topic.
        """
        names = self.limits.joint_names
        angles = angles_of(message, names)
        if angles is not None and all(map(math.isfinite, angles)):
            self.joints, self.joints_at = dict(zip(names, angles, strict=True)), time.monotonic()

    def _on_safety(self, safety: SafetyState) -> None:
        if safety.state in (SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD):
            self.trouble = (
                f"the interlock is {Mode(safety.state).name}: expected DISARMED while you guide "
                "the arm by hand (rlinf disarm)"
            )

    def spin(self) -> None:
        """Process incoming messages; raise RlinfError if nobody may guide the arm now."""
        rclpy.spin_once(self.node, timeout_sec=0.02)
        if self.trouble:
            raise RlinfError(self.trouble)

    def meet(self) -> None:
        """Wait until the arm reports its pose."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.at:
            self.spin()
            if time.monotonic() > deadline:
                raise RlinfError(
                    "current_pose: " + silence_message(self.node, "pose of the arm", PATIENCE_S)
                )

    def silent(self, joints: bool) -> str:
        """Return why the arm's pose, or with ``joints`` its joints, are unknown; else ""."""
        late = time.monotonic() - SILENT_S
        if self.at < late:
            missing = "current_pose"
        elif joints and self.joints_at < late:
            missing = "joint_states with the joints of the limits"
        else:
            return ""
        return (
            f"expected {missing} within {SILENT_S:g} s, got none. The arm's position is unknown. "
            "Check its driver (rlinf doctor station RECIPE). The points so far are kept"
        )

    @property
    def where(self) -> str:
        """The poses shown so far, as text for people."""
        low, high = self.guided.extent
        spans = ", ".join(
            f"{axis} {a:.3f} to {b:.3f}" for axis, a, b in zip(AXES, low, high, strict=True)
        )
        home = (
            "no home" if self.guided.home is None else f"home {self.guided.home.round(3).tolist()}"
        )
        return f"{spans} m, {home}" + (" (silent)" if time.monotonic() - self.at > SILENT_S else "")


def guide_corners(
    listener: Listener, margin: float
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Ask until a person is done; return the box, and the pose and joints at home.

    Raises:
        RlinfError: the person leaves it.
    """
    at_home: dict[str, Any] = {}
    shown = 0.0
    print(WORDS, flush=True)
    while True:
        listener.spin()
        if sys.stdout.isatty() and time.monotonic() - shown > PRINT_S:
            shown = time.monotonic()
            print(f"\r\x1b[K{listener.where}  ", end="", flush=True)
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        line = sys.stdin.readline()
        word = line.strip()
        if not line or word == "q":
            raise RlinfError("nothing is written")
        if word == "n":
            listener.guided = GuidedPath()
            at_home = {}
        elif word in ("h", "d") and (
            reason := listener.silent(word == "h" and listener.limits.control_mode == "joint_delta")
        ):
            print(reason, flush=True)
        elif word == "h":
            listener.guided.home = listener.pose[:3].copy()
            at_home = {"pose": listener.pose.copy(), "joints": dict(listener.joints)}
        elif word == "d":
            try:
                return *listener.guided.box(margin), at_home
            except RlinfError as error:
                print(error, flush=True)
        elif word:
            print(WORDS, flush=True)
        print(listener.where if listener.guided.path else "starting over", flush=True)


def _home(at_home: dict[str, Any], limits: Limits, turns: bool) -> dict[str, Any]:
    """Return the home as robot.yaml holds it, in the coordinates of the task's actions."""
    if limits.control_mode == "joint_delta":
        return {"joints": {name: round(at_home["joints"][name], 4) for name in limits.joint_names}}
    pose = at_home["pose"]
    turned = (pose[3:] / np.linalg.norm(pose[3:])).round(5).tolist() if turns else None
    return {"position": pose[:3].round(4).tolist(), **({"orientation": turned} if turned else {})}


def _limits_of(robot: Robot, arm: str) -> Path:
    if arm not in robot.limits_by_arm:
        raise RlinfError(
            f"--arm: expected one of {', '.join(robot.arms)}, got '{arm}'"
            if robot.arms
            else f"--arm: expected none, as the robot has one arm; got '{arm}'"
        )
    path = robot.limits_by_arm[arm]
    if others := [
        name
        for name, arm_interlock in robot.limits_by_arm.items()
        if name != arm and takes_box_from(arm_interlock, path)
    ]:
        raise RlinfError(
            f"{path}: expected limits of arm '{arm}' alone, since its box is written there, got "
            f"those of '{', '.join(others)}' too. Give each arm a limits file with its box. Both "
            "may extend a third file with `extends:`"
        )
    return path


def calibrate(recipe: Recipe, arm: str, margin: float, out: Path, write: bool) -> None:
    """Calibrate an arm's box and home.

    Raises:
        RlinfError: something prevents it; nothing is written.
    """
    path = _limits_of(station_robot(recipe), arm)
    listener = Listener(recipe, arm)
    listener.meet()
    low, high, at_home = guide_corners(listener, margin)
    box: dict[str, Any] = {"box_low": low, "box_high": high}
    limits, most = load_limits(path), loosest(path)
    off_nominal, orientation = tool_deviation(limits, at_home["pose"][3:]) if at_home else (0.0, [])
    if orientation:
        box = box | {"orientation": orientation}
        most = (
            most
            if "orientation" in names_with_maximum(path)
            else replace(most, orientation=tuple(orientation))
        )
        print(
            f"the tool at its home is {math.degrees(off_nominal):.0f} degrees from the limits' "
            f"orientation {list(limits.orientation)}, more than half of their cone: the "
            "orientation becomes the tool's own"
        )
    limits = with_values(limits, box, str(path), most)
    spec = station_task(recipe).spec.action
    home = (
        {"home": _home(at_home, limits, (spec.of_arm(arm) if arm else spec).dim >= 6)}
        if at_home
        else {}
    )
    texts = {path: with_keys(path.read_text(), box)}
    place = robot_folder(recipe.station.robot) / "robot.yaml"
    if home and not arm:
        home_fields: Any = {
            key: tuple(value) if key != "joints" else value for key, value in home["home"].items()
        }
        home_goal("home", Home(**home_fields), spec.control_mode, limits)
        texts[place] = with_keys(place.read_text(), home)
    draw(listener.guided, low, high, out)
    print("\n".join(f"{key}: {flow(value)}" for key, value in (box | home).items()))
    if home and arm:
        print(
            f"write the home of one of several arms by hand: in {place}, arms: {{{arm}: "
            f"{{home: ...}}}}"
        )
    print(f"picture: {out}")
    for changed, text in texts.items():
        if write:
            publish(changed, text)
        print(
            f"written: {changed}" if write else f"not written: {changed}. Use --write to write them"
        )
    if write:
        print(
            "a station reads limits and home at its start. Restart a running one (its rlinf up "
            "and rlinf teleop)"
        )


def main() -> None:
    """Run with recipe and overrides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--arm", default="")
    parser.add_argument("--margin", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with command_context():
        calibrate(
            load_recipe(arguments.recipe, arguments.overrides),
            arguments.arm,
            arguments.margin,
            arguments.out,
            arguments.write,
        )


if __name__ == "__main__":
    main()
