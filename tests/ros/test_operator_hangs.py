"""The operator's process hangs or dies in a takeover: the policy does not take the arm back
(S16).
"""

import os
import signal
import time

import pytest
from geometry_msgs.msg import PoseStamped
from rlinf_msgs.msg import ActionChunk, SafetyState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from rlinf_core.launch.graph import operator_process
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.operators.twins import SpaceMouse
from rlinf_ros.qos import profile
from tests.ros.conftest import peer_in
from tests.ros.stand_ins import listen, start

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300)]
SILENT = (SafetyState.HOLD, "operator_silent")
MAY_MOVE = (SafetyState.ARMED, SafetyState.ACTIVE, SafetyState.HOLD)


class Manned:
    """A simulated arm in real time, a policy that never stops, and an operator with a SpaceMouse,
    which is a twin.
    """

    def __init__(self, peer, folder):
        self.peer, self.mouse, self.seq, self.speaks = peer, SpaceMouse(folder / "mouse"), 0, True
        self.states = listen(peer, SafetyState, "safety")
        self.targets = listen(peer, PoseStamped, "target_pose")
        self.enables = listen(peer, Bool, "enable")
        self.chunks = listen(peer, ActionChunk, "teleop/action")
        self.policy = peer.node.create_publisher(
            ActionChunk, "policy/action", profile("policy/action")
        )
        self.arming = peer.node.create_client(SetBool, "interlock/arm")
        overrides = [
            "station.lockstep=false",
            f"station.operator={{kind: spacemouse, device: {self.mouse.path}, buttons: {{1: "
            "enable}, curve: 1.0}",
        ]
        for name in ("sim_bridge", "interlock"):
            start(peer, name, *overrides)
        self.operator = operator_process(load_recipe("demo", overrides))
        peer.supervisor.start(self.operator)
        peer.node.create_timer(0.1, self._speak)

    def _speak(self):
        """Command like a policy: up and down by 1 mm."""
        self.seq += 1
        self.policy.publish(
            ActionChunk(
                source="policy",
                session="policy",
                seq=self.seq,
                dt=0.1,
                control_mode="tcp_delta",
                horizon=1,
                dim=3,
                execute=1,
                data=[0.0, 0.0, 0.001 if self.seq // 10 % 2 else -0.001],
                observation_stamp=self.peer.node.get_clock().now().to_msg(),
            )
        )

    @property
    def process(self):
        return self.peer.supervisor.children["operator"].popen

    def press(self):
        self.mouse.press("1", True)
        self.mouse.press("1", False)

    def arm(self):
        """Armed by a person, and enabled by a button."""

        def armed():
            self.press()
            answer = self.arming.call_async(SetBool.Request(data=True))
            self.peer.spin(answer.done, what="the answer")
            return answer.result().success

        self.peer.spin(self.arming.service_is_ready, what="the interlock")
        self.peer.spin(lambda: armed() or self.peer.for_s(0.3), 60, "arming")
        self.commands("policy")

    def commands(self, who):
        self.peer.spin(
            lambda: self.states[-1].source == who,
            30,
            lambda: f"{who} to command: {self.states[-1]}",
        )

    def takes_over(self):
        def operator_commands():
            self.mouse.rest()
            self.peer.for_s(
                2.5
                # it is believed once it has been seen at rest, and the operator has looked who is
                # there
            )
            self.mouse.deflect({"tx": -0.3})
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline and self.states[-1].source != "operator":
                self.peer.for_s(0.05)
            return self.states[-1].source == "operator"

        self.peer.spin(operator_commands, 60, lambda: f"a takeover: {self.states[-1]}")

    def reaches(self, state_text):
        self.peer.spin(
            lambda: (self.states[-1].state, self.states[-1].cause) == state_text,
            10,
            lambda: f"{state_text}: {self.states[-1]}",
        )

    def stays(self, state_text, seconds):
        """Check that the arm does not move and has no commander."""
        self.peer.for_s(0.3)
        state_count, at = len(self.states), len(self.targets)
        self.peer.for_s(seconds)
        assert {(state.state, state.cause) for state in self.states[state_count:]} == {state_text}
        zs = [target.pose.position.z for target in self.targets[at:]]
        ys = [target.pose.position.y for target in self.targets[at:]]
        assert max(zs) - min(zs) < 1e-4 and max(ys) - min(ys) < 1e-4


@pytest.fixture(scope="module")
def manned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hangs")
    with peer_in(folder, 193) as peer:
        station = Manned(peer, folder)
        yield station
        station.mouse.unplug()


def test_an_operator_that_hangs_in_a_takeover_is_followed_by_nobody(manned):
    """The lease of the enable goes on for a minute; the mouse is held all the while, and once more
    let go and pressed.
    """
    manned.arm()
    manned.takes_over()
    os.kill(manned.process.pid, signal.SIGSTOP)
    try:
        manned.reaches(SILENT)
        assert manned.enables[-1].data is True, "nobody has let the enable go"
        manned.stays(SILENT, 6.0)
    finally:
        os.kill(manned.process.pid, signal.SIGCONT)
    # it must be let go of before it commands again, as its process stood still
    manned.stays(SILENT, 1.0)
    manned.mouse.rest()
    manned.peer.for_s(1.5)
    assert (manned.states[-1].state, manned.states[-1].cause) == SILENT, (
        "that alone enables nothing"
    )
    manned.press()
    manned.commands("policy")


def test_an_operator_that_dies_in_a_takeover_is_followed_by_nobody_until_a_person_arms(manned):
    manned.takes_over()
    manned.process.kill()
    manned.reaches(SILENT)
    manned.stays(SILENT, 2.0)
    manned.peer.spin(lambda: manned.process.poll() is None, 60, "another one")
    manned.mouse.rest()
    manned.peer.for_s(3.0)
    manned.press()
    manned.stays(SILENT, 1.0)  # a process that has taken nothing over cannot let go
    manned.arm()


def test_an_operator_that_lets_go_is_followed_by_the_policy(manned):
    manned.takes_over()
    manned.mouse.rest()
    manned.commands("policy")
    assert not manned.chunks[-1].data and manned.chunks[-1].source == "operator"
