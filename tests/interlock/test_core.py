"""The interlock's requirements, each by its number in the safety document."""

import math
from dataclasses import fields

import pytest

from rlinf_core.interlock import Mode
from tests.interlock.conftest import HOME, TICK_NS, Rig, chunk, limits

NAN, INF = math.nan, math.inf


def play(rig, seq=1, action=(0.01, 0.0, 0.0), ticks=10, **kwargs):
    outputs = [rig.tick(chunk(seq, rig.now, (action,), **kwargs))]
    return outputs + [rig.tick() for _ in range(ticks - 1)]


def test_a_played_action_moves_the_set_point_by_what_was_asked(rig):
    for seq in range(1, 4):  # ramping up takes the first window
        outputs = play(rig, seq)
    (record,) = outputs[-1].applied
    assert record.requested == (0.01, 0.0, 0.0)
    assert record.executed == pytest.approx((0.01, 0.0, 0.0), abs=1e-9)
    assert rig.state.mode is Mode.ACTIVE and record.policy_version == 7


def test_a_state_holds_truth_values_in_every_mode():
    """States are compared with each other, and None equals no truth value."""
    rig = Rig().settle()
    flags = [
        field.name for field in fields(rig.state) if type(getattr(rig.state, field.name)) is bool
    ]
    assert len(flags) >= 3
    modes = set()
    for inputs in ({}, {"arm": True}, {"chunks": 1}, {"robot_fault": "reflex"}):
        chunks = [chunk(1, rig.settle().now)] if inputs.pop("chunks", 0) else []
        rig.tick(*chunks, **inputs)
        modes.add(rig.state.mode)
        assert all(type(getattr(rig.state, name)) is bool for name in flags), inputs
    assert modes == {Mode.DISARMED, Mode.ARMED, Mode.ACTIVE, Mode.FAULT}


# S2 stale command
def test_s02_holds_when_the_last_action_has_been_valid_for_two_periods(rig):
    play(rig, ticks=20)
    assert rig.state.mode is Mode.ACTIVE
    rig.tick()
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "stale_command")


def test_s02_never_extrapolates_past_the_chunk(rig):
    play(rig, ticks=10)
    at_end = rig.output.target
    moved = [rig.tick().target[0] - at_end[0] for _ in range(30)]
    braking = 0.1**2 / (2 * 4.0 / math.sqrt(3))
    assert max(moved) <= braking + 1e-9 and moved[-1] == moved[-2]


def test_s02_plays_every_action_of_a_chunk_in_its_own_window(rig):
    applied = []
    rig.tick(chunk(1, rig.now, ((0.01, 0, 0), (0.0, 0.01, 0))))
    for _ in range(20):
        applied += rig.tick().applied
    assert [record.index for record in applied] == [0, 1]
    assert applied[1].start_ns - applied[0].start_ns == 100_000_000


# S3 stale state
def test_s03_holds_after_50_ms_and_faults_after_500_ms_without_state(rig):
    play(rig, ticks=3)
    rig.tick(pose_age_ns=60_000_000)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "stale_state")
    rig.tick(pose_age_ns=510_000_000)
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "stale_state")
    rig.tick(chunk(2, rig.now))
    assert rig.state.mode is Mode.FAULT, "a fault is latched though the state is back"


# S5 validity
@pytest.mark.parametrize(
    "bad",
    [
        chunk(2, 0, ((NAN, 0, 0),)),
        chunk(2, 0, ((0, INF, 0),)),
        chunk(2, 0, ((0.0, 0.0),)),
        chunk(2, 0, ()),
        chunk(2, 0, mode="joint"),
        chunk(2, 0, dt_s=0.0),
        chunk(2, 0, dt_s=NAN),
    ],
)
def test_s05_a_bad_sample_is_answered_with_a_hold_in_the_same_tick_and_leaves_no_trace(rig, bad):
    play(rig, ticks=5)
    sessions = rig.state.sessions
    output = rig.tick(bad)
    assert output.mode is Mode.HOLD and "refused" in rig.kinds()
    assert all(map(math.isfinite, output.target))
    assert rig.state.sessions == sessions and rig.state.chunk is None


def test_s05_three_refusals_within_a_second_latch(rig):
    for seq in (1, 2, 3):
        rig.tick(chunk(seq, rig.now, ((NAN, 0, 0),)))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "invalid_command")


def test_s05_a_nan_pose_is_no_pose(rig):
    play(rig, ticks=3)
    rig.tick(pose=(NAN, *HOME[1:]))
    assert rig.state.mode is Mode.HOLD and all(map(math.isfinite, rig.output.target))
    for _ in range(50):
        rig.tick(pose=(*HOME[:3], 0.0, 0.0, 0.0, 0.0))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "stale_state"), (
        "nor half a second of no quaternion"
    )


# S6 order and authority
def test_s06_duplicates_and_old_numbers_are_dropped(rig):
    play(rig, seq=5, ticks=2)
    before = rig.state.chunk
    rig.tick(chunk(5, rig.now, ((-0.01, 0, 0),)), chunk(4, rig.now, ((-0.01, 0, 0),)))
    assert rig.kinds().count("dropped") == 2 and rig.state.chunk is before


def test_s06_late_chunks_are_dropped(rig):
    rig.now += 10 * TICK_NS
    rig.tick(chunk(1, 0))
    assert "dropped" in rig.kinds() and rig.state.mode is Mode.ARMED


@pytest.mark.parametrize(
    "age_ns, actions, cause",
    [
        (100_000_000, 1, "late"),
        (99_999_999, 1, ""),
        (300_000_000, 3, "late"),
        (299_999_999, 3, ""),
    ],
)
def test_s06_a_chunk_is_late_once_its_last_action_is_over(rig, age_ns, actions, cause):
    rig.now += TICK_NS * 30
    rig.tick(chunk(1, rig.now - age_ns, ((0.01, 0.0, 0.0),) * actions))
    assert [event.cause for event in rig.events if event.kind == "dropped"] == [cause] * bool(cause)
    assert rig.state.mode is (Mode.ARMED if cause else Mode.ACTIVE)


@pytest.mark.parametrize(
    "source, before_ns, cause",
    [("policy", 1, "episode_ended"), ("policy", 0, ""), ("operator", 1, "")],
)
def test_a_policy_s_chunk_from_before_the_end_of_the_episode_is_dropped(
    rig, source, before_ns, cause
):
    ended_ns = rig.now
    rig.tick(end_episode=True)
    rig.tick(chunk(1, ended_ns - before_ns, source=source))
    assert [event.cause for event in rig.events if event.kind == "dropped"] == [cause] * bool(cause)
    assert rig.state.mode is (Mode.ARMED if cause else Mode.ACTIVE)


def test_the_end_of_an_episode_still_counts_in_a_tick_of_the_same_time(rig):
    """A simulator's clock may stand."""
    ended_ns = rig.now
    rig.tick(end_episode=True)
    rig.now = ended_ns
    rig.tick(chunk(1, ended_ns - 1))
    assert [event.cause for event in rig.events] == ["episode_ended"]
    assert rig.state.ended_ns == ended_ns


def test_s06_a_new_session_needs_arming_again(rig):
    play(rig)
    rig.tick(chunk(1, rig.now, session="b"))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "new_session")
    rig.tick(chunk(2, rig.now, session="b"))
    assert rig.state.mode is Mode.HOLD
    rig.tick(arm=True)
    rig.tick(chunk(3, rig.now, session="b"))
    assert rig.state.mode is Mode.ACTIVE


def test_s06_the_operator_beats_the_policy_in_the_same_tick(rig):
    play(rig, ticks=3)
    output = rig.tick(
        chunk(1, rig.now, ((0, 0.01, 0),), source="operator", session="o"), chunk(2, rig.now)
    )
    assert output.source == "operator"
    assert output.applied[0].source == "policy", "what the policy did until then is accounted for"
    rig.tick(chunk(3, rig.now))
    assert rig.output.source == "operator" and "dropped" in rig.kinds()


# S4, S7
def test_s04_a_stamp_from_the_future_is_refused(rig):
    rig.tick(chunk(1, rig.now + 60_000_000))
    assert rig.state.mode is Mode.HOLD


def test_s07_a_step_beyond_speed_is_limited_and_counted(rig):
    for seq in range(1, 4):
        outputs = play(rig, seq, (0.1, 0, 0))
    (record,) = outputs[-1].applied
    assert record.executed[0] == pytest.approx(0.025, abs=1e-9) and "speed" in record.limits


def test_s07_a_jump_is_refused(rig):
    rig.tick(chunk(1, rig.now, ((0.26, 0, 0),)))
    assert rig.state.mode is Mode.HOLD and "refused" in rig.kinds()


# S8, S12
def test_s08_the_box_is_never_left_and_stopping_fits_inside(rig):
    for seq in range(1, 40):
        for output in play(rig, seq, (0.025, 0, 0)):
            assert output.target[0] <= 0.7
    assert rig.output.target[0] == pytest.approx(0.7, abs=1e-3)


def test_s08_the_set_point_does_not_run_away_from_a_blocked_arm():
    rig = Rig(follow=False).arm()
    for seq in range(1, 20):
        play(rig, seq, (0, 0, -0.02))
    gap = math.dist(rig.output.target[:3], HOME[:3])
    assert gap <= 0.03 + 0.2**2 / (2 * 4.0 / math.sqrt(3)) + 0.2 * 0.01


def test_s12_stops_decelerating_along_the_path_then_publishes_the_same_target_for_ever(rig):
    for seq in range(1, 4):
        play(rig, seq, (0.02, 0.01, 0))
    x, y = rig.output.target[:2]
    for _ in range(21):
        rig.tick()
    outputs = [rig.tick() for _ in range(10)]
    assert len({output.target for output in outputs}) == 1
    dx, dy = outputs[-1].target[0] - x, outputs[-1].target[1] - y
    assert dx > 0 and dy > 0, "it slowed down on its way instead of stopping dead"


# S13, traps
def test_s13_starts_disarmed_and_moves_only_when_armed():
    rig = Rig().settle()
    rig.tick(chunk(1, rig.now))
    assert rig.state.mode is Mode.DISARMED and rig.output.target == HOME


def test_s13_a_fault_ends_only_by_naming_its_cause_and_never_resumes_motion(rig):
    for seq in (1, 2, 3):
        rig.tick(chunk(seq, rig.now, ((NAN, 0, 0),)))
    rig.tick(reset_fault="stale_state")
    assert rig.state.mode is Mode.FAULT
    rig.tick(arm=True)
    assert rig.state.mode is Mode.FAULT
    rig.tick(chunk(9, rig.now), reset_fault="invalid_command")
    assert rig.state.mode is Mode.DISARMED and rig.output.target == HOME


@pytest.mark.parametrize(
    "cause, unseen", [("stale_state", {"pose_age_ns": 10**9}), ("state_frame", {"frame": "camera"})]
)
def test_s13_a_fault_of_an_arm_that_is_not_seen_stands_until_it_is(rig, cause, unseen):
    for _ in range(60):
        rig.tick(**unseen)
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, cause)
    rig.tick(reset_fault=cause, **unseen)
    assert rig.state.mode is Mode.FAULT, "its cause has not gone"
    rig.tick(reset_fault=cause)
    assert rig.state.mode is Mode.DISARMED and rig.output.target == HOME


def test_outside_the_box_it_holds_instead_of_pulling_the_arm_in():
    rig = Rig(pose=(0.9, 0, 0.2, *HOME[3:])).arm()
    rig.tick(chunk(1, rig.now))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_box")


def test_trap07_there_are_no_default_limits():
    with pytest.raises(TypeError):
        type(limits())()


@pytest.mark.parametrize("leap", [2**64 - 1, 2**40, 2**32])
def test_s06_a_sequence_number_that_leaps_is_refused_and_poisons_no_order(leap):
    rig = Rig().arm()
    rig.tick(chunk(1, rig.now))
    rig.tick(chunk(leap, rig.now))
    assert rig.state.sessions == (("policy", "a", 1),)
    rig.tick(chunk(2, rig.now))
    assert rig.state.sessions == (("policy", "a", 2),)
