"""S16: an operator who falls silent in a takeover takes the enable away, and only a person gives it
back.
"""

import math
from dataclasses import replace

import pytest

from rlinf_core.interlock import ArmReport, Inputs, Mode
from rlinf_core.interlock.takeover import IDLE_S, RELEASE_S, Enabling, OperatorWatch
from rlinf_core.interlock.types import NS
from tests.interlock.conftest import TICK_NS, Rig, chunk, joint_limits, limits, release

LEASE = dict(enable_lease=60.0)
IDLE = {"enable": True, "enable_age_s": 1.0}
HELD = {"enable": True, "enable_age_s": 0.0}
PRESS = {"enable": True, "enable_age_s": 0.0, "enable_renewed": True}
SILENT = (Mode.HOLD, "operator_silent")


class Station:
    """A policy that never stops, and an operator who moves the arm until they are told
    otherwise.
    """

    def __init__(self, **changes):
        self.rig = Rig(limits(**(LEASE | changes))).arm()
        self.seq, self.sources, self.enable = 0, [], IDLE

    def play(self, seconds, operator=False, policy=True, **inputs):
        """A chunk of 0.1 s of each every 0.1 s; who commanded meanwhile."""
        begun = len(self.sources)
        for tick in range(round(seconds / self.rig.limits.tick)):
            self.seq += 1
            chunks = [
                chunk(self.seq, self.rig.now, ((0.001, 0.0, 0.0),), source=source)
                for source, speaks in (("policy", policy), ("operator", operator))
                if speaks and tick % 10 == 0
            ]
            self.sources.append(self.rig.tick(*chunks, **(self.enable | inputs)).source)
        return {*self.sources[begun:]}

    def once(self, *chunks, **inputs):
        self.sources.append(self.rig.tick(*chunks, **(self.enable | inputs)).source)
        return self

    def release(self, **inputs):
        self.seq += 1
        return self.once(release(self.seq, self.rig.now), **inputs)

    @property
    def stands(self):
        return self.rig.state.mode, self.rig.state.cause


@pytest.fixture
def station():
    station = Station()
    assert station.play(0.5) == {"policy"}
    assert station.play(0.5, operator=True) == {"operator"}
    return station


def test_s16_an_operator_who_falls_silent_drops_the_enable(station, evidence):
    """The policy goes on speaking and the lease of the enable lasts: nothing moves the arm before a
    person acts.
    """
    at = station.rig.output.target
    assert station.play(RELEASE_S + 0.25) <= {"operator", ""}
    assert station.stands == SILENT
    assert station.play(30.0) == {""} and station.stands == SILENT
    assert math.dist(at[:3], station.rig.output.target[:3]) < 0.003
    evidence(
        "S16",
        "an operator silent in a takeover, without a release: HOLD operator_silent after 0.7 s; "
        "the policy does not go on in 30 s, and goes on after a release, an enable that was let "
        "go, and another",
        "no motion",
    )


def test_s16_an_operator_who_lets_go_is_followed_by_the_policy(station):
    station.release()
    assert station.rig.output.source == "" and station.stands == (Mode.HOLD, "stale_command")
    assert station.play(0.5) <= {"", "policy"} and station.play(0.3) == {"policy"}


def test_s16_a_release_and_the_policys_chunk_of_one_tick_have_a_pause_between_them(station):
    """The arm rests already, as where the operator only held it."""
    station.play(0.4, operator=True, policy=False)
    for number in range(10):
        hand = chunk(station.seq + 1, station.rig.now, ((0.0, 0.0, 0.0),), source="operator")
        station.once(*[hand] * (number == 0))
    assert station.rig.state.still
    station.seq += 2
    both = release(station.seq, station.rig.now), chunk(station.seq, station.rig.now)
    station.once(*both, others=(ArmReport("left", ""),))
    assert station.rig.output.source == "" and station.stands == (Mode.HOLD, "stale_command")
    assert station.rig.output.blocked == "stale_command"
    station.once(chunk(station.seq + 1, station.rig.now))
    assert station.rig.output.source == "policy"


def test_s16_a_release_after_their_last_chunk_has_ended_pauses_for_its_tick_too(station):
    station.play(0.4, policy=False)
    station.seq += 2
    both = release(station.seq, station.rig.now), chunk(station.seq, station.rig.now)
    station.once(*both, others=(ArmReport("left", ""),))
    assert (station.rig.output.source, station.rig.output.blocked) == ("", "handing_back")
    assert station.once(chunk(station.seq + 1, station.rig.now)).rig.output.source == "policy"


def test_s16_until_they_let_go_the_policy_waits_also_once_their_last_command_has_ended(station):
    assert station.play(0.5) == {"operator", ""} and station.stands[1] != "operator_silent"
    assert station.play(0.05, policy=False) == {""}
    station.release()
    assert station.play(0.5) <= {"", "policy"} and station.rig.output.source == "policy"


@pytest.mark.parametrize("after", [RELEASE_S - 0.05, RELEASE_S + 0.05])
def test_s16_a_release_counts_while_it_may_still_be_on_its_way(after):
    station = Station()
    station.play(0.1, operator=True)
    station.play(0.1 + after)  # the last command is valid for another 0.1 s
    station.release()
    assert ("policy" in station.play(1.0)) is (after < RELEASE_S)


# What gives the enable back
def test_s16_a_person_gives_it_back_by_enabling_anew_once_they_have_let_go(station):
    station.play(1.0)
    station.release()
    assert station.play(1.0) == {""} and station.stands == SILENT, "a release alone is no enable"
    station.once(**PRESS)
    assert station.stands == (Mode.ARMED, "")
    assert station.play(0.5) == {"policy"}


def test_s16_an_enable_before_they_have_let_go_counts_for_nothing(station):
    """A second process that holds the enable, as a pedal's, does not give it back."""
    station.play(1.0)
    assert station.play(2.0, **PRESS) == {""} and station.stands == SILENT


def test_s16_an_enable_that_is_held_all_the_while_must_be_let_go_first(station):
    station.play(1.0, **PRESS)
    station.release(**PRESS)
    assert station.play(2.0, **PRESS) == {""} and station.stands == SILENT
    station.once(enable=False, enable_age_s=0.0)
    assert station.stands == SILENT
    station.once(**PRESS)
    assert station.stands == (Mode.ARMED, "") and station.play(0.5) == {"policy"}


@pytest.mark.parametrize("age_s, given", [(IDLE_S, False), (IDLE_S + 0.001, True)])
def test_s16_an_enable_that_was_not_renewed_for_a_while_is_not_held(station, age_s, given):
    station.play(1.0)
    station.release(**HELD)
    station.once(enable=True, enable_age_s=age_s)
    station.once(**PRESS)
    assert (station.stands == (Mode.ARMED, "")) is given


def test_s16_an_old_enable_is_not_one_anew(station):
    station.play(1.0)
    station.release()
    station.once(**IDLE)
    for inputs in (HELD, {"enable": False, "enable_age_s": 0.0, "enable_renewed": True}):
        assert station.play(0.2, **inputs) == {""} and station.stands == SILENT


def test_s16_arming_anew_gives_it_back(station):
    station.play(1.0)
    station.once(arm=True)
    assert station.stands == (Mode.ARMED, "") and station.play(0.5) == {"policy"}


def test_s16_disarming_and_arming_gives_it_back(station):
    station.play(1.0)
    station.once(arm=False)
    assert station.play(0.5, policy=False) == {""} and station.stands == (Mode.DISARMED, "")
    station.once(arm=True)
    assert station.play(0.5) == {"policy"}


def test_s16_a_fault_is_reset_by_a_person_who_then_arms(station):
    station.play(1.0)
    station.once(robot_fault="reflex")
    assert station.stands == (Mode.FAULT, "robot:reflex")
    station.once(reset_fault="robot:reflex")
    assert station.stands == (Mode.DISARMED, "")
    assert station.play(0.5) == {""}
    station.once(arm=True)
    assert station.play(0.5) == {"policy"}


def test_s16_an_arming_ends_no_takeover(station):
    """The person at the keyboard presses ``e`` while they move the arm, and then their process
    hangs.
    """
    station.once(arm=True)
    assert station.play(1.0) == {"operator", ""} and station.stands == SILENT


# The operator all the while
def test_s16_the_operator_themselves_goes_on_and_need_not_enable(station):
    station.play(1.0)
    assert station.stands == SILENT
    assert station.play(0.5, operator=True) == {"operator"}
    station.release()
    assert station.stands == SILENT, "at once"
    assert station.play(1.0) == {""} and station.stands == (Mode.HOLD, "operator_silent")


def test_s16_a_motion_that_enables_anew_is_followed_by_the_policy_once_it_ends(station):
    """A SpaceMouse whose deflection is its enable."""
    station.play(1.0)
    station.release()
    station.play(0.5)
    station.play(0.5, operator=True, **PRESS)
    station.release()
    assert station.play(0.8) <= {"", "policy"} and station.rig.output.source == "policy"


def test_s16_falling_silent_again_drops_it_again(station):
    for _ in range(3):
        station.play(1.0)
        assert station.stands == SILENT
        station.release().play(0.2)
        station.once(**PRESS)
        assert station.play(0.5) == {"policy"}
        assert station.play(0.3, operator=True) == {"operator"}


def test_s16_who_takes_over_in_vain_and_falls_silent_drops_it_too():
    """Something touches, so nobody may move; when it has gone, the policy does not go on."""
    station = Station()
    assert station.play(0.3) == {"policy"}
    assert station.play(0.3, operator=True, distance=(0.0, 0.0)) == {""}
    assert station.stands == (Mode.HOLD, "obstacle")
    station.play(1.0, distance=(0.0, 0.0))
    assert station.stands == (Mode.HOLD, "obstacle"), "what is in the way is still said"
    assert station.play(2.0, distance=(1.0, 0.0)) == {""} and station.stands == SILENT


def test_s16_a_command_that_came_too_late_takes_nothing_over():
    station = Station()
    station.play(0.3)
    old = chunk(1, station.rig.now - NS, ((0.001, 0.0, 0.0),), source="operator")
    station.once(old)
    assert station.play(2.0) == {"policy"} and not station.rig.state.operator.has_takeover


def test_s16_who_speaks_and_is_refused_is_not_silent_and_takes_nothing_over():
    station = Station(refusals_to_fault=1000)
    station.play(0.3, operator=True)
    for _ in range(30):
        station.seq += 1
        station.once(chunk(station.seq, station.rig.now, ((9.0, 0.0, 0.0),), source="operator"))
        assert station.play(0.09) == {""} and station.stands[1] != "operator_silent"
    station.release()
    assert station.play(0.5) <= {"", "policy"} and station.rig.output.source == "policy"
    station.once(chunk(station.seq + 1, station.rig.now, ((9.0, 0.0, 0.0),), source="operator"))
    assert not station.rig.state.operator.has_takeover


# Episodes and scenes
def test_s16_the_next_episode_does_not_begin_by_itself(station):
    station.play(1.0)
    station.once(end_episode=True)
    assert station.stands == SILENT, "it waits for a person, whatever episode it is"
    assert station.play(1.0) == {""}


def test_s16_an_episode_that_ends_within_the_takeover_ends_no_watch(station):
    station.once(end_episode=True)
    assert station.play(1.0) == {""} and station.stands == SILENT


def test_s16_a_simulator_that_begins_a_new_scene_ends_a_takeover(station):
    station.once(end_episode=True, restart=True)
    assert station.play(1.0) <= {"policy", ""} and station.rig.output.source == "policy"
    assert not station.rig.state.operator.dropped


def test_s16_a_new_scene_does_not_give_it_back(station):
    station.play(1.0)
    station.once(restart=True, end_episode=True)
    assert station.play(1.0) == {""} and station.stands == SILENT


def test_s16_an_operator_whose_chunk_plays_on_in_a_new_scene_still_has_the_arm(station):
    """The scene begins anew, and no episode ends: their chunk plays on, so they must let go."""
    station.once(restart=True)
    assert station.sources[-1] == "operator" and station.rig.state.operator.has_takeover
    assert "policy" not in station.play(RELEASE_S + 0.3) and station.stands == SILENT


def test_s16_who_plays_on_in_a_new_scene_and_lets_go_is_followed_by_the_policy(station):
    station.once(restart=True).release()
    assert station.play(0.5) <= {"", "policy"} and station.play(0.3) == {"policy"}


def test_s16_an_operator_whose_chunk_has_ended_has_taken_nothing_over_in_a_new_scene(station):
    station.play(0.25, policy=False)
    assert station.sources[-1] == "" and station.rig.state.operator.has_takeover
    station.once(restart=True)
    assert not station.rig.state.operator.has_takeover and station.play(0.3) <= {"", "policy"}


@pytest.mark.parametrize(
    "inputs, ended",
    [({"restart": True}, False)]
    + [
        (inputs, ended)
        for inputs in ({"end_episode": True}, {}, {"late_s": 0.02}, {"arm": True})
        for ended in (True, False)
    ],
)
def test_s16_two_policy_chunks_of_one_tick_skip_no_pause(inputs, ended):
    """The operator held the arm at rest, and theirs is the tick before; it may end in this one."""
    rig = Rig(limits()).arm()
    rig.tick(chunk(1, rig.now, ((0.0, 0.0, 0.0),), source="operator"))
    for _ in range(19 if ended else 5):
        assert rig.tick().source == "operator"
    assert rig.state.still
    rig.tick(*[chunk(seq, rig.now) for seq in (1, 2, 3)], **inputs)
    assert rig.output.source != "policy"


@pytest.mark.parametrize(
    "inputs, ticks",
    [
        ({"restart": True}, 19),
        ({"end_episode": True, "restart": True}, 19),
        ({"end_episode": True, "restart": True}, 5),
    ],
)
def test_s16_a_new_scene_loses_no_first_action_of_the_policy(inputs, ticks):
    """In lockstep an episode under the operator ends, and the next one begins, in one tick: the arm
    rests there.
    """
    rig = Rig(limits()).arm()
    rig.tick(chunk(1, rig.now, ((0.005, 0.0, 0.0),), source="operator"))
    for _ in range(ticks):
        rig.tick()
    rig.tick(chunk(1, rig.now), **inputs)
    assert rig.output.source == "policy"


def test_s16_a_new_scene_whose_place_is_not_measured_has_the_pause(station):
    station.once(
        chunk(station.seq + 1, station.rig.now), restart=True, end_episode=True, pose_age_ns=10**9
    )
    assert station.sources[-1] == ""


# What a release is
def test_s06_a_release_is_counted_in_order(station):
    seq = station.seq
    station.once(release(1, station.rig.now))
    assert [(e.kind, e.cause) for e in station.rig.events] == [("dropped", "out_of_order")]
    assert station.rig.state.operator.has_takeover
    station.once(release(seq + 1, station.rig.now, session="b"))
    (event,) = station.rig.events
    assert (event.kind, event.cause) == ("dropped", "new_session")
    assert (event.source, event.session, event.seq) == ("operator", "b", seq + 1)
    assert station.rig.state.operator.has_takeover and station.rig.state.mode is Mode.ACTIVE


def test_s06_a_release_in_place_of_a_commander_that_says_nothing_holds_nobody():
    station = Station()
    station.play(0.3)
    station.release()
    assert station.rig.output.source == "policy" and station.play(1.0) == {"policy"}


@pytest.mark.parametrize(
    "changes, cause",
    [
        ({"control_mode": "joint_delta"}, "control_mode"),
        ({"frame": "camera"}, "frame"),
        ({"dt_s": math.nan}, "dt"),
        ({"seq": 2**41}, "seq"),
        ({"observation_stamp_ns": 2**62}, "future_stamp"),
    ],
)
def test_s05_a_release_is_checked_like_a_command(station, changes, cause):
    station.once(replace(release(station.seq + 1, station.rig.now), **changes))
    assert ("refused", cause) in [(e.kind, e.cause) for e in station.rig.events]
    assert station.rig.state.operator.has_takeover and station.stands == (
        Mode.HOLD,
        "invalid_command",
    )


def test_s05_no_actions_and_no_release_is_refused(station):
    station.once(chunk(station.seq + 1, station.rig.now, (), source="operator"))
    assert ("refused", "size") in [(e.kind, e.cause) for e in station.rig.events]


def test_s13_in_fault_a_release_changes_nothing(station):
    station.once(robot_fault="reflex")
    station.release(robot_fault="reflex")
    assert station.stands == (Mode.FAULT, "robot:reflex") and station.rig.kinds() == ["dropped"]


# Without a lease, with joints, with several arms
def test_s15_without_a_lease_it_is_dropped_too():
    station = Station(enable_lease=math.inf)
    station.enable = {"enable": False, "enable_age_s": math.inf}
    assert station.play(0.3) == {"policy"} and station.play(0.3, operator=True) == {"operator"}
    assert station.play(3.0) == {"operator", ""} and station.stands == SILENT
    station.once(arm=True)
    assert station.play(0.5) == {"policy"}


def test_s16_joints_are_no_exception():
    rig = Rig(joint_limits(**LEASE), joints=(0.0, 0.35, 0.0, -2.1, 0.0, 2.45, 0.785)).arm()
    action = ((0.001,) * 7,)
    for number in range(1, 300):
        policy = chunk(number, rig.now, action, mode="joint_delta")
        hand = [chunk(number, rig.now, action, source="operator", mode="joint_delta")] * (
            20 < number < 60
        )
        source = rig.tick(policy, *hand, **IDLE).source
        assert source != "policy" or number <= 20
    assert (rig.state.mode, rig.state.cause) == SILENT
    rig.tick(release(300, rig.now, mode="joint_delta"), **IDLE)
    assert rig.state.operator.stage is Enabling.RELEASED


def test_s27_both_arms_of_a_station_wait_for_the_person_and_hold_no_operator():
    """The operator moves the right arm; both hear each word, and the enable is that of the
    station.
    """
    rigs = {name: Rig(limits(**LEASE)).arm() for name in ("left", "right")}
    blocked, seq = dict.fromkeys(rigs, ""), 0

    def play(seconds, *sources, letting_go=False, **inputs):
        nonlocal seq
        sources_of = set()
        for tick in range(round(seconds / 0.01)):
            before, seq = dict(blocked), seq + 1
            for name, rig in rigs.items():
                other = "left" if name == "right" else "right"
                words = [
                    chunk(seq, rig.now, ((0.001 * (name == "right"), 0.0, 0.0),), source=source)
                    for source in sources
                    if tick % 10 == 0
                ]
                words += [release(seq, rig.now)] * (letting_go and tick == 0)
                output = rig.tick(
                    *words, others=(ArmReport(other, before[other]),), **(IDLE | inputs)
                )
                blocked[name] = output.blocked
                sources_of.add(output.source)
        return sources_of

    play(0.1)
    assert play(0.3, "policy") >= {"policy"} and play(0.3, "policy", "operator") == {"operator"}
    play(1.0, "policy")
    assert {rig.state.operator.stage for rig in rigs.values()} == {Enabling.DROPPED}
    assert play(3.0, "policy") == {""} and {rig.state.cause for rig in rigs.values()} == {
        "operator_silent"
    }
    assert set(blocked.values()) <= {"enable", "operator_silent"}
    assert play(0.3, "operator") == {"operator"}, "which holds no operator at the other arm"
    assert play(1.0, "policy", letting_go=True) == {""}
    play(0.01, **PRESS)
    assert play(0.5, "policy") >= {"policy"}


@pytest.mark.parametrize("cause", ["", "stale_command", "enable", "handing_back"])
def test_s16_a_hold_that_would_end_by_itself_waits_for_a_person_once_the_operator_is_silent(cause):
    assert stands_once_silent(cause) == SILENT


@pytest.mark.parametrize("cause", ["obstacle", "clock", "new_session", "arm:left", "realigning"])
def test_s16_a_hold_for_another_reason_keeps_it_although_the_operator_is_silent(cause):
    assert stands_once_silent(cause) == (Mode.HOLD, cause)


def stands_once_silent(cause):
    """Return mode and cause of an arm of which nobody hears anything when the takeover ends."""
    rig = Rig(limits()).arm()
    rig.state = replace(
        rig.state,
        mode=Mode.HOLD if cause else Mode.ARMED,
        cause=cause,
        operator=OperatorWatch(rig.now - round(RELEASE_S * NS)),
    )
    rig.tick()
    assert rig.state.operator.dropped
    return rig.state.mode, rig.state.cause


# The watch itself
def test_the_watch_goes_by_the_end_of_the_last_command():
    watch = OperatorWatch().on_command(chunk(1, 0, ((0.0, 0.0, 0.0),) * 3, source="operator"))
    until = 400_000_000
    assert watch.until_ns == until and watch.has_takeover and not watch.dropped
    last = until + round(RELEASE_S * NS)
    assert watch.on_tick(Inputs(), last - 1) is watch
    assert watch.on_tick(Inputs(), last) == OperatorWatch(stage=Enabling.DROPPED)


def test_the_watch_of_a_refused_command_goes_by_when_it_came():
    assert OperatorWatch().on_refusal(7) == OperatorWatch()
    assert OperatorWatch(5).on_refusal(7) == OperatorWatch(7) and OperatorWatch(9).on_refusal(
        7
    ) == OperatorWatch(9)


def test_the_watch_skips_no_stage():
    watch = OperatorWatch(stage=Enabling.DROPPED)
    assert watch.on_tick(Inputs(**PRESS), TICK_NS) is watch
    watch = watch.on_release()
    assert watch.stage is Enabling.RELEASED and watch.on_release() == watch
    assert watch.on_tick(Inputs(**PRESS), TICK_NS) is watch
    watch = watch.on_tick(Inputs(), TICK_NS)
    assert watch.stage is Enabling.IDLE and watch.dropped
    assert watch.on_tick(Inputs(enable=True), TICK_NS) is watch
    assert watch.on_tick(Inputs(**PRESS), TICK_NS) == OperatorWatch()
    assert watch.on_release() == watch, "who lets go again has enabled nothing"
    assert OperatorWatch().on_release() == OperatorWatch()


def test_the_watch_of_an_arming_keeps_the_takeover():
    watch = OperatorWatch(5, Enabling.IDLE).on_arming()
    assert watch == OperatorWatch(5) and watch.has_takeover


def test_s16_an_operator_of_another_session_is_what_the_other_arms_hear_of(station):
    """The policy's chunk that comes then is dropped for the silence, and changes nothing."""
    station.play(2.0)
    assert station.stands == SILENT
    free, rig = (ArmReport("right", ""),), station.rig
    for source, session, cause in (
        ("operator", "b", "new_session"),
        ("policy", "a", "operator_silent"),
    ):
        station.seq += 1
        sent = chunk(station.seq, rig.now, ((0.001, 0.0, 0.0),), source=source, session=session)
        station.once(sent, others=free)
        assert [one.cause for one in rig.events if one.kind == "dropped"] == [cause]
        assert station.stands == (Mode.HOLD, "new_session") and rig.output.blocked == "new_session"
