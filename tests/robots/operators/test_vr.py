"""A VR controller, by messages as a headset's bridge sends them."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.rotation import product, to_quaternion
from rlinf_core.robots.operators.device import Guard
from rlinf_core.robots.operators.vr import MAX_LAG_STEPS, NAMES, Vr
from rlinf_core.specs.arrays import ActionSpec
from tests.robots.operators.guards import settle

pytestmark = pytest.mark.timed

TOOL = ActionSpec(
    "tcp_delta",
    ("dx", "dy", "dz", "drx", "dry", "drz", "grip"),
    (0.02,) * 3 + (0.1,) * 3 + (0.04,),
    ("m",) * 7,
)
STILL = (0.0, 0.0, 0.0, 1.0)


class Hand:
    """The controller, and the guard that believes it."""

    def __init__(self, action=TOOL, **settings):
        self.device = Vr(**settings)
        self.device.attach(action, 10.0)
        self.guard = Guard("vr", self.device)
        self.at = np.zeros(3)
        self.turned = STILL
        self.held = set()
        self.guard.open()
        settle(self.guard, lambda: self.send() or self.guard.trusted)

    def send(self):
        x, y, z = self.at
        turned = dict(zip(("x", "y", "z", "w"), self.turned, strict=True))
        self.device.receive(
            SimpleNamespace(
                pose=SimpleNamespace(
                    position=SimpleNamespace(x=x, y=y, z=z), orientation=SimpleNamespace(**turned)
                )
            )
        )
        self.press()

    def press(self, *names):
        self.held = set(names) or self.held
        self.device.receive(
            SimpleNamespace(axes=[], buttons=[int(name in self.held) for name in NAMES])
        )

    def let_go(self):
        self.held = set()
        self.send()

    def goes(self, *by, steps=1):
        """So far, and then so many time steps; what is asked in all."""
        self.at = self.at + by
        total = {}
        for _ in range(steps):
            self.send()
            self.guard.poll()
            for axis, value in (self.guard.motion() or {}).items():
                assert abs(value) <= 1.0
                total[axis] = total.get(axis, 0.0) + value
        return {axis: round(value, 3) for axis, value in total.items() if abs(value) > 1e-9}


@pytest.fixture
def hand():
    return Hand()


def test_nothing_moves_before_the_clutch_is_held_nor_jumps_when_it_is(hand):
    assert hand.goes(0.1, 0.0, 0.0) == {} and hand.guard.motion() is None
    hand.press("grip")
    assert hand.goes(0.0, 0.0, 0.0) == {} and hand.guard.motion() is not None, "it commands rest"
    assert hand.goes(0.01, 0.0, -0.02) == {"x": 0.5, "z": -1.0}
    hand.let_go()
    hand.goes(0.2, 0.0, 0.0)
    hand.press("grip")
    assert hand.goes(0.0, 0.0, 0.0) == {}, "from where it is now"


def test_what_the_hand_did_between_two_episodes_moves_nothing(hand):
    hand.press("grip")
    hand.goes(0.0, 0.0, 0.0)
    hand.let_go()  # nobody asks for a motion meanwhile
    hand.at = hand.at + (0.5, 0.0, 0.0)
    hand.send()
    hand.press("grip")
    assert hand.goes(0.0, 0.0, 0.0) == {}, "it was let go of"
    for _ in range(50):
        hand.at = hand.at + (0.01, 0.0, 0.0)
        hand.send()
        hand.guard.poll()
    hand.device.queried_at -= 1.0
    assert hand.goes(0.0, 0.0, 0.0) == {}, "or held all the time"
    assert hand.goes(0.01, 0.0, 0.0) == {"x": 0.5}


def test_what_is_more_than_a_step_is_owed_up_to_a_few_of_them(hand):
    hand.press("grip")
    hand.goes(0.0, 0.0, 0.0)
    assert hand.goes(0.05, 0.0, 0.0, steps=10) == {"x": 2.5}
    assert hand.goes(0.2, 0.0, 0.0, steps=10) == {"x": MAX_LAG_STEPS}


def test_it_turns_about_the_bases_axes_in_the_frame_that_is_said():
    hand = Hand(x="-z", y="-x", z="y")  # OpenXR's
    hand.press("grip")
    hand.goes(0.0, 0.0, 0.0)
    assert hand.goes(-0.01, 0.02, -0.005) == {"x": 0.25, "y": 0.5, "z": 1.0}
    # about the headset's up, which is the base's z
    hand.turned = product(to_quaternion((0.0, 0.05, 0.0)), hand.turned)
    assert hand.goes(0.0, 0.0, 0.0) == {"rz": 0.5}


def test_a_task_without_turning_gets_none():
    hand = Hand(ActionSpec("tcp_delta", ("dx", "dy", "dz"), (0.02,) * 3, ("m",) * 3))
    hand.press("grip")
    hand.goes(0.0, 0.0, 0.0)
    hand.turned = to_quaternion((0.0, 0.3, 0.0))
    assert hand.goes(0.01, 0.0, 0.0) == {"x": 0.5}


def test_buttons_label_arm_and_work_the_gripper(hand):
    hand.press("a")
    assert hand.guard.poll() == ("success",)
    hand.press("menu")
    assert hand.guard.poll() == ("arm",)
    hand.press("trigger")
    hand.guard.poll()
    assert hand.guard.motion() == {"grip": -1.0}
    hand.let_go()
    hand.guard.poll()
    assert hand.guard.motion() is None


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ("silent", "no message of vr/pose or vr/joy came"),
        ("nan", "expected a finite pose"),
        ("quaternion", "of length 1"),
        ("jump", "lost the controller"),
        ("buttons", "expected trigger, grip, a, b, menu, stick, got 2"),
    ],
)
def test_what_cannot_be_believed_stops_it_until_it_is_let_go_of(hand, wrong, reason):
    hand.press("grip")
    hand.goes(0.01, 0.0, 0.0)
    assert hand.guard.motion() is not None
    if wrong == "silent":
        # buttons alone, and no pose
        settle(hand.guard, lambda: reason in hand.guard.trouble or hand.press())
    elif wrong == "buttons":
        hand.device.receive(SimpleNamespace(axes=[], buttons=[0, 1]))
    else:
        hand.turned = (0.0, 0.0, 0.0, 2.0) if wrong == "quaternion" else STILL
        hand.at = hand.at + {"nan": math.nan, "jump": 1.0}.get(wrong, 0.0)
        hand.send()
    settle(hand.guard, lambda: reason in hand.guard.trouble)
    assert hand.guard.motion() is None
    hand.at, hand.turned = np.zeros(3), STILL
    for _ in range(5):
        hand.send()
        hand.guard.poll()
    assert hand.guard.motion() is None, "it is held all the while"
    hand.let_go()
    settle(hand.guard, lambda: hand.send() or hand.guard.trusted)
    hand.press("grip")
    assert hand.goes(0.0, 0.0, 0.0) == {}


def test_it_disarms_also_while_its_pose_is_silent_and_the_clutch_is_held(hand):
    hand.press("grip")
    hand.goes(0.01, 0.0, 0.0)
    settle(
        hand.guard,
        lambda: "no message of vr/pose or vr/joy came" in hand.guard.trouble or hand.press(),
    )
    hand.press("grip", "a", "stick")
    assert hand.guard.poll() == ("disarm",) and hand.guard.poll() == ()
    assert hand.guard.trouble and hand.guard.motion() is None


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"x": "x", "y": "x"}, "right-handed"),
        ({"x": "-x"}, "right-handed"),
        ({"clutch": "paddle"}, "got 'paddle'"),
    ],
)
def test_settings_that_fit_no_hand_are_refused(settings, error):
    with pytest.raises(DeviceError, match=error):
        Vr(**settings)


def test_a_task_of_joints_is_refused():
    with pytest.raises(DeviceError, match="got joint_delta"):
        Vr().attach(ActionSpec("joint_delta", ("a",), (0.05,), ("rad",)), 10.0)
