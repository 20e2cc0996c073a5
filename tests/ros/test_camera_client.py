"""`rlinf camera` as a person uses it: pictures of a board come as a camera's, the arm is tilted,
Enter takes a view.
"""

import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import cv2
import numpy as np
import pytest
import yaml
from geometry_msgs.msg import PoseStamped

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.rotation import product
from rlinf_core.robots.calibration.camera_alignment import save_picture
from rlinf_ros.conversions import camera_info, to_image
from rlinf_ros.qos import publisher
from rlinf_tools.camera_client import align, locate
from tests.robots.calibration.test_hand_eye import BOARD, CAMERA, LENS, TILTS, picture, seven, views

pytestmark = [
    pytest.mark.ros,
    pytest.mark.patient,
    pytest.mark.timeout(180),
    pytest.mark.domain(129),
]


class Lab:
    """A camera on an arm that a person tilts, and the command beside it."""

    camera = "[480, 640]"

    def __init__(self, peer, folder, *words):
        self.peer, self.folder, self.out = peer, folder, folder / "said.txt"
        (folder / "limits.yaml").write_text(
            f"extends: {os.getcwd()}/robots/franka_fr3/limits.yaml\n"
        )
        (folder / "robot.yaml").write_text(
            f"driver: external   # ours\nlimits: limits.yaml\ncameras: {{wrist: {self.camera}}}\n"
        )
        self.speak = {
            topic: publisher(peer.node, topic) for topic in ("current_pose", "camera/wrist/image")
        }
        blank = to_image(
            "wrist", np.zeros((480, 640, 3), np.uint8), peer.node.get_clock().now().to_msg()
        )
        self.info = camera_info(blank, LENS)
        self.speak["info"] = publisher(peer.node, "camera/wrist/camera_info")
        self.dead, self.turning = "", 0.0
        self.at(0)
        peer.every(0.1, self.say)
        command = [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "camera",
            *words,
            "--set",
            f"station.robot={folder}",
            "station.task=reach",
            "station.operator.kind=keyboard",
            "station.domain_id=129",
        ]
        with open(self.out, "w") as out:
            self.command = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def at(self, index, shift=0):
        tool, board = list(views(CAMERA, BOARD, TILTS))[index]
        self.pixels, values = np.roll(picture(board), shift, axis=1), seven(tool).tolist()
        self.pose = PoseStamped()
        self.pose.header.frame_id = "base_link"
        p, q = self.pose.pose.position, self.pose.pose.orientation
        p.x, p.y, p.z, q.x, q.y, q.z, q.w = values

    def say(self):
        now = self.peer.node.get_clock().now().to_msg()
        self.pose.header.stamp = now
        if self.turning:  # about the vertical, so much further each time [rad]
            q, half = self.pose.pose.orientation, self.turning / 2
            q.x, q.y, q.z, q.w = product(
                (0.0, 0.0, math.sin(half), math.cos(half)), (q.x, q.y, q.z, q.w)
            )
        for topic, message in (
            ("current_pose", self.pose),
            ("camera/wrist/image", to_image("wrist", self.pixels, now)),
        ):
            if topic != self.dead:
                self.speak[topic].publish(message)
        self.speak["info"].publish(self.info)

    def type(self, word=""):
        self.command.stdin.write(f"{word}\n")
        self.command.stdin.flush()

    def expect_output(self, words):
        self.peer.spin(
            lambda: words in self.out.read_text(), what=lambda: f"{words}: {self.out.read_text()}"
        )

    def end(self):
        self.peer.spin(
            lambda: self.command.poll() is not None, what=lambda: f"its end: {self.out.read_text()}"
        )
        assert "Traceback" not in self.out.read_text()
        return self.command.returncode


@pytest.fixture
def lab(peer, tmp_path, request):
    lab = Lab(peer, tmp_path, *request.param)
    yield lab
    lab.command.kill()
    lab.command.wait(10)


class Shrunk(Lab):
    """A client whose camera publishes smaller pictures than it takes."""

    camera = "{kind: uvc, device: /dev/video0, size: [480, 640], published: [120, 160]}"

    def say(self):
        if self.pixels.shape[0] == 480:
            self.pixels = cv2.resize(self.pixels, (160, 120), interpolation=cv2.INTER_AREA)
            lens = [parameter / 4.0 for parameter in LENS[:4]]
            self.info = camera_info(
                to_image("wrist", self.pixels, self.pose.header.stamp), (*lens, *LENS[4:])
            )
        super().say()


@pytest.fixture
def shrunk(peer, tmp_path):
    lab = Shrunk(peer, tmp_path, "locate", "demo", "wrist", "--on", "tool")
    yield lab
    lab.command.kill()
    lab.command.wait(10)


def test_a_picture_that_was_made_small_gives_no_view_and_says_what_makes_it_larger(shrunk):
    shrunk.expect_output("inner corners must all be visible")
    shrunk.peer.for_s(1.2)
    shrunk.type()
    shrunk.expect_output(
        "The published picture has 120 x 160 pixels. Remove 'published' from robot.yaml"
    )
    assert "1 views" not in shrunk.out.read_text()


@pytest.mark.parametrize(
    "lab", [("locate", "demo", "wrist", "--on", "tool", "--write")], indirect=True
)
def test_the_camera_is_located_and_the_file_named_in_robot_yaml(lab, tmp_path):
    lab.expect_output("inner corners must all be visible")
    for index in range(len(TILTS)):
        lab.at(index)
        lab.peer.for_s(1.2)
        while f"{index + 1} views" not in lab.out.read_text():
            lab.type()
            lab.peer.for_s(0.5)
    lab.type("d")
    assert lab.end() == 0, lab.out.read_text()
    mount = yaml.safe_load((tmp_path / "hand_eye.yaml").read_text())["cameras"]["wrist"]
    assert (
        np.linalg.norm(np.array(mount["position"]) - CAMERA[:3, 3]) < 0.003
        and mount["on"] == "tool"
    )
    assert (
        "hand_eye: hand_eye.yaml" in (tmp_path / "robot.yaml").read_text()
        and "# ours" in (tmp_path / "robot.yaml").read_text()
    )


@pytest.mark.parametrize("lab", [("locate", "demo", "wrist")], indirect=True)
def test_a_view_that_shows_no_board_and_too_few_views_are_told_and_nothing_is_written(
    lab, tmp_path
):
    lab.expect_output("inner corners must all be visible")
    lab.pixels = np.zeros((480, 640, 3), np.uint8)
    lab.peer.for_s(1.0)
    lab.type()
    lab.expect_output("the board is not fully visible")
    lab.type("d")
    lab.expect_output("expected 8 or more views of the board, got 0")
    lab.type("q")
    assert lab.end() == 1 and "nothing is written" in lab.out.read_text()
    assert not (tmp_path / "hand_eye.yaml").exists()


@pytest.mark.parametrize("lab", [("locate", "demo", "wrist")], indirect=True)
def test_an_arm_that_turns_on_the_spot_and_a_camera_or_a_pose_that_fell_silent_give_no_view(lab):
    lab.expect_output("inner corners must all be visible")

    def refused(why):
        lab.peer.for_s(1.2)
        lab.type()
        lab.expect_output(why)

    lab.turning = 0.005  # ten times a second
    refused("no view: expected the arm at rest for 0.5 s")
    lab.turning, lab.dead = 0.0, "camera/wrist/image"
    refused("no view: expected a new image of camera 'wrist' within 1 s, got none")
    lab.dead = "current_pose"
    refused("no view: expected a new pose of the arm within 1 s, got none")
    assert "1 views" not in lab.out.read_text()


@pytest.mark.parametrize(
    "lab", [("align", "demo", "wrist", "--reference", "/nowhere/view.png")], indirect=True
)
def test_without_a_reference_it_says_how_to_take_one(lab):
    assert lab.end() == 1 and "no reference: expected /nowhere/view.png" in lab.out.read_text()


@pytest.mark.parametrize("lab", [("align", "demo", "wrist")], indirect=True)
def test_a_camera_that_was_moved_is_said_by_how_much_until_it_is_back(lab, tmp_path):
    (tmp_path / "views").mkdir()
    lab.at(0, shift=12)
    _, board = next(views(CAMERA, BOARD, TILTS))
    cv2.imwrite(str(tmp_path / "views/wrist.png"), picture(board))  # it is grey
    lab.expect_output("the picture has moved +12.0 pixels to the right")
    lab.at(0)
    lab.expect_output("aligned: within 1 pixel")
    lab.type("d")
    assert lab.end() == 0 and cv2.imread(str(tmp_path / "alignment.png")) is not None


def test_a_picture_that_is_old_says_nothing_of_where_the_camera_is_now(tmp_path, capsys):
    save_picture(tmp_path / "was.png", np.zeros((64, 64, 3), np.uint8))
    looker = MagicMock(
        camera="wrist", newest=np.zeros((64, 64, 3), np.uint8), received_at=time.monotonic() - 7.0
    )
    looker.lines.return_value, looker.silent_s, looker.has_new_picture = (
        ["", "d"],
        1.0,
        lambda: False,
    )
    with pytest.raises(RlinfError, match="camera 'wrist': its last picture is 7 s old"):
        align(
            looker,
            SimpleNamespace(reference=tmp_path / "was.png", write=False, out=tmp_path / "now.png"),
        )
    assert "no picture for 7 s" in capsys.readouterr().out and not (tmp_path / "now.png").exists()


def test_a_camera_at_the_base_is_located_in_the_frame_of_the_limits_or_not_at_all():
    looker = MagicMock(frame="base")
    looker.robot.limits_by_arm = {"": "robots/franka_fr3/limits.yaml"}
    looker.lines.return_value = []
    options = SimpleNamespace(board="8x5", on="base", arm="")
    with pytest.raises(
        RlinfError, match="current_pose: expected the limits' frame 'base_link' .* got 'base'"
    ):
        locate(looker, options)
