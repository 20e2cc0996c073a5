"""Rotations, poses and actions against scipy's rotations."""

import math
from random import Random

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from rlinf_core.core.rotation import angle, inverse, product, rotate, to_quaternion, to_vector, unit
from rlinf_core.interlock import Inputs
from rlinf_core.interlock.coordinates import (
    displacement,
    measured_coordinates,
    refusal_reason,
    split_by_group,
    tool_pose,
    velocities,
)
from rlinf_core.interlock.types import MAX_ACTIONS
from tests.interlock.conftest import HOME, JOINTS, chunk, joint_limits, limits

RANDOM = Random(0)
TILTED = tuple(Rotation.from_rotvec((0.4, 2.0, -0.3)).as_quat())
TOOL = limits(orientation=TILTED)
GRIPPER = limits(orientation=TILTED, gripper_width=0.08)


def quaternion():
    return unit(tuple(RANDOM.gauss(0, 1) for _ in range(4)))


def vector(size=1.0):
    return tuple(RANDOM.uniform(-size, size) for _ in range(3))


def same(q, rotation):
    """Return the same rotation, whatever the sign of the quaternion."""
    return (Rotation.from_quat(q) * rotation.inv()).magnitude() == pytest.approx(
        0.0, abs=1e-7
    ) and math.hypot(*q) == pytest.approx(1.0)


def test_rotations_are_those_of_scipy():
    for _ in range(50):
        a, b, v = quaternion(), quaternion(), vector(1.5)
        first, second = Rotation.from_quat(a), Rotation.from_quat(b)
        assert same(product(a, b), first * second) and same(inverse(a), first.inv())
        assert rotate(a, v) == pytest.approx(first.apply(v))
        assert to_vector(a) == pytest.approx(first.as_rotvec()) and angle(a) == pytest.approx(
            first.magnitude()
        )
        assert to_quaternion(v) == pytest.approx(Rotation.from_rotvec(v).as_quat(canonical=True))


def test_signs_and_order_of_a_product_are_kept():
    assert product((1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)) == (24.0, 48.0, 48.0, -6.0)
    assert inverse((1.0, 2.0, 3.0, 4.0)) == (-1.0, -2.0, -3.0, 4.0)
    assert unit((2.0, 4.0, 4.0, 8.0)) == (0.2, 0.4, 0.4, 0.8)


def test_small_and_half_turns():
    assert to_quaternion((2e-9, -4e-9, 0.0)) == (1e-9, -2e-9, 0.0, 1.0)
    assert to_vector((1e-13, -2e-13, 0.0, 1.0)) == (2e-13, -4e-13, 0.0)
    assert to_vector((1e-13, 0.0, 0.0, -1.0)) == (-2e-13, 0.0, 0.0)
    assert to_vector((1.0, 0.0, 0.0, 0.0)) == (math.pi, 0.0, 0.0)
    assert to_vector((0.0, -1.0, 0.0, 0.0)) == (0.0, -math.pi, 0.0)
    assert to_vector(tuple(-x for x in to_quaternion((0.3, 0.2, 0.1)))) == pytest.approx(
        (0.3, 0.2, 0.1)
    )
    for size in (1e-11, 1e-6, 1.0, 3.1):
        assert to_vector(to_quaternion((0.0, size, 0.0))) == pytest.approx(
            (0.0, size, 0.0), rel=1e-6
        )


# Where the arm is
def test_a_pose_is_its_place_and_its_rotation_from_nominal():
    for _ in range(20):
        pose = (*vector(), *quaternion())
        place, turn = measured_coordinates(TOOL, Inputs(pose=pose))
        assert place == pose[:3]
        assert turn == pytest.approx(
            (Rotation.from_quat(TILTED).inv() * Rotation.from_quat(pose[3:])).as_rotvec()
        )
        back = tool_pose(TOOL, (place, turn))
        assert back[:3] == pose[:3] and same(back[3:], Rotation.from_quat(pose[3:]))


@pytest.mark.parametrize(
    "length, valid",
    [(1.0, True), (1.009, True), (0.991, True), (1.011, False), (0.989, False), (0.0, False)],
)
def test_a_quaternion_is_nearly_of_length_one(length, valid):
    result = measured_coordinates(
        TOOL, Inputs(pose=(0.5, 0.0, 0.2, *(length * x for x in HOME[3:])))
    )
    assert (result is not None) is valid
    if valid:
        assert result[0] == HOME[:3] and result[1] == pytest.approx(
            measured_coordinates(TOOL, Inputs(pose=HOME))[1]
        )


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "inputs",
    [
        dict(pose=None),
        dict(pose=HOME[:6]),
        dict(pose=(*HOME, 0.0)),
        dict(pose=(NAN, *HOME[1:])),
        dict(pose=(*HOME[:2], INF, *HOME[3:])),
        dict(pose=(*HOME[:6], NAN)),
        dict(pose=HOME, frame="camera"),
        dict(pose=HOME, gripper=None),
        dict(pose=HOME, gripper=NAN),
        dict(pose=HOME, gripper=INF),
    ],
)
def test_s05_what_is_no_place_is_none(inputs):
    assert measured_coordinates(GRIPPER, Inputs(**({"gripper": 0.02} | inputs))) is None


def test_the_base_frame_has_two_names_and_the_gripper_stays_in_its_range():
    for frame in ("", "base_link"):
        for gripper, taken in ((0.02, 0.02), (-0.001, 0.0), (0.09, 0.08)):
            assert measured_coordinates(GRIPPER, Inputs(pose=HOME, frame=frame, gripper=gripper))[
                2
            ] == (taken,)
    assert len(measured_coordinates(TOOL, Inputs(pose=HOME, gripper=NAN))) == 2, (
        "where there is none it is not looked at"
    )


def test_joints_are_known_whatever_the_pose_is():
    ranges = joint_limits()
    assert measured_coordinates(ranges, Inputs(joints=list(JOINTS))) == (JOINTS,)
    assert measured_coordinates(
        joint_limits(gripper_width=0.08), Inputs(joints=JOINTS, gripper=0.01)
    ) == (
        JOINTS,
        (0.01,),
    )
    for joints in (None, JOINTS[:6], (*JOINTS, 0.0), (*JOINTS[:6], NAN)):
        assert measured_coordinates(ranges, Inputs(joints=joints, pose=HOME)) is None
    assert measured_coordinates(ranges, Inputs(joints=JOINTS, frame="camera")) is None


# Actions
@pytest.mark.parametrize(
    "limits_, action, groups",
    [
        (TOOL, (1.0, 2.0, 3.0), ((1.0, 2.0, 3.0), (0.0, 0.0, 0.0))),
        (TOOL, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))),
        (GRIPPER, (1.0, 2.0, 3.0), ((1.0, 2.0, 3.0), (0.0, 0.0, 0.0), (0.0,))),
        (GRIPPER, (1.0, 2.0, 3.0, 9.0), ((1.0, 2.0, 3.0), (0.0, 0.0, 0.0), (9.0,))),
        (GRIPPER, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (0.0,))),
        (GRIPPER, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0), ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (9.0,))),
        (joint_limits(), tuple(range(7)), (tuple(range(7)),)),
        (joint_limits(gripper_width=0.08), tuple(range(7)), (tuple(range(7)), (0.0,))),
        (joint_limits(gripper_width=0.08), tuple(range(8)), (tuple(range(7)), (7,))),
    ],
)
def test_an_action_says_something_of_each_group(limits_, action, groups):
    assert split_by_group(limits_, action) == groups


def test_an_action_turns_the_tool_in_the_base_frame_whatever_its_orientation():
    """One tick's part of the turn, put before the tool's rotation."""
    for _ in range(30):
        at = (vector(), vector(0.4), (0.03,))
        action = (*vector(0.1), *vector(0.2), 0.01)
        place, turn, gripper = velocities(GRIPPER, chunk(dt_s=0.05), action, at)
        assert place == tuple(value / 0.05 for value in action[:3]) and gripper == (0.01 / 0.05,)
        nominal = Rotation.from_quat(TILTED)
        before = nominal * Rotation.from_rotvec(at[1])
        after = Rotation.from_rotvec(np.array(action[3:6]) / 0.05 * 0.01) * before
        assert turn == pytest.approx(((nominal.inv() * after).as_rotvec() - at[1]) / 0.01, abs=1e-9)


def test_what_does_not_turn_is_played_as_it_is():
    at = ((0.5, 0.0, 0.2), (0.1, 0.2, 0.3))
    assert velocities(TOOL, chunk(dt_s=0.5), (0.1, 0.2, 0.3), at) == (
        (0.2, 0.4, 0.6),
        (0.0, 0.0, 0.0),
    )
    joints = joint_limits(gripper_width=0.08)
    assert velocities(
        joints, chunk(dt_s=0.5), (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 3.0), (JOINTS, (0.0,))
    ) == ((0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 4.0), (6.0,))


def test_what_was_moved_is_said_in_the_words_of_the_action():
    for _ in range(20):
        start, end = ((vector(), vector(0.4), (RANDOM.random(),)) for _ in range(2))
        nominal = Rotation.from_quat(TILTED)
        first, last = (nominal * Rotation.from_rotvec(place[1]) for place in (start, end))
        distance, turn = np.subtract(end[0], start[0]), (last * first.inv()).as_rotvec()
        gripper = end[2][0] - start[2][0]
        for size, expected in (
            (3, distance),
            (4, [*distance, gripper]),
            (6, [*distance, *turn]),
            (7, [*distance, *turn, gripper]),
        ):
            assert displacement(GRIPPER, start, end, size) == pytest.approx(expected)
        assert displacement(TOOL, start[:2], end[:2], 6) == pytest.approx([*distance, *turn])
    start, end = (tuple(range(7)), (1.0,)), (tuple(range(1, 14, 2)), (4.0,))
    assert displacement(joint_limits(), start[:1], end[:1], 7) == (1, 2, 3, 4, 5, 6, 7)
    assert displacement(joint_limits(gripper_width=0.08), start, end, 8) == (*range(1, 8), 3.0)
    assert displacement(joint_limits(gripper_width=0.08), start, end, 7) == (1, 2, 3, 4, 5, 6, 7)


# Which chunks may be considered: each check alone, at its edge, and in its order
NAMES = joint_limits().joint_names
JOINT_ACTION = (0.01,) * 7


def asks(limits_=TOOL, now=0, **changes):
    values = vars_of(chunk(mode=limits_.control_mode)) | changes
    return refusal_reason(limits_, type(chunk())(**values), now)


def vars_of(some):
    return {name: getattr(some, name) for name in type(some).__dataclass_fields__}


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, ""),
        ({"source": "operator"}, ""),
        ({"source": "script"}, "source"),
        ({"source": ""}, "source"),
        ({"actions": ((0.0, 0.0, 0.0),) * MAX_ACTIONS}, ""),
        ({"actions": ((0.0, 0.0, 0.0),) * (MAX_ACTIONS + 1)}, "horizon"),
        ({"control_mode": "joint_delta"}, "control_mode"),
        ({"frame": "base_link"}, ""),
        ({"frame": "camera"}, "frame"),
        ({"joint_names": ("a",)}, "joint_names"),
        ({"dt_s": 0.001, "actions": ((0.0, 0.0, 0.0),)}, ""),
        ({"dt_s": 0.000999}, "dt"),
        ({"dt_s": 10.0}, ""),
        ({"dt_s": 10.001}, "dt"),
        ({"dt_s": NAN}, "dt"),
        ({"dt_s": INF}, "dt"),
        ({"dt_s": -0.1}, "dt"),
        ({"actions": ()}, "size"),
        ({"actions": ((),)}, "size"),
        ({"actions": ((0.0,) * 4,)}, "size"),
        ({"actions": ((0.0,) * 6,) * 2}, ""),
        ({"actions": ((0.0,) * 6, (0.0,) * 3)}, "size"),
        ({"actions": ((0.0,) * 3, (0.0,) * 6)}, "size"),
        ({"actions": ((0.0,) * 3, (0.0, 0.0, NAN))}, "not_finite"),
        ({"actions": ((0.0, -INF, 0.0),)}, "not_finite"),
        ({"seq": 2**40 - 1}, ""),
        ({"seq": 2**40}, "seq"),
        ({"observation_stamp_ns": 50_000_000}, ""),
        ({"observation_stamp_ns": 50_000_001}, "future_stamp"),
        ({"actions": ((0.25, 0.0, 0.0),)}, ""),
        ({"actions": ((0.2501, 0.0, 0.0),)}, "jump"),
        ({"actions": ((0.0, 0.0, 0.0), (0.2, 0.2, 0.0))}, "jump"),
        ({"actions": ((0.0,) * 3 + (0.0, 0.5, 0.0),)}, ""),
        ({"actions": ((0.0,) * 3 + (0.0, 0.501, 0.0),)}, "jump"),
        ({"actions": ((0.25, 0.0, 0.0),), "dt_s": 0.0999}, "jump"),
    ],
)
def test_s05_s07_what_is_wrong_with_a_chunk_has_a_name(changes, reason):
    assert asks(**changes) == reason


def test_s05_the_first_that_is_wrong_is_named():
    wrong = [
        ("source", "x"),
        ("actions", ((NAN,) * 3,) * (MAX_ACTIONS + 1)),
        ("control_mode", "x"),
        ("frame", "x"),
        ("joint_names", ("x",)),
        ("dt_s", NAN),
    ]
    for index, reason in enumerate(
        ["source", "horizon", "control_mode", "frame", "joint_names", "dt"]
    ):
        assert asks(**dict(wrong[index:])) == reason
    assert asks(actions=((NAN,) * 4,), observation_stamp_ns=10**9) == "size"
    assert asks(actions=((NAN,) * 3,), observation_stamp_ns=10**9) == "not_finite"
    assert asks(actions=((9.0,) * 3,), observation_stamp_ns=10**9) == "future_stamp"


def test_s05_stamps_count_from_now_and_limits_are_those_in_force():
    assert asks(now=10**9, observation_stamp_ns=10**9 + 50_000_000) == "" == asks(now=10**9)
    assert asks(now=10**9, observation_stamp_ns=10**9 + 50_000_001) == "future_stamp"
    assert asks(limits(jump_factor=2.0), actions=((0.051, 0.0, 0.0),)) == "jump"
    assert asks(limits(jump_factor=2.0), actions=((0.049, 0.0, 0.0),)) == ""
    assert asks(GRIPPER, actions=((0.0, 0.0, 0.0, 0.1),)) == ""
    assert asks(GRIPPER, actions=((0.0, 0.0, 0.0, 0.11),)) == "jump"


def test_s05_joints_are_those_of_the_robot_in_its_order():
    ranges = joint_limits()
    assert (
        asks(ranges, actions=(JOINT_ACTION,))
        == ""
        == asks(ranges, actions=(JOINT_ACTION,), joint_names=NAMES)
    )
    assert asks(ranges, actions=(JOINT_ACTION,), joint_names=NAMES[::-1]) == "joint_names"
    assert (
        asks(ranges, actions=(JOINT_ACTION[:6],)) == "size"
        and asks(ranges, actions=((0.6,) * 7,)) == "jump"
    )
    assert asks(ranges, control_mode="tcp_delta") == "control_mode"
