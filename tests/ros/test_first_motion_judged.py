"""What `rlinf first-motion` judges and sets, without ROS (beside an interlock:
test_first_motion.py).
"""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rcl_interfaces.msg import ParameterValue, SetParametersResult
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState

from rlinf_core.core.errors import RlinfError
from rlinf_tools import first_motion, first_motion_watch
from rlinf_tools.first_motion import _moves, _row
from rlinf_tools.first_motion_watch import Watcher

LIMITS = "sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml"  # 0.25 m/s


def watched(metres_per_s, scale=1.0):
    """Who has watched an arm go along x for 0.6 s, where it was told so, or the other way."""
    watcher = Watcher.__new__(Watcher)
    watcher.poses = watcher.measured = [
        (0.01 * k, (0.01 * k * metres_per_s, 0.0, 0.0)) for k in range(60)
    ]
    watcher.targets = [(at, (scale * x, y, z)) for at, (x, y, z) in watcher.poses]
    watcher.by_joints, watcher.started_at, watcher.limits = False, 0.0, SimpleNamespace(speed=0.25)
    watcher.spin = lambda *_: None
    return watcher


@pytest.mark.parametrize(
    "metres_per_s, scale, held",
    [
        (0.025, 1.0, True),
        (0.029, 1.0, True),
        (0.032, 1.0, False),
        (0.25, 1.0, False),
        (0.025, -1.0, False),
    ],
)
def test_an_arm_that_is_faster_than_a_tenth_or_goes_elsewhere_is_found(
    monkeypatch, metres_per_s, scale, held
):
    monkeypatch.setattr(first_motion, "_moving", lambda watcher: None)
    assert _moves(watched(metres_per_s, scale), 0.025).held is held


@pytest.mark.parametrize(
    "metres_per_s, took_ms, held",
    [(0.025, 9.0, True), (0.25, 9.0, False), (0.0, 11.0, False), (0.25, 11.0, False)],
)
def test_an_arm_that_stops_late_or_far_is_found(metres_per_s, took_ms, held):
    assert _row(watched(metres_per_s), "S2", "x", 0.0, took_ms, 10.0).held is held


class Interlock:
    """Of an arm, as a watcher asks it for its speeds."""

    def __init__(self, speed, refuses=""):
        self.values, self.refuses, self.requests = {"limits.speed": speed}, refuses, []

    def get(self, request):
        return self._answer(
            values=[
                ParameterValue(type=3, double_value=self.values.get(name, float("inf")))
                for name in request.names
            ]
        )

    def set(self, request):
        self.requests.append(
            {
                parameter.name: pytest.approx(parameter.value.double_value)
                for parameter in request.parameters
            }
        )
        return self._answer(
            results=[SetParametersResult(successful=not self.refuses, reason=self.refuses)]
        )

    def _answer(self, **fields):
        future = Future()
        future.set_result(SimpleNamespace(**fields))
        return future


@pytest.fixture
def slowed(monkeypatch):
    """A watcher of the left arm, whose interlock runs as its file says; the right one's was set to
    less.
    """
    monkeypatch.setattr(first_motion_watch, "DELIVERY_S", 0.0)
    watcher, arms = Watcher.__new__(Watcher), {"left": Interlock(0.25), "right": Interlock(0.02)}
    watcher.getting, watcher.setting = (
        {
            name: SimpleNamespace(call_async=getattr(arm, call), service_is_ready=lambda: True)
            for name, arm in arms.items()
        }
        for call in ("get", "set")
    )
    watcher.robot, watcher.arm, watcher.slowed = (
        SimpleNamespace(interlocks=dict.fromkeys(arms, LIMITS)),
        "left",
        {},
    )
    watcher.node, watcher.safety_by_arm = MagicMock(), {}
    watcher.states = [(0.0, SafetyState(state=SafetyState.ARMED))]
    states = {name: SafetyState(limits_hash=f"slow {name}") for name in arms}

    def subscribe_arms(*_, **__):
        watcher.safety_by_arm.update(states)

    monkeypatch.setattr(first_motion_watch.rclpy, "spin_once", subscribe_arms)
    return watcher, arms, states


def test_every_arm_goes_at_a_tenth_none_faster_than_it_was_set_and_afterwards_as_before(
    slowed,
):
    watcher, arms, _ = slowed
    before, speeds = watcher.slow_down(0.1)
    assert speeds == {"speed": pytest.approx(0.025)} and arms["left"].requests == [
        {"limits.speed": 0.025}
    ]
    assert arms["right"].requests == [{"limits.speed": 0.02}], "less than a tenth already"
    watcher.speed_up(before)
    assert [arm.requests[-1] for arm in arms.values()] == [
        {"limits.speed": 0.25},
        {"limits.speed": 0.02},
    ]


@pytest.mark.parametrize("arm", ["left", "right"])
def test_an_interlock_that_was_started_anew_or_set_meanwhile_ends_it(slowed, arm):
    watcher, _, states = slowed
    watcher.slow_down(0.1)
    done = iter([False, True])
    watcher.spin(lambda: next(done), 1.0, "something")  # nothing has changed
    states[arm] = SafetyState(limits_hash="as its file says")
    done = iter([False, True])
    with pytest.raises(
        RlinfError, match=f"the interlock of {arm} was restarted, .*no longer a tenth. Disarm"
    ):
        watcher.spin(lambda: next(done), 1.0, "something")
    assert not watcher.lowered, "nobody says then that they stay so"


def test_one_that_takes_no_other_speeds_or_is_armed_is_said(slowed):
    watcher, arms, _ = slowed
    arms["right"].refuses = "no"
    with pytest.raises(
        RlinfError, match=r"of right refuses other speeds: no. Those of left now have other speeds"
    ):
        watcher.slow_down(0.1)
    watcher.poses = watcher.measured = [(0.0, (0.0, 0.0, 0.0))]
    with pytest.raises(
        RlinfError, match="expected the interlock DISARMED before the first motion, got ARMED"
    ):
        watcher.meet()
