"""A disarming by two ways, and an arming that expires."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from lifecycle_msgs.msg import State as LifecycleState
from lifecycle_msgs.srv import GetState
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState
from std_msgs.msg import Empty
from std_srvs.srv import SetBool

from rlinf_core.interlock import Mode, State
from rlinf_interlock.interlock_requests import OVERRULED, Requests
from rlinf_interlock.interlock_services import Services
from rlinf_ros import arms
from rlinf_ros.arms import ArmRequests
from rlinf_ros.qos import publisher
from tests.ros.stand_ins import Arm, Lives, start


class Client:
    """A client of an interlock's service whose answers the test controls."""

    def __init__(self):
        self.calls = []

    def call_async(self, request):
        self.calls.append((request.data, Future()))
        return self.calls[-1][1]


@pytest.fixture
def requests(monkeypatch):
    published = []
    monkeypatch.setattr(
        arms,
        "publisher",
        lambda node, name: SimpleNamespace(publish=lambda message: published.append(name)),
    )
    clients, answers = [Client(), Client()], []
    arming = ArmRequests(MagicMock(), ["left", "right"], clients, answers.append)
    return arming, clients, published, answers


def requested(clients):
    return [[value for value, _ in client.calls] for client in clients]


def test_an_arming_that_one_arm_does_not_answer_is_taken_back_on_all(requests):
    arming, clients, published, _ = requests
    arming.arm()
    clients[0].calls[0][1].set_result(SetBool.Response(success=True, message="arming"))
    arming.expire()
    assert requested(clients) == [[True], [True]] and published == []
    arming.requested_s -= arms.EXPIRES_S
    arming.expire()
    arming.expire()
    assert requested(clients) == [[True, False], [True, False]] and published == [
        "left/disarm",
        "right/disarm",
    ]


def test_an_arming_that_was_answered_stays(requests):
    arming, clients, published, answers = requests
    arming.arm()
    for client in clients:
        client.calls[0][1].set_result(SetBool.Response(success=True, message="arming"))
    arming.requested_s -= 60.0
    arming.expire()
    assert requested(clients) == [[True], [True]] and published == []


def test_a_disarming_goes_by_the_topic_and_by_the_service(requests):
    arming, clients, published, _ = requests
    arming.disarm()
    assert requested(clients) == [[False], [False]] and published == ["left/disarm", "right/disarm"]
    arming.requested_s -= 60.0
    arming.expire()
    assert requested(clients) == [[False], [False]], "there is nothing to take back"


def test_an_arming_that_was_asked_for_before_a_disarming_is_refused():
    replies = []
    node = SimpleNamespace(
        active=True,
        queued_requests={},
        counts={"ticks": 0},
        state=State(Mode.ARMED),
        clock=None,
        inputs=SimpleNamespace(disarm=True),
        settings={"lockstep": False},
        service_process=SimpleNamespace(
            reply=lambda number, reason: replies.append(reason), log=print
        ),
    )
    requests = Requests(node)
    assert (
        requests.take_disarm() and node.queued_requests == {"arm": False} and not node.inputs.disarm
    )
    assert not requests.take_disarm()
    requests._execute(1, "arm", {"value": True}, requests.disarmed_s + 2.0)
    assert replies == [OVERRULED] and requests.armings == 1
    node.queued_requests = {}
    requests._execute(2, "arm", {"value": False}, requests.disarmed_s + 2.0)
    assert replies[1] == "" and node.queued_requests == {"arm": False}, (
        "a disarming is never too late"
    )


@pytest.mark.parametrize("stood_s, waited", [(0.5, False), (3.5, True)])
def test_an_arming_that_a_stopped_service_process_finds_as_it_goes_on_is_refused(
    monkeypatch, stood_s, waited
):
    services = SimpleNamespace(turn_began=100.0, busy_since=0.0, busy_until=0.0)
    monkeypatch.setattr(
        "rlinf_interlock.interlock_services.time.monotonic", lambda: 100.0 + stood_s
    )
    assert Services._waited(services) is waited


def service_processes(pid):
    """Return the processes that the interlock has started."""
    pids = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        pids += (task / "children").read_text().split()
    return [int(number) for number in pids]


@pytest.mark.ros
@pytest.mark.timeout(300)
@pytest.mark.domain(147)
@pytest.mark.parametrize("lockstep", [False, True])
def test_s25_a_stopped_service_process_keeps_nobody_from_disarming_and_is_replaced(peer, lockstep):
    arm = Arm(peer)
    overrides = [] if lockstep else ["station.robot=franka_fr3"]
    start(peer, "interlock", *overrides, estops=["pendant"], latch_file="")
    disarm = publisher(peer.node, "disarm")
    peer.spin(disarm.get_subscription_count, what="the interlock")
    arm.arm()
    peer.spin(lambda: arm.states[-1].state in (SafetyState.ARMED, SafetyState.ACTIVE), what="armed")
    before = service_processes(peer.supervisor.children["interlock"].popen.pid)
    assert len(before) == 1
    os.kill(before[0], signal.SIGSTOP)
    disarm.publish(Empty())
    arm.reach(SafetyState.DISARMED)
    peer.spin(
        lambda: (
            service_processes(peer.supervisor.children["interlock"].popen.pid) not in (before, [])
        ),
        what="another service process",
    )
    answers, requested_s = [], [0.0]

    def armed_again():  # a request to the dead one is lost, until its successor has been discovered
        if time.monotonic() - requested_s[0] > 1.0:
            requested_s[0] = time.monotonic()
            arm.arming.call_async(SetBool.Request(data=True)).add_done_callback(answers.append)
        return any(answer.result().success for answer in answers)

    peer.spin(armed_again, what="armed again")


@pytest.mark.ros
@pytest.mark.timeout(300)
@pytest.mark.domain(147)
def test_the_service_process_that_replaces_a_killed_one_reports_the_life_cycle_of_the_interlock(
    peer,
):
    start(peer, "interlock", estops=["pendant"], latch_file="")
    interlock = peer.supervisor.children["interlock"].popen.pid
    assert Lives(peer).change("interlock", "deactivate")
    before = service_processes(interlock)
    os.kill(before[0], signal.SIGKILL)
    peer.spin(
        lambda: service_processes(interlock) not in (before, []), what="another service process"
    )
    client, answers = peer.node.create_client(GetState, "interlock/get_state"), []

    def answered():  # a request to the dead one is lost, until its successor is discovered
        if client.service_is_ready():
            client.call_async(GetState.Request()).add_done_callback(answers.append)
        peer.for_s(0.5)
        return answers

    peer.spin(answered, what="the state of the new service process")
    assert answers[0].result().current_state.id == LifecycleState.PRIMARY_STATE_INACTIVE
