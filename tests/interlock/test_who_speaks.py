"""S6 and S23: who speaks on an input, and with what authority."""

from rlinf_core.interlock import Inputs, Mode, step, unready
from tests.interlock.conftest import HOME, Rig, chunk, stream


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
    assert unready(Inputs(doubled=("enable",), silent=("wrench",), clock_stepped=True)) == [
        "silent:wrench",
        "two_publishers:enable",
        "clock",
    ]
    evidence("S23", "two publishers on policy/action: hold by name", "hold")


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
