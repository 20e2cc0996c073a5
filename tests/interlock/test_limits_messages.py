"""The exact errors of limits.py with their lines, its schema, and its directions."""

import json
import math
from dataclasses import MISSING, replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.interlock import limits as module
from rlinf_core.interlock import load_limits, loosened_limits, with_values
from rlinf_core.interlock.limits import TABLE, Limits
from rlinf_core.interlock.limits_file import schema

SCHEMA = json.loads(Path("docs/limits.schema.json").read_text())
GOOD = """\
box_low: [0.3, -0.25, 0.005]
box_high: [0.7, 0.25, 0.45]
speed: 0.25
acceleration: 4.0
jerk: unlimited
divergence: 0.03
orientation: [0.0, 1.0, 0.0, 0.0]
cone: 0.5
"""
JOINTS = (
    GOOD
    + """\
joint_names: [a, b]
joint_low: [-1, -2]
joint_high: [1, 2]
"""
)
SPEED = "line 3: 'speed': expected a number in [0.001, 3.0] m/s (or 'unlimited', spelled out), got "
ORIENTATION = "line 7: 'orientation': expected a unit quaternion x y z w, got one of length "
MESSAGES = [
    (
        GOOD,
        "cone: unlimited",
        "line 8: 'cone': expected at most 2.8 rad in tcp_delta, since a tool beyond would return "
        "the long way around, got 'unlimited'",
    ),
    (GOOD, "tick: unlimited", "line 9: 'tick': expected a period, got 'unlimited'"),
    (GOOD, "sped: 1", "line 9: unknown limit 'sped' (did you mean 'speed'?)"),
    (GOOD, "zzz: 1", "line 9: unknown limit 'zzz'"),
    (GOOD, "7: 1", "line 9: unknown limit '7'"),
    (GOOD, "speed: 3.5", SPEED + "3.5"),
    (GOOD, "speed: .inf", SPEED + "inf"),
    (GOOD, "speed: .nan", SPEED + "nan"),
    (GOOD, "speed: fast", SPEED + "'fast'"),
    (GOOD, "speed: joint_delta", SPEED + "'joint_delta'"),
    (GOOD, "speed: [0.2]", SPEED + "[0.2]"),
    (GOOD, "speed: true", SPEED + "True"),
    (GOOD, "speed:", SPEED + "None"),
    (
        GOOD,
        "jump_factor: 0",
        "line 9: 'jump_factor': expected a number in [1.0, 100.0] (or 'unlimited', spelled out), "
        "got 0",
    ),
    (
        GOOD,
        "box_low: [0.3, 0]",
        "line 1: 'box_low': expected three numbers in [-3, 3] m, got [0.3, 0]",
    ),
    (GOOD, "box_low: 0.3", "line 1: 'box_low': expected three numbers in [-3, 3] m, got 0.3"),
    (
        GOOD,
        "box_low: unlimited",
        "line 1: 'box_low': expected three numbers in [-3, 3] m, got 'unlimited'",
    ),
    (
        GOOD,
        "box_low: [0.3, 0, 0, 0]",
        "line 1: 'box_low': expected three numbers in [-3, 3] m, got [0.3, 0, 0, 0]",
    ),
    (
        GOOD,
        "box_low: [0.3, 0, -4]",
        "line 1: 'box_low': expected three numbers in [-3, 3] m, got [0.3, 0, -4]",
    ),
    (
        GOOD,
        "orientation: [0, 1, 0]",
        "line 7: 'orientation': expected four numbers in [-1, 1], got [0, 1, 0]",
    ),
    (
        JOINTS,
        "joint_low: [a, b]",
        "line 10: 'joint_low': expected a list of one number per joint in [-7, 7] rad, got ['a', "
        "'b']",
    ),
    (
        JOINTS,
        "joint_low: 3",
        "line 10: 'joint_low': expected a list of one number per joint in [-7, 7] rad, got 3",
    ),
    (
        JOINTS,
        "joint_names: a",
        "line 9: 'joint_names': expected a list of names, one per joint, got 'a'",
    ),
    (
        JOINTS,
        "joint_names: [a, 2]",
        "line 9: 'joint_names': expected a list of names, one per joint, got ['a', 2]",
    ),
    (GOOD, "frame: 5", "line 9: 'frame': expected the name of a frame, got 5"),
    (GOOD, "frame: ''", "line 9: 'frame': expected the name of a frame, got ''"),
    (
        GOOD,
        "control_mode: joint_dela",
        "line 9: 'control_mode': expected one of tcp_delta, joint_delta, got 'joint_dela' (did you "
        "mean 'joint_delta'?)",
    ),
    (
        GOOD,
        "control_mode: 5",
        "line 9: 'control_mode': expected one of tcp_delta, joint_delta, got 5",
    ),
    (
        GOOD,
        "control_mode: unlimited",
        "line 9: 'control_mode': expected one of tcp_delta, joint_delta, got 'unlimited'",
    ),
    (
        GOOD,
        "box_low: [0.7, 0, 0]",
        "line 1: box is inverted in x: box_low 0.7 must be below box_high 0.7",
    ),
    (
        GOOD,
        "box_low: [0.3, 0.3, 0]",
        "line 1: box is inverted in y: box_low 0.3 must be below box_high 0.25",
    ),
    (
        GOOD,
        "box_low: [0.3, 0, 1]",
        "line 1: box is inverted in z: box_low 1.0 must be below box_high 0.45",
    ),
    (
        JOINTS,
        "joint_low: [-1]",
        "line 10: joint_names has 2 entries, joint_low 1 and joint_high 2; "
        "expected one per joint in each, or none of the three",
    ),
    (
        JOINTS,
        "joint_high: [1]",
        "line 10: joint_names has 2 entries, joint_low 2 and joint_high 1; "
        "expected one per joint in each, or none of the three",
    ),
    (
        JOINTS,
        "joint_names: [a]",
        "line 10: joint_names has 1 entries, joint_low 2 and joint_high 2; "
        "expected one per joint in each, or none of the three",
    ),
    (JOINTS, "joint_margin: 0.5", None),
    (
        JOINTS.replace("[-1, -2]", "[-1, 1.75]"),
        "joint_margin: 0.125",
        "line 10: the range of b is inverted or thinner than its margins: joint_low 1.75, "
        "joint_high 2.0, joint_margin 0.125",
    ),
    (
        JOINTS.replace("[-1, -2]", "[0.5, -2]"),
        "joint_margin: 0.5",
        "line 10: the range of a is inverted or thinner than its margins: joint_low 0.5, "
        "joint_high 1.0, joint_margin 0.5",
    ),
    (
        GOOD,
        "control_mode: joint_delta",
        "line 9: control_mode joint_delta needs joint_names, joint_low and joint_high",
    ),
    (JOINTS, "control_mode: joint_delta", None),
    (GOOD, "orientation: [0, 1, 0, 0.1]", ORIENTATION + "1.0050"),
    (GOOD, "orientation: [0, 0.998, 0, 0]", ORIENTATION + "0.9980"),
    (GOOD, "orientation: [0, 0.9991, 0, 0]", None),
    (
        GOOD.replace("jerk: unlimited", "jerk: 10"),
        "acceleration: unlimited",
        "line 4: 'acceleration' is unlimited, but 'jerk' 10.0 needs it: expected a number, or "
        "'jerk' unlimited too",
    ),
    (
        GOOD.replace("jerk: unlimited", "jerk: 0.1"),
        "acceleration: 13",
        "line 5: 'jerk' 0.1 with 'acceleration' 13.0 delays full braking by 130 s: expected a jerk "
        "of at least 2.6, or a smaller acceleration",
    ),
    (GOOD, "lost_state: 0.05", None),
    (GOOD, "stale_state: 0.6", "line 9: 'stale_state' 0.6 must not exceed 'lost_state' 0.5"),
    (
        GOOD,
        "lost_state: 0.05\nstale_state: 0.06",
        "line 10: 'stale_state' 0.06 must not exceed 'lost_state' 0.05",
    ),
    (
        GOOD,
        "contact_force: 50",
        "line 9: 'contact_force' 50.0 must not exceed 'contact_fault' 40.0",
    ),
    (GOOD, "contact_force: 40", None),
]


def written(folder, text, line=""):
    """Return the file with a line of it replaced, or with one more."""
    name = line.partition(":")[0]
    lines = text.splitlines()
    if name and any(old.startswith(f"{name}:") for old in lines):
        lines = [line if old.startswith(f"{name}:") else old for old in lines]
    else:
        lines.append(line)
    path = folder / "limits.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "text, line, message", MESSAGES, ids=lambda value: str(value)[:40].replace("\n", " ")
)
def test_a_file_is_refused_in_these_words(tmp_path, text, line, message):
    path = written(tmp_path, text, line)
    if message is None:
        load_limits(path)
        return
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == f"limits {path}, {message}"


@pytest.mark.parametrize(
    "name, expected",
    [
        (
            "box_low",
            "lowest x, y, z of the tool in the base frame (S8); expected three numbers in [-3, 3] "
            "m",
        ),
        ("jerk", "largest jerk of the set-point (S8); expected a number in [0.1, 6500.0] m/s^3"),
        (
            "orientation",
            "nominal orientation of the tool, quaternion x y z w; expected four numbers in [-1, 1]",
        ),
    ],
)
def test_a_limit_without_a_default_is_missed(tmp_path, name, expected):
    path = tmp_path / "limits.yaml"
    path.write_text(
        "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(f"{name}:"))
    )
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == f"limits {path}: '{name}' is missing: {expected}"


def test_what_is_no_mapping_of_names_is_refused(tmp_path):
    path = tmp_path / "limits.yaml"
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == (
        f"limits {path}: expected a readable YAML file, got: [Errno 2] No such file or directory: "
        f"'{path}'"
    )
    path.write_text("- 1\n")
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value) == f"limits {path}: expected 'key: value' lines, got list"
    path.write_text("a: [1\n")
    with pytest.raises(RecipeError) as error:
        load_limits(path)
    assert str(error.value).startswith(
        f"limits {path}: expected readable YAML, got: while parsing a flow sequence"
    )


def test_a_good_file_is_taken_as_it_stands(tmp_path):
    limits = load_limits(written(tmp_path, JOINTS, "gripper_width: 0.5"))
    assert limits == Limits(
        box_low=(0.3, -0.25, 0.005),
        box_high=(0.7, 0.25, 0.45),
        speed=0.25,
        acceleration=4.0,
        jerk=math.inf,
        divergence=0.03,
        orientation=(0.0, 1.0, 0.0, 0.0),
        cone=0.5,
        joint_names=("a", "b"),
        joint_low=(-1.0, -2.0),
        joint_high=(1.0, 2.0),
        gripper_width=0.5,
    )
    assert all(type(value) is float for value in limits.joint_low) and type(limits.speed) is float
    assert with_values(limits, {"frame": "world"}).frame == "world"


BOUNDED = {"tick": "expected a period", "cone": "expected at most 2.8 rad in tcp_delta"}
NUMBERS = [name for name, entry in SCHEMA["properties"].items() if "anyOf" in entry]
# so that each number may take its whole range
WIDE = Limits(
    box_low=(0.3, -0.25, 0.005),
    box_high=(0.7, 0.25, 0.45),
    speed=0.25,
    acceleration=4.0,
    jerk=10.0,
    divergence=0.03,
    orientation=(0.0, 1.0, 0.0, 0.0),
    cone=0.5,
    stale_state=0.005,
    lost_state=math.inf,
    contact_force=1.0,
    contact_fault=math.inf,
)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_ends_of_a_range_belong_to_it_and_nothing_beyond(name):
    low, high = (SCHEMA["properties"][name]["anyOf"][0][end] for end in ("minimum", "maximum"))
    kind = name.removesuffix("acceleration").removesuffix("jerk")
    for value, taken in (
        (low, low),
        (high, high),
        *([] if name in BOUNDED else [("unlimited", math.inf)]),
    ):
        others = (
            {f"{kind}jerk": "unlimited"}
            if name.endswith("acceleration")
            else {f"{kind}acceleration": 0.01}
            if name.endswith("jerk")
            else {}
        )
        assert getattr(with_values(WIDE, {name: value} | others), name) == taken
    for value in (
        math.nextafter(low, -math.inf),
        math.nextafter(high, math.inf),
        math.inf,
        math.nan,
    ):
        with pytest.raises(RecipeError, match=f"^limits limits: '{name}': expected a number in "):
            with_values(WIDE, {name: value})


@pytest.mark.parametrize(
    "mode, kind", [("tcp_delta", ""), ("tcp_delta", "rotation_"), ("joint_delta", "joint_")]
)
def test_a_jerk_that_no_set_point_could_keep_is_refused(mode, kind):
    """The mean of 2 a / (j T) points keeps it: none without an acceleration, at most 1000."""
    limits = replace(
        WIDE, control_mode=mode, joint_names=("a",), joint_low=(-1.0,), joint_high=(1.0,)
    )
    acceleration, jerk = f"{kind}acceleration", f"{kind}jerk"
    with pytest.raises(
        RecipeError, match=f"'{acceleration}' is unlimited, but '{jerk}' 10.0 needs it"
    ):
        with_values(limits, {acceleration: "unlimited", jerk: 10.0})
    assert (
        with_values(limits, {acceleration: "unlimited", jerk: "unlimited"}).groups[0].points <= 80
    )
    longest = with_values(limits, {acceleration: 5.0, jerk: 1.0})
    assert max(group.points for group in longest.groups) == 1000
    with pytest.raises(
        RecipeError,
        match=f"'{jerk}' 0.99 with '{acceleration}' 5.0 delays full braking by 5.05 s.* at least 1,",
    ):
        with_values(limits, {acceleration: 5.0, jerk: 0.99})
    other = "joint_" if mode == "tcp_delta" else ""
    assert with_values(limits, {f"{other}acceleration": 5.0, f"{other}jerk": 0.1}), (
        "it moves nothing of that here"
    )


@pytest.mark.parametrize("name, message", BOUNDED.items())
def test_what_has_no_meaning_without_a_bound_has_one(name, message):
    with pytest.raises(RecipeError, match=f"'{name}': {message}.*, got 'unlimited'"):
        with_values(WIDE, {name: "unlimited"})
    joints = replace(
        WIDE, control_mode="joint_delta", joint_names=("a",), joint_low=(-1.0,), joint_high=(1.0,)
    )
    assert name == "tick" or with_values(joints, {name: "unlimited"}).cone == math.inf, (
        "there nothing turns about it"
    )


def test_the_schema_is_the_published_one_and_takes_the_shipped_files():
    assert json.loads(json.dumps(schema())) == SCHEMA
    files = [
        *Path("robots").glob("*/limits.yaml"),
        *Path("sim_bridges").glob("simulators/*/*/limits.yaml"),
    ]
    for path in files:
        jsonschema.validate(yaml.safe_load(path.read_text()), SCHEMA)
    assert len(files) > 5


def test_an_entry_of_the_table_says_unit_range_meaning_direction_and_size():
    entry = module._limit("m", -1.0, 2.0, "how far")
    assert entry.default is MISSING
    assert entry.metadata == {
        "unit": "m",
        "range": (-1.0, 2.0),
        "meaning": "how far",
        "tighter": "lower",
        "size": 1,
    }
    entry = module._limit("s", 0.0, 1.0, "how long", 0.5, "higher", 3)
    assert entry.default == 0.5 and (entry.metadata["tighter"], entry.metadata["size"]) == (
        "higher",
        3,
    )


# S19: which way is tighter, by hand: what is not named here is tighter when lower
TIGHTER_HIGHER = {"box_low", "joint_low", "joint_margin", "slow_distance"}
NEVER = {
    "orientation": (0.0, 0.0, 1.0, 0.0),
    "joint_names": ("b", "a"),
    "tick": 0.005,
    "frame": "world",
    "control_mode": "joint_delta",
}
BASE = replace(WIDE, joint_names=("a", "b"), joint_low=(-1.0, -1.0), joint_high=(1.0, 1.0))


@pytest.mark.parametrize("name", [name for name in TABLE if name not in NEVER])
def test_s19_each_limit_is_loosened_in_one_direction_alone(name):
    value = getattr(BASE, name)
    up, down = (
        (tuple(v + step for v in value) if isinstance(value, tuple) else value + step)
        for step in (0.001, -0.001)
    )
    if value == math.inf:
        up, down = math.inf, 5.0
    looser, tighter = (down, up) if name in TIGHTER_HIGHER else (up, down)
    assert loosened_limits(BASE, replace(BASE, **{name: tighter})) == []
    assert loosened_limits(BASE, replace(BASE, **{name: looser})) == (
        [name] if looser != value else []
    )
    assert loosened_limits(replace(BASE, **{name: tighter}), BASE) == [name]


@pytest.mark.parametrize("name", ["box_low", "box_high", "joint_low", "joint_high"])
def test_s19_one_number_of_several_is_enough_and_their_count_may_not_change(name):
    value = getattr(BASE, name)
    looser = (*value[:-1], value[-1] + (-0.001 if name in TIGHTER_HIGHER else 0.001))
    assert loosened_limits(BASE, replace(BASE, **{name: looser})) == [name]
    for other in (value[:-1], (*value, value[-1]), ()):
        assert loosened_limits(BASE, replace(BASE, **{name: other})) == [name]


@pytest.mark.parametrize("name", NEVER)
def test_s19_what_describes_the_robot_may_not_change_at_all(name):
    assert loosened_limits(BASE, replace(BASE, **{name: NEVER[name]})) == [name]
    assert loosened_limits(replace(BASE, **{name: NEVER[name]}), BASE) == [name]


def test_s19_limits_are_named_in_the_order_of_the_table():
    assert loosened_limits(BASE, BASE) == []
    assert loosened_limits(BASE, replace(BASE, tick=0.02, speed=1.0, box_low=(0.0, 0.0, 0.0))) == [
        "box_low",
        "speed",
        "tick",
    ]


def test_every_value_counts_in_the_hash():
    hashes = {replace(BASE, **{name: value}).hash for name, value in NEVER.items()}
    others = [
        name for name in TABLE if name not in NEVER and getattr(BASE, name) not in (0.0, math.inf)
    ]
    for name in others:
        value = getattr(BASE, name)
        changed = tuple(0.5 * v for v in value) if isinstance(value, tuple) else 0.5 * value
        hashes.add(replace(BASE, **{name: changed}).hash)
    assert len(hashes) == len(NEVER) + len(others) > 35 and BASE.hash not in hashes
    assert len(BASE.hash) == 12 and set(BASE.hash) <= set("0123456789abcdef")


def test_a_changed_value_is_checked_as_if_it_stood_in_the_file():
    assert with_values(BASE, {"speed": 1, "box_low": [0.1, 0, 0]}) == replace(
        BASE, speed=1.0, box_low=(0.1, 0.0, 0.0)
    )
    for changes, where, message in (
        (
            {"sped": 1},
            "parameter",
            "limits parameter: unknown limit 'sped' (did you mean 'speed'?)",
        ),
        (
            {"cone": 0},
            "parameter",
            "limits parameter: 'cone': expected a number in [0.01, 2.8] rad (or 'unlimited', "
            "spelled out), got 0",
        ),
        (
            {"box_low": [1, 0, 0]},
            "parameter",
            "limits parameter: box is inverted in x: box_low 1.0 must be below box_high 0.7",
        ),
        ({"speed": 0.3}, "limits", "limits: 'speed' 0.3 is looser than the robot's own 0.25"),
        ({"speed": 0.3}, "parameter", "parameter: 'speed' 0.3 is looser than the robot's own 0.25"),
        (
            {"frame": "world"},
            "limits",
            "limits: 'frame' world is looser than the robot's own base_link",
        ),
    ):
        with pytest.raises(RecipeError) as error:
            with_values(
                BASE, changes, *([where] if where != "limits" else []), loosest_allowed=BASE
            )
        assert str(error.value) == message
    assert with_values(BASE, {"speed": 0.25}, loosest_allowed=BASE) == BASE
    assert with_values(BASE, {"speed": 3.0}).speed == 3.0, "without a maximum"


def test_the_groups_are_what_the_limits_say():
    tool = replace(
        BASE,
        gripper_width=0.08,
        gripper_speed=0.07,
        rotation_speed=0.6,
        rotation_acceleration=2.0,
        rotation_jerk=21.0,
    )
    position, rotation, gripper = tool.groups
    assert (position.name, position.low, position.high) == ("position", BASE.box_low, BASE.box_high)
    assert position.radius == math.inf
    assert (position.speed, position.acceleration, position.jerk, position.together) == (
        0.25,
        4.0,
        10.0,
        False,
    )
    assert (rotation.name, rotation.low, rotation.high, rotation.radius) == (
        "rotation",
        (),
        (),
        0.5,
    )
    assert (rotation.speed, rotation.acceleration, rotation.jerk, rotation.together) == (
        0.6,
        2.0,
        21.0,
        False,
    )
    assert (gripper.name, gripper.low, gripper.high, gripper.speed) == (
        "gripper",
        (0.0,),
        (0.08,),
        0.07,
    )
    assert gripper.acceleration == gripper.jerk == math.inf
    (joints,) = replace(BASE, control_mode="joint_delta", joint_margin=0.25).groups
    assert (joints.name, joints.low, joints.high, joints.together) == (
        "joints",
        (-0.75, -0.75),
        (0.75, 0.75),
        True,
    )
    assert (joints.speed, joints.acceleration, joints.jerk, joints.tick) == (0.5, 2.5, 25.0, 0.01)
    assert {group.tick for group in replace(tool, tick=0.004).groups} == {0.004}


def test_actions_have_the_sizes_of_what_they_move():
    assert BASE.action_sizes == (3, 6) and replace(BASE, gripper_width=0.1).action_sizes == (
        3,
        6,
        4,
        7,
    )
    joints = replace(BASE, control_mode="joint_delta")
    assert joints.action_sizes == (2,) and replace(joints, gripper_width=0.1).action_sizes == (2, 3)
