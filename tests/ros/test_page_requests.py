"""Requests of the operator's page on their way, without ROS."""

import asyncio
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rclpy.task import Future
from rlinf_msgs.action import RunEpisodes
from rlinf_msgs.msg import EpisodeEvent, SafetyState
from rlinf_msgs.srv import ResetFault
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RlinfError
from rlinf_core.page.controls import MotionInput, Request
from rlinf_core.robots.operators.device import AXES
from rlinf_core.robots.operators.page import BUTTONS
from rlinf_operator import page_requests
from rlinf_operator.page_requests import PageRequests


class ServiceProcess:
    """An interlock's service process; one that hangs answers nothing."""

    def __init__(self, name, hangs=False):
        self.srv_name, self.hangs, self.requests = name, hangs, []

    def service_is_ready(self):
        return True

    def call_async(self, request):
        self.requests.append(request.data)
        answer = Future()
        if not self.hangs:
            answer.set_result(SetBool.Response(success=True, message="armed"))
        return answer


class Thread:
    """The thread of ROS, which runs the calls that it gets."""

    def create_task(self, do):
        future = Future()
        threading.Thread(target=lambda: future.set_result(do()), name="ros").start()
        return future


@pytest.fixture
def asks(monkeypatch):
    monkeypatch.setattr(page_requests, "ActionClient", MagicMock())
    monkeypatch.setattr(page_requests, "ANSWER_S", 3.0)
    asks = PageRequests(MagicMock(executor=Thread()), ["left", "right"], [0, 10, 20])
    asks.published = []
    asks.safety_by_arm = {arm: SafetyState(state=SafetyState.ARMED) for arm in ("left", "right")}
    asks.hands = SimpleNamespace(publish=asks.published.append)
    asks.runner.server_is_ready.return_value = True
    return asks


def ask(asks, what, **more):
    return asyncio.run(
        asks.handle(Request(kind="request", what=what, **{"shown_at": time.monotonic()} | more))
    )


def pressed(message):
    return {name for name, down in zip(BUTTONS, message.buttons, strict=True) if down}


def test_a_button_says_nothing_again_of_what_was_held(asks):
    asks.move(
        MotionInput(kind="motion", seq=1, shown_at=0.0, held=True, active=True, axes={"x": 1.0})
    )
    asks.arming = [ServiceProcess("left/interlock/arm"), ServiceProcess("right/interlock/arm")]
    assert ask(asks, "arm") == "armed"
    for shown_at in (time.monotonic(), time.monotonic() - 9.0):
        with pytest.raises(RlinfError, match="success"):
            ask(asks, "success", shown_at=shown_at)
    assert [pressed(message) for message in asks.published] == [
        {"held", "active"},
        {"asked", "active"},
        {"asked", "active", "success"},
        {"asked", "success"},
    ]
    assert [message.axes[AXES.index("x")] for message in asks.published] == [1.0, 0.0, 0.0, 0.0]


def test_where_one_arm_does_not_answer_in_time_all_are_asked_to_disarm(asks):
    asks.arming = [
        ServiceProcess("left/interlock/arm"),
        ServiceProcess("right/interlock/arm", hangs=True),
    ]
    with pytest.raises(RlinfError, match="arm: no answer"):
        ask(asks, "arm")
    assert [client.requests for client in asks.arming] == [[True, False], [True, False]]


@pytest.mark.parametrize(
    "events, first", [([], 11), ([10], 11), ([10, 10], 11), ([10, 11], 12), ([10, 11, 12], 13)]
)
def test_a_start_plays_no_scene_that_was_played_since_the_last_one(asks, events, first):
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: (
        goals.append(goal.first_seed) or accepted()
    )
    goals = []
    ask(asks, "start", mode="train")
    for seed in events:
        asks.on_episode_begin(EpisodeEvent(mode="train", seed=seed))
    asks.director = True
    asks.on_episode_begin(EpisodeEvent(mode="train", seed=500))  # a director's scenes are its own
    asks.director = False
    ask(asks, "start", mode="train")
    assert goals == [10, first]


def accepted():
    answer = Future()
    answer.set_result(MagicMock(accepted=True))
    return answer


def test_an_action_is_asked_in_the_thread_that_hears_its_answer(asks):
    threads = []
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: (
        threads.append(threading.current_thread().name) or accepted()
    )
    assert ask(asks, "start") == "an episode begins: evaluate"
    asks.runner._cancel_goal_async.side_effect = lambda handle: (
        threads.append(threading.current_thread().name) or accepted()
    )
    assert ask(asks, "cancel").startswith("no further episode")
    assert threads == ["ros", "ros"]


def test_an_action_that_cannot_be_asked_is_said_to_the_page_and_ends_nothing_else(asks):
    asks.runner.send_goal_async.side_effect = RlinfError("its handle has gone")
    with pytest.raises(RlinfError, match="its handle has gone"):
        ask(asks, "start")


def test_an_episode_whose_start_was_not_answered_in_time_is_taken_back(asks, monkeypatch):
    monkeypatch.setattr(page_requests, "ANSWER_S", 0.4)
    threads, given = [], []
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: (
        given.append(goal_uuid) or Future()
    )
    asks.runner._cancel_goal_async.side_effect = lambda handle: (
        threads.append((threading.current_thread().name, handle.goal_id)) or accepted()
    )
    with pytest.raises(RlinfError, match="start: no answer"):
        ask(asks, "start")
    end = time.monotonic() + 5.0
    while not threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threads == [("ros", given[0])] and asks.request is None


def test_a_word_of_the_episode_before_judges_none_that_has_begun_since(asks, monkeypatch):
    monkeypatch.setattr(page_requests, "PASSED_ON_S", 0.1)
    shown_at = time.monotonic()
    asks.on_episode_begin(EpisodeEvent(mode="train", seed=1))
    for word in ("success", "failure", "discard", "rerecord"):
        with pytest.raises(RlinfError, match="before this episode began"):
            ask(asks, word, shown_at=shown_at)
    assert not asks.published
    for word, when in (("success", time.monotonic()), ("ready", shown_at)):
        with pytest.raises(RlinfError, match="did not forward it"):
            ask(asks, word, shown_at=when)


@pytest.mark.parametrize("state", [SafetyState.DISARMED, SafetyState.FAULT, SafetyState.HOLD])
def test_a_start_is_refused_unless_every_arm_is_armed(asks, state):
    asks.safety_by_arm["right"] = SafetyState(state=state)
    with pytest.raises(RlinfError, match="expected the interlock ARMED or ACTIVE"):
        ask(asks, "start")
    del asks.safety_by_arm["right"]
    with pytest.raises(RlinfError, match="expected the interlock ARMED or ACTIVE"):
        ask(asks, "start")
    assert not asks.runner.send_goal_async.called


@pytest.mark.parametrize(
    "cause, starts",
    [
        ("realigning", True),
        ("stale_command", True),
        ("handing_back", True),
        ("new_session", False),
        ("operator_silent", False),
        ("contact", False),
    ],
)
def test_a_hold_that_ends_with_the_next_command_keeps_no_episode_from_its_start(
    asks, cause, starts
):
    asks.safety_by_arm["right"] = SafetyState(state=SafetyState.HOLD, cause=cause)
    assert asks.may_start() is starts


@pytest.mark.parametrize(
    "state, cancels",
    [
        (SafetyState.DISARMED, True),
        (SafetyState.FAULT, True),
        (SafetyState.ARMED, False),
        (SafetyState.HOLD, False),
    ],
)
def test_a_fault_and_a_disarming_cancel_what_was_started_here(asks, state, cancels):
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: accepted()
    asks.runner._cancel_goal_async.side_effect = lambda handle: accepted()
    ask(asks, "start")
    asks.on_safety(SafetyState(state=state))
    assert (asks.request is None) is cancels and asks.runner._cancel_goal_async.called is cancels


def test_a_mode_that_cannot_be_played_is_refused_with_its_reason(asks):
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: accepted()
    asks.refusals = {
        "demonstration": "",
        "train": "no policy",
        "evaluate": "no policy has arrived yet",
    }
    with pytest.raises(RlinfError, match="start: no policy has arrived yet"):
        ask(asks, "start", mode="evaluate")
    assert not asks.runner.send_goal_async.called
    assert ask(asks, "start", mode="demonstration") == "an episode begins: demonstration"


@pytest.mark.parametrize(
    "detail, ends",
    [
        ("no time step for 15 s; waiting for an action", True),
        ("the operator requested another take", False),
        ("the operator discarded it", False),
    ],
)
def test_one_failed_try_ends_what_was_started_here(asks, detail, ends):
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: accepted()
    asks.runner._cancel_goal_async.side_effect = lambda handle: accepted()
    ask(asks, "start")
    event = EpisodeEvent(kind=EpisodeEvent.ABORTED, mode="evaluate", detail=detail)
    assert asks.aborted(event) is ends
    assert (asks.request is None) is ends and asks.runner._cancel_goal_async.called is ends
    assert not asks.aborted(event) or not ends, "once"


def test_a_request_that_failed_before_its_episode_is_reported(asks):
    lines = []
    asks.report = lines.append
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: accepted()
    ask(asks, "start")
    asks._on_result(asks.request, MagicMock(result=MagicMock(success=False, message="no recorder")))
    assert (
        lines == ["No episode was played: no recorder. No further episode starts."]
        and asks.request is None
    )


class Resets(ServiceProcess):
    """A service ``reset_fault`` or ``arm`` of an interlock; it may refuse, or be absent."""

    def __init__(self, name, refuses="", ready=True):
        super().__init__(name)
        self.refuses, self.ready = refuses, ready

    def service_is_ready(self):
        return self.ready

    def call_async(self, request):
        self.requests.append(getattr(request, "cause", None) or request.data)
        answer = Future()
        answer.set_result(
            SimpleNamespace(success=not self.refuses, message=self.refuses or "disarmed")
        )
        return answer


@pytest.fixture
def interlocks(asks):
    """Return the interlocks of two arms, and the topics that disarm them."""

    def make(left=None, right=None):
        arming = [
            Resets(f"{arm}/arm", **fields or {})
            for arm, fields in zip("lr", (left, right), strict=True)
        ]
        asks.arming, topics = arming, []
        asks.disarms = [
            SimpleNamespace(publish=lambda message, arm=arm: topics.append(arm)) for arm in "lr"
        ]
        return arming, topics

    return make


def test_a_disarming_asks_every_arm_by_both_ways(asks, interlocks):
    arming, topics = interlocks()
    assert ask(asks, "disarm") == "disarmed" and asks.disarmings == 1
    assert [client.requests for client in arming] == [[False], [False]] and topics == ["l", "r"]


@pytest.mark.parametrize(
    "right, words",
    [
        ({"ready": False}, "1 disarmed; not available: r/arm. Is the interlock running?"),
        ({"refuses": "its services hang"}, "its services hang"),
    ],
)
def test_a_disarming_that_one_arm_does_not_confirm_is_said(asks, interlocks, right, words):
    arming, topics = interlocks(right=right)
    with pytest.raises(RlinfError) as error:
        ask(asks, "disarm")
    assert str(error.value) == words and topics == ["l", "r"]
    assert arming[0].requests == [False] and arming[1].requests == [False] * ("refuses" in right)


def test_where_one_arm_refuses_to_arm_all_are_disarmed(asks, interlocks):
    arming, topics = interlocks(right={"refuses": "the e-stop is pressed"})
    with pytest.raises(RlinfError, match="^the e-stop is pressed$"):
        ask(asks, "arm")
    assert [client.requests for client in arming] == [[True, False]] * 2 and topics == ["l", "r"]
    asks.arming = arming[1:]
    del topics[:], arming[1].requests[:]
    with pytest.raises(RlinfError, match="^the e-stop is pressed$"):
        ask(asks, "arm")
    assert arming[1].requests == [True] and not topics, "the only one is not armed"


def test_an_interlock_that_is_away_is_not_armed(asks, interlocks):
    arming, _ = interlocks(left={"ready": False})
    with pytest.raises(RlinfError, match="^'l/arm' is not available. Is the interlock running"):
        ask(asks, "arm")
    assert [client.requests for client in arming] == [[], []]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_disarming_in_between_wins(asks, interlocks, at_once):
    arming, topics = interlocks()
    if at_once:  # while the enable is on its way
        asks.hands = SimpleNamespace(
            publish=lambda message: setattr(asks, "disarmings", asks.disarmings + 1)
        )
    else:  # while the interlocks answer
        call = arming[1].call_async

        def call_async(request):
            asks.disarmings += request.data
            return call(request)

        arming[1].call_async = call_async
    with pytest.raises(RlinfError, match="^a disarming came in between. Arm again$"):
        ask(asks, "arm")
    requests = [] if at_once else [True, False]
    assert [client.requests for client in arming] == [requests] * 2
    assert topics == ([] if at_once else ["l", "r"])


def test_a_page_that_goes_disarms_once_by_both_ways(asks, interlocks):
    arming, topics = interlocks(right={"ready": False})
    assert asks.disarm_all() and asks.disarm_all() and asks.ending
    assert [client.requests for client in arming] == [[False], []] and topics == ["l", "r"]
    asks.ending = False
    interlocks(left={"ready": False}, right={"ready": False})
    assert not asks.disarm_all()


def test_a_reset_is_for_the_arms_with_that_fault(asks):
    asks.resetting = {"left": Resets("left/reset_fault"), "right": Resets("right/reset_fault")}
    fault = SafetyState(state=SafetyState.FAULT, cause="estop:page")
    asks.safety_by_arm = {"left": SafetyState(cause="estop:page"), "right": fault}
    cleared = ask(asks, "reset", cause="estop:page")
    assert cleared == "FAULT 'estop:page' is cleared. Arm to move"
    requests = [client.requests for client in asks.resetting.values()]
    assert requests == [[], ["estop:page"]]
    assert pressed(asks.published[-1]) == {"asked", "active"}
    with pytest.raises(RlinfError, match="^fault 'contact' is not active$"):
        ask(asks, "reset", cause="contact")
    asks.resetting["right"].refuses = "it is still pressed"
    with pytest.raises(RlinfError, match="^it is still pressed$"):
        ask(asks, "reset", cause="estop:page")


def test_a_label_that_the_operator_forwards_is_confirmed(asks):
    asks.hands = SimpleNamespace(publish=lambda message: asks._on_label(None))
    assert ask(asks, "success") == "labelled: success" and asks.labelled == 1


def test_the_e_stop_of_the_page_is_published(asks):
    stops = []
    asks.stop = SimpleNamespace(publish=lambda message: stops.append(message.data))
    asks.beat(True)
    asks.beat(False)
    assert stops == [True, False]


def test_nothing_starts_beside_a_director_or_without_an_environment(asks):
    asks.director = True
    with pytest.raises(RlinfError, match="^a director is running and starts the episodes$"):
        ask(asks, "start")
    asks.director = False
    asks.runner.server_is_ready.return_value = False
    with pytest.raises(RlinfError, match="^'run_episodes' is not available. Is the environment"):
        ask(asks, "start")
    with pytest.raises(RlinfError, match="^no episode was started from this page$"):
        ask(asks, "cancel")


def test_a_start_that_is_refused_is_tried_again_and_given_up(asks, monkeypatch):
    monkeypatch.setattr(page_requests, "TRIES", 2)
    monkeypatch.setattr(page_requests, "ANSWER_S", 30.0)
    goals, answers = [], [False, True]

    def send(goal, goal_uuid):
        goals.append((goal.count, goal.mode, goal.first_seed))
        answer = Future()
        answer.set_result(MagicMock(accepted=answers.pop(0)))
        return answer

    asks.runner.send_goal_async.side_effect = send
    assert ask(asks, "start", mode="train") == "an episode begins: train"
    assert goals == [(1, "train", 10)] * 2 and asks.seeds["train"] == 11
    answers[:] = [False, False]
    with pytest.raises(RlinfError, match="^another episode is in play, or the environment is inac"):
        ask(asks, "start", mode="train")
    assert len(goals) == 4 and asks.seeds["train"] == 11


def test_an_interlock_that_stops_while_a_start_is_answered_takes_it_back(asks):
    def send(goal, goal_uuid):
        asks.safety_by_arm["left"] = SafetyState(state=SafetyState.FAULT)
        return accepted()

    asks.runner.send_goal_async.side_effect = send
    cancelled = threading.Event()
    asks.runner._cancel_goal_async.side_effect = lambda handle: cancelled.set() or accepted()
    with pytest.raises(RlinfError, match="^start: the interlock stopped in between. Arm, then st"):
        ask(asks, "start")
    assert cancelled.wait(10) and asks.request is None


def test_results_of_other_requests_and_episodes_of_other_modes_change_nothing(asks):
    lines = []
    asks.report = lines.append
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: accepted()
    ask(asks, "start")
    request = asks.request
    asks._on_result(object(), MagicMock(result=MagicMock(success=False)))
    assert asks.request is request and not lines
    assert not asks.aborted(EpisodeEvent(mode="", detail="no image")) and asks.request is request
    asks._on_result(request, MagicMock(result=MagicMock(success=True)))
    assert asks.request is None and not lines
    asks.on_episode_begin(EpisodeEvent(mode="other", seed=500))
    assert asks.seeds == {"demonstration": 0, "train": 10, "evaluate": 21}
    asks.on_episode_begin(EpisodeEvent(mode="train", seed=3))
    assert asks.seeds["train"] == 10, "a scene of before"


def test_the_end_of_an_episode_that_was_started_here_is_its_requests(asks):
    result, lines = Future(), []
    asks.report = lines.append
    handle = MagicMock(accepted=True, get_result_async=lambda: result)
    answer = Future()
    answer.set_result(handle)
    asks.runner.send_goal_async.side_effect = lambda goal, goal_uuid: answer
    ask(asks, "start")
    assert asks.request is not None
    deadline = time.monotonic() + 10
    while not result._callbacks and time.monotonic() < deadline:
        time.sleep(0.01)
    result.set_result(MagicMock(result=MagicMock(success=False, message="no image")))
    assert asks.request is None and lines[0].startswith("No episode was played: no image.")


@pytest.mark.parametrize("arms, prefixes", [([], [""]), (["left", "right"], ["left/", "right/"])])
def test_a_page_calls_the_services_of_every_arm(monkeypatch, arms, prefixes):
    monkeypatch.setattr(page_requests, "ActionClient", lambda node, kind, name: (kind, name))
    node, names = MagicMock(), []
    node.create_client = lambda kind, name: names.append((kind, name)) or name
    page = PageRequests(node, arms, [1, 2, 3])
    assert names == [(SetBool, f"{arm}interlock/arm") for arm in prefixes] + [
        (ResetFault, f"{arm}interlock/reset_fault") for arm in prefixes
    ]
    assert page.resetting == {arm.rstrip("/"): f"{arm}interlock/reset_fault" for arm in prefixes}
    assert page.runner == (RunEpisodes, "run_episodes") and page.request is None
    assert page.seeds == {"demonstration": 1, "train": 2, "evaluate": 3}
    assert page.refusals == {"demonstration": "", "train": "", "evaluate": ""}
    assert not page.may_start() and not page.director and not page.ending
    assert (page.labelled, page.disarmings, page.report("nothing")) == (0, 0, None)
