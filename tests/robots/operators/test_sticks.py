"""SpaceMouse against its twin, through a real file descriptor: what it reads, how it is mapped, and
what stops it.
"""

import errno
import os
import time
from pathlib import Path

import pytest

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.machine import DEVICE_RULES, OPERATOR_RULES, access_denied_text
from rlinf_core.core.paths import data_folder
from rlinf_core.robots.operators import spacemouse
from rlinf_core.robots.operators.device import REST_S, DeviceFile, Guard
from rlinf_core.robots.operators.spacemouse import SpaceMouse
from rlinf_core.robots.operators.twins import SpaceMouse as MouseTwin
from tests.robots.operators.guards import PLAIN, moving, ready, settle

pytestmark = pytest.mark.timed

RIGHT = {"x": "-ty", "y": "-tx", "z": "-tz", "rx": "-ry", "ry": "-rx", "rz": "-rz"}


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
    requests = settle(guard, lambda: moving(guard))
    assert moving(guard) == {axis: 0.5 if axis.startswith("r") else 1.0} and set(requests) <= {
        "enable"
    }
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
    guard = ready(
        SpaceMouse(device=str(twin.path), axes={"z": "tx"}, deadband=0.2, curve=2.0, scale=0.5)
    )
    for deflection, expected in (
        (0.19, None),
        (-0.19, None),
        (0.6, 0.5 * 0.5**2),
        (-0.6, -0.5 * 0.5**2),
        (-1.0, -0.5),
    ):
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
    settle(guard, lambda: guard.trusted and not guard.trouble)


@pytest.mark.parametrize(
    "report",
    [
        b"\x01\xff\x7f",
        b"\x01" + b"\xff\x7f" * 3,
        b"\x02" + bytes(7),
        b"\x09\x00",
        b"\x03",
        b"\xfe" + bytes(range(200)),
    ],
    ids=["short", "beyond", "long", "unknown", "no buttons", "noise"],
)
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
    settle(guard, lambda: guard.trusted)


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
    settle(guard, lambda: guard.trusted)
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
    settle(guard, lambda: guard.trusted)
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
            assert not guard.trusted
        guard.device.rest_s = REST_S
        settle(guard, lambda: guard.trusted or "1" in guard.device.pressed)
    for _ in range(30):
        guard.poll()
        time.sleep(0.01)
    assert not guard.trusted
    twin.press("1", False)
    settle(guard, lambda: guard.trusted)


def test_a_spacemouse_is_found_by_its_vendor_and_its_descriptor(tmp_path):
    mouse, keyboard, six = b"\x05\x01\x09\x02", b"\x05\x01\x09\x06", spacemouse.MULTI_AXIS
    devices = [
        ("hidraw0", "0003:0000046D:0000C52B", mouse),
        ("hidraw1", "0003:0000256F:0000C652", keyboard),
        ("hidraw2", "0003:0000256F:0000C652", six),
        ("hidraw3", "0003:0000BEEF:00000001", six),
    ]
    for name, ids, descriptor in devices:
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/uevent").write_text(f"DRIVER=hid\nHID_ID={ids}\nHID_NAME=x\n")
        (tmp_path / name / "device/report_descriptor").write_bytes(descriptor + bytes(20))
    assert spacemouse.find("auto", tmp_path) == Path("/dev/hidraw2")
    with pytest.raises(
        DeviceError, match="expected a SpaceMouse, found none in .*rlinf fake-device spacemouse"
    ):
        spacemouse.find("auto", tmp_path / "none")


def test_of_two_spacemice_none_is_taken_without_a_choice(tmp_path):
    for name, unique, port in (
        ("hidraw3", "", "usb-0000:00:14.0-2/input0"),
        ("hidraw7", "A17", "usb-0000:00:14.0-4/input0"),
    ):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/uevent").write_text(
            "HID_ID=0003:0000256F:0000C635\n"
            "HID_NAME=3Dconnexion SpaceMouse\n"
            f"HID_PHYS={port}\n"
            f"HID_UNIQ={unique}\n"
        )
        (tmp_path / name / "device/report_descriptor").write_bytes(spacemouse.MULTI_AXIS)
    for wanted, which in (
        ("auto", "one SpaceMouse, found"),
        ("B", "the serial or port 'B', found"),
    ):
        with pytest.raises(DeviceError) as refused:
            spacemouse.find(wanted, tmp_path)
        message = str(refused.value)
        assert which in message and "station.operator.device=<serial or port>" in message
        assert (
            "/dev/hidraw3 (3Dconnexion SpaceMouse, serial none, port usb-0000:00:14.0-2/input0)"
            in message
        )
        assert (
            "/dev/hidraw7 (3Dconnexion SpaceMouse, serial A17, port usb-0000:00:14.0-4/input0)"
            in message
        )
    assert spacemouse.find("A17", tmp_path) == Path("/dev/hidraw7")
    assert spacemouse.find("usb-0000:00:14.0-2/input0", tmp_path) == Path("/dev/hidraw3")


def test_one_device_moves_one_arm(tmp_path):
    twin = MouseTwin(tmp_path / "mouse")
    (tmp_path / "other_name").symlink_to(tmp_path / "mouse")
    first, second = (SpaceMouse(device=str(tmp_path / name)) for name in ("mouse", "other_name"))
    first.open()
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=r"that no other program reads, got one that process \d+ of .* reads"
        ):
            second.open()
    first.close()
    second.open()
    second.close()
    twin.unplug()


def test_missing_and_refused_devices_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(
        DeviceError, match="expected a thing at .*gone, got: No such file.*station.operator.device"
    ):
        DeviceFile(tmp_path / "gone", "a thing")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # root may read everything
    with pytest.raises(
        DeviceError, match="70-rlinf-operators.rules.*sudo cp .* /etc/udev/rules.d/ && sudo udevadm"
    ):
        DeviceFile(tmp_path / "x", "a thing")
    for rules in (OPERATOR_RULES, DEVICE_RULES):
        assert (
            str(data_folder() / rules) in access_denied_text("a thing", "x", rules)
            and (data_folder() / rules).is_file()
        )
