"""Motion by a person's device outside of episodes (with a SpaceMouse: test_devices.py)."""

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from action_msgs.msg import GoalInfo, GoalStatus, GoalStatusArray
from builtin_interfaces.msg import Time
from rlinf_msgs.msg import SafetyState
from std_msgs.msg import Header

from rlinf_operator import operator
from rlinf_operator.operator import IdleTeleop

pytestmark = pytest.mark.ros


def goals(*states):
    """Return the goals as an action server reports them, the newest first."""
    return GoalStatusArray(
        status_list=[
            GoalStatus(status=status, goal_info=GoalInfo(stamp=Time(sec=100 - place)))
            for place, status in enumerate(states)
        ]
    )


def test_while_episodes_are_wanted_a_device_answers_their_time_steps_alone_and_held_on_it_moves_nothing_after(
    monkeypatch,
):
    monkeypatch.setattr(operator, "REST_S", 0.0)
    between, stamps, busy = IdleTeleop.__new__(IdleTeleop), [], [False]  # without ROS
    between.request_active = between.directed = between.rested = False
    between.rests_since = math.inf
    between.safety = SafetyState()
    between.received_at = 0.0
    between.servers = set()
    between.node = MagicMock()
    between.busy = lambda: busy[0]
    between.publish = lambda action, stamp: stamps.append(stamp)
    between.person = SimpleNamespace(idle_action=lambda: held[0])
    held = [np.ones(3)]

    def moves(released=True):
        """Whether it does as long as the device is moved, after it has been let go, if it has."""
        for held[0] in [None] * released + [np.ones(3)]:
            stamps.clear()
            between.go()
        return bool(stamps)

    assert not moves(), "nothing was heard of the interlock"
    for state, may in (
        (SafetyState.DISARMED, False),
        (SafetyState.FAULT, False),
        (SafetyState.HOLD, True),
        (SafetyState.ARMED, True),
    ):
        between._on_safety(SafetyState(state=state, header=Header(stamp=Time(sec=7))))
        assert moves() == may
    received_at = between.received_at
    between._on_safety(SafetyState(state=SafetyState.ARMED, header=Header(stamp=Time(sec=7))))
    assert between.received_at == received_at, "the other arm's has spoken"
    assert 7.0 <= stamps[-1].sec + stamps[-1].nanosec / 1e9 < 8.0, "by the interlock's clock"
    between._on_safety(SafetyState(state=SafetyState.DISARMED))
    assert not moves()
    between._on_safety(SafetyState(state=SafetyState.ARMED))
    assert not moves(released=False), "held on as it was armed"
    for status, may in (
        (GoalStatus.STATUS_ACCEPTED, False),
        (GoalStatus.STATUS_SUCCEEDED, True),
        (GoalStatus.STATUS_EXECUTING, False),
        (GoalStatus.STATUS_CANCELING, False),
        (GoalStatus.STATUS_ABORTED, True),
    ):
        # one that nobody heard of
        between._on_goals(goals(status, GoalStatus.STATUS_CANCELED, GoalStatus.STATUS_ACCEPTED))
        assert not moves(released=False), "held on from before"
        assert moves() == may
    between.directed = True
    assert not moves()
    between.directed, busy[0] = False, True
    assert not moves(), "nor in an episode, or on the way home"
    busy[0], publishers_info = False, between.node.get_publishers_info_by_topic
    publishers_info.return_value = [SimpleNamespace(endpoint_gid=[1])]
    between._on_goals(goals(GoalStatus.STATUS_EXECUTING))
    for ids, may in (([1], False), ([1, 2], False), ([2], True)):
        publishers_info.return_value = [SimpleNamespace(endpoint_gid=[gid]) for gid in ids]
        between._poll()
        assert moves() == may, (
            "who has died wants none, and whoever came in their place was not asked"
        )


def test_the_pause_before_a_held_key_is_repeated_is_not_letting_go(monkeypatch):
    now, stamps, held = [100.0], [], [None]
    monkeypatch.setattr(operator.time, "monotonic", lambda: now[0])
    between = IdleTeleop.__new__(IdleTeleop)  # without ROS
    between.request_active = between.directed = between.rested = False
    between.rests_since = math.inf
    between.safety = SafetyState(state=SafetyState.ARMED)
    between.received_at = 100.0
    between.busy, between.publish = lambda: False, lambda action, stamp: stamps.append(stamp)
    between.person = SimpleNamespace(idle_action=lambda: held[0])
    for rests_s, moves in ((0.7, False), (1.1, True)):
        held[0] = None
        for _ in range(2):
            between.go()
            now[0] += rests_s / 2
        between.go()
        held[0] = np.ones(3)
        between.go()
        assert bool(stamps) is moves
