"""The way to a robot's home: through the interlock it ends there, and a home that cannot be reached
is refused.
"""

from pathlib import Path

import numpy as np
import pytest

from rlinf_core.core.errors import RlinfError
from rlinf_core.core.rotation import angle, inverse, product, to_quaternion
from rlinf_core.interlock import Mode
from rlinf_core.launch.graph import home_parameters
from rlinf_core.recipes import load_recipe
from rlinf_core.robots.config import Home
from rlinf_core.robots.operators.homing import Goal, Homes, home_goal, next_action
from rlinf_core.specs.arrays import ActionSpec
from rlinf_core.specs.ros_parameters import flattened, from_parameters
from tests.interlock.conftest import HOME, JOINTS, Rig, joint_limits, limits, stream

TOOL = ActionSpec(
    "tcp_delta",
    ("dx", "dy", "dz", "rx", "ry", "rz", "grip"),
    (0.02,) * 3 + (0.1,) * 3 + (0.04,),
    ("m",) * 3 + ("rad",) * 3 + ("m",),
)
ARM = ActionSpec(
    "joint_delta", tuple(f"d{number}" for number in range(7)), (0.05,) * 7, ("rad",) * 7
)
LIMITS = Path("robots/franka_fr3/limits.yaml").resolve()
NAMES = [f"fr3_joint{number}" for number in range(1, 8)]


def hand():
    return Rig(limits(gripper_width=0.08, gripper_speed=0.2), gripper=0.04).arm()


def go(rig, goal, action, joints=()):
    """Home like the operator's node; return the number of actions until the arm is near."""
    for number in range(200):
        delta = goal.remaining(
            action, np.array(rig.pose), dict(zip(joints, rig.joints or (), strict=False))
        )
        if goal.is_reached(delta):
            return number
        requested = next_action(delta, action, 10.0)
        assert np.abs(requested).max() <= 0.5 + 1e-9, "half of the task's largest action"
        stream(rig, action.to_si(requested), 1, "operator", seq=number + 1)
        assert rig.state.mode is Mode.ACTIVE
    raise AssertionError(f"{delta} is left")


@pytest.mark.parametrize("turn", [(0.0, 0.0, 0.4), (0.2, -0.3, 0.0)])
def test_the_tool_comes_home_turned_as_it_should_be_behind_the_interlock(turn):
    orientation = product(to_quaternion(turn), HOME[3:])
    rig, goal = hand(), Goal((0.35, 0.2, 0.4, *orientation))
    assert 10 < go(rig, goal, TOOL) < 120
    assert np.linalg.norm(np.subtract(rig.pose[:3], goal.pose[:3])) < 0.005
    assert angle(product(orientation, inverse(rig.pose[3:]))) < 0.03 and rig.gripper == 0.04


def test_without_an_orientation_and_where_the_task_does_not_turn_it_the_tool_stays_turned_as_it_is():
    for action, pose in (
        (TOOL, (0.35, 0.2, 0.4)),
        (
            ActionSpec("tcp_delta", TOOL.names[:3], TOOL.scale[:3], ("m",) * 3),
            (0.35, 0.2, 0.4, *product(to_quaternion((0.0, 0.0, 0.4)), HOME[3:])),
        ),
    ):
        rig = hand()
        go(rig, Goal(pose), action)
        assert angle(product(HOME[3:], inverse(rig.pose[3:]))) < 1e-6


def test_joints_come_home_by_their_names():
    home_joints = dict(zip(NAMES, (0.5, 0.0, 0.3, -1.8, 0.1, 2.0, 0.0), strict=True))
    rig = Rig(
        joint_limits(joint_speed=1.0, joint_acceleration=5.0, joint_divergence=0.2), joints=JOINTS
    ).arm()
    go(rig, Goal(joints=home_joints), ARM, NAMES)
    assert rig.joints == pytest.approx(tuple(home_joints.values()), abs=0.03)
    with pytest.raises(KeyError):
        Goal(joints=home_joints).remaining(ARM, np.zeros(7), {"fr3_joint1": 0.0})


def homes_of(folder, yaml, task="reach"):
    limits = "" if "arms:" in yaml else f"limits: {LIMITS}"
    (folder / "robot.yaml").write_text(f"driver: external\n{limits}\n{yaml}\n")
    return home_parameters(
        load_recipe(
            "demo",
            [f"station.robot={folder}", f"station.task={task}", "station.operator.kind=keyboard"],
        )
    )


def test_what_the_operator_is_told_is_the_yamls(tmp_path):
    homes = Homes.from_document(
        from_parameters(
            flattened(
                homes_of(tmp_path, "home: {position: [0.5, 0.1, 0.3], orientation: [1, 0, 0, 0]}")
            )
        )
    )
    assert homes.goals == {"": Goal((0.5, 0.1, 0.3, 1.0, 0.0, 0.0, 0.0))} and homes.lease_s > 0
    assert homes_of(tmp_path, "") == {}


@pytest.mark.parametrize(
    "yaml, reason",
    [
        (
            "home: {position: [0.5, 0.1, 0.9]}",
            "home: expected z within the limits, 0.02 to 0.4, got 0.9. Move it, or widen",
        ),
        (
            "home: {joints: {fr3_joint1: 0.0}}",
            "home: expected 'position', since the task moves the tool, got only joints",
        ),
        (
            "home: {position: [0.5, 0.1, 0.3], orientation: [0, 0, 0, 1]}",
            "expected an orientation within the limits' cone",
        ),
        (
            "home: {position: [0.5, 0.1, 0.3], orientation: [0, 1, 0, 1]}",
            "expected a quaternion of length 1",
        ),
        ("home: {}", "expected 'position' (of the tool) or 'joints', got neither"),
        ("home: {positon: [0.5, 0.1, 0.3]}", "did you mean 'position'"),
        ("home: {position: [0.5, 0.1, .nan]}", "position"),
        (
            f"arms: {{a: {{limits: {LIMITS}}}, b: {{limits: {LIMITS}}}}}\nhome: {{position: [0.5, "
            f"0.1, 0.3]}}",
            "With several arms, each has its own",
        ),
    ],
)
def test_a_home_that_cannot_be_reached_is_refused_before_anything_starts(tmp_path, yaml, reason):
    with pytest.raises(RlinfError) as error:
        homes_of(tmp_path, yaml)
    assert reason in str(error.value)


@pytest.mark.parametrize("angle_rad, refused", [(-2.70, True), (-2.65, True), (-2.63, False)])
def test_a_home_so_near_the_end_of_a_joint_that_the_interlock_stops_before_it_is_refused(
    angle_rad, refused
):
    home = Home(joints=dict(zip(NAMES, (angle_rad, *JOINTS[1:]), strict=True)))
    if refused:
        with pytest.raises(RlinfError, match=r"expected fr3_joint1 within the limits, -2.64"):
            home_goal("home", home, "joint_delta", joint_limits())
    else:
        assert (
            home_goal("home", home, "joint_delta", joint_limits()).joints["fr3_joint1"] == angle_rad
        )
