"""The robot's own maxima: no limit may be looser."""

from dataclasses import replace

import pytest

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import load_limits, loosest
from rlinf_core.interlock.limits_file import names_with_maximum
from tests.interlock.test_limits_messages import GOOD, JOINTS, written


@pytest.fixture
def robot(tmp_path):
    (tmp_path / "maximum.yaml").write_text(
        "speed: 0.5\ncone: 0.6\njoint_low: [-2, -2]\njoint_margin: 0.05\n"
    )
    return tmp_path


def test_nothing_may_be_looser_than_the_robots_own(robot):
    path = written(robot, GOOD, "speed: 0.6")
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == (
        f"limits {path}, line 3: 'speed' 0.6 is looser than the robot's own 0.5 "
        "(maximum.yaml, line 1)"
    )
    path = written(robot, GOOD, "joint_margin: 0.01")
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == (
        f"limits {path}, line 9: 'joint_margin' 0.01 is looser than the robot's own 0.05 "
        "(maximum.yaml, line 4)"
    )
    path = written(robot, GOOD.replace("speed: 0.25\n", "speed: 0.5\n"), "cone: 0.7")
    with pytest.raises(
        RecipeError,
        match="line 8: 'cone' 0.7 is looser than the robot's own 0.6 .maximum.yaml, line 2",
    ):
        load_limits(path)


def test_the_default_of_a_limit_meets_the_maximum_too(robot):
    (robot / "maximum.yaml").write_text("rotation_speed: 0.4\n")
    path = written(robot, GOOD)
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == (
        f"limits {path}: 'rotation_speed' 0.5 is looser than the robot's own 0.4 "
        "(maximum.yaml, line 1)"
    )


@pytest.mark.parametrize(
    "line, message",
    [
        ("sped: 1", "line 2: unknown limit 'sped' (did you mean 'speed'?)"),
        (
            "cone: 9",
            "line 2: 'cone': expected a number in [0.01, 2.8] rad (or 'unlimited', spelled out), "
            "got 9",
        ),
    ],
)
def test_a_wrong_maximum_is_said_with_its_line(robot, line, message):
    path = written(robot, GOOD)
    (robot / "maximum.yaml").write_text(f"speed: 0.5\n{line}\n")
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == f"limits {robot / 'maximum.yaml'}, {message}"


def test_the_loosest_are_the_robots_own_where_it_has_any(robot):
    path = written(robot, GOOD)
    limits = load_limits(path)
    assert loosest(path) == replace(limits, speed=0.5, cone=0.6, joint_margin=0.05), (
        "its joints are not spoken of here"
    )
    with_joints = written(robot, JOINTS)
    assert loosest(with_joints).joint_low == (-2.0, -2.0)
    (robot / "maximum.yaml").unlink()
    assert loosest(path) == load_limits(path)


def test_the_limits_with_maxima_of_the_robot_are_known_by_name(robot, tmp_path_factory):
    assert names_with_maximum(written(robot, GOOD)) == {"speed", "cone", "joint_margin"}
    assert names_with_maximum(written(tmp_path_factory.mktemp("free"), GOOD)) == set()
