"""A real arm's way home before a scene is put right, at a person's word: a twin that nobody resets,
and a gamepad.
"""

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from rclpy.action import ActionClient
from rlinf_msgs.action import Home, RunEpisodes
from rlinf_msgs.msg import EpisodeEvent, SafetyEvent, SafetyState
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import String

from rlinf_core.episodes import read_episode
from rlinf_core.episodes.record import EARLY_S
from rlinf_core.launch.graph import operator_process, station_processes
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.operators.gamepad import BUTTONS
from rlinf_operator.operator import SETTLED_S, Homing, _measured
from rlinf_ros.qos import LAZY_PROFILE, profile
from tests.ros.stand_ins import fastest, listen, start
from tests.ros.test_collect import ACTION, task_without_end

pytest.importorskip("franka_msgs.msg", reason="rlinf messages builds franka_msgs")
pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), pytest.mark.domain(196)]
HOME = (0.42, 0.1, 0.3)
CLUTCH, CODES = "rb", Home.Result


class Person:
    """A person with a gamepad, at a station whose robot side is the twin."""

    def __init__(self, peer, folder):
        overrides = (
            f"station.robot={folder}",
            "station.lockstep=false",
            f"station.task={task_without_end(folder)}",
            "station.operator={kind: joy}",
        )
        self.peer, self.held, self.forward, self.poses = peer, set(), 0.0, []
        self.prompts = listen(peer, String, "prompt")
        self.events = listen(peer, EpisodeEvent, "episode")
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, PoseStamped, "target_pose")
        self.interventions = listen(peer, SafetyEvent, "safety/events")
        peer.node.create_subscription(PoseStamped, "current_pose", self.poses.append, LAZY_PROFILE)
        self.pad = peer.node.create_publisher(Joy, "joy", profile("joy"))
        self.runner = ActionClient(peer.node, RunEpisodes, "run_episodes")
        self.home = ActionClient(peer.node, Home, "home")
        peer.every(0.05, self.report)
        recipe = load_recipe("demo", overrides)
        twin = next(
            process for process in station_processes(recipe, folder) if process.name == "twin"
        )
        elsewhere = tuple((f"/station_a/{name}", f"/elsewhere/{name}") for name in ACTION)
        peer.supervisor.start(replace(twin, remappings=twin.remappings + elsewhere))
        for name in ("driver", "interlock", "recorder"):
            start(peer, name, *overrides)
        start(peer, "environment", *overrides, person=True, retries=1)
        peer.supervisor.start(operator_process(recipe))
        peer.spin(
            lambda: (
                self.runner.server_is_ready()
                and self.home.server_is_ready()
                and self.targets
                and self.poses
            ),
            what="the station",
        )

    def report(self):
        buttons = [int(name in self.held) for name in BUTTONS]
        self.pad.publish(
            Joy(axes=[0.0, self.forward, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], buttons=buttons)
        )

    def press(self, name):
        self.held = {name}
        self.peer.for_s(0.2)
        self.held = set()
        self.peer.for_s(0.2)

    def arm(self):
        def armed():
            self.peer.for_s(0.4)  # it is believed once it was heard at rest for 0.2 s
            self.press("start")
            return self.states and self.states[-1].state != SafetyState.DISARMED

        self.peer.spin(armed, what=lambda: f"arming: {self.states[-1:]}")

    def expect_prompt(self, words):
        self.peer.spin(
            lambda: self.prompts and words in self.prompts[-1].data,
            what=lambda: f"{words}: {self.prompts[-3:]}",
        )

    def ask(self):
        sent = self.runner.send_goal_async(
            RunEpisodes.Goal(count=1, mode="demonstration", first_seed=7)
        )
        self.peer.spin(sent.done, what="the request to be taken")
        return sent.result()

    def leaves(self):
        """Their word that they stand clear, and the arm on its way; once more where a busy machine
        has held it.
        """
        begun = self.far()

        def gone():
            if "stand clear" in self.prompts[-1].data:
                self.press("r3")
            return self.far() < begun - 0.01

        self.peer.spin(
            lambda: gone() and self.prompts[-1].data == "the arm moves home",
            what=lambda: (
                f"motion: {[motion.cause for motion in self.interventions[-20:]]} "
                f"{self.prompts[-3:]}"
            ),
        )

    def rests(self):
        """Wait until the arm is commanded to stop and rests."""
        self.peer.for_s(0.6)
        before = place(self.targets[-1])
        self.peer.for_s(0.4)
        assert math.dist(before, place(self.targets[-1])) < 0.001 and self.far() > 0.01

    def far(self):
        return math.dist(place(self.poses[-1]), HOME)

    @property
    def started(self):
        return [event for event in self.events if event.kind == EpisodeEvent.STARTED]


def place(message):
    at = message.pose.position
    return at.x, at.y, at.z


@pytest.fixture
def person(peer, tmp_path):
    # more patient, for a busy machine: silence is others' test
    limits = Path("robots/franka_fr3/limits.yaml").resolve()
    (tmp_path / "limits.yaml").write_text(
        f"extends: {limits}\nstale_state: 0.3\nlost_state: 2.0\nstale_input: 0.5\n"
    )
    (tmp_path / "robot.yaml").write_text(
        f"driver: franka\nlimits: limits.yaml\nhome: {{position: {list(HOME)}}}\n"
        "twin: {node: sim_bridges.twins.franka, simulator: franka_mujoco}\ntool_axes: "
        "[current_twist]\n"
    )
    return Person(peer, tmp_path)


@pytest.mark.parametrize(
    "message, joints, is_measured",
    [
        (JointState(name=["a", "b"], position=[0.1, 0.2]), ["b"], True),
        (JointState(name=["a"], position=[0.1]), ["b"], False),
        (JointState(name=["a", "b"], position=[0.1]), ["b"], False),
        (JointState(name=["b"], position=[math.nan]), ["b"], False),
        (PoseStamped(), [], True),
        (PoseStamped(pose=Pose(position=Point(x=math.inf))), [], False),
        (PoseStamped(pose=Pose(orientation=Quaternion(w=0.0))), [], False),
    ],
)
def test_a_state_that_is_not_all_there_says_nothing_of_the_arm(message, joints, is_measured):
    assert (_measured(message, joints) is not None) == is_measured


def test_the_arm_goes_home_at_a_persons_word_and_stops_at_any_sign_of_theirs(person, peer):
    person.arm()
    handle = person.ask()
    person.expect_prompt("stand clear")
    begun = person.far()
    peer.for_s(0.7)
    assert begun > 0.08 and abs(person.far() - begun) < 0.001, "nothing moves before the word"
    person.leaves()
    person.held, person.forward = {CLUTCH}, 1.0
    person.expect_prompt("the arm is not at home: a device moves the arm. Once more: stand clear")
    person.held, person.forward = set(), 0.0
    person.rests()
    person.leaves()
    person.press("back")
    person.expect_prompt("the arm is not at home: ")
    assert any(why in person.prompts[-1].data for why in ("DISARMED", "the enable was let go"))
    person.press("r3")
    person.rests()
    person.arm()
    person.leaves()
    ended = handle.get_result_async()
    handle.cancel_goal_async()
    peer.spin(ended.done, 30, "the end of the request")
    result = ended.result().result
    assert (result.message, result.error_code) == (
        "cancelled",
        result.CANCELLED,
    ) and not person.started
    person.rests()
    handle = person.ask()
    person.expect_prompt("stand clear")
    person.leaves()
    while "reset the scene" not in person.prompts[-1].data:
        peer.spin(lambda: person.prompts[-1].data not in ("", "the arm moves home"), what="its end")
        if "stand clear" in person.prompts[-1].data:
            person.press("r3")
    assert person.far() < 0.01 and not person.started and fastest(person.targets) < 0.25
    person.press("r3")
    peer.spin(lambda: person.started, what="the episode")
    refused = person.home.send_goal_async(Home.Goal())
    peer.spin(refused.done, 30, "the answer")
    assert not refused.result().accepted, "not within an episode"
    person.press("y")
    ended = handle.get_result_async()
    peer.spin(ended.done, what="the end of the request")
    got = ended.result().result
    assert (got.success, got.episodes, got.successes) == (True, 1, 1)
    episode = read_episode(peer.supervisor.run_dir / "spool/closed" / got.episode_ids[0])
    assert not episode.executed.any(), "the way home is no part of it"


@pytest.fixture
def going_home():
    """Return a way home that has come nearer just now, without ROS; and that time."""
    homing, now = Homing.__new__(Homing), time.monotonic()
    homing.safety = SafetyState(state=SafetyState.ARMED)
    homing.handle = SimpleNamespace(is_cancel_requested=False)
    homing.enabled, homing.enabled_at, homing.homes = True, now, SimpleNamespace(lease_s=1.0)
    homing.by_hand, homing.topics, homing.measured = lambda: False, {"": "joint_states"}, {"": ()}
    homing.started_at = homing.nearer_at = now
    homing.timestep_publishers = {(1,)}
    homing.node = SimpleNamespace(
        get_publishers_info_by_topic=lambda topic: [
            SimpleNamespace(node_name="environment", endpoint_gid=[1])
        ]
    )
    return homing, now


def test_where_nothing_is_heard_of_the_arm_the_way_home_says_of_what(going_home):
    homing, now = going_home
    homing.started_at = homing.nearer_at = now - 4.0
    homing.measured = {}
    code, reason = homing._end_reason(now)
    assert code == CODES.NO_STATE and reason.startswith(
        "no message on joint_states. Is the arm's driver running"
    )
    homing.measured = {"": ()}
    assert homing._end_reason(now) == (CODES.NO_PROGRESS, "the arm came no nearer to home for 3 s")


@pytest.mark.parametrize(
    "change, code, cause",
    [
        ({}, CODES.NONE, ""),
        (
            {"safety": SafetyState(state=SafetyState.HOLD, cause="contact")},
            CODES.INTERLOCK_STOPPED,
            "HOLD contact",
        ),
        (
            {"safety": SafetyState(state=SafetyState.HOLD, cause="outside_joints")},
            CODES.INTERLOCK_STOPPED,
            "HOLD outside_joints",
        ),
        (
            {"safety": SafetyState(state=SafetyState.HOLD, cause="clock")},  # it needs an arming
            CODES.INTERLOCK_STOPPED,
            "HOLD clock",
        ),
        ({"safety": SafetyState(state=SafetyState.HOLD, cause="stale_command")}, CODES.NONE, ""),
        ({"safety": SafetyState(state=SafetyState.DISARMED)}, CODES.INTERLOCK_STOPPED, "DISARMED"),
        ({"enabled": False}, CODES.NOT_ENABLED, "the enable was let go"),
        ({"enabled_at": time.monotonic() - 999.0}, CODES.NOT_ENABLED, "the enable was let go"),
        ({"by_hand": lambda: True}, CODES.TAKEN_OVER, "a device moves the arm"),
        ({"started_at": time.monotonic() - 999.0}, CODES.TIMEOUT, "more than 60 s"),
        (
            {"timestep_publishers": {(2,)}},
            CODES.CLIENT_GONE,
            "the environment that requested it has ended",
        ),
        ({"timestep_publishers": set()}, CODES.NONE, ""),
    ],
)
def test_whatever_stops_the_way_home_stops_it_by_itself(going_home, change, code, cause):
    homing, now = going_home
    vars(homing).update(change)
    stopped_by, reason = homing._end_reason(now)
    assert stopped_by == code and cause in reason and bool(cause) == bool(reason)


def test_at_home_it_rests_for_longer_than_a_command_may_be_older_than_its_episode():
    assert SETTLED_S > EARLY_S
