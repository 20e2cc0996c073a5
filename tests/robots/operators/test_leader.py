"""A leader arm against servos on a pseudo-terminal: the vendor's library on one side, our own
packets on the other.
"""

import math
import time

import numpy as np
import pytest

from rlinf_core.core.errors import DeviceError
from rlinf_core.core.rotation import to_vector
from rlinf_core.robots.operators.leader import (
    MAX_LAG_STEPS,
    MOVING_S,
    Joint,
    Leader,
    Trigger,
    tool_pose,
)
from rlinf_core.robots.operators.twins import Leader as Servos
from rlinf_core.robots.operators.twins import crc
from rlinf_core.specs.arrays import ActionSpec
from tests.robots.operators.guards import ready, settle

pytestmark = pytest.mark.timed

TOOL = ActionSpec(
    "tcp_delta",
    ("dx", "dy", "dz", "drx", "dry", "drz", "grip"),
    (0.02,) * 3 + (0.1,) * 3 + (0.04,),
    ("m",) * 7,
)
JOINTS = ActionSpec("joint_delta", ("a", "b"), (0.05, 0.05), ("rad",) * 2)
PLANAR = {
    "shoulder": Joint(id=1, axis=(0, 0, 1)),
    "elbow": Joint(id=2, sign=-1, axis=(0, 0, 1), at=(0.3, 0.0, 0.0)),
}


@pytest.fixture
def arm(tmp_path):
    twin = Servos(tmp_path / "leader", (1, 2, 3))
    guards = []

    def make(action, **changes):
        device = Leader(
            **{"device": str(twin.path), "joints": PLANAR, "tool": (0.5, 0.0, 0.0), **changes}
        )
        device.attach(action, 10.0)
        guards.append(ready(device))
        return twin, guards[-1]

    yield make
    for guard in guards:
        guard.close()
    twin.unplug()


def test_the_checksum_is_that_of_the_vendors_library():
    from dynamixel_sdk.protocol2_packet_handler import Protocol2PacketHandler

    data = bytes(range(256))
    assert crc(data) == Protocol2PacketHandler().updateCRC(0, data, len(data))


def steps(guard, seconds=0.4):
    """Return the requested motion, summed by axis, of a time step every 20 ms.

    It lasts for a time, or for as many time steps on a busy machine. The second value is the longest
    pause between two requests.
    """
    total, gap, end, left = {}, 0.0, time.monotonic() + seconds, seconds / 0.02
    last_poll = time.monotonic()
    while time.monotonic() < end or left > 0:
        left -= 1
        guard.poll()
        for axis, value in (guard.motion() or {}).items():
            assert abs(value) <= 1.0
            total[axis] = total.get(axis, 0.0) + value
        gap, last_poll = max(gap, time.monotonic() - last_poll), time.monotonic()
        time.sleep(0.02)
    return total, gap


def led(guard, twin, turns):
    """Return the requested motion of servos turned from their middle; repeat it after a stall."""
    for _ in range(10):
        steps(guard)
        twin.deflect({servo: math.pi + turn for servo, turn in turns.items()})
        total, gap = steps(guard)
        if total and gap < MOVING_S / 2:
            return total
        twin.deflect(dict.fromkeys(turns, math.pi))
    raise AssertionError("this process, or its twin, stood still ten times")


def test_the_followers_joints_do_what_the_leaders_do(arm):
    twin, guard = arm(JOINTS)
    total = led(guard, twin, {"1": 0.10, "2": 0.02})
    assert total["j1"] * 0.05 == pytest.approx(0.10, abs=0.003) and total[
        "j2"
    ] * 0.05 == pytest.approx(-0.02, abs=0.003)
    time.sleep(0.6)
    guard.poll()
    assert guard.motion() is None, "nobody moves it: the policy goes on"


def test_the_followers_tool_does_what_the_leaders_does(arm):
    twin, guard = arm(TOOL)
    total = led(guard, twin, {"1": 0.06})
    assert total["x"] * 0.02 == pytest.approx(0.5 * (math.cos(0.06) - 1), abs=0.001)
    assert total["y"] * 0.02 == pytest.approx(0.5 * math.sin(0.06), abs=0.001)
    assert total["rz"] * 0.1 == pytest.approx(0.06, abs=0.002) and abs(total["z"]) < 1e-9


def test_what_is_too_much_at_once_is_given_bit_by_bit_and_not_without_end(arm):
    twin, guard = arm(JOINTS)
    assert led(guard, twin, {"1": 0.9})["j1"] == pytest.approx(MAX_LAG_STEPS, abs=0.01), (
        "the rest is forgotten"
    )


def test_the_trigger_opens_and_closes(arm):
    twin, guard = arm(TOOL, trigger=Trigger(id=3, open=math.pi, closed=math.pi - 0.8))
    steps(guard, 0.1)
    twin.deflect({"3": math.pi - 0.1})
    guard.poll()
    settle(guard, lambda: (guard.motion() or {}).get("grip") == 1.0)
    twin.deflect({"3": math.pi - 0.7})
    settle(guard, lambda: (guard.motion() or {}).get("grip") == -1.0)


@pytest.mark.parametrize("spoil", ["silent", "garbage"])
def test_silent_servos_and_wrong_checksums_stop_it(arm, spoil):
    twin, guard = arm(JOINTS)
    twin.deflect({"1": math.pi + 0.1})
    settle(guard, lambda: guard.motion())
    getattr(twin, spoil)()
    settle(guard, lambda: "silent: expected answers of servos [1, 2]" in guard.trouble)
    assert guard.motion() is None
    twin.rest()
    settle(guard, lambda: guard.trusted)


def test_a_jump_that_no_hand_makes_is_garbage(arm):
    twin, guard = arm(JOINTS)
    twin.deflect({"1": math.pi + 1.5})
    settle(guard, lambda: "garbage" in guard.trouble)
    assert guard.motion() is None
    settle(guard, lambda: guard.trusted)


def test_a_turn_over_the_end_of_the_count_is_no_jump(arm):
    twin, guard = arm(JOINTS)
    twin.deflect({"1": math.pi + 0.9})
    settle(guard, lambda: guard.device.raw[0] > 4.0)
    for angle in np.linspace(math.pi + 0.9, 2 * math.pi + 0.5, 5):
        twin.deflect({"1": float(angle % (2 * math.pi))})
        settle(guard, lambda angle=angle: abs(guard.device.raw[0] - angle) < 0.01)
    assert not guard.trouble


def test_unplugged_in_use_and_plugged_in_again(arm, tmp_path):
    twin, guard = arm(JOINTS)
    twin.deflect({"1": math.pi + 0.1})
    settle(guard, lambda: guard.motion())
    twin.unplug()
    settle(guard, lambda: "unplugged" in guard.trouble)
    assert guard.motion() is None
    again = Servos(twin.path, (1, 2))
    settle(guard, lambda: guard.trusted, 5)
    again.unplug()


def test_an_arm_that_is_not_there_and_one_whose_servos_share_an_id(tmp_path):
    with pytest.raises(
        DeviceError, match="expected a leader arm at .*nowhere, got.*station.operator.device"
    ):
        Leader(device=str(tmp_path / "nowhere"), joints=PLANAR).open()
    with pytest.raises(DeviceError, match=r"expected different servo ids, got \[1, 1\]"):
        Leader(device="x", joints={"a": Joint(id=1), "b": Joint(id=1)})


def test_where_the_tool_is_by_matrices():
    """Beside homogeneous transforms, joint by joint."""
    axes, at = [(0, 0, 1), (0, 1, 0), (1, 0, 0)], [(0, 0, 0.1), (0.1, 0, 0.3), (0.4, 0.05, 0.3)]
    angles, tool = [0.3, -0.7, 1.1], (0.5, 0.1, 0.2)
    transform = np.eye(4)
    for axis, point, angle in zip(axes, at, angles, strict=True):
        x, y, z = axis
        cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        turn = np.eye(4)
        turn[:3, :3] += math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
        turn[:3, 3] = point - turn[:3, :3] @ point
        transform = transform @ turn
    position, rotation = tool_pose(list(zip(axes, at, angles, strict=True)), tool)
    assert np.allclose(position, transform[:3, :3] @ tool + transform[:3, 3])
    x, y, z = to_vector(rotation)
    size = math.hypot(x, y, z)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) / size
    assert np.allclose(
        np.eye(3) + math.sin(size) * cross + (1 - math.cos(size)) * cross @ cross, transform[:3, :3]
    )
