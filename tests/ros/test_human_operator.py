"""What a person's devices renew, label and disarm, without ROS."""

import io
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from builtin_interfaces.msg import Time

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import AXES, FIRST_MESSAGE_S, FORGET_S, Device
from rlinf_core.robots.operators.gamepad import Joy
from rlinf_core.robots.operators.page import BUTTONS, Page
from rlinf_core.tasks.task import load_task
from rlinf_operator.human_operator import HumanOperator


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
    """A person with such a device; what they have published."""
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
    person.look()
    for pressed, renewed in ((("asked", "success"), []), (("asked", "active", "failure"), [True])):
        del enables[:]
        device.receive(
            SimpleNamespace(
                axes=[0.0] * len(AXES), buttons=[int(name in pressed) for name in BUTTONS]
            )
        )
        person.look()
        assert enables == renewed and labels[-1] == pressed[-1]


def test_a_label_of_any_other_device_renews_it(people):
    person, enables, labels, _ = people(Knob("success"))
    person.look()
    assert enables == [True] and labels == ["success"]


def test_a_device_that_is_in_trouble_disarms_and_asks_for_nothing_else(people):
    device = Knob()
    person, enables, labels, client = people(device)
    person.look()
    device.trouble, device.words = "silent", ("arm", "success", "enable", "disarm")
    person.look()
    assert [call.args[0].data for call in client.call_async.call_args_list] == [False]
    assert not any(enables) and not labels and time.monotonic() - person.reported_at < 60.0


@pytest.mark.parametrize(
    "axes, lets_go", [([0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], False), (None, True)]
)
def test_one_that_has_said_nothing_yet_lets_go_of_no_enable_while_it_may_still_speak(
    people, axes, lets_go
):
    person, enables, _, _ = people(Joy(silence_s=0.3, clutch="rb"))
    person.look()
    assert enables == [] and not person.trouble and not person.guards[0].believed
    end = time.monotonic() + FIRST_MESSAGE_S
    while time.monotonic() < end:
        if axes:
            person.guards[0].device.receive(SimpleNamespace(axes=axes, buttons=[0] * 11))
        person.look()
        time.sleep(0.02)
    assert enables == [False] * lets_go and person.guards[0].believed is not lets_go


def test_disarming_lets_go_of_the_enable_too(people):
    """Where no interlock answers, the policy stops by that."""
    person, enables, _, client = people(Knob("disarm"))
    person.look()
    assert enables == [False] and [
        call.args[0].data for call in client.call_async.call_args_list
    ] == [False]


def test_s26_what_was_pressed_while_the_process_stood_still_arms_nothing_afterwards_and_disarms(
    people,
):
    device = Knob()
    person, enables, labels, client = people(device)
    person.look()
    guard, device.words = person.guards[0], ("arm", "success", "enable", "disarm")
    guard._polled_at -= 61.0
    person.look()
    assert (
        [call.args[0].data for call in client.call_async.call_args_list] == [False]
        and not any(enables)
        and not labels
    )
    assert "the process was stopped for 61" in person.trouble and not guard.believed
    device.words = ("arm",)
    person.look()
    assert client.call_async.call_count == 1, "a key that was read late still moves for a moment"
    time.sleep(FORGET_S)
    person.look()
    device.words = ("arm",)
    person.look()
    assert not person.trouble and client.call_async.call_args.args[0].data and enables[-1]
