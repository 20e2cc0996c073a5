"""Drivers against their twins, through real file descriptors: what they read, how it is mapped, and what stops them."""

import errno
import os
import time
from pathlib import Path

import pytest

from rlinf_core.errors import DeviceError
from rlinf_core.operators import spacemouse
from rlinf_core.operators.device import REST_S, RULES, Guard, Source, refused
from rlinf_core.operators.gamepad import Gamepad, find
from rlinf_core.operators.joy import Joy
from rlinf_core.operators.pedal import Pedal
from rlinf_core.operators.spacemouse import SpaceMouse
from rlinf_core.operators.twins import Events
from rlinf_core.operators.twins import Pedal as PedalTwin
from rlinf_core.operators.twins import SpaceMouse as MouseTwin
from rlinf_core.paths import shared
from tests.operators.guards import ready, settle

PLAIN = {"deadband": 0.1, "curve": 1.0, "scale": 1.0, "rotation_scale": 0.5}
RIGHT = {"x": "-ty", "y": "-tx", "z": "-tz", "rx": "-ry", "ry": "-rx", "rz": "-rz"}


def moving(guard):
    return {axis: round(value, 2) for axis, value in (guard.motion() or {}).items() if value}


@pytest.fixture(params=[False, True], ids=["two reports", "one report"])
def mouse(tmp_path, request):
    twin = MouseTwin(tmp_path / "mouse", one_report=request.param)
    guard = ready(SpaceMouse(device=str(twin.path), **PLAIN))
    yield twin, guard
    guard.close()
    twin.unplug()


@pytest.mark.parametrize("axis, source", RIGHT.items())
def test_every_axis_of_a_spacemouse_moves_its_own_and_no_other(mouse, axis, source):
    twin, guard = mouse
    twin.deflect({source[1:]: -1.0})
    asked = settle(guard, lambda: moving(guard))
    assert moving(guard) == {axis: 0.5 if axis.startswith("r") else 1.0} and set(asked) <= {"enable"}
    twin.rest()
    settle(guard, lambda: guard.motion() is None)


def test_the_buttons_of_a_spacemouse_work_the_gripper_while_they_are_held(mouse):
    twin, guard = mouse
    twin.press("2", True)
    settle(guard, lambda: moving(guard) == {"grip": 1.0})
    twin.press("1", True)
    twin.press("2", False)
    settle(guard, lambda: moving(guard) == {"grip": -1.0})
    twin.press("1", False)
    settle(guard, lambda: guard.motion() is None)


def test_deadband_curve_sign_and_scale(tmp_path):
    twin = MouseTwin(tmp_path / "mouse")
    guard = ready(SpaceMouse(device=str(twin.path), axes={"z": "tx"}, deadband=0.2, curve=2.0, scale=0.5))
    for deflection, expected in ((0.19, None), (-0.19, None), (0.6, 0.5 * 0.5**2), (-0.6, -0.5 * 0.5**2), (-1.0, -0.5)):
        twin.deflect({"tx": deflection, "ty": 1.0})
        wanted = pytest.approx(expected, abs=0.01) if expected else None
        settle(guard, lambda wanted=wanted: (guard.motion() or {"z": None})["z"] == wanted)
    twin.unplug()


def test_with_a_clutch_only_the_clutch_commands(tmp_path):
    twin = MouseTwin(tmp_path / "mouse")
    guard = ready(SpaceMouse(device=str(twin.path), clutch="1", buttons={"2": "arm"}, **PLAIN))
    twin.deflect({"tx": 1.0})
    settle(guard, lambda: guard.device.values.get("tx"))
    assert guard.motion() is None
    twin.press("1", True)
    settle(guard, lambda: moving(guard) == {"y": -1.0})
    twin.rest()
    settle(guard, lambda: guard.motion() == dict.fromkeys(RIGHT, 0.0) or not moving(guard))
    assert guard.motion() is not None, "held, and at rest: the operator commands rest"
    twin.press("1", False)
    twin.press("2", True)
    assert "arm" in settle(guard, lambda: guard.motion() is None)
    twin.unplug()


def test_a_device_that_falls_silent_while_deflected_stops_and_is_believed_again_after_rest(mouse):
    twin, guard = mouse
    twin.deflect({"tx": 1.0})
    settle(guard, lambda: moving(guard))
    twin.silent()
    settle(guard, lambda: "silent" in guard.trouble)
    assert guard.motion() is None
    twin.deflect({"tx": 0.5})
    settle(guard, lambda: guard.device.values["tx"] < 0.6)
    time.sleep(2 * REST_S)
    assert guard.poll() == () and guard.motion() is None, "not yet let go of"
    twin.rest()
    settle(guard, lambda: guard.believed and not guard.trouble)


@pytest.mark.parametrize("report", [b"\x01\xff\x7f", b"\x01" + b"\xff\x7f" * 3, b"\x02" + bytes(7), b"\x09\x00", b"\x03",
                                    b"\xfe" + bytes(range(200))],
                         ids=["short", "beyond", "long", "unknown", "no buttons", "noise"])
def test_garbage_stops_it_until_it_was_at_rest(mouse, report):
    twin, guard = mouse
    twin.deflect({"tx": 1.0})
    settle(guard, lambda: moving(guard))
    twin.write(report)
    settle(guard, lambda: "garbage" in guard.trouble)
    assert guard.motion() is None
    time.sleep(0.1)
    guard.poll()
    assert guard.motion() is None
    twin.rest()
    settle(guard, lambda: guard.believed)


def test_the_battery_of_a_wireless_one_is_no_garbage(mouse):
    twin, guard = mouse
    twin.deflect({"tx": 1.0})
    twin.write(b"\x17\x64")
    settle(guard, lambda: moving(guard))
    assert not guard.trouble


def test_unplugged_in_use_it_stops_and_comes_back_at_rest_alone(mouse):
    twin, guard = mouse
    twin.deflect({"tz": 1.0})
    settle(guard, lambda: moving(guard))
    twin.unplug()
    settle(guard, lambda: "unplugged" in guard.trouble)
    assert guard.motion() is None and "Plug it in again" in guard.trouble
    again = MouseTwin(twin.path)
    settle(guard, lambda: guard.believed)
    again.deflect({"tz": -1.0})
    settle(guard, lambda: moving(guard))
    again.unplug()


def test_one_that_is_held_when_it_is_opened_waits_for_rest(tmp_path):
    twin = MouseTwin(tmp_path / "mouse")
    twin.deflect({"tx": 1.0})
    guard = Guard("mouse", SpaceMouse(device=str(twin.path), **PLAIN))
    guard.open()
    settle(guard, lambda: "at rest" in guard.trouble)
    time.sleep(2 * REST_S)
    guard.poll()
    assert guard.motion() is None
    twin.rest()
    settle(guard, lambda: guard.believed)
    twin.unplug()


def test_a_moment_of_rest_is_not_enough_nor_is_rest_with_a_button_pressed(mouse):
    twin, guard = mouse
    guard.device.rest_s = 60.0
    for spoil, rest in ((twin.garbage, twin.rest), (lambda: twin.press("1", True), twin.garbage)):
        spoil()
        rest()
        settle(guard, lambda: "garbage" in guard.trouble)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            guard.poll()
            assert not guard.believed
        guard.device.rest_s = REST_S
        settle(guard, lambda: guard.believed or "1" in guard.device.pressed)
    for _ in range(30):
        guard.poll()
        time.sleep(0.01)
    assert not guard.believed
    twin.press("1", False)
    settle(guard, lambda: guard.believed)


def test_a_spacemouse_is_found_by_its_vendor_and_its_descriptor(tmp_path):
    mouse, keyboard, six = b"\x05\x01\x09\x02", b"\x05\x01\x09\x06", spacemouse.MULTI_AXIS
    found = [("hidraw0", "0003:0000046D:0000C52B", mouse), ("hidraw1", "0003:0000256F:0000C652", keyboard),
             ("hidraw2", "0003:0000256F:0000C652", six), ("hidraw3", "0003:0000BEEF:00000001", six)]
    for name, ids, descriptor in found:
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/uevent").write_text(f"DRIVER=hid\nHID_ID={ids}\nHID_NAME=x\n")
        (tmp_path / name / "device/report_descriptor").write_bytes(descriptor + bytes(20))
    assert spacemouse.find(tmp_path, Path("/dev")) == Path("/dev/hidraw2")
    with pytest.raises(DeviceError, match="expected a SpaceMouse, found none in .*rlinf twin spacemouse"):
        spacemouse.find(tmp_path / "none")


def test_missing_and_refused_devices_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(DeviceError, match="expected a thing at .*gone, got: No such file.*station.operator.device"):
        Source(tmp_path / "gone", "a thing")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # root may read everything
    with pytest.raises(DeviceError, match="70-rlinf-operators.rules.*sudo cp .* /etc/udev/rules.d/ && sudo udevadm"):
        Source(tmp_path / "x", "a thing")
    assert str(shared() / RULES) in refused("a thing", "x") and (shared() / RULES).is_file()


@pytest.fixture
def pad(tmp_path):
    twin = Events(tmp_path / "pad")
    guard = ready(Gamepad(device=str(twin.path), clutch="", **PLAIN))
    yield twin, guard
    guard.close()
    twin.unplug()


@pytest.mark.parametrize("name, value, expected", [
    ("left_y", 1.0, {"x": 1.0}), ("left_x", 1.0, {"y": 1.0}), ("right_y", -1.0, {"z": -1.0}), ("right_x", 1.0, {"rz": 0.5}),
    ("dpad_x", 1.0, {"rx": -0.5}), ("dpad_y", 1.0, {"ry": 0.5})])
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
    asked = settle(guard, lambda: guard.device.values.get("left_y", 0) > 0.9)
    assert [each for each in asked if each != "enable"] == ["arm", "success", "failure", "rerecord", "next_arm", "disarm"]
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
        settle(guard, lambda: guard.believed)
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
    settle(guard, lambda: device.receive(Message(still)) or guard.believed)
    device.receive(Message([0, 1.0, 1, 0, 0, 1, 0, 0], held))
    settle(guard, lambda: moving(guard) == {"x": 1.0})
    for wrong, said in (([float("nan")] * 8, "from -1 to 1"), ([0, 1.0], "expected axes"), ([0, 7.0] * 4, "from -1")):
        device.receive(Message(wrong, held))
        settle(guard, lambda said=said: said in guard.trouble)
        assert guard.motion() is None
        settle(guard, lambda: device.receive(Message(still)) or guard.believed)
    settle(guard, lambda: "silent" in guard.trouble)
    assert guard.motion() is None, "silent at rest, too"


def test_a_pedal_labels_and_takes_over_while_it_is_held(tmp_path):
    twin = PedalTwin(tmp_path / "pedal")
    guard = ready(Pedal(device=str(twin.path), buttons={"a": "failure", "b": "intervene", "c": "success"}))
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


@pytest.mark.parametrize("line, said", [("fly 1", "no {'fly'}"), ("press", "press NAME"), ("tx", "NAME VALUE"),
                                        ("tx a", "could not")])
def test_a_twin_says_which_words_it_knows(tmp_path, line, said):
    twin = MouseTwin(tmp_path / "mouse")
    with pytest.raises(DeviceError, match=said):
        twin.say(line)
    twin.unplug()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DeviceError, match="expected a path that is free"):
        MouseTwin(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
