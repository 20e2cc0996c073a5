"""``rlinf arm`` and ``rlinf disarm`` at interlocks that answer, refuse, hang or are away."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rclpy.task import Future
from rlinf_msgs.msg import SafetyState
from std_msgs.msg import Empty
from std_srvs.srv import SetBool

from rlinf_core.core.errors import RlinfError
from rlinf_ros.station_state import RUN_CONTINUES, command
from rlinf_tools import arming
from rlinf_tools.arming import arm, disarm

STATES = {True: SafetyState.ARMED, False: SafetyState.DISARMED}


class Interlock:
    """One arm's interlock: it answers after ``delay_s`` or never, refuses, or is absent."""

    def __init__(self, station, delay_s=0.0, refuses=(), absent_s=0.0):
        self.station, self.delay_s, self.absent_s = station, delay_s, absent_s
        self.refuses, self.requests, self.due = refuses, [], []

    def service_is_ready(self):
        return self.station.now >= self.absent_s

    def call_async(self, request):
        assert isinstance(request, SetBool.Request)
        self.requests.append((self.station.now, request.data))
        future = Future()
        self.due.append((self.station.now + self.delay_s, request.data, future))
        return future

    def spin(self):
        for entry in [entry for entry in self.due if entry[0] <= self.station.now]:
            self.due.remove(entry)
            accepted = entry[1] not in self.refuses
            words = (
                "the e-stop is pressed" if not accepted else "arming" if entry[1] else "disarmed"
            )
            entry[2].set_result(SetBool.Response(success=accepted, message=words))


class Station:
    """A client of a station whose time passes only while it waits."""

    name, patience_s = "lab", 5.0

    def __init__(self, monkeypatch, *arms, teleports=True):
        self.now, self.arms, self.latest = 0.0, [*arms] or [""], {}
        self.interlocks = {name: Interlock(self) for name in self.arms}
        self.teleports, self.state, self.directed = teleports, SafetyState.DISARMED, False
        self.published, self.queries, self.awaited = [], [], []
        self.node = MagicMock()
        self.node.create_client = self._client
        self.node.get_node_names_and_namespaces = lambda: (
            [("director", "/lab")] if self.directed else []
        )
        monkeypatch.setattr(arming, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(arming, "disarm_topics", self._topics)

    def _client(self, kind, name):
        assert kind is SetBool and name.endswith("interlock/arm")
        return self.interlocks[name.removesuffix("interlock/arm").rstrip("/")]

    def _topics(self, node, arms):
        assert node is self.node

        def publish(name, message):
            assert isinstance(message, Empty)
            self.published.append((round(self.now, 2), name))

        return [
            SimpleNamespace(publish=lambda message, n=name: publish(n, message)) for name in arms
        ]

    def within(self, seconds, ready, awaited=""):
        self.awaited.append(awaited)
        end = self.now + seconds
        while not ready():
            if self.now >= end:
                return False
            self.now += 0.05
            for interlock in self.interlocks.values():
                interlock.spin()
        return True

    def meet(self):
        if all(interlock.absent_s > self.now for interlock in self.interlocks.values()):
            raise RlinfError("nobody there")
        return SafetyState(state=self.state)

    def call(self, client, request):
        future = client.call_async(request)
        if not self.within(self.patience_s, future.done):
            raise RlinfError("no answer of the interlock")
        return future.result()

    def parameter(self, node, name):
        self.queries.append((node, name))
        return self.teleports

    def changed(self, state):
        assert state == self.state
        return SafetyState(state=SafetyState.ARMED)

    def values(self):
        return {
            name: [value for _, value in interlock.requests]
            for name, interlock in self.interlocks.items()
        }


@pytest.fixture
def at_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))


@pytest.fixture
def in_script(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))


def test_a_station_is_disarmed_by_the_topic_and_the_service(monkeypatch, capsys):
    station = Station(monkeypatch)
    station.latest["safety"] = SafetyState(state=SafetyState.DISARMED)
    disarm(station)
    assert station.values() == {"": [False]} and station.published == [(0.0, "")]
    assert capsys.readouterr().out == "disarmed: the interlock is DISARMED\n"
    assert station.awaited[0] == "the answer of each interlock to the disarming"


def test_a_disarming_waits_two_seconds_for_the_state_and_needs_none(monkeypatch, capsys):
    station = Station(monkeypatch)
    disarm(station)
    assert capsys.readouterr().out == "disarmed\n" and 2.0 <= station.now < 2.3
    station = Station(monkeypatch)
    station.latest["safety"] = SafetyState(state=SafetyState.HOLD, cause="clock")
    disarm(station)
    assert capsys.readouterr().out == "disarmed: the interlock is HOLD clock\n"
    assert 2.0 <= station.now < 2.3


def test_a_disarming_is_repeated_until_it_is_answered(monkeypatch):
    """The topic ten times a second, the service once a second, and never after its answer."""
    station = Station(monkeypatch, "left", "right")
    station.latest["safety"] = SafetyState(state=SafetyState.DISARMED)
    station.interlocks["right"].delay_s = 3.5
    disarm(station)
    assert station.values()["left"] == [False]
    times = [at for at, _ in station.interlocks["right"].requests]
    assert len(times) == 4 and [at - times[0] for at in times] == pytest.approx(
        [0, 1, 2, 3], abs=0.2
    )
    lefts = [at for at, name in station.published if name == "left"]
    assert 20 < len(lefts) < 40 and len(station.published) == 2 * len(lefts)


def test_an_interlock_that_appears_later_is_asked_then(monkeypatch):
    station = Station(monkeypatch)
    station.interlocks[""].absent_s = 2.0
    station.latest["safety"] = SafetyState(state=SafetyState.DISARMED)
    disarm(station)
    assert station.interlocks[""].requests[0][0] >= 2.0 and station.published[0] == (0.0, "")


def test_an_answer_may_take_as_long_as_an_interlocks_service(monkeypatch):
    """The patience is for an interlock that nobody has discovered."""
    station = Station(monkeypatch)
    station.latest["safety"] = SafetyState(state=SafetyState.DISARMED)
    station.interlocks[""].delay_s = 12.0
    disarm(station)
    assert 12.0 <= station.now <= 12.2
    station = Station(monkeypatch)
    station.interlocks[""].delay_s = 30.0
    with pytest.raises(
        RlinfError, match="^not disarmed .stop it by its e-stop.: its interlock does"
    ):
        disarm(station)
    assert 17.0 <= station.now <= 17.2, "5 s, and 12 s for an answer on its way"


def test_where_no_interlock_is_found_those_found_are_named(monkeypatch):
    station = Station(monkeypatch, "left", "right")
    for interlock in station.interlocks.values():
        interlock.absent_s = 99.0
    with pytest.raises(RlinfError, match="nobody there"):
        disarm(station)
    assert 5.0 <= station.now <= 5.1 and station.published[-1][0] > 4.8


def test_an_arm_that_is_not_disarmed_is_named_and_the_others_are(monkeypatch):
    station = Station(monkeypatch, "left", "right", "middle")
    station.interlocks["left"].refuses = (False,)
    station.interlocks["middle"].absent_s = 99.0
    with pytest.raises(RlinfError) as error:
        disarm(station)
    assert str(error.value) == (
        "not disarmed (stop it by its e-stop; the others are disarmed): arm 'left': the e-stop is "
        "pressed; arm 'middle': its interlock does not answer"
    )
    assert station.now < 5.2, "nobody waits for an answer to what was not asked"


def test_arming_says_the_state_that_follows(monkeypatch, capsys, in_script):
    station = Station(monkeypatch, "left", "right")
    arm(station)
    assert station.values() == {"left": [True], "right": [True]} and not station.published
    assert capsys.readouterr().out == "arming: the interlock is ARMED\n"
    assert station.queries == [(f"{name}/interlock", "teleports") for name in ("left", "right")]


def test_a_run_that_moves_the_arm_at_once_is_announced(monkeypatch, capsys, at_terminal):
    station = Station(monkeypatch)
    station.directed = True
    arm(station)
    assert capsys.readouterr().out.splitlines()[0] == RUN_CONTINUES


def test_a_real_arm_is_armed_by_a_person_at_a_terminal(monkeypatch, in_script):
    station = Station(monkeypatch, teleports=False)
    with pytest.raises(RlinfError, match="expected a person at a terminal"):
        arm(station)
    assert station.values() == {"": []}


def test_at_a_terminal_a_real_arm_is_armed(monkeypatch, at_terminal):
    station = Station(monkeypatch, teleports=False)
    arm(station)
    assert station.values() == {"": [True]} and not station.queries


@pytest.mark.parametrize("refusing", ["left", "middle", "right"])
def test_where_one_arm_refuses_none_stays_armed(monkeypatch, capsys, in_script, refusing):
    names = ["left", "middle", "right"]
    station = Station(monkeypatch, *names)
    station.interlocks[refusing].refuses = (True,)
    with pytest.raises(RlinfError) as error:
        arm(station)
    assert str(error.value) == f"arm '{refusing}': the e-stop is pressed"
    first = [True] * (names.index(refusing) + 1) + [False] * (2 - names.index(refusing))
    assert station.values() == {
        name: [value, False] for name, value in zip(names, first, strict=True)
    }, "each was asked, and asked to disarm"
    assert [name for _, name in station.published] == names
    assert capsys.readouterr().err == "" and station.awaited[-1] == "the disarming of all arms"


def test_the_only_arm_that_refuses_needs_no_disarming(monkeypatch, in_script):
    station = Station(monkeypatch)
    station.interlocks[""].refuses = (True,)
    with pytest.raises(RlinfError, match="^the e-stop is pressed$"):
        arm(station)
    assert station.values() == {"": [True]} and not station.published


def test_an_arming_without_an_answer_is_taken_back(monkeypatch, capsys, in_script):
    station = Station(monkeypatch)
    station.interlocks[""].delay_s = 30.0
    with pytest.raises(RlinfError, match="no answer of the interlock"):
        arm(station)
    assert station.values() == {"": [True, False]} and len(station.published) == 1
    assert 17.0 <= station.now <= 17.2, "12 s for the answer to the disarming"
    assert (
        capsys.readouterr().err == f"it may be armed: {command('disarm', 'lab')}, or its e-stop\n"
    )


def test_of_an_arming_that_is_not_taken_back_every_arm_is_named(monkeypatch, capsys, in_script):
    station = Station(monkeypatch, "left", "middle", "right")
    station.interlocks["left"].refuses = (False,)
    station.interlocks["middle"].delay_s = 30.0
    station.interlocks["right"].absent_s = 99.0
    with pytest.raises(RlinfError, match="no answer"):
        arm(station)
    printed = capsys.readouterr().err
    assert [f"arm '{name}': it may be armed" in printed for name in station.arms] == [True] * 3
    assert printed.count("; ") == 2 and station.values()["right"] == []
