"""Servo buses: the vendors' own clients against our twins, byte for byte; units, calibrations and
faults.
"""

import json
import math
import os
import time

import numpy as np
import pytest

from rlinf_core.core.errors import DeviceError, RecipeError
from rlinf_core.robots.servos import (
    RAD_PER_TICK,
    TABLES,
    Bus,
    Servo,
    lerobot_calibration,
    to_register,
    to_signed,
)
from sim_bridges.twins.servos import Servos

pytestmark = pytest.mark.timed
KINDS = pytest.mark.parametrize("kind", ["feetech", "dynamixel"])
FRAMES = {  # of the vendors' manuals: a request, and its answer
    "feetech": ("FF FF 01 02 01 FB", "FF FF 01 02 00 FC"),
    "dynamixel": ("FF FF FD 00 01 03 00 01 19 4E", "FF FF FD 00 01 07 00 55 00 B0 04 32 6C 40"),
}


@pytest.fixture
def twin(tmp_path, kind):
    pytest.importorskip(TABLES[kind].module)
    twin = Servos(tmp_path / "bus", kind, (1, 2, 3))
    yield twin
    twin.unplug()


@pytest.fixture
def bus(twin, kind):
    bus = Bus(kind, str(twin.path), (1, 2, 3))
    yield bus
    bus.close()


def until(condition, seconds=3.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@KINDS
def test_the_vendors_client_reads_and_commands_the_twin(bus, twin, kind):
    twin.deflect({"1": 0.5, "2": -1.0})
    turned = {1: 2048 + round(0.5 / RAD_PER_TICK), 2: 2048 + round(-1.0 / RAD_PER_TICK), 3: 2048}
    assert until(lambda: bus.positions() == turned), "a read is None where an answer is late"
    bus.command({1: 1000, 2: 3000, 3: 2048})
    assert until(lambda: twin.goals[2] == 3000)
    if kind == "dynamixel":  # an STS3215 switches its torque on when it gets a goal
        assert until(lambda: bus.positions() == turned), "limp: a goal moves nothing"
    bus.torque(True)
    assert until(lambda: bus.positions() == {1: 1000, 2: 3000, 3: 2048})
    bus.torque(False)
    assert until(lambda: not any(twin.torque.values()))


@KINDS
def test_servos_hold_where_they_are_whatever_their_goals_were(bus, twin):
    """Limp servos were turned by a hand since they got their goals, which are elsewhere."""
    twin.goals = dict.fromkeys(twin.ticks, 100.0)
    twin.deflect({"1": 0.5, "2": -1.0})
    before, writes = dict(twin.ticks), []
    write = twin._write
    twin._write = lambda servo, address, data: (
        write(servo, address, data),
        writes.append((servo, address, dict(twin.torque), dict(twin.goals))),
    )
    bus.hold()
    assert until(lambda: all(twin.torque.values()))
    assert [address for _, address, *_ in writes] == [twin.table.goal, twin.table.torque] * 3
    for _, _, torque, goals in writes:
        for servo, on in torque.items():
            assert not on or abs(goals[servo] - before[servo]) <= 1, "torque before the goal"
    time.sleep(0.1)
    twin.advance()
    assert all(abs(twin.ticks[servo] - before[servo]) <= 1 for servo in before)


@KINDS
def test_a_servo_that_does_not_take_its_goal_gets_no_torque(bus, twin):
    twin.silent()
    with pytest.raises(DeviceError, match="servo 1 at .*expected an answer to its position"):
        bus.hold()
    assert not any(twin.torque.values())


def test_the_link_of_a_killed_twin_is_replaced_and_that_of_a_living_one_is_not(tmp_path):
    """The number of its pseudo-terminal may be another terminal's by now."""
    other, inside = os.openpty()
    (tmp_path / "bus").symlink_to(os.ttyname(inside))
    twin = Servos(tmp_path / "bus", "feetech", (1,))
    assert os.readlink(tmp_path / "bus") == os.ttyname(twin.device_fd)
    with pytest.raises(DeviceError, match="End the twin that has it, or name another path"):
        Servos(tmp_path / "bus", "feetech", (1,))
    twin.unplug()
    os.close(other)
    os.close(inside)
    Servos(tmp_path / "bus", "feetech", (1,)).unplug()


@KINDS
def test_a_ping_is_the_manuals(twin, kind):
    import select

    port = os.open(twin.path, os.O_RDWR | os.O_NOCTTY)
    request, expected = FRAMES[kind]
    os.write(port, bytes.fromhex(request))
    answer = b""
    while len(answer) < len(bytes.fromhex(expected)) and select.select([port], [], [], 2)[0]:
        answer += os.read(port, 64)
    os.close(port)
    cut = -2 if kind == "dynamixel" else None
    assert answer[:cut] == bytes.fromhex(expected)[:cut]


@KINDS
def test_requests_that_come_together_are_all_answered(bus, twin):
    """A goal is written, and a position is asked for at once: nothing answers the goal."""
    bus.torque(True)
    answers = 0
    for count in range(50):
        bus.command({1: 2048 + count, 2: 2048, 3: 2048})
        answers += bus.positions() is not None
    assert answers >= 40, "a busy machine may keep an answer from coming in time"


@KINDS
def test_ticks_below_zero_and_homing_offsets_come_back(tmp_path, kind):
    """Feetech has a sign bit (15, and 11 of the homing offset), Dynamixel two's complement."""
    pytest.importorskip(TABLES[kind].module)
    twin = Servos(tmp_path / "bus", kind, (5,), homing=-1470)
    bus = Bus(kind, str(twin.path), (5,))
    twin.ticks[5] = -37.0
    assert until(lambda: bus.positions() == {5: -37})
    assert until(lambda: bus.homing_offset(5) == -1470)
    bus.command({5: -12})
    assert until(lambda: twin.goals[5] == -12)
    bus.close()
    twin.unplug()


@KINDS
def test_silence_garbage_and_an_overload_are_told(bus, twin):
    twin.silent()
    assert bus.positions() is None
    with pytest.raises(DeviceError, match="servo 1 at .*expected an answer to torque on"):
        bus.torque(True)
    assert bus.fault() is None
    twin.rest()
    twin.garbage()
    assert bus.positions() is None
    twin.rest()
    assert until(lambda: bus.positions() is not None)
    # a read is None where an answer is late
    assert until(lambda: bus.fault() == "")
    twin.execute("fault 3")
    assert until(lambda: (bus.fault() or "").startswith("servo 3: "))
    twin.execute("fault 0")
    assert until(lambda: bus.fault() == "")


@KINDS
def test_a_bus_that_is_taken_gone_or_not_there_is_an_error_with_a_remedy(tmp_path, bus, twin, kind):
    with pytest.raises(DeviceError, match="that no other program commands"):
        Bus(kind, str(twin.path), (1,))
    with pytest.raises(DeviceError, match="expected servos at .*nowhere.*options.device"):
        Bus(kind, str(tmp_path / "nowhere"), (1,))


def test_ticks_are_angles():
    servo = Servo(id=1, zero=2048, low=1024, high=3072)
    assert servo.angle(2048) == 0 and math.isclose(servo.angle(3072), math.pi / 2)
    assert servo.ticks(math.pi / 4) == 2560 and servo.ticks(3.0) == 3072, "within its range"
    turned = Servo(id=1, sign=-1, zero=1000)
    angles = np.linspace(-1.2, 1.2, 9)
    assert np.allclose(
        [turned.angle(turned.ticks(angle)) for angle in angles], angles, atol=RAD_PER_TICK
    )
    assert math.isclose(turned.angle(2024), -math.pi / 2)


@pytest.mark.parametrize(
    ("value", "size", "bit", "register"),
    [
        (-1470, 2, 11, 1470 | 1 << 11),
        (1470, 2, 11, 1470),
        (-1, 4, None, 0xFFFFFFFF),
        (-5, 2, 15, 0x8005),
    ],
)
def test_registers_have_the_vendors_signs(value, size, bit, register):
    assert to_register(value, size, bit) == register and to_signed(register, size, bit) == value


def test_a_calibration_of_lerobot_is_read(tmp_path):
    """Angle 0 is the middle of the range, as in LeRobot's MotorNormMode.DEGREES."""
    row = {"id": 2, "drive_mode": 0, "homing_offset": -1470, "range_min": 758, "range_max": 3292}
    path = tmp_path / "my_arm.json"
    path.write_text(json.dumps({"shoulder_lift": row, "elbow": row | {"id": 3, "drive_mode": 1}}))
    servos = lerobot_calibration(path)
    servo, homing = servos["shoulder_lift"]
    assert (servo.id, servo.low, servo.high, homing) == (2, 758, 3292, -1470)
    for ticks in (758, 1500, 2025, 3292):
        lerobot_degrees = (ticks - (758 + 3292) / 2) * 360 / 4095
        assert abs(math.degrees(servo.angle(ticks)) - lerobot_degrees) < 0.03
    assert math.isclose(servos["elbow"][0].angle(3292), -servo.angle(3292))


@pytest.mark.parametrize("text", ["{", "[]", '{"a": {"id": 1}}', '{"a": 3}'])
def test_a_broken_calibration_is_an_error_with_a_remedy(tmp_path, text):
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match="expected LeRobot's JSON.*lerobot-calibrate"):
        lerobot_calibration(path)


@KINDS
def test_a_leader_of_either_kind_shows_its_joints(twin, kind):
    """The follower moves as far as the leader, in radians of its joints."""
    from rlinf_core.robots.operators.leader import Joint, Leader
    from rlinf_core.specs.arrays import ActionSpec

    names = {"a": Joint(id=1), "b": Joint(id=2, sign=-1), "c": Joint(id=3)}
    leader = Leader(device=str(twin.path), joints=names, bus=kind, baud=1_000_000)
    leader.attach(ActionSpec("joint_delta", ("a", "b", "c"), (0.05,) * 3, ("rad",) * 3), 10.0)
    leader.open()
    twin.deflect({"1": 0.5, "2": 0.25})
    assert until(lambda: leader.poll() is not None and leader.raw)
    assert np.allclose(leader.angles, [0.5, -0.25, 0.0], atol=RAD_PER_TICK)
    leader.close()


def test_the_doctor_names_the_port_and_the_calibration(tmp_path):
    from rlinf_core.robots.drivers.servo_arm import Driver

    settings = {
        "bus": "feetech",
        "device": str(tmp_path / "port"),
        "urdf": "a.urdf",
        "joints": {"a": {"id": 1}},
    }
    port, calibration = Driver(**settings).findings()
    assert port[0] == "servo bus" and "absent" in port[1] and "ls /dev/serial/by-id" in port[2]
    assert calibration[1].startswith("none") and "lerobot-calibrate" in calibration[2]
    (tmp_path / "port").touch()
    path = tmp_path / "arm.json"
    row = {"id": 1, "drive_mode": 0, "homing_offset": 0, "range_min": 700, "range_max": 3300}
    path.write_text(json.dumps({"a": row}))
    good = Driver(**settings, calibration=str(path)).findings()
    assert [fix for *_, fix in good] == ["", ""] and good[1][1] == str(path)
    path.write_text(json.dumps({"b": row}))
    assert "without 'a'" in Driver(**settings, calibration=str(path)).findings()[1][2]
