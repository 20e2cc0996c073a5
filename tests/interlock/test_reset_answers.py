"""What a reset is answered with: what a tick has made of it, and not what was seen when it was asked (S25)."""

from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rlinf.interlock_channel import ROBOTS_OWN
from rlinf.interlock_requests import TAKEN_TICKS, Requests
from rlinf_core.interlock import Inputs, Mode
from tests.interlock.conftest import Rig

CAUSE = "robot:reflex"


class Node:
    """As the interlock's node, in a fault whose cause has gone; a request looks at ``seen``, a tick at what it is given."""

    def __init__(self, listens=True):
        self.rig = Rig().settle().arm()
        self.rig.tick(robot_fault="reflex")
        self.counts, self.wanted, self.clock, self.asked, self.replies = Counter(), {}, None, [], []
        self.desk = SimpleNamespace(requests=self.take, reply=lambda number, reason: self.replies.append((number, reason)),
                                    log=lambda *_: None)
        self.told, self.seen = [], Inputs(pose=self.rig.pose)
        self.resets = SimpleNamespace(get_subscription_count=lambda: int(listens), publish=self.told.append)
        self.requests = Requests(self)
        self.requests._inputs = lambda: self.seen

    @property
    def limits(self):
        return self.rig.limits

    @property
    def state(self):
        return self.rig.state

    def take(self):
        asked, self.asked = self.asked, []
        return asked

    def ask(self, number=1, cause=CAUSE, **more):
        self.asked.append({"id": number, "do": "reset", "with": {"cause": cause, **more}})
        self.requests.answer()

    def tick(self, **said):
        self.requests.answer()
        wanted, self.wanted = self.wanted, {}
        self.rig.tick(**said, **wanted)
        self.counts["ticks"] += 1


def test_it_is_answered_once_a_tick_has_cleared_it():
    node = Node()
    node.ask()
    node.requests.answer()
    assert node.replies == [] and node.state.mode is Mode.FAULT
    node.tick()
    assert node.state.mode is Mode.DISARMED and node.replies == []
    node.requests.answer()
    node.requests.answer()
    assert node.replies == [(1, "")]


@pytest.mark.parametrize("listens", [True, False], ids=["a driver listens", "nobody does"])
def test_what_a_tick_has_found_in_its_way_is_the_answer(listens):
    """The robot's next fault arrives between the request and the tick."""
    node = Node(listens)
    node.ask()
    node.seen = Inputs(pose=node.rig.pose, robot_fault="silent")
    node.tick(robot_fault="silent")
    assert node.state.mode is Mode.FAULT
    node.requests.answer()
    ((number, reason),) = node.replies
    assert number == 1 and reason.endswith("refused: its cause has not gone: robot:silent")
    assert reason.startswith(ROBOTS_OWN) == listens and [each.data for each in node.told] == [CAUSE] * listens


def test_what_no_tick_takes_is_refused_in_the_end():
    node = Node()
    node.ask()
    for _ in range(TAKEN_TICKS):
        node.tick(robot_fault="seen by the ticks alone")
        node.requests.answer()
        assert node.replies == []
    node.tick(robot_fault="seen by the ticks alone")
    node.requests.answer()
    assert node.replies == [(1, "refused: it did not clear. Ask again")]


def test_what_is_refused_at_once_is_answered_at_once():
    node = Node()
    node.ask(cause="another")
    assert node.replies == [(1, f"refused: FAULT '{CAUSE}' stands, and the request named 'another'")]
    node.ask(2)
    node.tick()
    node.ask(3, recovering=True)
    assert node.replies[1:] == [(2, ""), (3, "")], "disarmed, that the robot is back is all there is to do"
