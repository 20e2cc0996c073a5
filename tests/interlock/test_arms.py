"""Several arms, each with its own core: one may move only while the others may (S27)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_core.interlock import ArmReport, Inputs, Mode
from rlinf_core.interlock.safety_checks import blocking_arms
from rlinf_core.interlock.types import FULL_ACTION, ActionSlice
from tests.interlock.conftest import S9, TICK_NS, Rig, chunk, limits, release

FREE, STOPPED = "", ("disarmed", "fault")


class Two:
    """Two rigs that hear of each other what each said a tick before, as on a station in
    lockstep.
    """

    def __init__(self, **changes):
        self.rigs = {"left": Rig(limits(**changes)), "right": Rig(limits(**changes))}
        self.blocked, self.seq, self.now = dict.fromkeys(self.rigs, "disarmed"), 0, 0

    def __getattr__(self, name):
        return self.rigs[name]

    def tick(self, actions=None, **inputs):
        """One tick of both; ``actions`` are commanded to each, ``inputs`` is what one hears
        besides.
        """
        before, self.seq = dict(self.blocked), self.seq + 1
        for name, rig in self.rigs.items():
            chunks = () if actions is None else (chunk(self.seq, self.now, (actions[name],)),)
            rig.tick(
                *chunks,
                others=tuple(
                    ArmReport(other, blocked) for other, blocked in before.items() if other != name
                ),
                **inputs.get(name, {}),
            )
            self.blocked[name] = rig.output.blocked
        self.now += TICK_NS
        return self

    def play(self, ticks, x=0.01, **inputs):
        for _ in range(ticks):
            if (self.now // TICK_NS) % 10 == 0:
                self.tick({name: (x, 0.0, 0.0) for name in self.rigs}, **inputs)
            else:
                self.tick(None, **inputs)
        return self

    def stream(self, ticks, *sources, **inputs):
        """Chunks of each source back to back, of a policy for both arms, of an operator for the
        right one; who commands.
        """
        for _ in range(ticks):
            before = dict(self.blocked)
            self.seq += 1
            begins = (self.now // TICK_NS) % 10 == 0
            for name, rig in self.rigs.items():
                hears = {
                    "others": tuple(
                        ArmReport(other, before[other]) for other in before if other != name
                    )
                } | inputs.get(name, {})
                speeds = {"policy": 0.02, "operator": 0.02 if name == "right" else 0.0}
                rig.tick(
                    *(
                        chunk(self.seq, self.now, ((speeds[source], 0.0, 0.0),), source=source)
                        for source in sources
                        if begins
                    ),
                    **hears,
                )
                self.blocked[name] = rig.output.blocked
            self.now += TICK_NS
            yield [rig.output.source for rig in self.rigs.values()]

    def release(self):
        """One tick, in which the operator lets go."""
        before, self.seq = dict(self.blocked), self.seq + 1
        for name, rig in self.rigs.items():
            others = tuple(ArmReport(other, before[other]) for other in before if other != name)
            rig.tick(release(self.seq, self.now), others=others)
            self.blocked[name] = rig.output.blocked
        self.now += TICK_NS
        return self

    def modes(self):
        return [(rig.state.mode, rig.state.cause) for rig in self.rigs.values()]

    def still(self):
        return [rig.state.still for rig in self.rigs.values()]


@pytest.fixture
def two(request):
    two = Two(**getattr(request, "param", {}))
    for _ in range(20):
        two.tick()
    two.tick(left={"arm": True}, right={"arm": True}).tick()
    assert two.modes() == [(Mode.ARMED, "")] * 2 and set(two.blocked.values()) == {FREE}
    return two


@pytest.mark.parametrize(
    "blocked, restart, held",
    [
        (FREE, False, []),
        ("contact", False, ["arm:right"]),
        ("disarmed", False, ["arm:right"]),
        (FREE, True, []),
        ("contact", True, []),
        ("disarmed", True, ["arm:right"]),
        ("fault", True, ["arm:right"]),
    ],
)
def test_s27_what_another_arm_says_and_what_a_new_scene_makes_of_it(blocked, restart, held):
    assert blocking_arms(Inputs(others=(ArmReport("right", blocked),), restart=restart)) == held


def test_s27_of_several_arms_that_may_not_move_the_first_is_named(rig):
    waits_for = (ArmReport("free", ""), ArmReport("left", "contact"), ArmReport("right", "fault"))
    rig.tick(chunk(1, rig.now), others=waits_for)
    assert [(event.kind, event.cause) for event in rig.events] == [("dropped", "arm:left")]
    assert rig.state.mode is Mode.ARMED and rig.output.blocked == ""


def test_s27_alone_it_says_nothing_and_waits_for_nobody(rig):
    assert rig.tick().blocked == "" and rig.tick(chunk(1, rig.now)).mode is Mode.ACTIVE


def test_s27_neither_moves_before_both_are_armed():
    two = Two()
    for _ in range(20):
        two.tick()
    two.tick(left={"arm": True}).play(30)
    assert two.modes() == [(Mode.ARMED, ""), (Mode.DISARMED, "")] and two.still() == [True, True]
    two.tick(right={"arm": True}).play(30)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2 and not any(two.still())
    two.tick(right={"arm": False}).tick()
    assert two.modes() == [(Mode.HOLD, "arm:right"), (Mode.DISARMED, "")]


def test_s27_a_fault_of_one_holds_the_other_a_tick_later_until_it_is_reset_and_armed(two, evidence):
    two.play(20)
    two.tick(left={"robot_fault": "reflex"})
    assert (
        two.modes() == [(Mode.FAULT, "robot:reflex"), (Mode.ACTIVE, "")]
        and two.blocked["left"] == "fault"
    )
    two.tick()
    assert two.modes()[1] == (Mode.HOLD, "arm:left")
    evidence("S27", "the other brakes 1 tick after the tick that latches", "1 tick")
    two.play(100)
    assert two.modes()[1] == (Mode.HOLD, "arm:left") and two.still() == [True, True]
    two.tick(left={"reset_fault": "robot:reflex"}).play(30)
    assert two.modes() == [(Mode.DISARMED, ""), (Mode.HOLD, "arm:left")] and two.still() == [
        True,
        True,
    ]
    two.tick(left={"arm": True}).play(30)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


def test_s27_a_silence_does_not_hide_the_fault_of_another(two):
    two.play(20)
    for _ in range(30):
        two.tick()
    assert two.modes() == [(Mode.HOLD, "stale_command")] * 2
    two.tick(left={"robot_fault": "reflex"}).tick()
    assert two.modes() == [(Mode.FAULT, "robot:reflex"), (Mode.HOLD, "arm:left")]
    two.play(20)
    two.tick(left={"reset_fault": "robot:reflex"}).tick(left={"arm": True}).play(30)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


def test_s27_the_silence_of_another_arm_holds_this_one_but_not_a_silent_one(rig):
    others = (ArmReport("left", "stale_command"),)
    rig.tick(chunk(1, rig.now))
    rig.tick(others=others)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "arm:left")
    rig.tick(chunk(2, rig.now))
    while rig.state.mode is Mode.ACTIVE:
        rig.tick()
    rig.tick(others=others)
    assert (rig.state.mode, rig.state.cause) == (Mode.HOLD, "stale_command")


def test_s27_what_stands_in_the_way_of_one_holds_both_and_both_go_on_when_it_has_gone(two):
    two.play(20).play(40, right={"wrench": (25.0, 0.0)})
    assert two.modes() == [(Mode.HOLD, "arm:right"), (Mode.HOLD, "contact")] and two.still() == [
        True,
        True,
    ]
    two.play(20, right={"wrench": (0.0, 0.0)})
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


def test_s27_an_action_refused_for_one_stops_the_other_within_a_tick_each_time(two):
    two.play(20)
    for _ in range(2):
        while (two.now // TICK_NS) % 10:
            two.tick()
        two.tick({"left": (0.3, 0.0, 0.0), "right": (0.01, 0.0, 0.0)})
        assert (
            two.modes()[0] == (Mode.HOLD, "invalid_command")
            and two.blocked["left"] == "invalid_command"
        )
        two.tick()
        assert two.modes() == [(Mode.HOLD, "invalid_command"), (Mode.HOLD, "arm:left")]
        assert two.blocked == {"left": FREE, "right": FREE}, (
            "both wait for the next command, and not for each other"
        )
    two.play(20)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


def test_s27_two_that_must_realign_do_not_wait_for_each_other(two):
    """Both held arms were pushed away; both set-points realign, then both arms move."""
    two.play(20).play(40, left={"wrench": (25.0, 0.0)})
    for rig in two.rigs.values():
        rig.follow = False
        rig.pose = (rig.pose[0] - 0.02, *rig.pose[1:])
    two.play(5, left={"wrench": (0.0, 0.0)})
    for _ in range(30):
        two.play(10)
        if two.modes() == [(Mode.ACTIVE, "")] * 2:
            break
        for rig in two.rigs.values():
            assert rig.state.cause in ("contact", "arm:left", "arm:right", "realigning")
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


def test_s27_who_holds_and_goes_on_in_one_tick_holds_nobody(two):
    """The enable is released in the tick in which the operator takes over."""
    for rig in two.rigs.values():
        rig.limits = limits(enable_lease=60.0)
    held = {"enable": True, "enable_age_s": 0.0}
    two.play(20, left=held, right=held)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2
    for name, rig in two.rigs.items():
        hand = chunk(1, two.now, ((0.0, 0.01, 0.0),), source="operator", session="o")
        rig.tick(hand, others=tuple(ArmReport(other, "") for other in two.rigs if other != name))
        two.blocked[name] = rig.output.blocked
    assert two.modes() == [(Mode.ACTIVE, "")] * 2 and set(two.blocked.values()) == {FREE}


def test_s27_a_new_scene_forgets_what_held_another_arm(two):
    two.play(20)
    for rig in two.rigs.values():
        rig.pose = (0.4, 0.1, *rig.pose[2:])
    two.blocked["right"] = "state_jump"
    restart = {"restart": True, "end_episode": True}
    two.tick({"left": (0.01, 0.0, 0.0), "right": (0.01, 0.0, 0.0)}, left=restart, right=restart)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


@pytest.mark.parametrize("two", [S9], indirect=True)
@pytest.mark.parametrize("silent_ticks", [10, 13, 22])
def test_s27_arms_of_which_one_still_brakes_are_handed_back_together(two, silent_ticks):
    """An arm that rests does not follow the policy alone, while the other has not come to rest of
    the operator (S16).
    """
    *_, commands = two.stream(78, "policy", "operator")
    assert commands == ["operator"] * 2 and two.still() == [True, False]
    list(two.stream(silent_ticks - 1))  # in the first ten the operator's last chunk still counts
    two.release()
    rested = two.left.pose
    while not two.right.state.still:
        assert [*two.stream(1, "policy")] == [["", ""]] and two.left.pose == rested
    *_, commands = two.stream(12, "policy")
    assert commands == ["policy"] * 2 and two.modes() == [(Mode.ACTIVE, "")] * 2


@pytest.mark.parametrize("two", [S9], indirect=True)
def test_s27_an_operator_does_not_wait_for_an_arm_that_they_have_moved(two):
    list(two.stream(78, "operator"))
    list(two.stream(19, "policy"))
    two.release()
    assert two.blocked == {"left": FREE, "right": "handing_back"} and two.still() == [True, False]
    for commands in two.stream(30, "policy", "operator"):
        assert commands == ["operator"] * 2


@pytest.mark.parametrize("moved", [False, True])
def test_s27_where_one_is_not_enabled_the_policy_moves_neither_and_an_operator_both(two, moved):
    """Each hears the enable itself, and goes by its own lease."""
    two.left.limits = limits(enable_lease=60.0)
    held, old = {"enable": True, "enable_age_s": 0.0}, {"enable": True, "enable_age_s": 60.1}
    if moved:
        *_, commands = two.stream(30, "policy", left=held)
        assert commands == ["policy"] * 2
    list(two.stream(2, "policy", left=old))
    for commands in two.stream(60, "policy", left=old):
        assert commands == ["", ""] and two.blocked == {"left": "enable", "right": FREE}
    *_, commands = two.stream(12, "policy", "operator", left=old)
    assert commands == ["operator"] * 2
    two.release()
    *_, commands = two.stream(80, "policy", left=held)
    assert commands == ["policy"] * 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.sampled_from(
                [
                    {"robot_fault": "x"},
                    {"wrench": (25.0, 0.0)},
                    {"wrench": (0.0, 0.0)},
                    {"arm": False},
                    {"arm": True},
                    {"silent": ("y",)},
                    {"reset_fault": "robot:x"},
                    {},
                ]
            ),
            st.integers(1, 25),
        ),
        max_size=12,
    )
)
def test_s27_where_one_has_stopped_for_good_the_other_rests_and_nobody_is_stuck(steps):
    two = Two()
    for _ in range(20):
        two.tick()
    two.tick(left={"arm": True}, right={"arm": True})
    for name, inputs, ticks in steps:
        two.tick(**{name: inputs}).play(ticks - 1)
        for one, other in (("left", "right"), ("right", "left")):
            before = two.blocked[one]
            if before in STOPPED:
                two.tick()
                assert two.rigs[other].state.mode is not Mode.ACTIVE
    for _ in range(2):
        calm = {
            name: {"wrench": (0.0, 0.0), "reset_fault": rig.state.cause}
            for name, rig in two.rigs.items()
        }
        two.tick(**calm).tick().tick(left={"arm": True}, right={"arm": True})
    two.play(200)
    assert two.modes() == [(Mode.ACTIVE, "")] * 2


@pytest.mark.parametrize(
    "reasons, counts",
    [
        (["", "handing_back"], "handing_back"),
        (["handing_back", ""], "handing_back"),
        (["enable", "contact", ""], "contact"),
        (["contact", "enable"], "contact"),
        (["", ""], FREE),
    ],
)
def test_s27_what_only_the_policy_waits_for_hides_nothing_that_was_said_since_the_last_tick(
    reasons, counts
):
    other_arm = pytest.importorskip("rlinf_interlock.interlock_inputs").OtherArm("left")
    for stamp_ns, blocked in enumerate(reasons):
        other_arm.update(stamp_ns, blocked)
    assert other_arm.now(None) == ArmReport("left", counts)


@pytest.mark.parametrize(
    "rows, share, embed",
    [
        (FULL_ACTION, ((1.0, 2.0, 3.0, 4.0),), (5.0,)),
        (ActionSlice(0, 2, 4), ((1.0, 2.0),), (5.0, 6.0, 0.0, 0.0)),
        (ActionSlice(2, 4, 4), ((3.0, 4.0),), (0.0, 0.0, 5.0, 6.0)),
    ],
)
def test_an_arms_share_of_an_action_and_its_place_in_it(rows, share, embed):
    assert (
        rows.part(((1.0, 2.0, 3.0, 4.0),)) == share
        and rows.embed((5.0, 6.0)[: max(1, rows.end - rows.first)]) == embed
    )


def test_s05_a_number_that_is_none_refuses_the_actions_of_all_arms():
    ((value, *_),) = ActionSlice(0, 2, 4).part(((1.0, 2.0, 3.0, math.inf),))
    assert math.isnan(value) and ActionSlice(0, 2, 4).part(()) == ()
