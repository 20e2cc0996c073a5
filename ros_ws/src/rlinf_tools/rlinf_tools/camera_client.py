"""Shows a running station's camera to the person who mounts it: its place, and any displacement.

    rlinf camera locate RECIPE CAMERA --on tool --board 8x5 --square 0.03 [--write]
    rlinf camera align RECIPE CAMERA [--write]

It commands nothing.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import rclpy
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import CameraInfo, Image

from rlinf_core.core.errors import RlinfError
from rlinf_core.interlock import load_limits
from rlinf_core.recipes import Recipe, load_recipe, station_robot
from rlinf_core.robots.calibration.camera_alignment import (
    comparison,
    picture_motion,
    read_reference,
    reference_path,
    save_picture,
)
from rlinf_core.robots.calibration.hand_eye import BASE, MIN_VIEWS, View, find_board, save, solve
from rlinf_core.robots.calibration.yaml_edits import publish, with_keys
from rlinf_core.robots.config import robot_folder
from rlinf_ros.arms import arm_topic
from rlinf_ros.conversions import from_image, pose_values
from rlinf_ros.qos import LAZY_PROFILE, subscription
from rlinf_ros.station_state import command_context, command_node, silence_message

PATIENCE_S = 8.0
PRINT_S = 0.5
SILENT_S = 1.0
STILL_S = 0.5
STILL_M = 0.0005
STILL_RAD = 0.002
FILE = "hand_eye.yaml"
MIN_PIXELS = 15  # smallest square of the board; corners are refined within 11 pixels


class CameraSubscriber:
    """Subscribes to a camera and the arm's pose."""

    def __init__(self, recipe: Recipe, camera: str, arm: str) -> None:
        self.recipe = recipe
        self.robot = station_robot(recipe)
        self.camera = camera
        if camera not in self.robot.cameras:
            choices = ", ".join(self.robot.cameras) or "which has none"
            raise RlinfError(f"expected a camera of robot.yaml, {choices}; got '{camera}'")
        if arm not in self.robot.limits_by_arm:
            choices = ", ".join(filter(None, self.robot.limits_by_arm)) or "none"
            raise RlinfError(f"--arm: expected {choices}, got '{arm}'")
        self.pixels: np.ndarray | None = None
        self.lens: tuple[float, ...] = ()
        self.poses: list[tuple[float, np.ndarray]] = []
        self.received_at = 0.0
        self.frame = ""
        self.node = command_node(recipe.station.name)
        for topic, take in (
            (f"camera/{camera}/image", self._on_image),
            (f"camera/{camera}/camera_info", self._on_info),
            (arm_topic(arm, "current_pose"), self._on_pose),
        ):
            subscription(
                self.node, topic, take, quality=LAZY_PROFILE, at=self.robot.topics.get(topic, topic)
            )

    def _on_image(self, image: Image) -> None:
        self.pixels, self.received_at = from_image(image).copy(), time.monotonic()

    def _on_info(self, info: CameraInfo) -> None:
        self.lens = (info.k[0], info.k[4], info.k[2], info.k[5], *info.d)

    def _on_pose(self, message: PoseStamped) -> None:
        now = time.monotonic()
        self.frame = message.header.frame_id
        self.poses = [pose for pose in self.poses if now - pose[0] < STILL_S]
        self.poses.append((now, np.array(pose_values(message.pose))))

    def meet(self, pose: bool) -> None:
        """Wait for a picture, and with ``pose`` for its lens and the arm's pose.

        Raises:
            RlinfError: one of them is missing; the message names it.
        """
        deadline = time.monotonic() + PATIENCE_S
        while self.pixels is None or (pose and not (self.poses and self.lens)):
            rclpy.spin_once(self.node, timeout_sec=0.05)
            if time.monotonic() > deadline:
                if self.pixels is None:
                    source = f"image of camera '{self.camera}'"
                else:
                    source = "pose of the arm" if self.lens else "camera_info"
                raise RlinfError(silence_message(self.node, source, PATIENCE_S))
        if pose and not self.lens[0] > 0.0:
            raise RlinfError(
                f"camera '{self.camera}': expected a camera_info with a focal length, got none. "
                "Calibrate the camera first, and set its 'lens' in robot.yaml"
            )

    @property
    def newest(self) -> np.ndarray:
        """The newest picture (H, W, 3)."""
        assert self.pixels is not None, "meet() has waited for it"
        return self.pixels

    @property
    def silent_s(self) -> float:
        """Time without a picture after which a camera is silent [s]; at least three pictures."""
        return max(SILENT_S, 3.0 / getattr(self.robot.device_cameras.get(self.camera), "fps", 30.0))

    def has_new_picture(self) -> bool:
        """Return whether another picture comes in time from now on."""
        started_at = time.monotonic()
        while self.received_at <= started_at and time.monotonic() < started_at + self.silent_s:
            rclpy.spin_once(self.node, timeout_sec=0.05)
        return self.received_at > started_at

    def silent(self) -> str:
        """Wait up to SILENT_S for a new image and a new pose; return the missing one, or ""."""
        started_at = time.monotonic()
        while time.monotonic() < started_at + SILENT_S:
            rclpy.spin_once(self.node, timeout_sec=0.05)
            if min(self.received_at, self.poses[-1][0]) > started_at:
                return ""
        return (
            f"image of camera '{self.camera}'"
            if self.received_at <= started_at
            else "pose of the arm"
        )

    @property
    def rests(self) -> bool:
        """Whether the arm has rested, and was heard throughout, since before the picture was taken.

        A resting arm neither moves nor turns.
        """
        poses = np.array([pose for _, pose in self.poses])
        units = poses[:, 3:] / np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
        # q and -q are one rotation
        turned = 2.0 * np.arccos(np.minimum(np.abs(units @ units[-1]), 1.0))
        return bool(
            self.poses[-1][0] - self.poses[0][0] > STILL_S / 2.0
            and np.ptp(poses[:, :3], axis=0).max() < STILL_M
            and turned.max() < STILL_RAD
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines that a person types while images come; '' now and then."""
        shown_at = 0.0
        while True:
            rclpy.spin_once(self.node, timeout_sec=0.05)
            if select.select([sys.stdin], [], [], 0)[0]:
                line = sys.stdin.readline()
                if not line or line.strip() == "q":
                    raise RlinfError("nothing is written")
                yield line.strip() or "take"
            elif time.monotonic() - shown_at > PRINT_S:
                shown_at = time.monotonic()
                yield ""


def locate(subscriber: CameraSubscriber, options: argparse.Namespace) -> None:
    """Collect views until a person is done; then report the camera's place."""
    columns, rows = (int(number) for number in options.board.split("x"))
    subscriber.meet(pose=True)
    frame = load_limits(subscriber.robot.limits_by_arm[options.arm]).frame
    if options.on == BASE and subscriber.frame != frame:
        raise RlinfError(
            f"current_pose: expected the limits' frame '{frame}' as the parent of a camera at the "
            f"base, got '{subscriber.frame}'. Set 'frame' in the limits, or publish the pose in "
            "that frame"
        )
    print(
        f"the board's {columns} x {rows} inner corners must all be visible. Move the arm to "
        f"another place and tilt, let it rest, and press Enter. Take {MIN_VIEWS} views or more. "
        "Then d done, or q quit without changes",
        flush=True,
    )
    views: list[View] = []
    for word in subscriber.lines():
        if word == "take":
            print(_take(subscriber, views, columns, rows, options.square), flush=True)
        elif word == "d":
            try:
                mount = solve(views, options.on, options.arm)
                break
            except RlinfError as error:
                print(error, flush=True)
    print(
        f"{subscriber.camera}: on {mount.on}, position {list(mount.position)}, orientation "
        f"{list(mount.orientation)}; the views disagree by {mount.error_mm} mm",
        flush=True,
    )
    folder = robot_folder(subscriber.recipe.station.robot)
    path = subscriber.robot.hand_eye or folder / FILE
    if not options.write:
        print(f"not written: {path}. Use --write to write it")
        return
    save(path, subscriber.camera, mount)
    if subscriber.robot.hand_eye is None:
        written = folder / "robot.yaml"
        publish(written, with_keys(written.read_text(), {"hand_eye": FILE}))
    print(f"written: {path}")


def _take(
    subscriber: CameraSubscriber, views: list[View], columns: int, rows: int, square_m: float
) -> str:
    """Take one view; return a report, or the reason why there is none."""
    if silent := subscriber.silent():
        return f"no view: expected a new {silent} within {SILENT_S:g} s, got none. Check its driver"
    if not subscriber.rests:
        return f"no view: expected the arm at rest for {STILL_S:g} s"
    if (board := find_board(subscriber.newest, subscriber.lens, columns, rows, square_m)) is None:
        return (
            f"no view: the board is not fully visible in this picture (expected {columns} x {rows} "
            f"inner corners){_resolution_advice(subscriber)}"
        )
    away = float(np.linalg.norm(board[:3, 3]))
    if (wide := subscriber.lens[0] * square_m / away) < MIN_PIXELS:
        advice = _resolution_advice(subscriber)
        return (
            f"no view: a square of the board is {wide:.0f} pixels wide, expected {MIN_PIXELS} to "
            f"locate its corners. Move nearer, or use a board with larger squares{advice}"
        )
    views.append(View(subscriber.poses[-1][1], board))
    return f"{len(views)} views; the board is {away:.3f} m away"


def _resolution_advice(subscriber: CameraSubscriber) -> str:
    """Return advice for a larger image than the published one, if it is scaled down."""
    device = subscriber.robot.device_cameras.get(subscriber.camera)
    size = getattr(device, "published", None)
    return (
        f". The published picture has {size[0]} x {size[1]} pixels. Remove 'published' from "
        "robot.yaml during the calibration"
        if size
        else ""
    )


def align(subscriber: CameraSubscriber, options: argparse.Namespace) -> None:
    """Report the picture's displacement from its reference until a person is done.

    With ``--write``, save the picture as the reference.
    """
    subscriber.meet(pose=False)
    path = options.reference or reference_path(
        robot_folder(subscriber.recipe.station.robot), subscriber.camera
    )
    if options.write:
        save_picture(path, subscriber.newest)
        print(f"written: {path}, the reference view")
        return
    reference = read_reference(path, "the same with --write")
    print(
        f"{options.out} shows the reference, the present view and both (red: reference). Turn the "
        "camera. Then d done, or q quit",
        flush=True,
    )
    for word in subscriber.lines():
        if word == "d" and not subscriber.has_new_picture():
            old_s = time.monotonic() - subscriber.received_at
            raise RlinfError(
                f"camera '{subscriber.camera}': its last picture is {old_s:.0f} s old and does not "
                "show its present place. Check its driver"
            )
        if (silent_s := time.monotonic() - subscriber.received_at) > subscriber.silent_s:
            print(f"no picture for {silent_s:.0f} s. Check the camera's driver", flush=True)
            continue
        motion = picture_motion(reference, subscriber.newest)
        save_picture(options.out, comparison(reference, subscriber.newest))
        print(motion.advice, flush=True)
        if word == "d":
            if motion.aligned:
                return
            raise RlinfError(f"camera '{subscriber.camera}' has moved: {motion.advice}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["locate", "align"])
    parser.add_argument("recipe")
    parser.add_argument("camera")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--arm", default="")
    parser.add_argument("--on", default="tool", choices=["tool", "base"])
    parser.add_argument("--board", default="8x5")
    parser.add_argument("--square", type=float, default=0.03)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--out", type=Path, default=Path("alignment.png"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with command_context():
        subscriber = CameraSubscriber(
            load_recipe(arguments.recipe, arguments.overrides), arguments.camera, arguments.arm
        )
        (locate if arguments.what == "locate" else align)(subscriber, arguments)


if __name__ == "__main__":
    main()
