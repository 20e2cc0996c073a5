"""Unexpected returns: an arm follows again, is at another place, or gets earlier commands."""

import math
from dataclasses import replace

import pytest

from rlinf_core.interlock import Mode, State, after_unobserved_time
from rlinf_core.interlock.types import ArmReport
from tests.interlock.conftest import (
    HOME,
    JOINTS,
    Rig,
    chunk,
    joint_limits,
    limits,
    release,
    stream,
    until,
)

AWAY = (0.56, 0.0, 0.2, *HOME[3:])


def ticks(rig, number, **inputs):
    return [rig.tick(**inputs) for _ in range(number)]


def reseeded(rig):
    return [event.cause for event in rig.events if event.kind == "reseeded"]


def moving():
    rig = Rig(limits()).arm()
    stream(rig, (0.02, 0.0, 0.0), 3)
    rig.follow = False
    return rig


# S13, S17: recovery, where the arm's place is not known when it is asked for
@pytest.mark.parametrize("by", [0.04, 0.4])
def test_a_robot_that_was_lost_is_brought_back_from_where_it_is_found(by):
    rig = moving()
    lost = {"robot_fault": "control_lost", "pose_age_ns": 10**9}
    ticks(rig, 30, **lost)
    rig.pose = (rig.pose[0], rig.pose[1] - by, *rig.pose[2:])
    before = rig.tick(recover=True, **lost)
    assert (before.mode, before.suppress_setpoint, before.cause) == (
        Mode.FAULT,
        True,
        "robot:control_lost",
    )
    assert all(
        output.suppress_setpoint
        for output in ticks(rig, 20, robot_fault="recovering", pose_age_ns=10**9)
    )
    outputs = ticks(rig, 12, robot_fault="recovering")
    assert [output.suppress_setpoint for output in outputs] == [True] * 9 + [False] * 3, (
        "once it has been seen at rest"
    )
    assert outputs[-1].target == rig.pose and outputs[-1].mode is Mode.FAULT
    rig.tick(reset_fault="robot:control_lost")
    assert (
        rig.state.mode is Mode.DISARMED
        and not rig.output.suppress_setpoint
        and rig.output.target == rig.pose
    )


@pytest.mark.parametrize("by", [0.0, 0.03, 0.2])
def test_an_arm_that_nobody_watched_is_told_nothing_before_it_was_seen_to_rest_and_then_to_stay(by):
    """The interlock was deactivated, and the arm guided meanwhile."""
    rig = Rig(limits()).settle()
    rig.follow, rig.pose = False, (HOME[0] + by, *HOME[1:])
    rig.state = after_unobserved_time(rig.state)
    assert (rig.state.track.rest, rig.state.track.rested) == (None, 0)
    outputs = ticks(rig, 12)
    assert [output.suppress_setpoint for output in outputs] == [True] * 9 + [False] * 3
    assert {output.target for output in outputs[9:]} == {rig.pose} and not rig.state.recovering
    assert after_unobserved_time(State()) == State(), (
        "before it has seen any there is none that is told"
    )


def test_what_was_asked_before_it_was_armed_again_is_forgotten():
    rig = moving()
    rig.tick(robot_fault="reflex", recover=True, pose_age_ns=10**9)
    assert rig.state.recovering
    ticks(rig, 15)
    assert reseeded(rig) == [] and not rig.state.recovering, "found, and done"
    rig.tick(reset_fault="robot:reflex")
    rig.tick(arm=True)
    assert rig.state.mode is Mode.ARMED


# S17: it may follow again without anybody's reset
@pytest.mark.parametrize(
    "why, follows",
    [
        ("safeguard_stop", False),
        ("program_stopped", False),
        ("gripper_stuck", True),
        ("recovering", True),
        ("unreadable", True),
        ("interlock", True),
    ],
)
def test_a_robot_that_stopped_by_itself_goes_nowhere_when_it_follows_again(why, follows):
    rig = moving()
    rig.pose = (rig.pose[0] - 0.01, *rig.pose[1:])
    ticks(rig, 40, robot_fault=why)
    assert (rig.output.target == rig.pose) is not follows
    rig.pose = (rig.pose[0], 0.02, *rig.pose[2:])  # guided by hand, and let go
    ticks(rig, 40, robot_fault=why)
    assert (rig.output.target == rig.pose) is not follows
    at = rig.output.target
    assert [output.target for output in ticks(rig, 40)] == [
        at
    ] * 40 and rig.state.mode is Mode.FAULT
    rig.pose = (rig.pose[0], 0.0, *rig.pose[2:])
    assert ticks(rig, 40)[-1].target == at, "and once it follows, what moves it is no set-point's"


def test_joints_too():
    rig = Rig(joint_limits(), joints=JOINTS).arm()
    stream(rig, (0.03,) * 7, 3)
    rig.follow = False
    rig.joints = tuple(angle - 0.02 for angle in rig.joints)
    assert (
        until(rig, lambda: rig.output.joints == rig.joints, 40, robot_fault="protective_stop") > 9
    )


@pytest.mark.parametrize("mode", [Mode.FAULT, Mode.DISARMED])
def test_an_arm_that_was_lost_is_begun_from_where_it_is_found_without_anybodys_act(mode):
    """The driver restarted, and the arm was guided elsewhere meanwhile."""
    rig = moving() if mode is Mode.FAULT else Rig(follow=False).settle()
    silent = ticks(rig, 80, pose_age_ns=10**9)
    assert (
        rig.state.mode is mode and not silent[5].suppress_setpoint and silent[-1].suppress_setpoint
    ), "silence, and then nobody is told"
    rig.pose = (rig.pose[0] + 0.1, 0.1, *rig.pose[2:])
    if mode is Mode.DISARMED:
        rig.tick(arm=True)
        assert rig.state.mode is mode, "nor is it armed before it has been seen at rest"
    outputs = ticks(rig, 15)
    assert (
        all(output.suppress_setpoint or output.target == rig.pose for output in outputs)
        and outputs[-1].target == rig.pose
    )
    assert not outputs[-1].suppress_setpoint and rig.state.mode is mode


def test_an_arm_that_sinks_while_nobody_says_that_it_follows_nothing_is_not_led_on():
    """Some faults are of what speaks, and the arm follows on, a little below its set-point: going
    there would go on.
    """
    for why in (
        "silent (no robot_state)",
        "error (joint_p2p)",
        "unreadable",
        "frozen (joint_states never change)",
    ):
        rig = moving()
        ticks(rig, 10, robot_fault=why)
        for _ in range(300):
            x, y, z = rig.output.target[:3]
            rig.pose = (x, y, z - 0.004, *HOME[3:])
            rig.tick(robot_fault=why)
        assert rig.output.target[2] == pytest.approx(HOME[2]), why


@pytest.mark.parametrize(
    "inputs", [{"robot_fault": "reflex"}, {"robot_fault": "reflex", "recover": True}]
)
def test_what_a_gripper_holds_is_not_let_go_of(inputs):
    rig = Rig(limits(gripper_width=0.08), gripper=0.08).arm()
    stream(rig, (0.02, 0.0, 0.0, -0.02), 6)
    rig.follow, rig.gripper = False, 0.03  # on a part
    rig.pose = (rig.pose[0] - 0.02, *rig.pose[1:])
    wanted = rig.output.gripper
    ticks(rig, 40, **inputs)
    assert rig.output.target == rig.pose and rig.output.gripper == wanted < 0.03


def test_while_it_is_brought_back_a_set_point_that_it_has_left_is_told_nobody():
    rig = moving()
    ticks(rig, 12, robot_fault="reflex", recover=True)
    assert not rig.output.suppress_setpoint
    rig.pose = (rig.pose[0], 0.02, *rig.pose[2:])
    assert all(output.suppress_setpoint for output in ticks(rig, 12, robot_fault="recovering"))


def test_a_clock_that_is_set_back_does_not_keep_the_policy_out():
    rig = Rig().arm()
    ticks(rig, 200)
    rig.tick(end_episode=True)
    rig.now -= 1_000_000_000
    rig.tick(arm=False, clock_stepped=True)
    ticks(rig, 3)
    rig.tick(arm=True)
    rig.tick(chunk(1, rig.now))
    assert rig.state.mode is Mode.ACTIVE


@pytest.mark.parametrize("by, is_reset", [(0.0019, True), (0.00021, True), (0.00019, False)])
def test_a_set_point_a_little_beside_a_stopped_arm_is_put_there_or_the_arm_would_move_when_it_follows(
    by, is_reset
):
    rig = moving()
    until(rig, lambda: rig.state.still)
    at = rig.output.target
    rig.pose = (at[0] + by, *at[1:])
    ticks(rig, 40, robot_fault="reflex")
    assert rig.output.target == (rig.pose if is_reset else at) and reseeded(rig) == []


@pytest.mark.parametrize("inputs, cause", [({}, "robot"), ({"recover": True}, "recover")])
def test_the_reason_of_a_set_point_that_is_put_at_a_stopped_arm_is_an_event(inputs, cause):
    rig = moving()
    rig.pose = (rig.pose[0] - 0.01, *rig.pose[1:])
    causes = []
    for _ in range(40):
        rig.tick(robot_fault="reflex", **inputs)
        causes += reseeded(rig)
    assert causes == [cause]


def test_a_request_to_recover_a_robot_without_a_fault_moves_no_set_point():
    rig = Rig(follow=False).settle()
    rig.pose = (HOME[0] + 0.01, *HOME[1:])
    for output in ticks(rig, 30, recover=True):
        assert (output.target, output.suppress_setpoint) == (HOME, False)
        assert not rig.state.recovering


def test_a_stopped_arm_that_is_pushed_within_its_rest_has_its_set_point_at_once():
    """It rests within 2 mm of one place, and goes there from 1.8 mm on one side to the other."""
    rig = Rig(follow=False).settle()
    waited = []
    for by in (-0.0018, 0.0018):
        rig.pose = (HOME[0] + by, *HOME[1:])
        waited.append(until(rig, lambda: rig.output.target == rig.pose, 12, robot_fault="reflex"))
        assert rig.state.track.rest[0] == HOME[:3]
    assert waited == [10, 1], "a small distance waits for the next tenth of a second"


def test_a_noisy_arm_that_is_stopped_moves_its_set_point_ten_times_a_second_and_not_at_each_tick():
    rig = moving()
    until(rig, lambda: rig.state.still)
    x, *others = rig.output.target
    put = 0
    for number in range(200):
        rig.pose = (x + (0.0004 if number % 3 else -0.0004), *others)
        rig.tick(robot_fault="reflex")
        put += len(reseeded(rig))
    assert 1 < put <= 20


@pytest.mark.parametrize("by", [0.009, 0.0006])
def test_joints_that_lag_behind_when_their_robot_stops_are_their_set_point_before_it_follows_again(
    by,
):
    rig = Rig(joint_limits(), joints=JOINTS).arm()
    stream(rig, (0.03,) * 7, 3)
    rig.follow = False
    until(rig, lambda: rig.state.still, robot_fault="protective_stop")
    rig.joints = tuple(angle - by for angle in rig.output.joints)
    ticks(rig, 25, robot_fault="protective_stop")
    assert rig.output.joints == rig.joints
    ticks(rig, 25, robot_fault="recovering")
    rig.tick(reset_fault="robot:protective_stop")
    assert rig.state.mode is Mode.DISARMED and rig.output.joints == rig.joints, (
        "a reset moves nothing"
    )


# S21: nothing is armed, and the arm is somewhere else
def test_where_it_was_first_seen_by_mistake_is_told_nobody():
    rig = Rig(
        limits(box_low=(-1.0, -1.0, -1.0), box_high=(1.0, 1.0, 1.0)),
        pose=(0.0, 0.0, 0.0, *HOME[3:]),
        follow=False,
    )
    rig.settle()
    rig.pose = HOME
    ticks(rig, 20)
    assert rig.output.suppress_setpoint and rig.state.mode is Mode.DISARMED
    rig.tick(arm=True)
    assert (rig.output.target, rig.output.suppress_setpoint, rig.state.mode) == (
        HOME,
        False,
        Mode.ARMED,
    )
    assert reseeded(rig) == ["adrift"]


def test_an_arm_that_was_guided_far_while_its_controller_was_off_is_begun_from_where_it_is():
    rig = Rig(follow=False).settle()
    rig.pose = AWAY
    assert all(output.suppress_setpoint for output in ticks(rig, 12)), (
        "from the first tick on in which it is not where it was"
    )
    assert rig.output.target == HOME, "what is counted on does not change before somebody arms"
    assert rig.tick(arm=True).target == AWAY
    near = Rig(follow=False).settle()
    near.pose = (0.54, *HOME[1:])
    near.settle()
    assert not near.tick(arm=True).suppress_setpoint and near.output.target[0] < 0.501, (
        "a little way it goes within its limits"
    )


def test_an_arming_never_moves_a_set_point_that_was_published_a_tick_ago():
    """A controller that follows it would jump: the interlock first withholds it, and the person
    arms once more.
    """
    rig = Rig(follow=False).settle()
    rig.pose = (HOME[0] + 0.05, *HOME[1:])
    published = rig.output.target
    assert published == HOME and not rig.output.suppress_setpoint
    at = ticks(rig, 0)
    for _ in range(20):
        was = rig.output
        rig.tick(arm=True)
        at.append(rig.output)
        if rig.state.mode is Mode.ARMED:
            break
        assert rig.state.mode is Mode.DISARMED and rig.output.target == published
    assert (
        was.suppress_setpoint
        and len(at) > 1
        and rig.output.target == rig.pose
        and reseeded(rig) == ["adrift"]
    )


def test_an_arm_that_is_guided_while_it_is_armed_does_not_begin_where_it_passes():
    rig = Rig(follow=False).settle()
    rig.pose = AWAY
    ticks(rig, 12)
    for _ in range(8):
        rig.pose = (rig.pose[0], rig.pose[1] + 0.01, *rig.pose[2:])
        rig.tick(arm=True)
        assert (
            rig.state.mode is Mode.DISARMED
            and rig.output.suppress_setpoint
            and rig.output.target == HOME
        )
    until(rig, lambda: rig.state.mode is Mode.ARMED, ticks=12, arm=True)
    assert rig.output.target == rig.pose


def test_s13_a_reset_and_an_arming_of_one_tick_reset_alone():
    """Their order is unknown, and an arming before the reset was refused."""
    rig = Rig().arm()
    rig.tick(robot_fault="reflex")
    ticks(rig, 12)
    rig.tick(reset_fault="robot:reflex", arm=True)
    assert (rig.state.mode, rig.state.cause) == (Mode.DISARMED, "")
    rig.tick(arm=True)
    assert rig.state.mode is Mode.ARMED


# S21: a simulator's scene
@pytest.mark.parametrize(
    "age_s, begins_anew", [(0.0, True), (0.049, True), (0.051, False), (10.0, False)]
)
def test_where_the_arm_was_put_is_said_by_a_sample_that_is_not_stale(age_s, begins_anew):
    rig = Rig(follow=False).arm()
    rig.tick(
        chunk(1, rig.now, ((0.0, 0.0, 0.0),)),
        restart=True,
        pose=AWAY,
        pose_age_ns=round(age_s * 1e9),
    )
    assert (rig.output.target == AWAY) is begins_anew and rig.state.track.valid is begins_anew
    assert (rig.state.mode is Mode.ACTIVE) is begins_anew


# S8, S21: carried out while it moves
@pytest.mark.parametrize("source", ["policy", "operator"])
def test_an_arm_that_was_carried_out_of_its_workspace_is_held_until_it_is_back(source):
    rig = Rig(follow=False, pose=(0.68, *HOME[1:])).arm()
    along = ((0.0, 0.01, 0.0),) * 200
    rig.tick(chunk(1, rig.now, along, source=source))
    for _ in range(8):
        rig.pose = (rig.pose[0] + 0.006, *rig.pose[1:])
        rig.tick()
    assert rig.pose[0] > 0.7 and (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_box")
    ticks(rig, 30)
    at = rig.output.target
    for number in range(2, 20):
        rig.tick(chunk(number, rig.now, along, source=source))
        assert (rig.state.mode, rig.state.cause, rig.output.target) == (
            Mode.HOLD,
            "outside_box",
            at,
        )
    while rig.pose[0] > 0.69:
        rig.pose = (rig.pose[0] - 0.006, *rig.pose[1:])
        rig.tick()
    seq = iter(range(20, 500))
    until(
        rig, lambda: rig.tick(chunk(next(seq), rig.now, along, source=source)).mode is Mode.ACTIVE
    )


def test_an_arm_that_follows_a_little_beyond_its_wall_goes_on():
    """A controller may overshoot by ``divergence``; nobody carried the arm out."""
    rig = Rig(follow=False, pose=(0.69, *HOME[1:])).arm()
    rig.tick(chunk(1, rig.now, ((0.0, 0.01, 0.0),) * 20))
    rig.pose = (0.705, *HOME[1:])
    assert all(state.mode is Mode.ACTIVE for state in ticks(rig, 10))


def test_each_group_is_carried_out_by_its_own_divergence():
    """The tool is far from its set-point, inside its box; it is turned a little beyond its cone."""
    half = 0.26
    wide = limits(cone=0.5, rotation_divergence=0.3)
    rig = Rig(wide, follow=False, pose=(*HOME[:3], math.sin(0.2), math.cos(0.2), 0.0, 0.0)).arm()
    rig.tick(chunk(1, rig.now, ((0.0, 0.01, 0.0),) * 50))
    for _ in range(8):
        rig.pose = (rig.pose[0] + 0.006, *rig.pose[1:3], math.sin(half), math.cos(half), 0.0, 0.0)
        rig.tick()
    assert rig.state.mode is Mode.ACTIVE


def test_joints_that_were_carried_out_are_held_too():
    rig = Rig(joint_limits(joint_divergence=0.05), follow=False, joints=(2.70, *JOINTS[1:])).arm()
    rig.tick(chunk(1, rig.now, ((0.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0),) * 50, mode="joint_delta"))
    for _ in range(8):
        rig.joints = (rig.joints[0] + 0.01, *rig.joints[1:])
        rig.tick()
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_joints")


# Trap 9, S16: what belongs to before
def test_a_chunk_that_answers_what_was_seen_before_the_episode_ended_is_dropped():
    rig = Rig().arm()
    rig.tick(chunk(1, rig.now, ((0.01, 0.0, 0.0),) * 8))
    observed_ns = rig.now
    ticks(rig, 3)
    rig.tick(end_episode=True)
    ended = rig.now - 10_000_000
    rig.tick(chunk(2, observed_ns, ((0.02, 0.0, 0.0),) * 8))
    assert rig.state.mode is Mode.ARMED and [event.cause for event in rig.events][:1] == [
        "episode_ended"
    ]
    rig.tick(chunk(3, ended - 1, ((0.02, 0.0, 0.0),) * 8))
    assert rig.state.mode is Mode.ARMED
    rig.tick(chunk(1, observed_ns, ((0.02, 0.0, 0.0),) * 8, source="operator"))
    assert rig.state.mode is Mode.ACTIVE, "a person's hand answers nothing"
    fresh = Rig().arm()
    fresh.tick(end_episode=True)
    fresh.tick(chunk(1, fresh.now - 10_000_000))
    assert fresh.state.mode is Mode.ACTIVE, "what was seen in that very tick is the next episode's"


def test_s16_also_at_an_episodes_end_the_policy_follows_a_person_after_a_pause():
    rig = Rig().arm()
    stream(rig, (0.02, 0.0, 0.0), 3, source="operator")
    rig.tick(chunk(1, rig.now, ((-0.02, 0.0, 0.0),) * 20), end_episode=True)
    assert (
        not rig.state.still and rig.state.mode is Mode.ARMED and rig.state.commander == "operator"
    )
    rig.tick(release(4, rig.now))
    seq = 2
    while not rig.state.still:
        rig.tick(chunk(seq, rig.now, ((-0.02, 0.0, 0.0),) * 20))
        assert rig.state.mode is not Mode.ACTIVE or rig.state.still
        seq += 1
    rig.tick(chunk(seq, rig.now, ((-0.02, 0.0, 0.0),) * 20))
    assert (rig.state.mode, rig.state.commander) == (Mode.ACTIVE, "policy")


# S22, S10, S11, S23, S4, S27: on the way back to the arm, too
@pytest.mark.parametrize(
    "inputs, auto_reset",
    [
        ({"silent": ("wrench",)}, False),
        ({"doubled": ("policy/action",)}, False),
        ({"clock_stepped": True}, False),
        ({"distance": (0.0, 0.0)}, False),
        ({"others": (ArmReport("left", "fault"),)}, False),
        ({"others": (ArmReport("left", "realigning"),)}, True),
        ({"others": (ArmReport("left", "enable"),)}, True),
        ({"others": (ArmReport("left", "handing_back"),)}, True),
        ({"others": (ArmReport("left", "operator_silent"),)}, True),
        ({"wrench": (25.0, 0.0)}, True),
        ({}, True),
    ],
)
def test_what_holds_the_arm_holds_its_way_back(inputs, auto_reset):
    rig = Rig(limits(contact_samples=1, divergence=0.1), follow=False).settle()
    rig.pose = (0.6, *HOME[1:])
    rig.arm()
    ticks(rig, 20)
    assert rig.state.goal is not None and not rig.state.still
    at = rig.output.target[0]
    ticks(rig, 20, **inputs)
    assert (rig.output.target[0] - at > 0.03) is auto_reset and (
        rig.state.goal is not None
    ) is auto_reset
    assert rig.state.mode is Mode.ARMED
    ticks(rig, 80)
    assert rig.output.target[0] == pytest.approx(0.6), "and goes on when it has gone"


# S8: limits of the side that is not commanded, and numbers that no motion has
def test_the_cone_holds_for_the_tool_of_an_arm_that_is_told_by_joints():
    rig = Rig(replace(joint_limits(), cone=0.5), joints=JOINTS).arm()
    rig.tick(chunk(1, rig.now, ((0.01,) * 7,), mode="joint_delta"))
    assert rig.state.mode is Mode.ACTIVE
    half = 0.3
    tilted = (*HOME[:3], math.sin(half), math.cos(half), 0.0, 0.0)
    assert rig.tick(pose=(*HOME[:3], 0.2, 0.9798, 0.0, 0.0)).mode is Mode.ACTIVE
    rig.tick(pose=tilted)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_rotation")
    assert rig.tick(pose=(*HOME[:3], 0.0, 0.0, 0.0, 0.0)).cause == "outside_rotation", (
        "nor is it known to be inside"
    )
    rig.tick(pose=tilted, end_episode=True)
    assert rig.state.mode is Mode.ARMED
    rig.tick(chunk(2, rig.now, ((0.01,) * 7,), mode="joint_delta"), pose=tilted)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "outside_rotation"), (
        "in the next episode, too, that is said"
    )


@pytest.mark.parametrize(
    "value, dt_s, cause",
    [(1e308, 0.01, "not_finite"), (-1e308, 0.5, "not_finite"), (1e300, 0.1, "")],
)
def test_an_action_whose_velocity_is_no_number_is_refused(value, dt_s, cause):
    wide = limits(speed=math.inf, rotation_speed=math.inf, acceleration=math.inf, cone=2.8)
    rig = Rig(wide).arm()
    rig.tick(chunk(1, rig.now, ((0.0, 0.0, 0.0, value, 0.0, 0.0),), dt_s))
    assert [event.cause for event in rig.events if event.kind == "refused"] == [cause] * bool(cause)
