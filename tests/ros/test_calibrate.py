"""`rlinf calibrate` as a person uses it: an arm that is guided says where it is, words come from a
terminal.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import SafetyState
from sensor_msgs.msg import JointState

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RlinfError
from rlinf_core.robots.config import load_robot
from rlinf_ros.qos import profile
from rlinf_tools.calibrate import SILENT_S, Listener, _limits_of

pytestmark = [
    pytest.mark.ros,
    pytest.mark.patient,
    pytest.mark.timeout(300),
    pytest.mark.domain(207),
]
FR3 = Path("robots/franka_fr3/limits.yaml").resolve()
ENDS = [(0.35, -0.2, 0.05), (0.64, 0.2, 0.05), (0.5, 0.0, 0.39), (0.5, 0.05, 0.3)]


class Hand:
    """A person at an arm without a driver, next to the command."""

    def __init__(self, peer, folder, *words):
        (folder / "limits.yaml").write_text(FR3.read_text())
        (folder / "robot.yaml").write_text("driver: external   # ours\nlimits: limits.yaml\n")
        self.peer, self.at, self.frame, self.out = peer, ENDS[0], "base_link", folder / "said.txt"
        self.turned, self.dead = (1.0, 0.0, 0.0, 0.0), False
        self.pose = peer.node.create_publisher(PoseStamped, "current_pose", profile("current_pose"))
        peer.every(0.02, self.say)
        command = [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "calibrate",
            "demo",
            "--set",
            f"station.robot={folder}",
            "station.task=reach",
            "station.operator.kind=keyboard",
            "station.domain_id=207",
            "--out",
            str(folder / "guided.png"),
            *words,
        ]
        with open(self.out, "w") as out:
            self.command = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def say(self):
        if self.dead:
            return
        message = PoseStamped()
        message.header.stamp = self.peer.node.get_clock().now().to_msg()
        message.header.frame_id = self.frame
        p = message.pose.position
        p.x, p.y, p.z = self.at
        for axis, value in zip("xyzw", self.turned, strict=True):
            setattr(message.pose.orientation, axis, value)
        self.pose.publish(message)

    def expect_output(self, words, times=1):
        self.peer.spin(
            lambda: self.out.read_text().count(words) >= times,
            what=lambda: f"{words}: {self.out.read_text()}",
        )

    def type(self, word):
        self.command.stdin.write(f"{word}\n")
        self.command.stdin.flush()

    def guide(self):
        self.expect_output("guide the tool by hand")
        for at in ENDS:
            self.at = at
            self.peer.for_s(0.4)

    def end(self):
        self.peer.spin(
            lambda: self.command.poll() is not None, what=lambda: f"its end: {self.out.read_text()}"
        )
        assert "Traceback" not in self.out.read_text()
        return self.command.returncode


@pytest.fixture
def hand(peer, tmp_path, request):
    hand = Hand(peer, tmp_path, *getattr(request, "param", []))
    yield hand
    hand.command.kill()
    hand.command.wait(10)


@pytest.mark.parametrize("hand", [["--write"]], indirect=True)
def test_a_hand_shows_box_and_home_and_they_are_written(hand, tmp_path):
    hand.expect_output("guide the tool by hand")
    hand.type("d")
    hand.expect_output("x: expected a box of at least 0.02 m")
    hand.guide()
    hand.type("h")
    hand.expect_output("home [0.5, 0.05, 0.3]")
    hand.type("d")
    assert hand.end() == 0
    limits, robot = (
        yaml.safe_load((tmp_path / f"{name}.yaml").read_text()) for name in ("limits", "robot")
    )
    assert limits == yaml.safe_load(FR3.read_text()) | {
        "box_low": [0.36, -0.19, 0.06],
        "box_high": [0.63, 0.19, 0.38],
    }
    assert robot == {
        "driver": "external",
        "limits": "limits.yaml",
        "home": {"position": [0.5, 0.05, 0.3]},
    }
    assert "# ours" in (tmp_path / "robot.yaml").read_text() and "written: " in hand.out.read_text()
    assert (tmp_path / "guided.png").stat().st_size > 1000


@pytest.mark.parametrize("hand", [["--write"]], indirect=True)
def test_a_tool_that_is_mounted_turned_is_the_limits_orientation_from_then_on(hand, tmp_path):
    # half a turn about the vertical, and as long as no rotation is
    hand.turned = (
        0.0,
        2.0,
        0.0,
        0.0,
    )
    hand.guide()
    hand.type("h")
    hand.expect_output("home [0.5, 0.05, 0.3]")
    hand.type("d")
    assert hand.end() == 0
    assert "180 degrees from the limits' orientation [1.0, 0.0, 0.0, 0.0]" in hand.out.read_text()
    limits = yaml.safe_load((tmp_path / "limits.yaml").read_text())
    assert limits["orientation"] == [0.0, 1.0, 0.0, 0.0] and limits["box_low"] == [
        0.36,
        -0.19,
        0.06,
    ]


@pytest.mark.parametrize("hand", [["--write"]], indirect=True)
def test_an_orientation_that_the_robots_own_maxima_say_stays_and_nothing_is_written(hand, tmp_path):
    (tmp_path / "maximum.yaml").write_text("orientation: [1.0, 0.0, 0.0, 0.0]\n")
    hand.turned = (0.0, 1.0, 0.0, 0.0)
    hand.guide()
    hand.type("h")
    hand.expect_output("home [0.5, 0.05, 0.3]")
    hand.type("d")
    assert hand.end() == 2 and "'orientation'" in hand.out.read_text()
    assert (tmp_path / "limits.yaml").read_text() == FR3.read_text()


def test_without_write_and_when_left_nothing_is_written(hand, tmp_path):
    hand.guide()
    hand.type("d")
    assert hand.end() == 0
    assert (
        "box_low: [0.36, -0.19, 0.06]" in hand.out.read_text()
        and "not written: " in hand.out.read_text()
    )
    assert (tmp_path / "limits.yaml").read_text() == FR3.read_text()


def test_where_an_arm_was_that_fell_silent_is_neither_its_home_nor_the_end_of_its_box(hand):
    hand.guide()
    hand.dead = True
    hand.peer.for_s(1.5)
    hand.type("h")
    hand.expect_output("expected current_pose within 1 s, got none. The arm's position is unknown")
    hand.expect_output("no home (silent)")
    hand.type("d")
    hand.expect_output("expected current_pose within 1 s", times=2)
    hand.dead = False
    hand.peer.for_s(1.0)
    hand.type("d")
    assert hand.end() == 0 and "box_low: [0.36, -0.19, 0.06]" in hand.out.read_text()


def test_the_joints_of_a_home_are_those_of_the_limits_whoever_speaks_beside_them():
    listener, names = Listener.__new__(Listener), ("shoulder", "elbow")
    listener.limits = SimpleNamespace(joint_names=names)
    listener.joints = {}
    listener.joints_at = 0.0
    listener.at = time.monotonic()
    for joint_names in (["knuckle"], ["shoulder"], ["knuckle", "shoulder", "elbow"], ["knuckle"]):
        listener._on_joints(
            JointState(name=joint_names, position=[0.1 * len(name) for name in joint_names])
        )
        assert bool(listener.silent(joints=True)) == (not listener.joints) and not listener.silent(
            joints=False
        )
    listener._on_joints(JointState(name=names, position=[1.0, float("nan")]))
    assert [listener.joints[name] for name in names] == pytest.approx([0.8, 0.5])
    listener.joints_at -= SILENT_S
    assert (
        "expected joint_states with the joints of the limits within 1 s, got none"
        in listener.silent(joints=True)
    )


def test_an_arm_that_may_move_is_refused(hand):
    hand.expect_output("guide the tool by hand")
    safety = hand.peer.node.create_publisher(SafetyState, "safety", profile("safety"))
    hand.peer.every(0.05, lambda: safety.publish(SafetyState(state=SafetyState.ACTIVE)))
    assert hand.end() == 1
    assert "the interlock is ACTIVE: expected DISARMED" in hand.out.read_text()


def test_a_pose_that_is_no_rotation_is_refused(hand):
    hand.turned = (0.0, 0.0, 0.0, 0.0)
    assert hand.end() == 1
    assert (
        "current_pose: expected a unit quaternion in orientation, got 0, 0, 0, 0"
        in hand.out.read_text()
    )


def test_a_pose_in_another_frame_is_refused(hand):
    hand.frame = "world"
    assert hand.end() == 1
    assert "expected the limits' frame 'base_link', got 'world'" in hand.out.read_text()


@pytest.mark.parametrize(
    "words, error",
    [
        (["demo"], "expected a real arm, which a hand can guide, got 'franka_sim'"),
        (["franka_twin", "--margin", "-0.1"], "--margin: expected 0 to 0.5 m, got -0.1"),
    ],
)
def test_what_cannot_be_is_refused(words, error, capsys):
    assert main(["calibrate", *words]) == 2
    assert error in capsys.readouterr().err


def test_limits_that_two_arms_share_are_no_place_for_the_box_of_one(tmp_path):
    (tmp_path / "limits.yaml").write_text(FR3.read_text())
    (tmp_path / "right.yaml").write_text("extends: limits.yaml\n")
    (tmp_path / "apart.yaml").write_text(
        "extends: limits.yaml\nbox_low: [0.3, -0.1, 0.1]\nbox_high: [0.5, 0.1, 0.3]\n"
    )
    for right, refused in (("limits.yaml", True), ("right.yaml", True), ("apart.yaml", False)):
        (tmp_path / "robot.yaml").write_text(
            f"driver: external\narms: {{left: {{limits: limits.yaml}}, right: {{limits: "
            f"{right}}}}}\n"
        )
        robot = load_robot(str(tmp_path))
        if refused:
            with pytest.raises(
                RlinfError, match="expected limits of arm 'left' alone, .* got those of 'right' too"
            ):
                _limits_of(robot, "left")
        else:
            assert _limits_of(robot, "left") == tmp_path / "limits.yaml"
