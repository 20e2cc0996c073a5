"""Motion by a joint trajectory controller, modelled after the source of ros2_control."""

from types import SimpleNamespace

import numpy as np
import pytest
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from rlinf_drivers.controller import Controller
from rlinf_ros.conversions import NS, set_stamp

pytestmark = pytest.mark.ros
TICK_S, CYCLE_S, HORIZON_S, SPEED, LAG_S = 0.01, 0.002, 0.05, 0.5, 0.04
AT_REST_S, MOVES_S = 0.2, 1.0


class TrajectoryController:
    """joint_trajectory_controller (Jazzy) with ``interpolate_from_desired_state: false``:
    Trajectory::sample, linear.

    A message begins at the cycle that takes it, from the measured state, unless its first point is
    due already.
    """

    def __init__(self, at):
        self.message, self.begun, self.measured, self.command = None, 0.0, at, at

    def take(self, message, now, measured):
        self.message, self.begun, self.measured = message, now, measured

    def cycle(self, now):
        if self.message is None:
            return self.command
        points = self.message.points
        times = [
            self.begun + point.time_from_start.sec + point.time_from_start.nanosec / NS
            for point in points
        ]
        places = [point.positions[0] for point in points]
        if times[0] > self.begun:
            times, places = [self.begun, *times], [self.measured, *places]
        self.command = float(np.interp(now, times, places))
        return self.command


def driven(message_of, jitter_s):
    """Commands and places (N,), at each cycle, of a joint that lags, which an interlock moves with
    SPEED after a rest.
    """
    random, joint, commands, places = np.random.default_rng(0), 0.0, [], []
    controller, targets, ticks = TrajectoryController(joint), [], 0
    for cycle in range(round((AT_REST_S + MOVES_S) / CYCLE_S)):
        now = cycle * CYCLE_S
        if now >= ticks * TICK_S:
            target = JointState(
                name=["joint"], position=[SPEED * max(0.0, ticks * TICK_S - AT_REST_S)]
            )
            set_stamp(target.header.stamp, NS + round(ticks * TICK_S * NS))
            targets.append((now + random.uniform(0.0, jitter_s), target))
            ticks += 1
        while targets and targets[0][0] <= now:
            controller.take(message_of(targets.pop(0)[1]), now, joint)
        commands.append(controller.cycle(now))
        joint += (commands[-1] - joint) * CYCLE_S / LAG_S
        places.append(joint)
    return np.array(commands), np.array(places)


def ours():
    node = controller()

    def message(target):
        Controller._on_joints(node, target)
        return node.sent.pop()

    return message


def controller(horizon_s=HORIZON_S, tick=TICK_S):
    """Return the part of a node that makes messages."""
    sent = []
    return SimpleNamespace(
        kind="joint_trajectory",
        _count_target=lambda: None,
        _may_forward=lambda: True,
        last_target=JointState(),
        segment=([], [], 0.0),
        horizon_s=horizon_s,
        speed=1.0,
        limits=SimpleNamespace(tick=tick, joint_speed=SPEED),
        sent=sent,
        output=SimpleNamespace(publish=sent.append),
    )


@pytest.mark.parametrize("jitter_s", [0.0, 0.004])
def test_a_joint_gets_as_fast_as_it_is_told_and_the_command_never_falls_back(jitter_s):
    commands, places = driven(ours(), jitter_s)
    fastest = (places[-1] - places[-100]) / (99 * CYCLE_S)
    assert fastest == pytest.approx(SPEED, rel=0.02)
    assert np.diff(commands).min() >= -1e-9, "it would shake"
    assert np.diff(commands).max() <= (1.05 if not jitter_s else 2.5) * SPEED * CYCLE_S
    distance = SPEED * MOVES_S
    assert distance - places[-1] < SPEED * (LAG_S + 3 * TICK_S), (
        "behind by its own lag, and three ticks"
    )


def test_a_point_ahead_alone_would_be_slow_and_shake():
    """What this is against: each message then begins where the arm is measured."""

    def ahead(target):
        point = JointTrajectoryPoint(positions=target.position)
        point.time_from_start.nanosec = round(HORIZON_S * NS)
        return JointTrajectory(joint_names=target.name, points=[point])

    commands, places = driven(ahead, 0.0)
    assert np.diff(commands).min() < -SPEED * CYCLE_S and SPEED * MOVES_S - places[-1] > 0.09


def test_one_that_comes_late_or_first_or_of_other_joints_begins_where_the_arm_is():
    def joints_at(at_s, name="joint"):
        target = JointState(name=[name], position=[at_s])
        set_stamp(target.header.stamp, NS + round(at_s * NS))
        return target

    def second(before, target, **how):
        node = controller(**how)
        for message in (before, target):
            Controller._on_joints(node, message)
        return node.sent[-1].points

    for before, target in (
        (JointState(), joints_at(1.0)),
        (joints_at(1.0), joints_at(1.06)),
        (joints_at(1.0), joints_at(1.01, "other")),
        (joints_at(1.01), joints_at(1.01)),
        (joints_at(1.02), joints_at(1.01)),
    ):
        [point] = second(before, target)
        assert 50_000_000 <= point.time_from_start.nanosec <= 60_000_000, (
            "no faster than it may catch up"
        )
    slow = second(joints_at(1.0), joints_at(1.07), tick=0.05)
    assert len(slow) == 2 and slow[1].time_from_start.nanosec == 70_000_000, (
        "of ticks that are that far apart"
    )
    first, last = second(joints_at(1.0), joints_at(1.01))
    assert (first.positions[0], first.time_from_start.nanosec) == (1.0, 0)
    assert (last.positions[0], last.time_from_start.nanosec) == (1.01, 10_000_000)
