"""The answer to a reset describes what a tick made of it, not the state at the request (S25)."""

import time
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rlinf_core.interlock import Inputs, Mode
from rlinf_interlock import interlock_requests, interlock_services
from rlinf_interlock.interlock_requests import INACTIVE, Requests
from rlinf_interlock.interlock_services import ROBOT_FAULT_PREFIX
from tests.interlock.conftest import Rig, stream

CAUSE = "robot:reflex"


class Node:
    """The interlock's node in a fault whose cause has gone; requests see ``tick_inputs``."""

    def __init__(self, listens=True):
        self.rig = Rig().settle().arm()
        self.rig.tick(robot_fault="reflex")
        self.counts = Counter()
        self.queued_requests = {}
        self.clock = None
        self.pending = []
        self.replies = []
        self.active, self.settings = True, {"lockstep": False}
        self.service_process = SimpleNamespace(
            requests=self.take,
            reply=lambda number, reason: self.replies.append((number, reason)),
            log=lambda *_: None,
        )
        self.published, self.tick_inputs = [], Inputs(pose=self.rig.pose)
        self.resets = SimpleNamespace(
            get_subscription_count=lambda: int(listens), publish=self.published.append
        )
        self.requests = Requests(self)
        self.requests._inputs = lambda: self.tick_inputs

    @property
    def limits(self):
        return self.rig.limits

    @property
    def state(self):
        return self.rig.state

    def take(self):
        pending, self.pending = self.pending, []
        return pending

    def ask(self, number=1, cause=CAUSE, **more):
        self.pending.append({"id": number, "do": "reset", "with": {"cause": cause, **more}})
        self.requests.answer()

    def tick(self, **inputs):
        self.requests.answer()
        requests, self.queued_requests = self.queued_requests, {}
        self.rig.tick(**inputs, **requests)
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
    node.tick_inputs = Inputs(pose=node.rig.pose, robot_fault="silent")
    node.tick(robot_fault="silent")
    assert node.state.mode is Mode.FAULT
    node.requests.answer()
    ((number, reason),) = node.replies
    assert number == 1 and reason.endswith("refused: its cause persists: robot:silent")
    assert (
        reason.startswith(ROBOT_FAULT_PREFIX) == listens
        and [message.data for message in node.published] == [CAUSE] * listens
    )


def test_where_the_arm_is_not_seen_the_reset_of_that_says_what_is_missing():
    node = Node()
    node.rig.tick(reset_fault=CAUSE)
    node.rig.settle().tick(arm=True)
    node.inputs = SimpleNamespace(state_topic="current_pose", pose=node.rig.pose, joints=None)
    for _ in range(60):
        node.rig.tick(pose_age_ns=10**9)
    node.tick_inputs = Inputs(pose=node.rig.pose, pose_age_ns=10**9)
    node.ask(cause="stale_state")
    ((_, reason),) = node.replies
    assert reason.startswith(
        "refused: its cause persists: expected a measured state on 'current_pose'"
    )
    assert (
        reason.endswith("got one 1.0 s old. Is the robot side running?")
        and node.queued_requests == {}
    )
    node.tick()
    node.tick_inputs = Inputs(pose=node.rig.pose)
    node.ask(2, cause="stale_state")
    node.tick()
    node.requests.answer()
    assert node.replies[1:] == [(2, "")] and node.state.mode is Mode.DISARMED


def test_what_no_tick_takes_is_refused_in_the_end_and_forgotten(monkeypatch):
    node = Node()
    node.ask()
    for _ in range(5):
        node.tick(robot_fault="seen by the ticks alone")
        node.requests.answer()
        assert node.replies == [] and node.queued_requests == {"reset_fault": CAUSE}
    monkeypatch.setattr(interlock_requests.time, "monotonic", lambda: float("inf"))
    node.requests.answer()
    assert node.replies == [
        (1, "refused: no tick of the interlock cleared it for 3 s. Is the robot side running?")
    ]
    assert node.queued_requests == {} and node.requests.pending_resets == []


def test_s26_what_is_come_to_too_late_is_refused_but_a_disarming():
    """The interlock stood still, and whoever asked was told that it does not answer."""
    node = Node()
    node.rig.tick(reset_fault=CAUSE)
    assert node.state.mode is Mode.DISARMED
    node.requests._why_not_armed = lambda: ""
    for number, (value, ago) in enumerate(((True, 7.0), (True, 0.5), (False, 7.0))):
        node.pending = [
            {"id": number, "do": "arm", "with": {"value": value}, "asked": time.monotonic() - ago}
        ]
        node.requests.answer()
        assert node.queued_requests.pop("arm", None) is (None, True, False)[number]
    late = "refused: the request reached the interlock after 7.0 s, expected within 3 s. "
    assert node.replies == [(0, late + "Was the interlock stopped? Try again"), (1, ""), (2, "")]
    assert node.requests.armings == 2, "refused or not: so many were asked for"


def test_a_reset_that_is_come_to_too_late_is_refused():
    node = Node()
    node.pending = [
        {"id": 1, "do": "reset", "with": {"cause": CAUSE}, "asked": time.monotonic() - 7.0}
    ]
    node.tick()
    ((_, reason),) = node.replies
    assert "expected within 3 s" in reason and node.state.mode is Mode.FAULT


@pytest.mark.parametrize(
    "do, arguments", [("limits", {"values": {"speed": 0.1}}), ("activate", {})]
)
def test_whatever_else_is_come_to_too_late_is_not_done_either_for_nobody_knows_of_it(do, arguments):
    node, before = Node(), None
    node.rig.tick(reset_fault=CAUSE)
    before = node.limits
    node.activate = lambda: pytest.fail("whoever asked was told that it was not done")
    node.pending = [{"id": 1, "do": do, "with": arguments, "asked": time.monotonic() - 7.0}]
    node.requests.answer()
    ((_, reason),) = node.replies
    assert "expected within 3 s" in reason and node.limits == before


def test_s19_who_is_being_armed_is_not_given_looser_limits_in_the_same_breath():
    node = Node()
    node.rig.tick(reset_fault=CAUSE)
    node.rig.settle()
    node.requests._why_not_armed = lambda: ""
    for number, (do, arguments) in enumerate(
        (("arm", {"value": True}), ("limits", {"values": {"speed": 0.3}}))
    ):
        node.pending.append({"id": number, "do": do, "with": arguments})
    node.requests.answer()
    assert dict(node.replies)[0] == "" and dict(node.replies)[1].startswith(
        "speed would be loosened. While armed, limits can only be tightened"
    )
    assert node.queued_requests == {"arm": True}


def test_one_that_still_brakes_is_not_deactivated():
    node = Node()
    node.rig.tick(reset_fault=CAUSE)
    node.rig.settle().tick(arm=True)
    stream(node.rig, (0.02, 0.0, 0.0), 3)
    node.rig.tick(arm=False)
    assert node.state.mode is Mode.DISARMED and not node.state.still
    node.deactivate = lambda: pytest.fail("its target would end in mid-motion")
    node.pending = [{"id": 1, "do": "deactivate"}]
    node.requests.answer()
    assert "not deactivated: it is DISARMED" in dict(node.replies)[1]


def test_in_lockstep_a_tick_may_take_it_at_once():
    node = Node()
    node.clock = SimpleNamespace(on_request=node.tick)
    node.ask()
    assert node.replies == [(1, "")] and node.state.mode is Mode.DISARMED


def test_two_of_one_fault_are_both_answered_once():
    node = Node()
    node.ask(1)
    node.ask(2)
    node.tick()
    node.requests.answer()
    node.requests.answer()
    assert node.replies == [(1, ""), (2, "")]


def test_an_inactive_one_says_so():
    node = Node()
    node.active = False
    node.ask()
    assert node.replies == [(1, INACTIVE)] and node.queued_requests == {}


def test_what_is_refused_at_once_is_answered_at_once():
    node = Node()
    node.ask(cause="another")
    assert node.replies == [
        (1, f"refused: FAULT '{CAUSE}' is active, and the request named 'another'")
    ]
    node.ask(2)
    node.tick()
    node.ask(3, recovering=True)
    assert node.replies[1:] == [(2, ""), (3, "")], (
        "disarmed, that the robot is back is all there is to do"
    )


def test_s26_who_is_being_armed_is_not_deactivated_in_the_same_breath():
    node = Node()
    node.rig.tick(reset_fault=CAUSE)
    node.rig.settle()
    assert node.state.mode is Mode.DISARMED
    for number, do in enumerate(("arm", "deactivate")):
        node.pending.append(
            {"id": number, "do": do, "with": {"value": True} if do == "arm" else {}}
        )
    node.deactivate = lambda: pytest.fail("it is about to be armed")
    node.requests._why_not_armed = lambda: ""
    node.requests.answer()
    assert dict(node.replies)[0] == "" and "not deactivated: it is ARMED" in dict(node.replies)[1]
    assert node.queued_requests == {"arm": True}


@pytest.mark.parametrize(
    "turns, requested_at, done",
    [
        ([], 10.0, True),
        ([(10.0, 12.5)], 12.51, True),
        ([(10.0, 13.2)], 13.21, False),
        ([(10.0, 13.2)], 13.3, True),
        ([(10.0, 11.6), (11.62, 13.2)], 13.21, False),
        ([(10.0, 11.6), (11.7, 13.2)], 13.21, True),
        ([(5.0, 9.0), (9.0, 9.02)], 9.03, False),
    ],
)
def test_an_arming_that_may_have_waited_behind_resets_is_refused_and_a_disarming_never(
    turns, requested_at, done, monkeypatch
):
    now, armings = [0.0], []
    monkeypatch.setattr(interlock_services, "time", SimpleNamespace(monotonic=lambda: now[0]))
    front = SimpleNamespace(arm=lambda value, *_: armings.append(value) or "")
    services = SimpleNamespace(
        busy_since=0.0,
        busy_until=0.0,
        turn_began=requested_at,
        front=front,
        count_clients=lambda service: 1,
    )
    services._waited = lambda: interlock_services.Services._waited(services)
    for began, now[0] in turns:
        interlock_services.Services.turned(services, began)
    now[0] = requested_at
    for value in (True, False):
        answer = interlock_services.Services._on_arm(
            services, SimpleNamespace(data=value), SimpleNamespace()
        )
        assert (
            answer.success is (done or not value)
            and ("Try again" in answer.message) is not answer.success
        )
    assert armings == [True, False][not done :]


@pytest.mark.parametrize(
    "clients, refused, done", [(1, "", [True]), (0, "", [True, False]), (0, "this stands", [True])]
)
def test_an_arming_whose_asker_has_gone_before_the_answer_is_taken_back(clients, refused, done):
    armings, logged = [], []
    front = SimpleNamespace(arm=lambda value, *_: armings.append(value) or refused)
    services = SimpleNamespace(
        front=front,
        _waited=lambda: False,
        count_clients={"interlock/arm": clients}.get,
        get_logger=lambda: SimpleNamespace(warning=logged.append),
    )
    answer = interlock_services.Services._on_arm(
        services, SimpleNamespace(data=True), SimpleNamespace()
    )
    assert (
        armings == done
        and answer.success is (done == [True] and not refused)
        and len(logged) == len(done) - 1
    )
    armings.clear()
    interlock_services.Services._on_arm(services, SimpleNamespace(data=False), answer)
    assert armings == [False], "a disarming needs nobody who waits for it"


@pytest.mark.parametrize(
    "inputs, words",
    [
        (
            Inputs(pose=(400.0, 0.0, 350.0, 1.0, 0.0, 0.0, 0.0)),
            "'current_pose': expected metres and radians near the limits, "
            "got 400, 0, 350. Are they millimetres or degrees? Publish SI units",
        ),
        (Inputs(pose=(0.4, 0.0, 3500.0, 1.0, 0.0, 0.0, 0.0)), "got 0.4, 0, 3500."),
    ],
)
def test_a_place_in_other_units_is_refused_with_its_numbers(inputs, words):
    node = Node()
    node.inputs = SimpleNamespace(state_topic="current_pose", pose=inputs.pose, joints=None)
    assert words in node.requests._why_unknown(inputs)


def test_in_lockstep_ticks_in_quick_succession_read_requests_once_but_answer_a_reset(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(interlock_requests.time, "monotonic", lambda: now[0])
    node = Node()
    node.settings["lockstep"] = True
    node.requests.answer_at_tick()
    node.pending.append({"id": 1, "do": "reset", "with": {"cause": CAUSE}, "asked": now[0]})
    node.requests.answer_at_tick()
    assert node.pending, "a millisecond has not passed"
    now[0] += 0.003
    node.requests.answer_at_tick()
    assert not node.pending and not node.replies and node.requests.pending_resets
    node.rig.tick(**node.queued_requests)
    node.requests.answer_at_tick()
    assert node.replies == [(1, "")], "the tick after a reset answers it at once"
    node.settings["lockstep"] = False
    node.pending.append({"id": 2, "do": "unknown", "with": {}, "asked": now[0]})
    node.requests.answer_at_tick()
    assert not node.pending, "on a real arm each tick reads"
