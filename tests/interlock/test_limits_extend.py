"""Limits that extend others: whose value counts, what is refused, which maxima bind, and what the
hash is of.
"""

import os
from dataclasses import asdict, replace

import pytest
import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import load_limits, loosest
from rlinf_core.interlock.limits_file import takes_box_from

BASE = """\
# shared
speed: 0.25
acceleration: 4.0
jerk: 10.0
divergence: 0.03
cone: 0.5
joint_names: [a, b]
joint_low: [-1, -2]
joint_high: [1, 2]
"""
ARM_LIMITS = """\
extends: ../shared/limits.yaml
box_low: [0.3, -0.25, 0.005]
box_high: [0.7, 0.25, 0.45]
orientation: [0.0, 1.0, 0.0, 0.0]
"""


@pytest.fixture
def files(tmp_path):
    """Return the two, by path."""
    for folder, text in (("shared", BASE), ("arm", ARM_LIMITS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "limits.yaml").write_text(text)
    return tmp_path / "arm/limits.yaml", tmp_path / "shared/limits.yaml"


def refusal(path):
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    return str(error.value)


def test_the_files_own_value_goes_before_the_others_and_the_others_before_the_default(files):
    arm_file, _ = files
    arm_file.write_text(ARM_LIMITS + "speed: 0.1\ngripper_width: 0.08\n")
    limits = load_limits(arm_file)
    assert (limits.speed, limits.cone, limits.gripper_width, limits.tick) == (0.1, 0.5, 0.08, 0.01)
    assert limits.box_low == (0.3, -0.25, 0.005) and limits.joint_names == ("a", "b")


def test_the_path_is_from_the_file_that_says_it_or_absolute(files, monkeypatch):
    arm_file, shared = files
    monkeypatch.chdir(shared.parent)
    assert load_limits(os.path.relpath(arm_file)) == load_limits(arm_file)
    arm_file.write_text(ARM_LIMITS.replace("../shared/limits.yaml", str(shared)))
    assert load_limits(arm_file).speed == 0.25


def test_the_hash_is_of_all_values_wherever_they_stand(files, tmp_path):
    arm_file, shared = files
    merged = tmp_path / "whole.yaml"
    merged.write_text(
        yaml.safe_dump(
            yaml.safe_load(BASE)
            | {
                name: value
                for name, value in yaml.safe_load(ARM_LIMITS).items()
                if name != "extends"
            }
        )
    )
    assert load_limits(merged).hash == load_limits(arm_file).hash
    before = load_limits(arm_file)
    shared.write_text(BASE.replace("cone: 0.5", "cone: 0.4"))
    assert (
        load_limits(arm_file) == replace(before, cone=0.4)
        and load_limits(arm_file).hash != before.hash
    )
    assert "extends" not in asdict(before)


@pytest.mark.parametrize(
    "line, message",
    [
        ("sped: 0.1", "line 10: unknown limit 'sped' (did you mean 'speed'?)"),
        (
            "tick: 9",
            "line 10: 'tick': expected a number in [0.001, 0.1] s (or 'unlimited', spelled out), "
            "got 9",
        ),
        ("speed: 0.1", "line 10: 'speed' occurs twice, first in line 2"),
        ("stale_state: 0.9", "line 10: 'stale_state' 0.9 must not exceed 'lost_state' 0.5"),
    ],
)
def test_a_mistake_in_what_is_extended_is_said_with_its_own_file_and_line(files, line, message):
    arm_file, shared = files
    shared.write_text(f"{BASE}{line}\n")
    assert refusal(arm_file) == f"limits {shared}, {message}"


def test_what_is_overridden_is_checked_all_the_same(files):
    arm_file, shared = files
    arm_file.write_text(ARM_LIMITS + "cone: 0.4\n")
    shared.write_text(BASE.replace("cone: 0.5", "cone: 5"))
    assert refusal(arm_file).startswith(f"limits {shared}, line 6: 'cone': expected a number in ")


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "extend: ../shared/limits.yaml",
            "line 1: unknown limit 'extend' (did you mean 'extends'?)",
        ),
        ("extends: ../shard/limits.yaml", "got '../shard/limits.yaml'"),
        ("extends: ../shared", "got '../shared'"),
        ("extends:", "got None"),
        ("extends: [../shared/limits.yaml]", "got ['../shared/limits.yaml']"),
    ],
)
def test_what_is_no_file_is_refused_with_the_line(files, line, message):
    arm_file, _ = files
    arm_file.write_text(ARM_LIMITS.replace("extends: ../shared/limits.yaml", line))
    if message.startswith("got"):
        message = (
            f"line 1: 'extends': expected the path of a limits YAML, from "
            f"{arm_file.parent}, {message}"
        )
    assert refusal(arm_file) == f"limits {arm_file}, {message}"


def test_what_is_extended_extends_nothing(files):
    arm_file, shared = files
    shared.write_text(BASE + "extends: ../arm/limits.yaml\n")
    assert refusal(arm_file) == (
        f"limits {shared}, line 10: 'extends': expected none in a file that another one extends "
        f"({arm_file}, line 1)"
    )
    arm_file.write_text(ARM_LIMITS.replace("../shared/", ""))
    assert "expected none in a file that another one extends" in refusal(arm_file), (
        "not itself either"
    )


def test_what_neither_says_is_missing_in_the_file_itself(files):
    arm_file, shared = files
    shared.write_text(BASE.replace("speed: 0.25\n", ""))
    assert refusal(arm_file).startswith(f"limits {arm_file}: 'speed' is missing: largest speed")


def test_the_maxima_beside_both_files_bind(files):
    """A folder of one's own that extends an arm's limits cannot leave that arm's maxima behind."""
    arm_file, shared = files
    (shared.parent / "maximum.yaml").write_text(
        "speed: 0.5\ncone: 0.6\njoint_low: [-1.5, -3]\njoint_margin: 0.05\n"
    )
    arm_file.write_text(ARM_LIMITS + "speed: 0.6\n")
    assert (
        refusal(arm_file)
        == f"limits {arm_file}, line 5: 'speed' 0.6 is looser than the robot's own 0.5 "
        f"(maximum.yaml, line 1)"
    )
    arm_file.write_text(ARM_LIMITS + "cone: 0.45\n")
    (arm_file.parent / "maximum.yaml").write_text("cone: 0.4\n")
    assert (
        refusal(arm_file)
        == f"limits {arm_file}, line 5: 'cone' 0.45 is looser than the robot's own 0.4 "
        f"(maximum.yaml, line 1)"
    )
    arm_file.write_text(ARM_LIMITS)
    assert (
        refusal(arm_file)
        == f"limits {shared}, line 6: 'cone' 0.5 is looser than the robot's own 0.4 (maximum.yaml, "
        f"line 1)"
    )


def test_the_loosest_is_the_tighter_of_both_maxima_number_by_number(files):
    arm_file, shared = files
    (shared.parent / "maximum.yaml").write_text(
        "speed: 0.5\ncone: 0.6\njoint_low: [-1.5, -3]\nframe: base_link\n"
    )
    (arm_file.parent / "maximum.yaml").write_text(
        "speed: 0.4\njoint_low: [-2, -2.5]\njoint_margin: 0.05\nframe: base_link\n"
    )
    assert loosest(arm_file) == replace(
        load_limits(arm_file), speed=0.4, cone=0.6, joint_low=(-1.5, -2.5), joint_margin=0.05
    )
    (arm_file.parent / "maximum.yaml").write_text("joint_low: [-2]\n")
    assert "joint_low" in refusal(arm_file), "as many as there are joints"


def test_a_maximum_extends_nothing(files):
    arm_file, _ = files
    maximum = arm_file.parent / "maximum.yaml"
    maximum.write_text("cone: 0.6\nextends: ../shared/limits.yaml\n")
    assert (
        refusal(arm_file) == f"limits {maximum}, line 2: 'extends': expected none in maximum.yaml"
    )


def test_a_box_is_of_the_same_file_or_of_the_one_that_is_extended_without_its_own(files):
    arm_file, shared = files
    other = arm_file.with_name("other.yaml")
    assert takes_box_from(arm_file, arm_file) and not takes_box_from(arm_file, shared)
    box = ARM_LIMITS.partition("\n")[2]
    for keys, taken in (
        ("", True),
        ("box_low: [0.4, -0.1, 0.1]\n", True),
        ("box_high: [0.6, 0.1, 0.4]\n", True),
        (box, False),
    ):
        other.write_text(f"extends: limits.yaml\n{keys}")
        assert takes_box_from(other, arm_file) is taken, keys
        assert not takes_box_from(other, shared)
