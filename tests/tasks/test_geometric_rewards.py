"""Rewards by where things are: each bound is met from both sides."""

from collections import Counter

import numpy as np
import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.tasks.rewards import (
    REWARD,
    CanAbstain,
    Shaped,
    Stateful,
    make_success,
    reward_class,
    reward_names,
)
from rlinf_core.tasks.rewards.arms import PerArmReward, PerArmShapedReward, channels_of_arm, per_arm
from rlinf_core.tasks.rewards.geometry import (
    External,
    Insertion,
    Outside,
    Place,
    Push,
    Reach,
    Stack,
)


def places(tool=(0, 0, 0), thing=(0, 0, 0), goal=(0, 0, 0), width=0.0, speed=(0, 0, 0)):
    poses = {
        f"{name}_pose": np.array([*at, 0.1, 0.2, 0.3, 0.9], float)
        for name, at in (("current", tool), ("object", thing), ("goal", goal))
    }
    twist = np.array([*speed, 9.0, 9.0, 9.0])
    return poses | {"current_twist": twist, "gripper/state": np.array([width, 5.0])}


def test_reach_is_the_distance_to_a_point_above_the_object_or_the_goal():
    reach = Reach(height=0.1, radius=0.02)
    at = {"thing": (0.5, 0.2, 0.3), "goal": (9, 9, 9)}
    assert reach.away(places((0.5, 0.2, 0.4), **at)) == pytest.approx(0.0)
    assert reach.away(places((0.53, 0.2, 0.44), **at)) == pytest.approx(0.05)
    assert reach(places((0.5, 0.219, 0.4), **at)) and not reach(places((0.5, 0.221, 0.4), **at))
    assert not Reach(height=0.0, radius=0.25)(places((0.25, 0, 0))), "the radius itself is not near"
    assert reach.progress(places((0.5, 0.2, 0.4), **at)) == pytest.approx(1.0)
    assert reach.progress(places((0.7, 0.2, 0.4), **at)) == pytest.approx(1 - np.tanh(1.0))
    goal = Reach(to="goal", height=0.0)
    assert goal(places((9, 9, 9.01), **at)) and goal.channels == ("current_pose", "goal_pose")
    assert (Reach().height, Reach().radius) == (0.03, 0.02)


def test_place_needs_the_object_at_its_goal_and_a_slow_tool():
    place = Place(radius=0.05, speed=0.1)
    goal = (0.3, 0.2, 0.1)
    assert place(places((5, 5, 5), (0.3, 0.2, 0.149), goal, speed=(0, 0, 0.099)))
    assert not place(places((5, 5, 5), (0.3, 0.2, 0.151), goal))
    assert not place(places((5, 5, 5), goal, goal, speed=(0.08, 0.08, 0)))
    assert not place(places(thing=(0.05, 0, 0))) and not place(places(speed=(0.1, 0, 0)))


@pytest.mark.parametrize(
    "tool, thing, goal, width, expected",
    [
        ((0, 0, 0), (0, 0, 0), (0, 0, 0), 0.0, 5.0),
        ((0, 0, 0), (0, 0, 0), (0, 0, 0), 0.04, 4.5),
        ((0, 0, 0), (0, 0, 0), (0, 0, 0), 0.2, 4.0),
        ((0, 0, 0), (0, 0, 0), (0, 0, 0.2), 0.08, 1.0 + 3.0 * (1 - np.tanh(1.0))),
        ((0.02, 0, 0), (0, 0, 0), (0, 0, 0), 0.0, (1 - np.tanh(0.1)) + np.exp(-1.0) + 3.0),
        ((1, 2, 3.4), (1, 2, 3), (1, 2, 3), 0.0, (1 - np.tanh(2.0)) + 3.0),
    ],
)
def test_progress_of_a_placement_has_three_terms(tool, thing, goal, width, expected):
    assert Place().progress(places(tool, thing, goal, width)) == pytest.approx(expected)


def test_push_may_ignore_heights():
    push, high = Push(radius=0.05), Push(radius=0.05, flat=False)
    at = places((0.2, 0.2, 0.6), (0.2, 0.2, 0.2), (0.23, 0.24, 0.9))
    assert push.away(at) == pytest.approx(0.05)
    assert high.away(at) == pytest.approx(np.hypot(0.05, 0.7))
    assert push(places(thing=(0.03, 0.039, 1))) and not push(places(thing=(0.03, 0.041, 0)))
    assert not Push(radius=0.25)(places(thing=(0.25, 0, 0)))
    expected = 4 - np.tanh(5 * 0.4) - 3 * np.tanh(5 * 0.05)
    assert push.progress(at) == pytest.approx(expected)
    assert high.progress(at) == pytest.approx(4 - np.tanh(2) - 3 * np.tanh(5 * high.away(at)))


ON = {"tool": (0.3, 0.2, 0.3), "thing": (0.3, 0.2, 0.14), "goal": (0.3, 0.2, 0.1)}


@pytest.mark.parametrize(
    "change, rests",
    [
        ({}, True),
        ({"thing": (0.317, 0.224, 0.14)}, True),
        ({"thing": (0.319, 0.224, 0.14)}, False),
        ({"thing": (0.281, 0.176, 0.14)}, False),
        ({"thing": (0.3, 0.2, 0.1479)}, True),
        ({"thing": (0.3, 0.2, 0.1481)}, False),
        ({"thing": (0.3, 0.2, 0.1321)}, True),
        ({"thing": (0.3, 0.2, 0.1319)}, False),
        ({"tool": (0.33, 0.24, 0.141)}, True),
        ({"tool": (0.33, 0.239, 0.14)}, False),
    ],
)
def test_a_stack_rests_at_its_height_over_the_other_and_the_tool_is_clear(change, rests):
    assert Stack()(places(**(ON | change))) is rests


def test_the_bounds_of_a_stack_themselves_do_not_count():
    stack = Stack(height=0.5, radius=0.25, slack=0.125, clear=1.0)
    assert stack(places((3, 0, 0), (0.125, 0, 0.5)))
    assert not stack(places((3, 0, 0), (0.25, 0, 0.5)))
    assert not stack(places((3, 0, 0), (0, 0, 0.625)))
    assert not stack(places((0, 0, 1.5), (0, 0, 0.5)))


@pytest.mark.parametrize(
    "tool, inside",
    [
        ((0.5, 0.2, 0.079), True),
        ((0.5, 0.2, 0.081), False),
        ((0.5, 0.2, 0.12), False),
        ((0.5055, 0.2082, 0.079), True),
        ((0.5065, 0.2082, 0.079), False),
        ((0.4935, 0.1918, 0.079), False),
    ],
)
def test_an_insertion_is_below_the_rim_and_near_its_centre(tool, inside):
    assert Insertion()(places(tool, (0.5, 0.2, 0.1))) is inside
    assert Insertion.channels == ("current_pose", "object_pose")


def test_the_bounds_of_an_insertion_themselves_do_not_count():
    insertion = Insertion(depth=0.5, radius=0.25)
    assert insertion(places((0.125, 0, -0.75))) and not insertion(places((0.125, 0, -0.5)))
    assert not insertion(places((0.25, 0, -0.75)))


@pytest.mark.parametrize("axis", range(3))
def test_outside_of_a_box_is_beyond_any_of_its_sides(axis):
    outside = Outside(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))
    for value, beyond in ((-1.0, False), (1.0, False), (-1.01, True), (1.01, True), (0.0, False)):
        position = np.zeros(3)
        position[axis] = value
        assert outside(places(thing=position, tool=(5, 5, 5))) is beyond
    other = Outside(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0), what="current_pose")
    assert other(places((5, 5, 5))) and other.channels == ("current_pose",)
    low = [1.0 if place == axis else 0.0 for place in range(3)]
    assert Outside(low=tuple(low), high=(1.0, 1.0, 1.0)).channels == ("object_pose",)
    high = [0.5 if place == axis else 1.0 for place in range(3)]
    with pytest.raises(RecipeError) as error:
        Outside(low=tuple(low), high=tuple(high))
    assert str(error.value) == f"failure.low: expected at most high {high}, got {low}"


@pytest.mark.parametrize(
    "signal, success", [([], False), ([0.5], False), ([0.51], True), ([0.0, 1.0], False)]
)
def test_an_external_signal_is_above_its_threshold(signal, success):
    assert External()({"task/success": np.array(signal)}) is success
    assert External(threshold=-1.0)({"task/success": np.array(signal)}) is bool(signal)


def test_rewards_are_found_by_their_kind():
    assert reward_names() == sorted(reward_names()) and {"reach", "vlm", "stack"} <= set(
        reward_names()
    )
    assert reward_class("reach") is Reach and reward_class("external") is External
    with pytest.raises(
        RecipeError, match=r"^reward.kind: .*outside, place, .*'reech' \(did you mean 'reach'\?\)"
    ):
        reward_class("reech")
    settings = REWARD.of({"kind": "push"})(kind="push", radius=0.1)
    assert make_success(settings) == Push(radius=0.1, flat=True)
    assert isinstance(Push(), Shaped) and not isinstance(Stack(), Shaped)
    assert not isinstance(Push(), Stateful) and not isinstance(Push(), CanAbstain)


def test_a_reward_that_is_installed_is_one_of_the_names(tmp_path, monkeypatch):
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info/METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (tmp_path / "mine-1.0.dist-info/entry_points.txt").write_text(
        "[rlinf.rewards]\nweighed = collections:Counter\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "weighed" in reward_names() and reward_class("weighed") is Counter


def test_the_corners_of_a_box_have_the_same_number_of_axes():
    with pytest.raises(ValueError, match="shorter|longer"):
        Outside(low=(0.0, 0.0), high=(1.0, 1.0, 1.0))


ARMS = ("left", "right")


def of_arms(left, right):
    return {
        f"{arm}/{name}": pose
        for arm, at in (("left", left), ("right", right))
        for name, pose in places(at).items()
    }


def test_a_term_for_one_arm_is_asked_of_each():
    near, far = (0, 0, 0.03), (0, 0, 0.5)
    both, either = per_arm(Reach(), ARMS, all), per_arm(Reach(), ARMS, any)
    assert both.channels == (
        "left/current_pose",
        "right/current_pose",
        "left/object_pose",
        "right/object_pose",
    )
    answers = [
        (both(of_arms(*at)), either(of_arms(*at)))
        for at in ((near, near), (near, far), (far, near), (far, far))
    ]
    assert answers == [(True, True), (False, True), (False, True), (False, False)]
    assert both.trouble == "" and isinstance(both, PerArmShapedReward)
    both.begin()
    single = [Reach().progress(places(at)) for at in (near, far)]
    assert both.progress(of_arms(near, far)) == pytest.approx(np.mean(single))
    assert both.terms["left"] is both.terms["right"], "without a memory one is enough"
    insertion = per_arm(Insertion(), ARMS, all)
    assert type(insertion) is PerArmReward and not isinstance(insertion, Shaped)


def test_the_channels_of_an_arm_are_its_own_without_its_name_and_those_of_no_arm():
    channels = of_arms((1, 0, 0), (2, 0, 0)) | {"task/success": np.ones(1)}
    left = channels_of_arm(channels, "left")
    assert left.keys() == {*places(), "task/success"} and left["current_pose"][0] == 1
    assert channels_of_arm(channels, "right")["current_pose"][0] == 2


def test_a_term_is_left_alone_where_there_is_one_arm_or_it_names_its_own():
    reach, external = Reach(), External()
    assert per_arm(reach, (), all) is reach
    assert per_arm(external, ARMS, any) is external, "its signal is no arm's"
    named = Outside(low=(0, 0, 0), high=(1, 1, 1), what="left/current_pose")
    assert per_arm(named, ARMS, any) is named
