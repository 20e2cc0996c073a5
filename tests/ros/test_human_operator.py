"""The effects of a person's devices: enable, labels and disarming, without ROS."""

import io
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import AXES, DISCARD_S, FIRST_MESSAGE_S, Device
from rlinf_core.robots.operators.gamepad import Joy
from rlinf_core.robots.operators.page import BUTTONS, Page
from rlinf_core.tasks.task import load_task
from rlinf_operator import human_operator
from rlinf_operator.human_operator import HumanOperator
from rlinf_ros.diagnostics import INACTIVE


class Knob(Device):
    """Asks what it is told to."""

    rest_s, trouble = 0.0, ""

    def __init__(self, *words):
        self.words = words

    def poll(self):
        if self.trouble:
            raise DeviceError(self.trouble)
        return self.take_requests()

    def take_requests(self):
        words, self.words = self.words, ()
        return words


@pytest.fixture
def people(monkeypatch):
    """Return a person with such a device; what they have published."""
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def person(device):
        node, enables, labels, device.rest_s = MagicMock(), [], [], 0.0
        node.get_clock.return_value.now.return_value.to_msg.return_value = Time()
        client = MagicMock()
        subject = HumanOperator(
            node,
            [client],
            load_task("configs/tasks/reach.yaml").spec,
            {"device": device},
            SimpleNamespace(publish=lambda message: enables.append(message.data)),
        )
        subject.labels = SimpleNamespace(publish=lambda message: labels.append(message.data))
        return subject, enables, labels, client

    return person


def test_a_label_of_the_page_renews_the_enable_only_with_a_hand(people):
    device = Page()
    person, enables, labels, _ = people(device)
    person.poll()
    for pressed, renewed in ((("asked", "success"), []), (("asked", "active", "failure"), [True])):
        del enables[:]
        device.receive(
            SimpleNamespace(
                axes=[0.0] * len(AXES), buttons=[int(name in pressed) for name in BUTTONS]
            )
        )
        person.poll()
        assert enables == renewed and labels[-1] == pressed[-1]


def test_a_label_of_any_other_device_renews_it(people):
    person, enables, labels, _ = people(Knob("success"))
    person.poll()
    assert enables == [True] and labels == ["success"]


def test_a_device_that_is_in_trouble_disarms_and_asks_for_nothing_else(people):
    device = Knob()
    person, enables, labels, client = people(device)
    person.poll()
    device.trouble, device.words = "silent", ("arm", "success", "enable", "disarm")
    person.poll()
    assert [call.args[0].data for call in client.call_async.call_args_list] == [False]
    assert not any(enables) and not labels and time.monotonic() - person.reported_at < 60.0


@pytest.mark.parametrize(
    "axes, lets_go", [([0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], False), (None, True)]
)
def test_one_that_has_said_nothing_yet_lets_go_of_no_enable_while_it_may_still_speak(
    people, axes, lets_go
):
    person, enables, _, _ = people(Joy(silence_s=0.3, clutch="rb"))
    person.poll()
    assert enables == [] and not person.trouble and not person.guards[0].trusted
    end = time.monotonic() + FIRST_MESSAGE_S
    while time.monotonic() < end:
        if axes:
            person.guards[0].device.receive(SimpleNamespace(axes=axes, buttons=[0] * 11))
        person.poll()
        time.sleep(0.02)
    assert enables == [False] * lets_go and person.guards[0].trusted is not lets_go


def test_disarming_lets_go_of_the_enable_too(people):
    """The policy stops by that if no interlock answers."""
    person, enables, _, client = people(Knob("disarm"))
    person.poll()
    assert enables == [False] and [
        call.args[0].data for call in client.call_async.call_args_list
    ] == [False]


def test_s26_what_was_pressed_while_the_process_stood_still_arms_nothing_afterwards_and_disarms(
    people,
):
    device = Knob()
    person, enables, labels, client = people(device)
    person.poll()
    guard, device.words = person.guards[0], ("arm", "success", "enable", "disarm")
    guard._polled_at -= 61.0
    person.poll()
    assert (
        [call.args[0].data for call in client.call_async.call_args_list] == [False]
        and not any(enables)
        and not labels
    )
    assert "the process was stopped for 61" in person.trouble and not guard.trusted
    device.words = ("arm",)
    person.poll()
    assert client.call_async.call_count == 1, "a key that was read late still moves for a moment"
    time.sleep(DISCARD_S)
    person.poll()
    device.words = ("arm",)
    person.poll()
    assert not person.trouble and client.call_async.call_args.args[0].data and enables[-1]


class Stick(Knob):
    """A device that moves along some axes while it is held."""

    topics = ("joy",)

    def __init__(self, **deflection):
        super().__init__()
        self.deflection, self.attached, self.messages = deflection, [], []

    def attach(self, action, control_hz):
        self.attached.append((list(action.arms), action.dim, control_hz))

    def motion(self):
        return dict(self.deflection) if self.deflection else None

    def receive(self, message):
        self.messages.append(message)

    def help(self, axes):
        return f"moves {','.join(axes)}"


class Two:
    """A person with two devices, and what their node publishes and logs."""

    def __init__(self, monkeypatch, task, **devices):
        self.logged, self.labels, self.enables, self.statuses = [], [], [], []
        self.listeners, self.timers = {}, []
        monkeypatch.setattr("sys.stdin", io.StringIO())
        monkeypatch.setattr(
            human_operator,
            "subscription",
            lambda node, topic, do: self.listeners.__setitem__(topic, do),
        )
        monkeypatch.setattr(
            human_operator,
            "publisher",
            lambda node, topic: SimpleNamespace(
                publish=lambda message: getattr(self, f"{topic}s").append(message.data)
            ),
        )
        log = SimpleNamespace(
            info=lambda text: self.logged.append(("info", text)),
            error=lambda text: self.logged.append(("error", text)),
        )
        node = MagicMock(get_logger=lambda: log, get_namespace=lambda: "/lab", active=True)
        node.create_timer = lambda seconds, do: self.timers.append((seconds, do))
        node.create_publisher = lambda kind, topic, depth: SimpleNamespace(
            publish=lambda message: self.statuses.append((topic, message))
        )
        node.get_clock.return_value.now.return_value.to_msg.return_value = Time(sec=7)
        spec = load_task(f"configs/tasks/{task}.yaml").spec
        self.node, self.client = node, MagicMock()
        self.person = HumanOperator(node, [self.client], spec, devices)

    def press(self, name, *words):
        next(guard for guard in self.person.guards if guard.name == name).device.words = words
        self.person.poll()

    def status(self):
        topic, message = self.statuses[-1]
        assert topic == "/diagnostics" and message.header.stamp == Time(sec=7)
        return message.status[0]


@pytest.fixture
def two(monkeypatch):
    return lambda task="reach", **devices: Two(monkeypatch, task, **devices)


def test_motions_of_two_devices_add_up_within_the_largest_step(two):
    pedal, stick = Stick(z=0.75), Stick(x=-0.5, z=0.5)
    station = two(pedal=pedal, stick=stick)
    person = station.person
    assert person.device_motions() == [] and person.answer("demonstration", []) is None, (
        "neither has been seen at rest"
    )
    person.poll()
    moves = person.device_motions()
    assert moves == [{"z": 0.75}, {"x": -0.5, "z": 0.5}] and person.moves and person.trusted
    for mode in ("demonstration", "train", ""):
        assert person.answer(mode, moves) == pytest.approx([-0.5, 0.0, 1.0])
    assert person.idle_action() == pytest.approx([-0.5, 0.0, 1.0])
    assert np.array_equal(person.answer("demonstration", []), np.zeros(3)), "rest is an action"
    assert person.answer("train", []) is None, "nobody takes over"
    pedal.deflection, stick.deflection = {"z": 0.0}, {}
    assert person.device_motions() == [{"z": 0.0}] and not person.moves
    assert person.idle_action() is None
    pedal.trouble = "gone"
    person.poll()
    assert person.answer("demonstration", [{"x": 1.0}]) is None, "one in trouble stops all"
    pedal.trouble = ""
    person.poll()
    person.distrust()
    assert not person.trusted and person.device_motions() == []


def test_every_device_hears_its_topics_and_is_attached_once_to_the_action(two):
    station = two(stick=(stick := Stick()), pedal=Stick())
    assert stick.attached == [([], 3, 10.0)]
    assert station.listeners.keys() == {"prompt", "joy"} and station.timers[0][0] == 0.02
    assert station.timers[0][1] == station.person.poll
    station.listeners["joy"]("a message")
    assert station.person.guards[1].device.messages == ["a message"]
    assert station.logged == [("info", "stick: moves x,y,z; pedal: moves x,y,z")]
    station.listeners["prompt"](SimpleNamespace(data="put the peg back"))
    station.listeners["prompt"](SimpleNamespace(data=""))
    assert station.logged[1:] == [("info", "put the peg back")]
    assert station.person.places == {"x": 0, "y": 1, "z": 2}


def test_the_devices_move_the_arm_that_a_person_has_chosen(two):
    station = two("reach_both", stick=(stick := Stick(y=0.5)))
    station.person.poll()
    person = station.person
    assert station.logged[0][1] == (
        "stick: moves x,y,z The keys move arm left; choose by number: 1 left, 2 right. The other "
        "arms rest. Arming is for all."
    )
    chosen = []
    for words in ((), ("2",), ("2",), ("next_arm",), ("next_arm",), ("next_arm",), ("3",)):
        station.press("stick", *words)
        action = person.answer("demonstration", person.device_motions())
        assert action.shape == (6,) and np.count_nonzero(action) == 1
        chosen.append((person.arm, int(np.flatnonzero(action)[0])))
    left, right = ("left", 1), ("right", 4)
    assert chosen == [left, right, right, left, right, left, left]
    assert len(stick.attached) == 6 and stick.attached[-1][1:] == (3, 10.0)
    assert "The keys move arm right;" in station.logged[1][1]


def test_joints_are_moved_by_their_numbers(two):
    station = two("ur5e_reach", stick=Stick(j1=0.5, j6=-1.0))
    station.person.poll()
    action = station.person.answer("", station.person.device_motions())
    assert action == pytest.approx([0.5, 0.0, 0.0, 0.0, 0.0, -1.0])


def test_who_is_there_renews_the_enable_and_labels_are_sent(two):
    station = two(stick=Stick())
    station.person.poll()
    station.press("stick", "enable", "success", "arm")
    assert station.enables == [True] * 3 and station.labels == ["success"]
    assert ("info", "label sent: success") in station.logged
    assert [call.args[0].data for call in station.client.call_async.call_args_list] == [True]
    station.node.active = False
    station.press("stick", "enable", "success", "arm", "disarm")
    assert station.enables[3:] == [False] and station.labels == ["success"]
    requests = [call.args[0].data for call in station.client.call_async.call_args_list]
    assert requests == [True, False], "an inactive node disarms, and nothing else"


def test_trouble_lets_go_of_the_enable_and_its_end_is_told(two):
    station = two(stick=(stick := Stick()), pedal=Stick())
    station.person.poll()
    stick.trouble = "silent for 3 s"
    station.person.poll()
    station.person.poll()
    assert station.enables == [False] and station.logged[1:] == [
        (
            "error",
            "stick: silent for 3 s. Until then the operator sends the interlock nothing, and the "
            "interlock holds the arm",
        )
    ], "once"
    status = station.status()
    assert (status.name, status.level) == ("lab/operator", DiagnosticStatus.ERROR)
    assert status.message == "stick: silent for 3 s"
    assert [(value.key, value.value) for value in status.values] == [
        ("stick", "stick: silent for 3 s"),
        ("pedal", "ready"),
    ]
    station.press("pedal", "success", "enable")
    assert station.labels == ["success"] and station.enables[1:] == [False], "a label still counts"
    stick.trouble = ""
    station.person.poll()
    assert station.logged[-1][1].startswith("all devices send again and are at rest. Any key")
    assert station.status().message == "stick, pedal: ready"
    assert station.status().level == DiagnosticStatus.OK


def test_a_healthy_device_is_reported_every_second(two, monkeypatch):
    now = [1000.0]
    station = two(stick=Stick())
    monkeypatch.setattr(human_operator, "time", SimpleNamespace(monotonic=lambda: now[0]))
    station.person.poll()
    assert len(station.statuses) == 1
    now[0] += 0.9
    station.person.poll()
    assert len(station.statuses) == 1
    now[0] += 0.2
    station.node.active = False
    station.person.poll()
    assert len(station.statuses) == 2
    assert (station.status().level, station.status().message) == (DiagnosticStatus.WARN, INACTIVE)
    station.person.finish()
    assert not station.person.guards[0]._opened


def test_a_terminal_is_a_keyboard_more(two, monkeypatch):
    opened = []
    keyboard = type("Keys", (Stick,), {"open": lambda self: opened.append(self)})
    monkeypatch.setattr(human_operator, "Keyboard", keyboard)
    station = two(stick=Stick())
    assert [guard.name for guard in station.person.guards] == ["stick"]

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(io, "StringIO", Terminal)
    station = two(stick=Stick())
    assert [guard.name for guard in station.person.guards] == ["stick", "keyboard"]
    assert len(opened) == 1
    station = two(keyboard=(held := Stick()))
    assert [guard.device for guard in station.person.guards] == [held]
