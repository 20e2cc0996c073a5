"""Known traps, each with its measured value; and modes other than the tool's position."""

import math

import numpy as np
import pytest

from rlinf_core.core.rotation import angle, inverse, product, to_quaternion
from rlinf_core.interlock import Chunk, EStop, Mode, load_limits
from tests.interlock.conftest import (
    HOME,
    JOINTS,
    S9,
    Rig,
    chunk,
    joint_limits,
    limits,
    stream,
    until,
)

TICK_MS = 10


def test_trap01_a_heartbeat_is_no_command(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    ticks = until(rig, lambda: rig.state.mode is Mode.HOLD, arm=True, enable=True, enable_age_s=0.0)
    evidence(
        "trap 1", f"enable and arming alive, no chunk: hold after {ticks * TICK_MS} ms", "200 ms"
    )


def test_trap02_a_nan_is_answered_with_a_hold_and_leaves_the_memory_clean(rig, evidence):
    stream(rig, (0.02, 0.0, 0.0), actions=3)
    rig.tick(chunk(9, rig.now, ((math.nan,) * 3,)), pose=(math.nan,) * 7)
    assert rig.state.mode is Mode.HOLD
    until(rig, lambda: rig.state.still)
    assert all(map(math.isfinite, rig.output.target))
    stream(rig, (0.02, 0.0, 0.0), actions=3, seq=20)
    assert rig.state.mode is Mode.ACTIVE and all(map(math.isfinite, rig.output.target))
    clipped = np.clip(np.nan, -0.02, 0.02)
    evidence(
        "trap 2",
        f"hold in the same tick, finite ever after (np.clip gives {clipped})",
        "hold, finite",
    )


def test_trap03_resuming_starts_from_the_measured_pose(rig, evidence):
    stream(rig, (0.02, 0.0, 0.0), actions=3)
    until(rig, lambda: rig.state.still and rig.state.mode is Mode.HOLD)
    rig.follow, old = False, rig.output.target
    # somebody has pushed it
    rig.pose = (
        *[p + d for p, d in zip(old[:3], (0.0, 0.02, 0.02), strict=True)],
        *old[3:],
    )
    seq = iter(range(20, 500))
    until(rig, lambda: rig.tick(chunk(next(seq), rig.now, ((0.0, 0.0, 0.0),))).mode is Mode.ACTIVE)
    gap = math.dist(rig.output.target[:3], rig.pose[:3])
    assert gap < 1e-6
    evidence("trap 3", f"{gap:.0e} m from the measured pose, gone there within its limits", "0 m")


def test_trap04_arming_far_from_the_old_set_point_moves_nothing(evidence):
    rig = Rig(follow=False).settle()
    rig.pose = (0.6, 0.1, 0.3, *HOME[3:])  # guided there by hand while disarmed
    rig.settle().arm()
    seq, steps, before = iter(range(1, 500)), [], rig.output.target
    while rig.state.mode is not Mode.ACTIVE:
        output = rig.tick(chunk(next(seq), rig.now, ((0.0, 0.0, 0.0),)))
        steps.append(math.dist(output.target[:3], before[:3]))
        before = output.target
    gap = math.dist(output.target[:3], rig.pose[:3])
    assert gap < 1e-6 and max(steps) <= 0.25 * 0.01 + 1e-9
    evidence(
        "trap 4",
        f"{gap:.0e} m from the measured pose; the set-point went to the arm, at most "
        f"{1e3 * max(steps):.1f} mm a tick",
        "0 m; 2.5 mm",
    )


def test_trap05_a_reflex_is_never_cleared_by_commands(rig, evidence):
    rig.tick(robot_fault="reflex")
    for number in range(1, 300):
        rig.tick(chunk(number, rig.now), arm=True)
        assert rig.state.mode is Mode.FAULT
    evidence("trap 5", "299 commands after the reflex had gone: still latched", "latched")


def test_trap06_one_joint_at_its_limit_stops_the_whole_arm_along_its_path(evidence):
    home = (0.0, 0.0, 0.0, -1.5, 0.0, 1.5, 0.0)
    rig = Rig(
        joint_limits(joint_high=(2.74, 1.78, 2.90, -1.35, 2.81, 4.52, 3.02)), joints=home
    ).arm()
    action = (0.03, 0.02, -0.01, 0.02, 0.0, 0.04, 0.0)
    outputs = stream(rig, action, actions=40)
    moved = np.array([output.joints for output in outputs]) - home
    assert moved[-1, 3] == pytest.approx(0.05, abs=1e-3), (
        "the fourth joint is at its limit, less its margin"
    )
    ratios = moved[5:] / moved[5:, [3]]
    off = np.abs(ratios - np.array(action) / action[3]).max()
    assert off < 1e-9 and np.ptp(moved[-20:], axis=0).max() < 1e-3
    evidence("trap 6", f"all seven slow down together, {off:.0e} off the common path", "1e-9")


def test_trap07_nothing_is_unlimited_by_default(tmp_path, evidence):
    with pytest.raises(TypeError):
        type(limits())()
    unlimited = [
        name
        for name, value in vars(load_limits("robots/franka_fr3/limits.yaml")).items()
        if value == math.inf
    ]
    assert unlimited == []
    evidence("trap 7", "0 of the shipped FR3's limits are infinite", "0")


def test_trap08_rotation_is_bounded_across_the_wrap_of_any_angle(evidence):
    """Nominal orientation upside down, where Euler angles wrap."""
    worst = 0.0
    for axis in np.eye(3).tolist() + [[0.6, -0.6, 0.5]]:
        rig = Rig(limits(cone=0.5, **S9)).arm()
        for output in stream(rig, (0.0, 0.0, 0.0, *(0.05 * value for value in axis)), actions=40):
            worst = max(worst, angle(product(inverse(HOME[3:]), output.target[3:])))
    assert 0.45 < worst <= 0.5 + 1e-9
    evidence("trap 8", f"{worst:.9f} rad from nominal after four seconds of turning", "0.5 rad")


def test_trap09_nothing_of_a_chunk_plays_after_the_episode(rig, evidence):
    rig.tick(chunk(1, rig.now, ((0.02, 0.0, 0.0),) * 10))
    for _ in range(15):
        rig.tick()
    rig.tick(end_episode=True)
    before, speed = rig.output.target[0], rig.state.motions[0].velocity[0]
    until(rig, lambda: rig.state.still)
    moved = rig.output.target[0] - before
    assert moved <= speed**2 / (2 * 4.0) + 1e-12 and rig.state.chunk is None
    evidence(
        "trap 9",
        f"{1e3 * moved:.1f} mm of braking, of 170 mm left in the chunk",
        "its braking distance",
    )


def test_trap12_the_commander_owns_no_stop(rig, evidence):
    """A policy that is hung or dead, or says what it likes, neither holds nor renews an e-stop."""
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    rig.tick(chunk(5, rig.now), estops=(EStop("pendant", True, 0.0),))
    assert rig.state.mode is Mode.FAULT
    fields = set(Chunk.__dataclass_fields__)
    assert not fields & {"enable", "estop", "reset_fault", "arm"}, "a chunk cannot speak of them"
    evidence(
        "trap 12",
        "stopped with the policy streaming; a chunk has no word for stop, enable or reset",
        "stopped",
    )


# Modes beside the tool's position
def test_rotation_plays_in_the_base_frame_and_is_reported_as_it_was_asked():
    rig = Rig(limits()).arm()
    action = (0.0, 0.0, 0.0, 0.0, 0.0, 0.04)
    outputs = stream(rig, action, actions=6)
    (record,) = outputs[-1].applied
    assert record.executed == pytest.approx(action, abs=1e-9)
    turned = product(rig.output.target[3:], inverse(HOME[3:]))
    assert (
        abs(turned[2]) > 0.05
        and turned[0] == pytest.approx(0, abs=1e-9)
        and turned[1] == pytest.approx(0, abs=1e-9)
    )


def test_the_gripper_opens_closes_and_stays_in_its_range():
    rig = Rig(limits(gripper_width=0.08), gripper=0.02).arm()
    outputs = stream(rig, (0.0, 0.0, 0.0, 0.005), actions=3)
    assert outputs[-1].gripper == pytest.approx(0.035, abs=1e-9)
    assert outputs[-1].applied[0].executed == pytest.approx((0, 0, 0, 0.005), abs=1e-9)
    assert stream(rig, (0.0, 0.0, 0.0, -0.01), actions=10, seq=20)[-1].gripper == 0.0
    blind = Rig(limits(gripper_width=0.08)).tick(arm=True)
    assert blind.target is None and blind.mode is Mode.DISARMED, (
        "nothing is known of the gripper: nothing moves"
    )


def test_joints_play_and_the_box_still_guards_the_tool():
    rig = Rig(joint_limits(), joints=JOINTS).arm()
    outputs = stream(rig, (0.02, 0, 0, 0, 0, 0, 0), actions=4)
    assert outputs[-1].applied[0].executed == pytest.approx((0.02, 0, 0, 0, 0, 0, 0), abs=1e-9)
    assert outputs[-1].target is None
    rig.tick(chunk(20, rig.now, ((0.0,) * 7,), mode="joint_delta"), pose=(0.9, 0.0, 0.2, *HOME[3:]))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_box")


def test_tool_commands_hold_when_a_joint_is_at_the_end_of_its_range():
    ranges = joint_limits()
    rig = Rig(
        limits(
            joint_names=ranges.joint_names, joint_low=ranges.joint_low, joint_high=ranges.joint_high
        ),
        joints=JOINTS,
    ).arm()
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    rig.tick(joints=(*JOINTS[:3], -0.2, *JOINTS[4:]))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_joints")


def test_a_simulated_reset_forgets_the_moving_set_point_and_a_real_arm_finishes_its_stop():
    rig = Rig(limits(**S9)).arm()
    stream(rig, (0.02, 0.0, 0.0), actions=4)
    rig.pose = (0.4, 0.1, 0.3, *HOME[3:])
    rig.tick(end_episode=True, restart=True)
    assert rig.state.still and rig.output.target == rig.pose
    stream(rig, (0.02, 0.0, 0.0), actions=4, seq=30)
    rig.follow = False
    rig.tick(end_episode=True)
    for _ in range(3):
        rig.pose = (*[p - 0.012 for p in rig.pose[:3]], *HOME[3:])
        rig.tick()
    rig.tick(chunk(60, rig.now))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "realigning")
    seq = iter(range(61, 500))
    until(rig, lambda: rig.tick(chunk(next(seq), rig.now, ((0.0, 0.0, 0.0),))).mode is Mode.ACTIVE)
    assert rig.output.target[:3] == pytest.approx(rig.pose[:3], abs=1e-6)


def test_a_nominal_orientation_far_from_the_arm_holds():
    rig = Rig(limits(orientation=tuple(product(HOME[3:], to_quaternion((0.8, 0.0, 0.0)))))).arm()
    rig.tick(chunk(1, rig.now))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_rotation")
