"""core.py branch by branch: chunks, how they are played, and what is published; all events
of each.
"""

from dataclasses import replace

import pytest

from rlinf_core.interlock import Inputs, Mode, State, step
from tests.interlock.conftest import HOME, JOINTS, TICK_NS, Rig, joint_limits, limits, release
from tests.interlock.events import (
    AWAY,
    NAN,
    NS,
    about,
    active,
    chunk,
    fast,
    faulty,
    held,
    mode,
    tick,
)


# Chunks that do not command
@pytest.mark.parametrize("make, cause", [(lambda: Rig().settle(), "disarmed"), (faulty, "fault")])
def test_s20_what_comes_to_an_arm_that_is_not_armed(make, cause):
    rig = make()
    for command in (chunk(9, rig.now), chunk(9, rig.now, ((NAN, 0.0, 0.0),), source="x")):
        before = rig.state.sessions
        (event,) = tick(rig, command)
        assert event[:5] == about("dropped", cause, command)[:5] and rig.state.sessions == before


def test_s05_a_refusal_holds_and_shuts_the_door_for_this_tick():
    rig = active(ticks=2)
    wrong = chunk(2, rig.now, ((9.0, 0.0, 0.0),))
    empty = chunk(3, rig.now, ())
    right = chunk(4, rig.now)
    now = rig.now
    assert tick(rig, wrong, right) == [
        about("refused", "jump", wrong),
        mode("HOLD:invalid_command"),
        about("dropped", "refused_now", right),
    ]
    assert rig.state.refusals_ns == (now,) and rig.state.sessions == (("policy", "a", 4),)
    assert tick(rig, empty) == [about("refused", "size", empty)]
    tick(rig, chunk(5, rig.now))
    assert rig.state.mode is Mode.ACTIVE, "the next tick's is taken"


def test_s05_the_third_refusal_within_a_second_latches():
    rig = Rig().arm()
    first = rig.now
    wrong = [chunk(seq, 0, ((9.0, 0.0, 0.0),)) for seq in range(5)]
    assert tick(rig, wrong[0])[1:] == [mode("HOLD:invalid_command")]
    rig.now = first + NS - TICK_NS
    assert tick(rig, wrong[1]) == [about("refused", "jump", wrong[1])]
    rig.now = first + NS
    assert tick(rig, wrong[2]) == [about("refused", "jump", wrong[2])], "the first was a second ago"
    assert rig.state.refusals_ns == (first + NS - TICK_NS, first + NS)
    rig.now -= TICK_NS
    assert tick(rig, wrong[3]) == [
        about("refused", "jump", wrong[3]),
        mode("FAULT:invalid_command"),
    ]
    assert (
        tick(rig, reset_fault="invalid_command") == [mode("DISARMED")]
        and rig.state.refusals_ns == ()
    )


def test_s05_refusals_in_ticks_of_the_same_time_count():
    """A simulator's clock may stand."""
    rig = Rig().arm()
    for seq in range(1, 4):
        assert rig.state.mode is not Mode.FAULT
        tick(rig, chunk(seq, 0, ((9.0, 0.0, 0.0),)))
        rig.now -= TICK_NS
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "invalid_command")


def test_s05_refusals_of_a_time_to_come_do_not_count():
    rig = Rig().arm()
    rig.state = replace(rig.state, refusals_ns=(rig.now + 1, rig.now + 2))
    tick(rig, chunk(1, 0, ((9.0, 0.0, 0.0),)))
    assert rig.state.mode is Mode.HOLD


def test_s06_order_within_a_session():
    rig = active(ticks=2)
    for seq in (1, 0, -5):
        old = chunk(seq, rig.now)
        assert tick(rig, old) == [about("dropped", "out_of_order", old)]
    tick(rig, chunk(2, rig.now))
    assert rig.state.sessions == (("policy", "a", 2),) and rig.state.chunk.seq == 2
    rig = Rig().arm()
    zero, below = chunk(0, rig.now), chunk(-1, rig.now, source="operator")
    assert tick(rig, below, zero) == [about("dropped", "out_of_order", below), mode("ACTIVE")]


@pytest.mark.parametrize(
    "before, seq, refused",
    [
        (0, 100_000, False),
        (0, 100_001, True),
        (1, 100_001, False),
        (1, 100_002, True),
        (60_000, 60_001, False),
    ],
)
def test_s06_a_number_leaps_by_at_most_a_hundred_thousand(before, seq, refused):
    rig = Rig().arm()
    tick(rig, chunk(before, rig.now))
    leap = chunk(seq, rig.now)
    events = [about("refused", "seq", leap), mode("HOLD:invalid_command")] if refused else []
    assert tick(rig, leap) == events
    assert rig.state.sessions == (("policy", "a", before if refused else seq),)


def test_s06_another_session_of_who_commands_holds_until_armed_anew():
    rig = active(ticks=2)
    other, old = chunk(5, rig.now, session="b"), chunk(6, rig.now)
    assert tick(rig, other) == [about("dropped", "new_session", other), mode("HOLD:new_session")]
    assert rig.state.sessions == (("policy", "a", 1),)
    assert tick(rig, old) == [about("dropped", "new_session", old)], "nor does the old one go on"
    armed = Rig().arm()
    tick(armed, chunk(1, 0))
    other = chunk(2, armed.now, session="b")
    assert tick(armed, other) == [about("dropped", "new_session", other), mode("HOLD:new_session")]


def test_s06_no_other_hold_covers_one_that_waits_for_an_arming():
    rig = active(ticks=2)
    tick(rig, chunk(2, rig.now, session="b"))
    far = chunk(3, rig.now, ((9.0, 0.0, 0.0),))
    assert tick(rig, far) == [about("refused", "jump", far)]
    assert (rig.state.mode, rig.output.cause) == (Mode.HOLD, "new_session")
    tick(rig, late_s=0.2)
    tick(rig, end_episode=True)
    tick(rig, chunk(4, rig.now))
    assert (rig.state.mode, rig.output.cause) == (Mode.HOLD, "new_session")
    tick(rig, arm=True)
    tick(rig, chunk(5, rig.now))
    assert rig.state.mode is Mode.ACTIVE


@pytest.mark.parametrize("commands, other", [("policy", "operator"), ("operator", "policy")])
def test_s06_another_session_of_who_does_not_command_is_dropped_alone(commands, other):
    rig = Rig().arm()
    tick(rig, chunk(1, rig.now - NS, source=other))  # late, but known from now on
    tick(rig, chunk(1, rig.now, source=commands))
    new = chunk(2, rig.now, source=other, session="b")
    assert tick(rig, new) == [about("dropped", f"{other}:new_session", new)]
    assert rig.state.mode is Mode.ACTIVE and rig.output.source == commands


@pytest.mark.parametrize(
    "age_ns, late",
    [(99_999_999, False), (100_000_000, True), (199_999_999, False), (200_000_000, True)],
)
def test_s06_a_chunk_is_late_when_its_last_action_has_ended(age_ns, late):
    rig = Rig().arm()
    actions = ((0.0, 0.0, 0.0),) * (1 if age_ns < 150_000_000 else 2)
    command = chunk(1, rig.now - age_ns, actions)
    assert tick(rig, command) == ([about("dropped", "late", command)] if late else [mode("ACTIVE")])


def test_s16_the_operator_commands_until_the_end_of_what_he_said_and_then_there_is_a_pause():
    rig = fast("operator")
    assert [tick(rig) for _ in range(9)] == [[]] * 9
    refused, early = chunk(1, rig.now), chunk(2, rig.now)
    assert tick(rig, refused) == [about("dropped", "policy:operator_commands", refused)]
    assert tick(rig, early) == [mode("HOLD:handing_back"), about("dropped", "handing_back", early)]
    assert tick(rig, release(50, rig.now)) == []
    seq = 3
    while not rig.state.still:
        again = chunk(seq, rig.now)
        assert tick(rig, again) == [about("dropped", "handing_back", again)]
        seq += 1
    assert seq > 7 and tick(rig, chunk(seq, rig.now)) == [mode("ACTIVE")]
    assert rig.output.source == "policy" and rig.state.commander == "policy"


def test_s16_an_arm_that_holds_already_keeps_its_reason_while_it_is_handed_back():
    rig = fast("operator")
    events = [tick(rig) for _ in range(11)]
    assert events[-1] == [mode("HOLD:stale_command")] and not rig.state.still
    command = chunk(1, rig.now)
    assert (
        tick(rig, command) == [about("dropped", "handing_back", command)]
        and rig.state.cause == "stale_command"
    )


def test_s16_an_operator_takes_over_at_once_and_the_one_before_is_accounted_for():
    rig = active(ticks=3)
    assert tick(rig, chunk(1, rig.now, source="operator")) == []
    assert (rig.output.source, rig.state.commander) == ("operator", "operator")
    assert [record.source for record in rig.output.applied] == ["policy"]


@pytest.mark.parametrize(
    "inputs, cause",
    [
        (dict(silent=("x",)), "silent:x"),
        (dict(distance=(0.0, 0.0)), "obstacle"),
        (dict(pose_age_ns=60_000_000), "stale_state"),
        (dict(frame="camera"), "state_frame"),
        (dict(pose=(0.6, *HOME[1:])), "state_jump"),
        (dict(silent=("x",), pose_age_ns=60_000_000), "silent:x"),
    ],
)
def test_what_keeps_a_chunk_from_commanding_while_armed(inputs, cause):
    """The event names the reason, because an armed arm that does not move shows no cause."""
    rig = Rig().arm()
    command = chunk(1, rig.now)
    events = [mode(f"HOLD:{cause}")] if cause in ("silent:x", "obstacle") else []
    assert tick(rig, command, **inputs) == [*events, about("dropped", cause, command)]
    assert rig.state.mode is (Mode.HOLD if events else Mode.ARMED) and tick(rig) == []
    assert tick(rig, chunk(2, rig.now))[-1] == mode("ACTIVE"), "it ends by itself"


# From where the arm is
def test_trap03_the_set_point_goes_to_a_resting_arm_before_it_commands():
    rig = Rig(follow=False).arm()
    rig.pose = AWAY
    command = chunk(1, rig.now)
    assert tick(rig, command) == [mode("HOLD:realigning"), about("dropped", "realigning", command)]
    events = [tick(rig) for _ in range(10)]
    assert events.count([("reseeded", "hold", "", "", -1, ())]) == 1 and sum(map(len, events)) == 1
    assert rig.state.goal is not None
    seq = 2
    while rig.state.mode is not Mode.ACTIVE:
        command = chunk(seq, rig.now, ((0.0, 0.0, 0.0),))
        assert tick(rig, command) in ([about("dropped", "realigning", command)], [mode("ACTIVE")])
        seq += 1
    assert rig.output.target == pytest.approx(AWAY, abs=1e-8) and rig.state.goal is None


def test_trap04_armed_the_set_point_goes_by_itself():
    rig = Rig(follow=False).arm()
    rig.pose = AWAY
    events = [tick(rig) for _ in range(60)]
    assert [event for some in events for event in some] == [("reseeded", "armed", "", "", -1, ())]
    assert rig.output.target == pytest.approx(AWAY, abs=1e-8)


@pytest.mark.parametrize("make", [lambda: Rig(follow=False).settle(), faulty, held])
def test_it_goes_nowhere_by_itself_disarmed_faulty_or_held_for_another_reason(make):
    rig = make()
    while not rig.state.still:
        tick(rig)
    rig.follow = False
    rig.pose = (rig.pose[0] + 0.02, *rig.pose[1:])
    before = rig.output.target
    for _ in range(30):
        assert tick(rig) == []
    assert rig.output.target == before and rig.state.goal is None


def test_a_set_point_that_brakes_beside_the_arm_goes_on_and_one_far_away_realigns():
    for away, expected in ((0.02, Mode.ACTIVE), (0.04, Mode.HOLD)):
        rig = fast()
        tick(rig, end_episode=True)
        assert not rig.state.still
        rig.follow = False
        command = chunk(9, rig.now + TICK_NS)
        pose = (rig.pose[0], rig.pose[1] + away / 2, *rig.pose[2:])
        tick(rig, pose=pose)
        assert not rig.state.still
        events = tick(rig, command, pose=(pose[0], pose[1] + away / 2, *pose[2:]))
        assert rig.state.mode is expected
        assert events == (
            [mode("ACTIVE")]
            if expected is Mode.ACTIVE
            else [mode("HOLD:realigning"), about("dropped", "realigning", command)]
        )


def test_s08_a_blocked_arm_is_waited_for_and_not_held():
    rig = Rig(follow=False).arm()
    for seq in range(1, 9):
        events = tick(rig, chunk(seq, rig.now, ((0.01, 0.0, 0.0),)))
        assert rig.state.mode is Mode.ACTIVE and not any(kind == "dropped" for kind, *_ in events)
        for _ in range(9):
            tick(rig)
    assert rig.output.target[0] - HOME[0] > 0.03 and "divergence" in rig.output.applied[0].limits


@pytest.mark.parametrize(
    "pose, cause",
    [
        ((0.71, *HOME[1:]), "outside_box"),
        ((0.5, 0.0, 0.2, 0.29, 0.957, 0.0, 0.0), "outside_rotation"),
    ],
)
def test_an_arm_outside_is_held_by_name(pose, cause):
    rig = Rig(pose=pose, follow=False).arm()
    command = chunk(1, rig.now)
    assert tick(rig, command) == [mode(f"HOLD:{cause}"), about("dropped", cause, command)]
    for _ in range(30):
        assert tick(rig) == []


# Playing
def test_s02_the_last_action_is_valid_for_two_periods_and_no_longer():
    rig = active(actions=((0.002, 0.0, 0.0), (0.0, 0.002, 0.0)), ticks=30)
    assert tick(rig) == [mode("HOLD:stale_command")] and rig.state.chunk is None


def test_s22_the_hold_of_a_silence_names_what_is_in_the_way_since():
    rig = active(actions=((0.002, 0.0, 0.0),), ticks=20)
    assert tick(rig) == [mode("HOLD:stale_command")]
    assert tick(rig, silent=("wrench",)) == [mode("HOLD:silent:wrench")]
    assert tick(rig, silent=("distance", "wrench")) == []  # the first one stays
    assert rig.state.cause == "silent:wrench"
    tick(rig, chunk(50, rig.now))
    assert rig.state.mode is Mode.ACTIVE


def test_s02_in_the_second_of_them_and_before_the_first_it_asks_for_rest():
    rig = active(actions=((0.001, 0.0, 0.0),), ticks=19)
    assert rig.state.mode is Mode.ACTIVE and rig.state.still
    rig = Rig().arm()
    start = rig.now
    tick(rig, chunk(1, rig.now + 3 * TICK_NS))
    for _ in range(2):
        tick(rig)
        assert rig.state.mode is Mode.ACTIVE and rig.state.still and rig.output.target == HOME
    tick(rig)
    assert (
        rig.output.target[0] > HOME[0]
        and rig.state.window.index == 0
        and rig.now == start + 4 * TICK_NS
    )


def test_s20_a_limited_action_is_named_with_what_was_asked():
    rig = Rig().arm()
    command = chunk(4, rig.now, ((0.0, 0.0, 0.0), (0.2, 0.0, 0.0)))
    assert tick(rig, command) == [mode("ACTIVE")]
    events = [tick(rig) for _ in range(19)]
    assert [event for some in events for event in some] == [
        about("limited", "acceleration,speed", command, 1)
    ]
    assert events[-1] != [], "in the last tick of its window"


def test_s11_an_obstacle_slows_what_is_played():
    rig = active(actions=((0.003, 0.0, 0.0),) * 3, ticks=10)
    for _ in range(10):
        tick(rig, distance=(0.01, 0.0))
    assert rig.state.motions[0].velocity[0] == pytest.approx(0.015)
    assert rig.output.applied[0].limits == ("distance",)


# What is published
def test_what_is_published_speaks_of_what_is_commanded():
    rig = active()
    assert (rig.output.mode, rig.output.cause, rig.output.source) == (Mode.ACTIVE, "", "policy")
    assert (len(rig.output.target), rig.output.joints, rig.output.gripper, rig.output.applied) == (
        7,
        (),
        None,
        (),
    )
    joints = Rig(joint_limits(gripper_width=0.08), joints=JOINTS, gripper=0.05).arm()
    assert (joints.output.target, joints.output.joints, joints.output.gripper) == (
        None,
        JOINTS,
        0.05,
    )
    tool = Rig(limits(gripper_width=0.08), gripper=0.05).arm()
    assert (tool.output.target, tool.output.joints, tool.output.gripper) == (HOME, (), 0.05)
    for unseen in (joint_limits(gripper_width=0.08), limits(gripper_width=0.08)):
        output = step(unseen, State(), Inputs(), 0)[1]
        assert (output.target, output.joints, output.gripper, output.mode) == (
            None,
            (),
            None,
            Mode.DISARMED,
        )


def test_the_state_remembers_all_that_it_needs():
    rig = active(ticks=2)
    state = rig.state
    assert (
        state.mode,
        state.cause,
        state.commander,
        state.contacts,
        state.lost_ticks,
        state.diverged_ticks,
    ) == (Mode.ACTIVE, "", "policy", (0, 0), 0, 0)
    assert state.chunk.seq == 1 and state.window.index == 0 and state.window.chunk is state.chunk
    assert state.track.valid and state.track.sampled_ns == rig.now - TICK_NS and state.goal is None
    tick(rig, wrench=(25.0, 0.0))
    assert rig.state.contacts == (1, 0)
    assert tick(rig, wrench=(25.0, 0.0)) == [mode("HOLD:contact")] and rig.state.contacts == (2, 0)


def test_a_state_that_contradicts_itself_moves_nothing_and_raises_nothing():
    rig = Rig().arm()
    command = chunk(1, rig.now, ((0.02, 0.0, 0.0),))
    for wrong in (
        replace(rig.state, mode=Mode.ACTIVE),
        replace(rig.state, mode=Mode.HOLD, cause="x", chunk=command),
    ):
        state, output, _ = step(rig.limits, wrong, Inputs(pose=HOME), rig.now)
        assert (
            output.target == HOME and state.still and output.source == "" and output.applied == ()
        )
    sessions = (("policy", "a", 1),)
    wrong = replace(rig.state, mode=Mode.ACTIVE, sessions=sessions)
    state, _, events = step(
        rig.limits, wrong, Inputs(pose=HOME, chunks=(chunk(2, rig.now, session="b"),)), rig.now
    )
    assert [event.cause for event in events] == ["new_session", "HOLD:new_session"]
