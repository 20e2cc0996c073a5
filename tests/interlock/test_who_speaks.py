"""S6 and S23: who speaks on an input, and with what authority."""

import math

from rlinf_core.interlock import Inputs, Mode, missing_inputs, step
from tests.interlock.conftest import HOME, Rig, chunk, release, stream


def test_s23_a_foreign_publisher_of_commands_is_a_fault_while_it_stands(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    rig.tick(foreign=("target_pose",))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "foreign_publisher:target_pose")
    rig.tick(foreign=("target_pose",), reset_fault=rig.state.cause)
    assert rig.state.mode is Mode.FAULT
    rig.tick(reset_fault=rig.state.cause)
    assert rig.state.mode is Mode.DISARMED
    rig.tick(arm=True, foreign=("estop/pendant",))
    assert rig.state.mode is Mode.DISARMED
    evidence(
        "S23",
        "another publisher on target_pose: latched, by name; not cleared while it is there",
        "fault",
    )


def test_s23_two_voices_on_one_input_hold_by_name(rig, evidence):
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    rig.tick(doubled=("policy/action",))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "two_publishers:policy/action")
    rig.tick(chunk(5, rig.now))
    assert rig.state.mode is Mode.ACTIVE
    assert missing_inputs(Inputs(doubled=("enable",), silent=("wrench",), clock_stepped=True)) == [
        "silent:wrench",
        "two_publishers:enable",
        "clock",
    ]
    evidence("S23", "two publishers on policy/action: hold by name", "hold")


def test_s23_a_command_of_a_topic_with_two_publishers_counts_for_nothing(rig, evidence):
    """The sender is unknown: the command moves nothing, latches nothing and blocks no commander."""
    topic, cause = "policy/action", "two_publishers:policy/action"
    stream(rig, (0.01, 0.0, 0.0), actions=1)
    for number in range(rig.limits.refusals_to_fault + 2):
        for seq, actions in ((10**6, ((0.01, 0.0, 0.0),)), (2, ((math.nan, 0.0, 0.0),)), (500, ())):
            rig.tick(chunk(seq + number, rig.now, actions), doubled=(topic,))
            assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, cause)
            assert [(e.kind, e.cause) for e in rig.events if e.seq >= 0] == [("dropped", cause)]
    rig.tick(chunk(3, rig.now))  # the commander's own next number
    assert rig.state.mode is Mode.ACTIVE
    evidence("S23", "commands of two publishers: hold, no motion, no latch, no number taken", cause)


def test_s23_refusals_latch_although_another_topic_has_two_publishers(rig):
    for number in range(rig.limits.refusals_to_fault):
        rig.tick(chunk(number, rig.now, ((math.nan, 0.0, 0.0),)), doubled=("teleop/action",))
    assert (rig.state.mode, rig.state.cause) == (Mode.FAULT, "invalid_command")


def test_s23_a_release_of_either_of_two_operators_ends_no_takeover(rig):
    stream(rig, (0.01, 0.0, 0.0), actions=1, source="operator")
    rig.tick(release(2, rig.now), doubled=("teleop/action",))
    assert rig.state.operator.has_takeover and rig.state.mode is Mode.HOLD


def test_s23_a_command_of_two_publishers_holds_an_armed_arm_by_name(rig):
    rig.tick(chunk(1, rig.now), doubled=("policy/action",))
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "two_publishers:policy/action")


def test_s06_authority_is_of_the_topic_and_of_nobody_else(rig, evidence):
    """The core knows two commanders; whoever else speaks is refused, and remembered nowhere."""
    for number in range(200):
        rig.tick(chunk(1, rig.now, source=f"operator{number}"))
    assert ("refused", "source") in [
        (event.kind, event.cause)
        for event in step(
            rig.limits, Rig().arm().state, Inputs(pose=HOME, chunks=(chunk(source="x"),)), rig.now
        )[2]
    ]
    assert len(rig.state.sessions) <= 2
    evidence("S6", f"200 other names: refused; {len(rig.state.sessions)} remembered", "2 at most")
