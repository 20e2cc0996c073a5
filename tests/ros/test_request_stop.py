"""The end of a request for episodes by the interlock; earlier commands move nothing later."""

from types import SimpleNamespace

import pytest
from rlinf_msgs.msg import SafetyState

from rlinf_ros.station_state import RUN_CONTINUES, STOPPED, RequestStop, resume_instruction
from rlinf_station.environment import Environment
from rlinf_station.scene_requests import SceneRequests

pytestmark = pytest.mark.ros
DISARMED, ARMED, ACTIVE, HOLD, FAULT = (
    SafetyState(state=state)
    for state in (
        SafetyState.DISARMED,
        SafetyState.ARMED,
        SafetyState.ACTIVE,
        SafetyState.HOLD,
        SafetyState.FAULT,
    )
)
FAULT.cause = "estop:pendant"


def after(*states):
    stop = RequestStop()
    stop.begin()
    return stop, [stop.on_safety(state) for state in states]


@pytest.mark.parametrize(
    "states, stops",
    [
        ((DISARMED, ARMED, ACTIVE, HOLD, ARMED), []),
        ((ARMED, DISARMED), [1]),
        ((ACTIVE, FAULT), [1]),
        ((HOLD, FAULT), [1]),
        ((HOLD, DISARMED), [1]),
        ((DISARMED,), []),
        ((FAULT,), [0]),
        ((DISARMED, FAULT), [1]),
        ((ARMED, FAULT, FAULT, DISARMED, DISARMED, ARMED), [1]),
        ((ARMED, DISARMED, ARMED, DISARMED), [1, 3]),
        ((ARMED, FAULT, DISARMED, FAULT), [1, 3]),
    ],
)
def test_a_disarming_or_a_new_fault_is_a_stop(states, stops):
    stop, flags = after(*states)
    assert [index for index, stopped in enumerate(flags) if stopped] == stops
    assert bool(stop.reason) is bool(stops)


def test_the_reason_says_what_stopped_and_what_to_do():
    stop, _ = after(ARMED, FAULT)
    assert stop.reason == f"{STOPPED}: FAULT estop:pendant. Arm, then try again"
    stop, _ = after(ARMED, DISARMED)
    assert stop.reason == f"{STOPPED}: DISARMED. Arm, then try again"


def test_a_stop_stands_until_another_request():
    stop, _ = after(ARMED, FAULT, DISARMED, ARMED, ACTIVE)
    assert stop.reason
    stop.begin()
    assert not stop.reason and not stop.on_safety(ACTIVE)


@pytest.mark.parametrize(
    "state, refused",
    [(DISARMED, False), (ARMED, False), (ACTIVE, False), (HOLD, False), (FAULT, True)],
)
def test_in_a_fault_no_request_is_taken(state, refused):
    stop, _ = after(state)
    assert bool(stop.refusal()) is refused
    assert (
        not refused
        or stop.refusal() == "FAULT 'estop:pendant' is active. Reset it, arm, then try again"
    )


def test_before_anything_was_heard_a_request_is_taken():
    assert not RequestStop().refusal() and not RequestStop().reason


@pytest.mark.parametrize(
    "person, external, answers, mode, by_word",
    [
        (False, False, True, "demonstration", False),
        (True, False, True, "demonstration", True),
        (True, False, True, "train", False),
        (True, True, False, "train", True),
        (True, True, True, "evaluate", False),
        (False, True, False, "train", False),
    ],
)
def test_which_episodes_begin_by_a_persons_word_alone(person, external, answers, mode, by_word):
    """Their request need not end, because nothing moves before the word."""
    scene = SimpleNamespace(client=SimpleNamespace(server_is_ready=lambda: answers))
    requests = SceneRequests(
        scene,
        None,
        None,
        None,
        person=person,
        simulated=not external,
        jumps=False,
        may_move=lambda: True,
        start_stamp=lambda stamp: stamp,
    )
    assert requests.waits_for_person(mode) is by_word


@pytest.mark.parametrize(
    "cause, begins",
    [
        ("stale_command", True),
        ("realigning", True),
        ("handing_back", True),
        ("contact", True),
        ("two_publishers:policy/action", True),
        ("new_session", False),
        ("operator_silent", False),
        ("clock", False),
    ],
)
def test_a_hold_keeps_an_episode_from_its_start_only_if_it_waits_for_a_person(cause, begins):
    """The other holds end with commands, which come only once an episode has begun."""
    safety = SafetyState(state=SafetyState.HOLD, cause=cause)
    still = resume_instruction(safety, "/a")
    environment = SimpleNamespace(safety=safety, resume_hint=still)
    assert Environment.may_move(environment) is begins
    assert bool(still) is not begins and ("arm" in still) is not begins
    stop = RequestStop()
    stop.begin()
    assert not stop.on_safety(safety) and not stop.refusal()


def test_a_person_who_arms_is_told_that_a_run_goes_on():
    assert "moves the arm as soon as it is armed" in RUN_CONTINUES
