"""`rlinf first-motion` beside an interlock: a person moves the arm, lets go, disarms and presses;
and where none does.
"""

import contextlib
import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from geometry_msgs.msg import Point, PoseStamped, Quaternion
from rlinf_msgs.msg import ActionChunk
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool

from rlinf_ros.qos import publisher
from sim_bridges.twins.universal_robots_state import HOME, tool_pose
from tests.ros.stand_ins import Arm, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(180)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
JOINTS = [
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
]


class NotHeldError(Exception):
    """A bound, which is wall-clock time, was not: nothing more is asked for."""


class Person(Arm):
    """A person at a device, next to the command."""

    robot, task, middle, slow = "franka_fr3", "reach", 0.25, "speed 0.025"

    def __init__(self, peer, folder, domain):
        (folder / "limits.yaml").write_text(
            f"extends: {os.getcwd()}/robots/{self.robot}/limits.yaml\nestop_silence: 1.0\n"
            "stale_state: 0.3\n"
        )
        (folder / "robot.yaml").write_text(
            "driver: external\nlimits: limits.yaml\nestops: [pendant]\n"
            f"topics: {json.dumps(self.topics)}\n"
        )
        self.mirrored = None  # about that height its driver has up and down the other way round
        super().__init__(peer, streams=False)
        start(
            peer,
            "interlock",
            f"station.robot={folder}",
            f"station.task={self.task}",
            "station.lockstep=false",
            latch_file="",
        )
        self.fault, self.moving, self.up, self.out = "", False, 0.004, folder / "said.txt"
        self.faults = publisher(peer.node, "robot/fault", at=self.topics.get("robot/fault", ""))
        peer.node.create_timer(0.1, self.command_it)
        peer.spin(lambda: self.states and self.targets, what="the interlock")
        command = [
            sys.executable,
            "-m",
            "rlinf_core.cli.main",
            "first-motion",
            "demo",
            "--json",
            str(folder / "rows.json"),
            "--set",
            f"station.robot={folder}",
            f"station.task={self.task}",
            "station.operator.kind=keyboard",
            f"station.domain_id={domain}",
        ]
        with open(self.out, "w") as out:
            self.command = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def follow(self, target):
        if self.mirrored is None:
            return target
        mirror_image = copy.deepcopy(target)
        mirror_image.position.z = 2 * self.mirrored - target.position.z
        return mirror_image

    def command_it(self):
        if self.moving:
            self.send(0.0, 0.0, self.up, source="operator")

    def expect_output(self, words):
        self.peer.spin(
            lambda: words in self.out.read_text() or self.command.poll() is not None,
            what=lambda: f"{words}: {self.out.read_text()}",
        )
        if words not in self.out.read_text() and "NOT HELD" in self.out.read_text():
            raise NotHeldError
        assert words in self.out.read_text(), self.out.read_text()

    def moves(self):
        """Armed, and up or down, by two centimetres."""
        self.arm()
        begun, self.moving = self.height, True
        self.up = 0.004 if begun < self.middle else -0.004
        self.peer.spin(
            lambda: abs(self.height - begun) > 0.012,
            what=lambda: f"motion: {self.states[-1].state} {self.states[-1].cause}",
        )

    @property
    def height(self):
        return self.targets[-1].pose.position.z

    def lets_go(self):
        self.moving = False

    def stops_by_itself(self):
        """Says for what a reset is asked then."""
        self.faults.publish(String(data="user_stop"))
        return "robot:user_stop"

    def comes_back(self):
        self.faults.publish(String(data=""))

    def end(self):
        self.peer.spin(
            lambda: self.command.poll() is not None, what=lambda: f"its end: {self.out.read_text()}"
        )
        assert "Traceback" not in self.out.read_text(), self.out.read_text()
        return self.command.returncode


class Silent(Person):
    """An arm whose driver falls silent after its own stop until a reset, like franka_ros2."""

    def stops_by_itself(self):
        self.publishes_state = False
        return "stale_state"

    def comes_back(self):
        self.publishes_state = True


class Jointed(Person):
    """A UR5e that is commanded by joints, with a driver that has its own names."""

    robot, task, middle, slow = "ur5e", "ur5e_reach", 0.45, "joint_speed 0.05"
    commanded = JointState, "target_joints"
    topics = {
        "joint_states": "/of_its_driver/joint_states",
        "current_pose": "/of_its_driver/pose",
        "target_joints": "/of_its_driver/command",
        "robot/fault": "/of_its_driver/fault",
        "estop/pendant": "/of_its_driver/pendant",
    }

    def stand(self):
        self.joints, self.pose = JointState(name=list(JOINTS), position=list(HOME)), PoseStamped()
        self.pose.header.frame_id = "base"
        self.stands()

    def stands(self):
        x, y, z, *turn = map(float, tool_pose(np.array(self.joints.position)))
        self.pose.pose.position = Point(x=x, y=y, z=z)
        self.pose.pose.orientation = Quaternion(**dict(zip("xyzw", turn, strict=True)))

    def obey(self, target):
        self.joints = target
        self.stands()

    def send(self, x, y=0.0, z=0.0, source="policy", dt=0.1, **fields):
        """Up and down by the second joint."""
        self.seq += 1
        self.say["teleop/action"].publish(
            ActionChunk(
                source=source,
                session=source,
                seq=self.seq,
                dt=dt,
                control_mode="joint_delta",
                horizon=1,
                dim=6,
                execute=1,
                data=[0.0, -5.0 * z, 0.0, 0.0, 0.0, 0.0],
                joint_names=JOINTS,
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    @property
    def height(self):
        return self.pose.pose.position.z


@pytest.fixture
def person(peer, tmp_path, request):
    kind = getattr(request, "param", Person)
    person = kind(peer, tmp_path, request.node.get_closest_marker("domain").args[0])
    yield person
    person.command.kill()
    person.command.wait(10)


def does_it_all(person):
    """What it asks for, until the speeds are theirs again."""
    person.expect_output("the interlock's speeds are now a tenth: ")
    person.expect_output(person.slow)
    person.expect_output("clear the table")
    person.moves()
    person.lets_go()
    person.expect_output("let go of your device while the arm moves")
    person.moves()
    person.lets_go()
    person.expect_output("while the arm moves, disarm it: q")
    person.moves()
    person.peer.spin(
        lambda: person.ask(person.arming, SetBool.Request(data=False)).success, what="disarming"
    )
    person.lets_go()
    person.expect_output("press the e-stop 'pendant'")
    person.moves()
    person.pressed = True
    person.lets_go()
    person.expect_output("rlinf fault reset --cause 'estop:pendant'")
    person.pressed = False
    person.peer.spin(lambda: person.clear("estop:pendant").success, what="the reset")
    person.expect_output("press the robot's own stop")
    person.moves()
    cause = person.stops_by_itself()
    person.lets_go()
    person.expect_output(f"rlinf fault reset --cause '{cause}'")
    person.comes_back()
    person.peer.spin(lambda: person.clear(cause).success, what="the reset")


@pytest.mark.parametrize(
    "person",
    [
        pytest.param(Person, marks=pytest.mark.domain(130)),
        pytest.param(Silent, marks=[pytest.mark.domain(34), pytest.mark.slow]),
        pytest.param(Jointed, marks=[pytest.mark.domain(50), pytest.mark.slow]),
    ],
    indirect=True,
)
def test_a_tenth_of_the_speeds_each_stop_in_its_bound_and_the_speeds_again_at_the_end(
    person, tmp_path
):
    with contextlib.suppress(NotHeldError):
        does_it_all(person)
    person.end()
    rows = json.loads((tmp_path / "rows.json").read_text())
    requirements = ["S9", "S2", "S13", "S14", "S17"]
    assert [row["requirement"] for row in rows] == requirements[: len(rows)] and rows[0]["held"], (
        rows[0]
    )
    if all(row["held"] for row in rows):
        assert (
            rows[-1]["requirement"] == "S17"
            and person.command.returncode == 0
            and "all requirements held" in person.out.read_text()
        )
    else:  # a busy machine: bounds are wall-clock time
        assert (
            person.command.returncode == 1
            and "speeds stay at a tenth until the interlock is restarted" in person.out.read_text()
        )


@pytest.mark.domain(131)
def test_an_arm_that_goes_the_other_way_is_found_at_its_first_centimetre_and_no_more_is_asked_for(
    person, tmp_path
):
    person.expect_output("clear the table")
    person.mirrored = person.pose.pose.position.z
    person.moves()
    person.lets_go()
    person.expect_output("NOT HELD")
    assert (
        person.end() == 1
        and "speeds stay at a tenth until the interlock is restarted" in person.out.read_text()
    )
    [row] = json.loads((tmp_path / "rows.json").read_text())
    assert row["requirement"] == "S9" and "-1.00 alike" in row["measured"] and not row["held"]


@pytest.mark.domain(132)
def test_where_no_interlock_is_or_one_is_armed_it_does_not_begin(peer, tmp_path):
    command = [
        sys.executable,
        "-m",
        "rlinf_core.cli.main",
        "first-motion",
        "demo",
        "--set",
        "station.robot=franka_fr3",
        "station.task=reach",
        "station.operator.kind=keyboard",
        "station.domain_id=132",
    ]
    ran = subprocess.run(command, text=True, capture_output=True, timeout=90)
    assert (
        ran.returncode == 1
        and "received no interlock" in ran.stderr
        and "Traceback" not in ran.stderr
    )
