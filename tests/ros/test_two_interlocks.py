"""Two interlocks of one station as processes, with this test as arms and people: they move together
or not at all.
"""

import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped, WrenchStamped
from rlinf_msgs.msg import ActionChunk, Applied, SafetyState
from rlinf_msgs.srv import ResetFault
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool

from rlinf_ros.conversions import to_ns
from rlinf_ros.qos import publisher
from tests.ros.stand_ins import listen, start
from tests.ros.test_station_client import rlinf

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
DISARMED, ARMED, ACTIVE, HOLD, FAULT = range(5)
ARMS = ("left", "right")
FR3 = Path("robots/franka_fr3/limits.yaml").resolve()


class Side:
    """A perfectly following FR3 at 100 Hz."""

    def __init__(self, peer, name):
        self.name, self.pose, self.felt = name, PoseStamped(), True
        self.pose.header.frame_id = "base_link"
        self.pose.pose.position.x = 0.5
        self.pose.pose.position.z = 0.2
        self.pose.pose.orientation.x = 1.0
        self.pose.pose.orientation.w = 0.0
        self.states, self.targets = (
            listen(peer, kind, f"{name}/{topic}")
            for kind, topic in ((SafetyState, "safety"), (PoseStamped, "target_pose"))
        )
        self.applied = listen(peer, Applied, f"{name}/applied")
        self.say = {
            topic: publisher(peer.node, f"{name}/{topic}")
            for topic in ("current_pose", "wrench", "joint_states", "robot/fault")
        }
        self.arming = peer.node.create_client(SetBool, f"{name}/interlock/arm")
        self.clearing = peer.node.create_client(ResetFault, f"{name}/interlock/reset_fault")

    def speak(self, stamp):
        self.pose.header.stamp = stamp
        self.pose.pose = self.targets[-1].pose if self.targets else self.pose.pose
        self.say["current_pose"].publish(self.pose)
        self.say["joint_states"].publish(
            JointState(
                name=[f"fr3_joint{number}" for number in range(1, 8)],
                position=[0.0, 0.35, 0.0, -2.1, 0.0, 2.45, 0.785],
            )
        )
        self.say["wrench"].publish(WrenchStamped())

    @property
    def stands(self):
        return (self.states[-1].state, self.states[-1].cause) if self.states else None

    @property
    def place(self):
        p = self.targets[-1].pose.position
        return np.array([p.x, p.y, p.z])


class Station:
    """Two arms, a policy at 10 Hz, an enable and one e-stop."""

    def __init__(self, peer, tmp_path):
        self.peer = peer
        self.seq = 0
        self.pressed = False
        self.action = (0.0, 0.0, 0.001, 0.0, 0.001, 0.0)
        self.left, self.right = self.sides = [Side(peer, name) for name in ARMS]
        self.say = {
            topic: publisher(peer.node, topic)
            for topic in ("estop/pendant", "enable", "policy/action", "teleop/action")
        }
        peer.node.create_timer(0.1, self.ten_hertz)
        # nor an arm
        (tmp_path / "limits.yaml").write_text(
            f"extends: {FR3}\nestop_silence: 1.0\nstale_state: 0.3\n"
        )
        (tmp_path / "robot.yaml").write_text(
            "driver: external\narms: {left: {limits: limits.yaml}, right: {limits: "
            "limits.yaml}}\nestops: [pendant]\n"
        )
        self.overrides = (f"station.robot={tmp_path}", "station.task=reach_both")
        self.recipe = tmp_path / "two.yaml"
        self.recipe.write_text(
            f"defaults: demo\nname: two\nstation: {{robot: {tmp_path}, task: reach_both, operator: "
            "{kind: keyboard}}\n"
        )
        peer.every(0.01, self.hundred_hertz)
        self.memory = {name: tmp_path / f"{name}.memory" for name in ARMS}
        for name in ARMS:
            self.start(name)

    def start(self, name):
        start(self.peer, f"interlock_{name}", *self.overrides, latch_file=str(self.memory[name]))

    def hundred_hertz(self):
        for side in self.sides:
            side.speak(self.peer.node.get_clock().now().to_msg())
        self.say["enable"].publish(Bool(data=True))
        self.say["estop/pendant"].publish(Bool(data=self.pressed))

    def ten_hertz(self):
        if self.action is not None:
            self.send(self.action)

    def send(self, action, topic="policy/action"):
        self.seq += 1
        self.say[topic].publish(
            ActionChunk(
                source=topic.split("/")[0],
                session=topic,
                seq=self.seq,
                dt=0.1,
                control_mode="tcp_delta",
                horizon=1,
                dim=len(action),
                execute=1,
                data=list(action),
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def let_go(self):
        """The operator ends a takeover: a chunk without actions."""
        self.seq += 1
        self.say["teleop/action"].publish(
            ActionChunk(
                source="operator",
                session="teleop/action",
                seq=self.seq,
                policy_version=-1,
                dt=0.1,
                control_mode="tcp_delta",
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    def ask(self, client, request):
        self.peer.spin(client.service_is_ready, what="the interlocks' services")
        future = client.call_async(request)
        self.peer.spin(future.done, what="the answer")
        return future.result()

    def arm(self, *sides):
        for side in sides or self.sides:
            self.peer.spin(
                lambda side=side: self.ask(side.arming, SetBool.Request(data=True)).success,
                what="arming",
            )

    def clear(self, side, cause):
        self.peer.spin(
            lambda: self.ask(side.clearing, ResetFault.Request(cause=cause)).success,
            what=f"{cause} cleared",
        )

    def reach(self, left, right, timeout_s=90.0):
        self.peer.spin(
            lambda: (self.left.stands, self.right.stands) == (left, right),
            timeout_s,
            lambda: f"{left} and {right}, stands {self.left.stands} and {self.right.stands}",
        )

    def moves(self, side, least=0.0005):
        begun = side.place
        self.peer.spin(
            lambda: np.abs(side.place - begun).max() > least, what=f"{side.name} to move"
        )

    def rests(self, side, seconds=0.5):
        self.peer.for_s(0.5)  # braking
        begun = side.place
        self.peer.for_s(seconds)
        assert np.abs(side.place - begun).max() < 1e-6


@pytest.fixture
def station(peer, tmp_path):
    station = Station(peer, tmp_path)
    peer.spin(
        lambda: all(side.targets and side.states for side in station.sides), what="both interlocks"
    )
    return station


@pytest.mark.domain(155)
def test_s27_each_plays_its_own_part_of_an_action_and_neither_moves_before_both_are_armed(station):
    station.arm(station.left)
    station.peer.spin(lambda: station.left.stands == (ARMED, ""), what="left armed")
    station.rests(station.left)
    assert station.left.stands == (ARMED, "") and station.right.stands == (DISARMED, "")
    station.arm(station.right)
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    before = [side.place for side in station.sides]
    station.peer.for_s(1.0)
    left, right = (side.place - at for side, at in zip(station.sides, before, strict=True))
    assert left[2] > 0.003 and abs(left[1]) < 1e-9 and right[1] > 0.003 and abs(right[2]) < 1e-9
    for side, part in ((station.left, slice(0, 3)), (station.right, slice(3, 6))):
        applied = side.applied[-1]
        others = np.delete(applied.executed, range(6)[part])
        assert (
            tuple(applied.requested) == station.action
            and not others.any()
            and np.any(applied.executed[part])
        )
    keys = [
        {(applied.session, applied.seq, applied.index) for applied in side.applied}
        for side in station.sides
    ]
    assert len(keys[0] ^ keys[1]) <= 2, "but for the last one, both have played the same"
    station.ask(station.right.arming, SetBool.Request(data=False))
    station.reach((HOLD, "arm:right"), (DISARMED, ""))
    station.rests(station.left)


@pytest.mark.domain(156)
def test_s27_a_fault_of_one_arm_stops_the_other_until_it_is_reset_and_armed(station, evidence):
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    for side in station.sides:
        side.states.clear()
    station.left.say["robot/fault"].publish(String(data="reflex"))
    station.reach((FAULT, "robot:reflex"), (HOLD, "arm:left"))
    held, faulted = (
        min(to_ns(message.header.stamp) for message in side.states if message.state == state)
        for side, state in ((station.right, HOLD), (station.left, FAULT))
    )
    delay_s = (held - faulted) / 1e9
    assert delay_s < 0.1
    evidence(
        "S27", f"the other arm holds {1e3 * delay_s:.0f} ms after the fault of one", "two ticks"
    )
    station.rests(station.right)
    station.left.say["robot/fault"].publish(String(data=""))
    station.rests(station.right)
    station.clear(station.left, "robot:reflex")
    station.reach((DISARMED, ""), (HOLD, "arm:left"))
    station.rests(station.right)
    station.arm(station.left)
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    station.moves(station.right)


@pytest.mark.domain(157)
def test_s14_the_estop_is_that_of_both_and_each_remembers_its_own(station):
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    assert all(memory.read_text() == "ARMED" for memory in station.memory.values())
    station.pressed = True
    station.reach((FAULT, "estop:pendant"), (FAULT, "estop:pendant"))
    station.pressed = False
    station.clear(station.left, "estop:pendant")
    station.peer.for_s(0.3)
    assert station.right.stands == (FAULT, "estop:pendant"), "each is reset by name"
    station.clear(station.right, "estop:pendant")
    station.reach((DISARMED, ""), (DISARMED, ""))
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))


@pytest.mark.domain(158)
def test_s27_where_one_interlock_dies_the_other_arm_stops_and_cannot_be_armed(station, evidence):
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    killed = time.monotonic()
    station.peer.supervisor.children.pop("interlock_left").popen.kill()
    station.peer.spin(
        lambda: station.right.stands == (HOLD, "silent:left/safety/to_others"), 5.0, "right to hold"
    )
    took_s = time.monotonic() - killed
    assert took_s < 1.0
    evidence(
        "S27",
        f"it holds {1e3 * took_s:.0f} ms after the other's interlock was killed",
        "stale_input 200 ms",
    )
    station.rests(station.right)
    refused = station.ask(station.right.arming, SetBool.Request(data=True))
    assert not refused.success
    assert (
        "silent:left/safety/to_others (the interlock of arm left: is it running?)"
        in refused.message
    )
    station.left.states.clear()
    station.start("left")
    station.reach((FAULT, "restarted"), (HOLD, "silent:left/safety/to_others"), 20.0)
    station.rests(station.right)
    station.clear(station.left, "restarted")
    station.arm(station.left)
    station.reach((ACTIVE, ""), (ACTIVE, ""))


@pytest.mark.domain(159)
@pytest.mark.parametrize("action", [(0.0,) * 3, (0.0,) * 9, (0.0, 0.0, 0.001, 0.0, math.nan, 0.0)])
def test_s27_an_action_that_is_wrong_for_one_arm_is_refused_by_both(station, action):
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    station.action = None
    station.send(action)
    station.reach((HOLD, "invalid_command"), (HOLD, "invalid_command"))
    station.action = (0.0, 0.0, 0.001, 0.0, 0.001, 0.0)
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    station.action = None
    for side in station.sides:
        side.states.clear()
    station.send((0.0, 0.0, 0.001, 3.0, 0.0, 0.0))  # a jump of the right one alone
    station.reach((HOLD, "arm:right"), (HOLD, "invalid_command"))


@pytest.mark.domain(160)
def test_s16_a_takeover_is_one_of_both(station):
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    for _ in range(5):
        station.send((0.001, 0.0, 0.0, 0.001, 0.0, 0.0), "teleop/action")
        station.peer.for_s(0.1)
    assert [side.states[-1].source for side in station.sides] == ["operator"] * 2
    station.let_go()
    station.peer.spin(
        lambda: [side.states[-1].source for side in station.sides] == ["policy"] * 2,
        what="the policy again",
    )


@pytest.mark.domain(161)
def test_whoever_asks_a_station_with_two_arms_asks_both(station):
    def ask(*words):
        return rlinf(station.peer, *words, str(station.recipe), domain=161)

    code, output = ask("arm")
    assert code == 1 and "arm: expected a person at a terminal" in output
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    code, output = ask("status")
    assert (
        code == 0
        and "arm left: ACTIVE policy commands" in output
        and "arm right: ACTIVE policy commands" in output
    )
    assert "left/interlock, peer, right/interlock; MISSING for " in output
    assert f"'{station.recipe}': environment, policy, recorder, uplink" in output
    assert "ticks left" in output and "ticks right" in output
    station.pressed = True
    station.reach((FAULT, "estop:pendant"), (FAULT, "estop:pendant"))
    station.pressed = False
    station.peer.for_s(1.0)
    code, output = ask("fault", "reset", "--cause", "estop:pendant")
    assert code == 0 and "is cleared: the interlock is DISARMED" in output
    station.reach((DISARMED, ""), (DISARMED, ""))
    station.left.say["robot/fault"].publish(String(data="reflex"))
    station.arm(station.right)
    code, output = ask("disarm")
    assert code == 0 and "the interlock is DISARMED" in output
    station.reach((DISARMED, ""), (DISARMED, ""))


@pytest.mark.domain(161)
def test_though_one_interlock_hangs_a_disarming_disarms_the_other_arm_at_once_and_says_which_it_did_not(
    station,
):
    station.arm()
    station.reach((ACTIVE, ""), (ACTIVE, ""))
    hung = station.peer.supervisor.children["interlock_left"].popen
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        code, output = rlinf(station.peer, "disarm", str(station.recipe), domain=161)
        assert (
            code == 1 and "the others are disarmed): arm 'left': cannot disarm: no answer" in output
        )
        station.peer.spin(lambda: station.right.stands == (DISARMED, ""), what="the right arm")
    finally:
        os.kill(hung.pid, signal.SIGCONT)
