"""Gamepad, Joy and pedal against their twins: what they read, how it is mapped, and what stops
them.
"""

import time

import pytest

from rlinf_core.core.errors import DeviceError
from rlinf_core.robots.operators.device import REST_S, Guard
from rlinf_core.robots.operators.gamepad import BUTTONS, Gamepad, Joy, Pedal, find
from rlinf_core.robots.operators.twins import Events
from rlinf_core.robots.operators.twins import Pedal as PedalTwin
from rlinf_core.robots.operators.twins import SpaceMouse as MouseTwin
from tests.robots.operators.guards import PLAIN, moving, ready, settle

pytestmark = pytest.mark.timed


@pytest.fixture
def pad(tmp_path):
    twin = Events(tmp_path / "pad")
    guard = ready(Gamepad(device=str(twin.path), clutch="", **PLAIN))
    yield twin, guard
    guard.close()
    twin.unplug()


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("left_y", 1.0, {"x": 1.0}),
        ("left_x", 1.0, {"y": 1.0}),
        ("right_y", -1.0, {"z": -1.0}),
        ("right_x", 1.0, {"rz": 0.5}),
        ("dpad_x", 1.0, {"rx": -0.5}),
        ("dpad_y", 1.0, {"ry": 0.5}),
    ],
)
def test_every_stick_of_a_gamepad_moves_its_axis(pad, name, value, expected):
    twin, guard = pad
    twin.deflect({name: value})
    settle(guard, lambda: moving(guard) == expected)
    twin.rest()
    settle(guard, lambda: guard.motion() is None)


def test_a_gamepad_asks_by_its_buttons_and_needs_its_clutch(tmp_path):
    twin = Events(tmp_path / "pad")
    guard = ready(Gamepad(device=str(twin.path), **PLAIN))
    twin.deflect({"left_y": 1.0})
    for button in ("start", "y", "x", "guide", "lb", "back"):
        twin.press(button, True)
        twin.press(button, False)
    requests = settle(guard, lambda: guard.device.values.get("left_y", 0) > 0.9)
    assert [request for request in requests if request != "enable"] == [
        "arm",
        "success",
        "failure",
        "rerecord",
        "next_arm",
        "disarm",
    ]
    assert guard.motion() is None
    twin.press("rb", True)
    settle(guard, lambda: moving(guard) == {"x": 1.0})
    twin.unplug()


def test_half_an_event_lost_events_a_value_beyond_and_the_end_stop_a_gamepad(pad):
    twin, guard = pad
    for spoil in (twin.garbage, lambda: twin.send(0, 3, 0), lambda: twin.send(3, 0, 70_000)):
        twin.deflect({"left_y": 1.0})
        settle(guard, lambda: moving(guard))
        spoil()
        settle(guard, lambda: "garbage" in guard.trouble)
        assert guard.motion() is None
        twin.rest()
        settle(guard, lambda: guard.trusted)
    twin.unplug()
    settle(guard, lambda: "unplugged" in guard.trouble)


def test_a_stick_that_says_nothing_more_stops_after_its_time(tmp_path):
    twin = Events(tmp_path / "pad")
    guard = ready(Gamepad(device=str(twin.path), clutch="", silence_s=0.2, **PLAIN))
    twin.deflect({"left_y": 1.0})
    settle(guard, lambda: moving(guard))
    settle(guard, lambda: "silent" in guard.trouble)
    assert guard.motion() is None
    twin.unplug()


def test_one_gamepad_is_found_and_two_are_asked_about(tmp_path):
    with pytest.raises(DeviceError, match="expected one gamepad .* found none"):
        find(tmp_path)
    (tmp_path / "usb-a-event-joystick").touch()
    assert find(tmp_path).name == "usb-a-event-joystick"
    (tmp_path / "usb-b-event-joystick").touch()
    with pytest.raises(DeviceError, match="expected one gamepad .* found .*usb-a.*usb-b"):
        find(tmp_path)


class Message:
    def __init__(self, axes, buttons=(0,) * 11):
        self.axes, self.buttons = axes, buttons


def test_joy_is_mapped_as_the_gamepad_is_and_stops_on_silence_and_nonsense():
    device = Joy(clutch="rb", silence_s=0.3, **PLAIN)
    guard = Guard("joy", device)
    guard.open()
    still, held = [0, 0, 1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    settle(guard, lambda: device.receive(Message(still)) or guard.trusted)
    device.receive(Message([0, 1.0, 1, 0, 0, 1, 0, 0], held))
    settle(guard, lambda: moving(guard) == {"x": 1.0})
    assert not guard.poll(), "once for each message"
    device.receive(Message([0, 0.9, 1, 0, 0, 1, 0, 0], held))
    assert guard.poll() == ("enable",), "whoever moves it is there"
    for wrong, reason in (
        ([float("nan")] * 8, "from -1 to 1"),
        ([0, 1.0], "expected axes"),
        ([0, 7.0] * 4, "from -1"),
    ):
        device.receive(Message(wrong, held))
        settle(guard, lambda reason=reason: reason in guard.trouble)
        assert guard.motion() is None
        settle(guard, lambda: device.receive(Message(still)) or guard.trusted)
    settle(guard, lambda: "silent" in guard.trouble)
    assert guard.motion() is None, "silent at rest, too"


def test_a_joystick_is_believed_once_it_was_heard_at_rest():
    device = Joy(clutch="", silence_s=60.0, **PLAIN)
    guard = Guard("joy", device)
    guard.open()
    for _ in range(2):  # before its first message, and from that on
        end = time.monotonic() + 2 * REST_S
        while time.monotonic() < end:
            assert guard.poll() == () and not guard.trusted and guard.motion() is None
            time.sleep(0.01)
        device.receive(Message([0, 1.0, 1, 0, 0, 1, 0, 0]))
    device.receive(Message([0, 0, 1, 0, 0, 1, 0, 0]))
    settle(guard, lambda: guard.trusted)


@pytest.mark.parametrize("axes", [[7.0] * 8, [0.0], [0, 1.0, 1, 0, 0, 1, 0, 0]])
def test_a_joystick_disarms_whatever_its_axes_say(axes):
    device = Joy(clutch="", **PLAIN)
    guard = Guard("joy", device)
    guard.open()
    device.receive(Message(axes, [int(name in ("start", "back")) for name in BUTTONS]))
    assert guard.poll() == ("disarm",) and not guard.trusted and guard.poll() == ()


def test_what_comes_before_a_gamepad_is_lost_disarms_and_nothing_else(pad):
    twin, guard = pad
    for name in ("start", "back", "y"):
        twin.press(name, True)
    twin.garbage()
    assert settle(guard, lambda: "garbage" in guard.trouble) == ["disarm"]


def test_a_pedal_labels_and_takes_over_while_it_is_held(tmp_path):
    twin = PedalTwin(tmp_path / "pedal")
    guard = ready(
        Pedal(device=str(twin.path), buttons={"a": "failure", "b": "intervene", "c": "success"})
    )
    twin.press("a", True)
    twin.press("a", False)
    twin.press("c", True)
    assert settle(guard, lambda: "c" in guard.device.pressed) == ["failure", "success"]
    assert guard.motion() is None
    twin.press("b", True)
    settle(guard, lambda: guard.motion() is not None)
    assert not moving(guard)
    twin.send(1, 48, 2)  # the kernel repeats a key that is held
    twin.unplug()
    settle(guard, lambda: "unplugged" in guard.trouble)
    assert guard.motion() is None


@pytest.mark.parametrize(
    "line, error",
    [("fly 1", "no {'fly'}"), ("press", "press NAME"), ("tx", "NAME VALUE"), ("tx a", "could not")],
)
def test_a_twin_says_which_words_it_knows(tmp_path, line, error):
    twin = MouseTwin(tmp_path / "mouse")
    with pytest.raises(DeviceError, match=error):
        twin.execute(line)
    twin.unplug()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DeviceError, match="expected an unused path"):
        MouseTwin(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
