"""A Robotiq by Modbus RTU: against the frames of its instruction manual, and what is said where it
is not there.
"""

import math
import os
import select
import time

import pytest

from rlinf_core.core.errors import DeviceError, RecipeError
from rlinf_core.robots.config import load_robot
from rlinf_core.robots.grippers.robotiq import ACTIVE as MOVES
from rlinf_core.robots.grippers.robotiq import CommandTracker, Gripper, Robotiq, Status
from sim_bridges.twins.robotiq import ACTIVATION_S
from sim_bridges.twins.robotiq import Robotiq as Twin

pytestmark = pytest.mark.timed

RESET, RESET_ANSWER = "09 10 03 E8 00 03 06 00 00 00 00 00 00 73 30", "09 10 03 E8 00 03 01 30"
ACTIVATE = "09 10 03 E8 00 03 06 01 00 00 00 00 00 72 E1"
ASK, ACTIVATING, ACTIVE = "09 03 07 D0 00 01 85 CF", "09 03 02 11 00 55 D5", "09 03 02 31 00 4C 15"
CLOSE = "09 10 03 E8 00 03 06 09 00 00 FF FF FF 42 29"


class SlowTwin(Twin):
    """Keeps what it was asked."""

    def __init__(self, path):
        self.requests = []
        super().__init__(path)

    def _answer(self, request):
        if len(request) in (8, 15):
            self.requests.append(request.hex(" ").upper())
        return super()._answer(request)


@pytest.fixture
def twin(tmp_path):
    twin = SlowTwin(tmp_path / "tty")
    yield twin
    twin.unplug()


def robotiq(twin, **changes):
    return Robotiq(
        Gripper(
            **({"kind": "robotiq", "device": str(twin.path), "speed": 1.0, "force": 1.0} | changes)
        )
    )


def answer(port, request, expected):
    """Return the answer to a frame of the manual."""
    os.write(port, bytes.fromhex(request))
    got, wanted = b"", bytes.fromhex(expected)
    while len(got) < len(wanted) and select.select([port], [], [], 2)[0]:
        got += os.read(port, 64)
    assert got.hex(" ").upper() == expected


def test_the_twin_answers_the_manuals_frames_as_the_manual_has_it(twin):
    port = os.open(twin.path, os.O_RDWR | os.O_NOCTTY)
    answer(port, RESET, RESET_ANSWER)
    answer(port, ACTIVATE, RESET_ANSWER)
    answer(port, ASK, ACTIVATING)
    time.sleep(ACTIVATION_S)
    os.write(port, bytes.fromhex(ASK)[:-1] + b"\0")  # damaged on the way: no answer
    assert not select.select([port], [], [], 0.2)[0]
    answer(port, ASK, ACTIVE)
    os.close(port)


def test_the_driver_says_the_manuals_frames(twin):
    gripper = robotiq(twin)
    assert gripper.status().trouble == "not activated since power-on"
    gripper.activate()
    assert (
        twin.requests[-2:] == [RESET, ACTIVATE]
        and gripper.status().trouble == "it is being activated"
    )
    time.sleep(ACTIVATION_S)
    gripper.go(255)
    assert twin.requests[-1] == CLOSE and not gripper.status().trouble
    gripper.close()


def test_widths_are_between_the_fingers_stops_and_an_object_is_felt(twin):
    settings = Gripper(kind="robotiq", device="x")
    assert [round(settings.position(width)) for width in (0.085, 0.0, 1.0, -1.0)] == [
        3,
        230,
        3,
        230,
    ]
    assert (
        settings.opening(0) == 0.085
        and settings.opening(255) == 0
        and settings.opening(116.5) == 0.0425
    )
    assert (
        settings.opening(-110) == 0.085
        and math.isnan(settings.opening(-111))
        and math.isnan(settings.opening(math.nan))
    )
    gripper = robotiq(twin)
    gripper.activate()
    twin.execute("object 0.0425")
    time.sleep(ACTIVATION_S)
    gripper.go(230)
    while gripper.status().object == 0:
        pass
    status = gripper.status()
    assert status.object == 2 and settings.opening(status.position) == pytest.approx(
        0.0425, abs=0.0004
    )
    twin.execute("fault 14")
    assert gripper.status().trouble == "fault 0x0E (overcurrent)"
    gripper.close()


def test_orders_that_grow_with_each_turn_are_taken_and_one_that_is_not_shows_until_it_is():
    tracker, ordered = CommandTracker(0.0), 3

    def turn(wanted, now):
        return tracker.next(Status(MOVES, 0, 0, ordered, ordered), wanted, now)

    for count in range(100):  # 2 s of a ramp: what it echoes is the order of the turn before
        ordered = turn(10 + count, 0.02 * count)
        assert ordered == 10 + count and 0.02 * count - tracker.accepted_at <= 0.02
    for count in range(100):  # of one that hears nothing any more
        assert turn(120 + count, 2.0 + 0.02 * count) == 120 + count
    assert tracker.accepted_at == 2.0 and tracker.command == 219, "when it echoed 109"
    assert turn(109, 4.0) is None and tracker.accepted_at == 4.0, "it is wanted where it was sent"
    assert turn(None, 5.0) is None and tracker.accepted_at == 5.0
    assert tracker.next(Status(0, 0, 0, 0, 0), 50, 6.0) is None and tracker.accepted_at == 6.0, (
        "not active"
    )


def test_one_that_says_two_turns_later_what_it_was_told_follows_all_the_same():
    tracker, ordered = CommandTracker(0.0), [3, 3]
    for count in range(100):
        ordered.append(
            tracker.next(Status(MOVES, 0, 0, ordered[-2], ordered[-2]), 10 + count, 0.02 * count)
        )
        assert ordered[-1] == 10 + count and 0.02 * count - tracker.accepted_at <= 0.04


@pytest.mark.parametrize("words", ["silent", "garbage", "power 0", "unplug"])
def test_one_that_does_not_answer_is_said_in_its_time(twin, words):
    gripper = robotiq(twin, timeout_s=0.15)
    gripper.status()
    twin.execute(words)
    with pytest.raises(
        DeviceError,
        match="unplugged or silent: expected an answer of Robotiq gripper 9 .* within 0.15 s",
    ):
        gripper.status()
    gripper.close()


def test_what_is_no_gripper_is_refused_with_the_rule(twin, monkeypatch):
    with pytest.raises(
        DeviceError,
        match="expected a gripper at /dev/none, got: No such file.*71-rlinf-devices.rules",
    ):
        robotiq(twin, device="/dev/none")
    with pytest.raises(
        DeviceError, match="expected a serial port at /dev/null, got one that does not open"
    ):
        robotiq(twin, device="/dev/null")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may all
    with pytest.raises(
        DeviceError, match="permission denied: cannot read a gripper .*71-rlinf-devices.rules"
    ):
        robotiq(twin)


@pytest.mark.parametrize(
    "document, expected",
    [
        (
            "gripper: {kind: robotic, device: /dev/x}",
            "expected one of gripper_command, robotiq, .* got 'robotic' .did you",
        ),
        ("gripper: {kind: robotiq}", "'gripper.device' is missing"),
        (
            "gripper: {kind: robotiq, device: /dev/x, closed_at: 3.0}",
            "expected a position that differs from closed_at, got 3",
        ),
        ("gripper: {kind: robotiq, device: /dev/x, joint: a}", "unknown key 'gripper.joint'"),
        ("gripper: robotiq", "'gripper': expected a mapping, got str 'robotiq'"),
        (
            "arms: {l: {limits: a}, r: {limits: a}}\ngripper: {kind: robotiq, device: /dev/x}",
            "expected arms.<name>.gripper",
        ),
        (
            "driver: franka\ngripper: {kind: robotiq, device: /dev/x}",
            "since driver: franka commands one.*hand: false",
        ),
        (
            "driver: simulator\nsimulator: gym_hil\ngripper: {kind: robotiq, device: /dev/x}",
            "expected none with driver: sim",
        ),
    ],
)
def test_a_robot_that_says_it_wrongly_is_refused_by_line(tmp_path, document, expected):
    head = "" if "driver:" in document else "driver: external\n"
    tail = "" if "arms:" in document else "limits: limits.yaml\n"
    (tmp_path / "limits.yaml").touch()
    (tmp_path / "robot.yaml").write_text(f"{head}{tail}{document}\n")
    with pytest.raises(RecipeError, match=expected):
        load_robot(str(tmp_path))


def test_two_processes_do_not_tell_one_gripper(twin):
    first = robotiq(twin)
    with pytest.raises(
        DeviceError,
        match=r"that no other program commands, got one that process \d+ of .* commands",
    ):
        robotiq(twin)
    first.close()
    robotiq(twin).close()


@pytest.mark.parametrize(
    "left, right, refused",
    [
        (
            "kind: robotiq, device: {folder}/tty",
            "kind: robotiq, device: {folder}/by-id",
            "got '{folder}/by-id'",
        ),
        ("kind: robotiq, device: {folder}/tty", "kind: robotiq, device: {folder}/other", ""),
        (
            "kind: gripper_command, joint: a, open_at: 1, action: /hand/cmd",
            "kind: gripper_command, joint: b, open_at: 1, action: /hand/cmd",
            "got '/hand/cmd'",
        ),
        (
            "kind: gripper_command, joint: a, open_at: 1",
            "kind: gripper_command, joint: a, open_at: 1",
            "",
        ),
    ],
)
def test_each_arm_has_a_gripper_of_its_own(tmp_path, left, right, refused):
    (tmp_path / "by-id").symlink_to(tmp_path / "tty")
    limits = os.path.abspath("robots/franka_fr3/limits.yaml")
    arms = "".join(
        f"  {name}: {{limits: {limits}, gripper: {{{gripper.format(folder=tmp_path)}}}}}\n"
        for name, gripper in (("left", left), ("right", right))
    )
    (tmp_path / "robot.yaml").write_text(f"driver: external\narms:\n{arms}")
    if not refused:
        load_robot(str(tmp_path))
        return
    with pytest.raises(RecipeError, match="which arm 'left' commands") as error:
        load_robot(str(tmp_path))
    assert refused.format(folder=tmp_path) in str(error.value)
