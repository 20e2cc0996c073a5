"""The guarantees of the core, requirement by requirement, each with its measured value."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import (
    EStop,
    Mode,
    State,
    adopt_limits,
    load_limits,
    loosened_limits,
    with_values,
)
from rlinf_core.interlock.motion import Motion
from tests.interlock.conftest import S9, Rig, chunk, limits, release, stream, until

TICK_MS = 10


@pytest.mark.parametrize(
    "bad, inputs",
    [
        ((math.nan, 0.0, 0.0), {}),
        ((9.0, 0.0, 0.0), {}),
        (None, {"pose_age_ns": 51_000_000}),
        (None, {"estops": (EStop("pendant", True, 0.0),)}),
        (None, {"wrench": (math.nan, 0.0)}),
        (None, {"robot_fault": "reflex"}),
    ],
)
def test_s01_the_tick_that_sees_something_bad_is_the_first_to_brake(bad, inputs, evidence):
    """The core adds no tick between input and safe output; the drill measures the node's part."""
    rig = Rig(limits(contact_samples=1)).arm()
    stream(rig, (0.01, 0.0, 0.0), actions=4)
    rig.tick(chunk(seq=50, stamp_ns=rig.now, actions=((0.01, 0.0, 0.0),)))
    before = math.hypot(*rig.state.motions[0].velocity)
    rig.tick(*([chunk(seq=51, stamp_ns=rig.now, actions=(bad,))] if bad else []), **inputs)
    assert rig.state.mode in (Mode.HOLD, Mode.FAULT) and rig.output.target is not None
    assert math.hypot(*rig.state.motions[0].velocity) < before
    evidence("S1", "brakes 0 ticks after the input that demands it", "0 ticks")


def test_s02_silence_holds_in_time(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=3)
    ticks = until(rig, lambda: rig.state.mode is Mode.HOLD)
    assert ticks * TICK_MS - 100 <= 100 + TICK_MS and rig.state.cause == "stale_command"
    evidence(
        "S2",
        f"{ticks * TICK_MS - 100} ms after the last action's end (dt 100 ms)",
        "100 ms and a tick",
    )


@pytest.mark.parametrize("age_ms, mode", [(49, Mode.ACTIVE), (51, Mode.HOLD), (501, Mode.FAULT)])
def test_s03_by_the_age_of_the_measured_state(rig, age_ms, mode, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    rig.tick(pose_age_ns=age_ms * 1_000_000)
    assert rig.state.mode is mode
    evidence("S3", f"{age_ms} ms: {mode.name}", "hold beyond 50 ms, fault beyond 500 ms")


@pytest.mark.parametrize("seconds", [3.0, -3.0, 1e6])
def test_s04_a_clock_that_steps_moves_nothing(rig, seconds, evidence):
    stream(rig, (0.02, 0.0, 0.0), actions=3)
    before, speed = rig.output.target[0], rig.state.motions[0].velocity[0]
    rig.now += round(seconds * 1e9)
    for _ in range(100):
        rig.tick()
    moved = rig.output.target[0] - before
    assert rig.state.still and 0.0 <= moved <= speed**2 / (2 * 4.0) + 1e-12
    evidence(
        "S4",
        f"step of {seconds:+g} s at {speed:.2f} m/s: {1e3 * moved:.1f} mm, which is its braking "
        f"distance",
        "no motion but braking",
    )


@pytest.mark.parametrize(
    "bad, cause",
    [
        (dict(actions=((math.nan, 0, 0),)), "not_finite"),
        (dict(actions=((math.inf, 0, 0),)), "not_finite"),
        (dict(actions=((0.0, 0.0),)), "size"),
        (dict(actions=()), "size"),
        (dict(dt_s=math.nan), "dt"),
        (dict(mode="joint_delta"), "control_mode"),
        (dict(frame="camera"), "frame"),
        (dict(joint_names=("a",)), "joint_names"),
    ],
)
def test_s05_each_kind_of_bad_sample_is_refused_by_name_in_the_same_tick(rig, bad, cause, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=2)
    extra = {key: bad.pop(key) for key in ("frame", "joint_names") if key in bad}
    before = rig.state
    rig.tick(replace(chunk(9, rig.now, **bad), **extra))
    assert rig.state.mode is Mode.HOLD and ("refused", cause) in [
        (e.kind, e.cause) for e in rig.events
    ]
    assert rig.state.sessions == before.sessions
    evidence(
        "S5", f"{cause}: hold in the same tick, sequence numbers untouched", "same tick, no trace"
    )


def test_s06_every_other_commander_is_refused_by_name(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1, source="operator")
    rig.tick(chunk(2, rig.now, source="operator"))
    rig.tick(chunk(1, rig.now))
    assert [(e.kind, e.cause) for e in rig.events] == [("dropped", "policy:operator_commands")]
    rig.tick(chunk(2, rig.now, source="operator"))
    assert ("dropped", "out_of_order") in [(e.kind, e.cause) for e in rig.events]
    evidence(
        "S6",
        "policy refused by name while the operator commands; a repeated number dropped",
        "refused and counted",
    )


def test_s07_limited_up_to_ten_times_and_refused_beyond(rig, evidence):
    executed = stream(rig, (0.24, 0.0, 0.0), actions=5)[-1].applied[0].executed[0]
    assert executed == pytest.approx(0.025, abs=1e-9)
    rig.tick(chunk(20, rig.now, ((0.2501, 0.0, 0.0),)))
    assert rig.state.mode is Mode.HOLD
    evidence(
        "S7",
        f"9.6 times too far: {1e3 * executed:.1f} of 240 mm in 100 ms; 10.004 times: refused",
        "25 mm; refused",
    )


def test_s09_the_shipped_fr3_is_within_the_default_envelope(evidence):
    fr3 = load_limits("robots/franka_fr3/limits.yaml")
    envelope = {
        "speed": 0.25,
        "rotation_speed": 0.5,
        "acceleration": 1.0,
        "jerk": 10.0,
        "joint_speed": 0.5,
        "joint_acceleration": 2.5,
    }
    for name, value in envelope.items():
        assert getattr(fr3, name) <= value, name
    assert (
        fr3.speed <= 3.0 / 4 and fr3.joint_acceleration <= 10.0 / 4 and fr3.joint_jerk <= 5000.0 / 4
    )
    evidence("S9", ", ".join(f"{name} {getattr(fr3, name):g}" for name in envelope), str(envelope))


def test_s10_contact(evidence):
    rig = Rig(limits()).arm()
    stream(rig, (0.02, 0.0, 0.0), actions=2)
    samples = until(rig, lambda: rig.state.mode is Mode.HOLD, wrench=(25.0, 0.0))
    faults = until(rig, lambda: rig.state.mode is Mode.FAULT, wrench=(45.0, 0.0))
    assert samples == faults == 2
    evidence(
        "S10", f"25 N: hold after {samples} samples; 45 N: latched after {faults}", "2 samples"
    )


def test_s11_nearer_is_slower_contact_stops_and_silence_stops(evidence):
    rig = Rig(limits()).arm()
    free = stream(rig, (0.02, 0.0, 0.0), actions=4, distance=(0.05, 0.0))[-1].applied[0].executed[0]
    near = stream(rig, (0.02, 0.0, 0.0), actions=4, seq=9, distance=(0.01, 0.0))[-1].applied[0]
    assert near.executed[0] == pytest.approx(free / 2, rel=1e-6) and "distance" in near.limits
    rig.tick(distance=(0.0, 0.0))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "obstacle")
    rig.tick(chunk(30, rig.now), distance=(0.05, 0.2))
    assert rig.state.mode is Mode.HOLD and rig.events[0].cause == "distance_silent"
    rig.tick(chunk(31, rig.now), distance=(math.nan, 0.0))
    assert rig.state.mode is Mode.HOLD, "a NaN is no permission"
    rig.tick(chunk(32, rig.now), distance=(0.05, 0.0))
    assert rig.state.mode is Mode.ACTIVE
    evidence(
        "S11",
        f"at 10 mm {near.executed[0] / free:.2f} of the speed; at 0 mm and after 200 ms of "
        f"silence: hold",
        "half; hold; hold",
    )


@pytest.mark.parametrize("action", [0.02, 0.05, 0.2])
def test_s11_who_asks_for_more_than_the_limit_is_slower_near_an_obstacle_too(action):
    rig = Rig(limits(**S9, divergence=0.5)).arm()
    stream(rig, (action, 0.0, 0.0), actions=4)
    before, fastest = rig.output.target[0], [rig.limits.speed] * rig.limits.groups[0].points
    for seq in range(9, 49):
        rig.tick(chunk(seq, rig.now, ((action, 0.0, 0.0),) * 2), distance=(0.01, 0.0))
        fastest = [
            *fastest[1:],
            max(0.5 * rig.limits.speed, fastest[-1] - rig.limits.acceleration * rig.limits.tick),
        ]
        speed = (rig.output.target[0] - before) / rig.limits.tick
        assert speed <= math.fsum(fastest) / len(fastest) + 1e-9, (
            "it brakes to half of the limit, and stays there"
        )
        before = rig.output.target[0]
    assert speed == pytest.approx(0.5 * min(rig.limits.speed, action / 0.1), rel=1e-6)


def test_s12_the_tool_stops_along_its_path_and_within_its_jerk(evidence):
    rig = Rig(limits(**S9)).arm()
    stream(rig, (0.02, 0.01, 0.0), actions=8)
    start, points = np.array(rig.output.target[:3]), []
    until(rig, lambda: points.append(rig.output.target[:3]) or rig.state.still)
    points = np.array(points)
    path = points[-1] - start
    off = np.linalg.norm(np.cross(points - start, path / np.linalg.norm(path)), axis=1).max()
    jerk = np.linalg.norm(np.diff(points, 3, axis=0), axis=1).max() / 1e-6
    assert off < 1e-9 and jerk <= 10.0 + 1e-5
    assert rig.tick().target == rig.tick().target, "and is held by publishing it for ever"
    evidence(
        "S12",
        f"{1e3 * np.linalg.norm(path):.1f} mm and {len(points) * TICK_MS} ms from 0.22 m/s, "
        f"{off:.0e} m off its path, jerk {jerk:.2f} m/s^3",
        "along the path, jerk 10 m/s^3",
    )


def test_s13_hold_ends_when_its_cause_has_gone_and_a_fault_by_name_alone(evidence):
    rig = Rig(limits(enable_lease=60.0)).arm()
    held = dict(enable=True, enable_age_s=0.0)
    rig.tick(chunk(1, rig.now), **held)
    rig.tick(robot_fault="reflex", **held)
    tries = [
        dict(reset_fault="reflex"),
        dict(reset_fault="robot:reflex", robot_fault="reflex"),
        dict(arm=True),
    ]
    for request in tries:
        rig.tick(chunk(2, rig.now), **held, **request)
        assert rig.state.mode is Mode.FAULT
    rig.tick(reset_fault="robot:reflex", enable=False)
    assert rig.state.mode is Mode.FAULT, "the enable must be held again"
    rig.tick(chunk(3, rig.now), reset_fault="robot:reflex", **held)
    assert rig.state.mode is Mode.DISARMED
    at = rig.output.target
    assert until(rig, lambda: rig.now > 5e9, **held) and rig.output.target == at
    evidence(
        "S13",
        f"{len(tries) + 1} wrong ways out refused; after the right one 0 mm in {rig.now / 1e9:.0f} "
        f"s",
        "0 mm",
    )


def test_s14_one_silent_source_of_three_stops(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    fresh = (EStop("a", False, 0.1), EStop("b", False, 0.1))
    rig.tick(estops=(*fresh, EStop("c", False, 0.29)))
    assert rig.state.mode is Mode.ACTIVE
    rig.tick(estops=(*fresh, EStop("c", False, 0.31)))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "estop_silent:c")
    evidence(
        "S14",
        "290 ms of silence of one of three: moves; 310 ms: latched in the same tick",
        "300 ms",
    )


def test_s15_the_lease_ends(evidence):
    rig = Rig(limits(enable_lease=60.0)).arm()
    rig.tick(chunk(1, rig.now), enable=True, enable_age_s=59.99)
    assert rig.state.mode is Mode.ACTIVE
    rig.tick(enable=True, enable_age_s=60.01)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "enable")
    evidence("S15", "59.99 s: moves; 60.01 s, or let go: hold in the same tick", "60 s; one tick")


def test_s16_takeover_in_the_same_tick_and_a_pause_before_it_is_handed_back(evidence):
    rig = Rig(limits(**S9)).arm()
    stream(rig, (0.02, 0.0, 0.0), actions=3)
    rig.tick(chunk(50, rig.now), chunk(1, rig.now, ((0.0, 0.02, 0.0),), source="operator"))
    assert rig.output.source == "operator"
    stream(rig, (0.0, 0.02, 0.0), actions=5, source="operator", seq=2)
    rig.tick(release(7, rig.now))
    ticks, seq = 1, 60
    while rig.output.source != "policy":
        ticks, seq = ticks + 1, seq + 1
        rig.tick(chunk(seq, rig.now))
        if rig.output.source == "policy":
            break
        assert ticks < 200
    speed = math.hypot(*rig.state.motions[0].velocity)
    assert speed <= 1.0 * 0.01 + 1e-9, "the policy begins from rest"
    evidence(
        "S16",
        f"operator in the same tick; policy again after {ticks * TICK_MS} ms, from rest",
        "same tick; a pause",
    )


def test_s17_a_reflex_is_a_fault_here(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    rig.tick(robot_fault="reflex")
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "robot:reflex")
    evidence("S17", "latched in the same tick", "same tick")


def test_s19_limits_can_be_tightened_while_it_moves_and_not_loosened(rig, evidence):
    stream(rig, (0.02, 0.0, 0.0), actions=4)
    old = rig.limits
    assert loosened_limits(
        old, replace(old, speed=0.3, box_low=(0.2, -0.25, 0.005), stale_state=0.06)
    ) == ["box_low", "speed", "stale_state"]
    assert (
        loosened_limits(old, replace(old, speed=0.1, box_low=(0.4, -0.25, 0.005), enable_lease=1.0))
        == []
    )
    assert loosened_limits(old, replace(old, tick=0.005)) == ["tick"], "some do not change at all"
    slower = with_values(old, {"speed": 0.05})
    rig.state, reason = adopt_limits(slower, rig.state, old)
    rig.limits = slower
    assert reason == ""
    stream(rig, (0.02, 0.0, 0.0), actions=4, seq=50)
    speed = math.hypot(*rig.state.motions[0].velocity)
    assert speed == pytest.approx(0.05)
    _, reason = adopt_limits(with_values(old, {"box_high": [0.5, 0.1, 0.3]}), rig.state, old)
    assert "could not stop inside" in reason
    with pytest.raises(RecipeError, match="expected a number in"):
        with_values(old, {"speed": 100.0})
    evidence(
        "S19",
        f"speed limit 0.25 to 0.05 while moving: {speed:.3f} m/s, hash {old.hash} to "
        f"{slower.hash}; 3 of 3 loosened limits found",
        "0.05 m/s; refused",
    )


def test_s19_a_workspace_is_not_taken_that_the_path_just_left_was_outside_of():
    """The set-point is a mean of the plan's last points: all of them count, not only where
    it is.
    """
    old = limits(jerk=20.0)
    group = old.groups[0]
    trail = tuple((0.5 + 0.01 * (0 < index < 9), 0.0, 0.2) for index in range(group.points))
    inside = Motion((0.5, 0.0, 0.2), (0.0, 0.0, 0.0), trail, (0.5, 0.0, 0.2), False)
    state = State(motions=(inside, Motion.at_rest(old.groups[1], (0.0, 0.0, 0.0))))
    assert adopt_limits(replace(old, box_high=(0.52, 0.25, 0.45)), state, old)[1] == ""
    assert "position" in adopt_limits(replace(old, box_high=(0.505, 0.25, 0.45)), state, old)[1]


def test_s20_an_event_says_what_was_asked_by_whom_and_when(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=2)
    rig.tick(chunk(9, rig.now, ((math.inf, 0.0, 0.0),)))
    (refused,) = [event for event in rig.events if event.kind == "refused"]
    assert (refused.cause, refused.source, refused.session, refused.seq) == (
        "not_finite",
        "policy",
        "a",
        9,
    )
    assert refused.requested == (math.inf, 0.0, 0.0) and refused.now_ns == rig.now - 10_000_000
    evidence(
        "S20", "cause, source, session, number, action and tick of a refused sample", "all of them"
    )
