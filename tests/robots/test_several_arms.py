"""Robots with several arms without ROS: their YAML, whose numbers of an action are whose, terms and
scripts, recordings.
"""

from pathlib import Path

import numpy as np
import pytest
import yaml

from rlinf_core.core.errors import EpisodeError, RecipeError
from rlinf_core.episodes import read_episode
from rlinf_core.episodes.arm_response import identify
from rlinf_core.episodes.messages import typestore
from rlinf_core.episodes.played_chunks import played_chunks
from rlinf_core.episodes.spool import Spool
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import check_recipe, load_recipe, station_task
from rlinf_core.robots.config import load_robot
from rlinf_core.specs.arrays import ActionSpec
from rlinf_core.specs.topics import arm_of, of_arms
from rlinf_core.tasks.scripts import make_script
from rlinf_core.tasks.task import load_task, observe
from sim_bridges.core.station import simulated_station
from tests.episodes.test_played_chunks import applied, sent
from tests.messages import raw_messages, write_raw

TASK = Path("configs/tasks/reach_both.yaml")
ROBOT = Path("sim_bridges/simulators/two_frankas/two_franka_sim")
BOTH = ("station.robot=two_franka_sim", "station.task=reach_both")


@pytest.fixture(scope="module")
def both():
    return load_task(TASK)


def robot(folder, **changes):
    """A folder with two arms and some changes of its robot.yaml; its limits are those of ours."""
    base = yaml.safe_load((ROBOT / "robot.yaml").read_text()) | {
        "arms": {
            name: {"limits": str((ROBOT / f"{name}.yaml").resolve())} for name in ("left", "right")
        }
    }
    base["urdf"] = str((ROBOT / base["urdf"]).resolve())
    document = {key: value for key, value in (base | changes).items() if value is not None}
    folder.mkdir(exist_ok=True)
    (folder / "robot.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def task(folder, change):
    document = yaml.safe_load(TASK.read_text())
    change(document)
    (folder / "task.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder / "task.yaml"


# robot.yaml
def test_each_arm_has_limits_in_the_order_of_the_file_and_one_arm_has_no_name():
    assert [
        (name, path.name) for name, path in load_robot("two_franka_sim").limits_by_arm.items()
    ] == [("left", "left.yaml"), ("right", "right.yaml")]
    assert [(name, path.name) for name, path in load_robot("franka_sim").limits_by_arm.items()] == [
        ("", "limits.yaml")
    ]


@pytest.mark.parametrize(
    "changes, error",
    [
        (
            {"limits": "limits.yaml"},
            "expected either 'limits' .* or 'arms'",
        ),
        (
            {"twin": {"node": "sim_bridges.twins.franka"}, "driver": "franka", "simulator": ""},
            "'twin' is for a robot with one arm",
        ),
        ({"arms": None}, "expected either 'limits' .* or 'arms'"),
        ({"arms": {"left": {"limits": "l.yaml"}}}, "'arms': expected two or more, got left alone"),
        (
            {"arms": {"left": {"limits": "l.yaml"}, "gripper": {"limits": "r.yaml"}}},
            "'gripper' is the beginning of other",
        ),
        (
            {"arms": {"left": {"limits": "l.yaml"}, "right": {"limits": "r.yaml"}}},
            "robot.yaml, line 5: 'arms.left.limits': expected a file in .*, got 'l.yaml', which "
            "does not exist",
        ),
        (
            {"arms": {"left": {"limits": "l.yaml"}, "right": {"limit": "r.yaml"}}},
            "unknown key 'arms.right.limit' .did you",
        ),
    ],
)
def test_a_robot_that_does_not_say_its_arms_rightly_is_refused(tmp_path, changes, error):
    with pytest.raises(RecipeError, match=error):
        load_robot(str(robot(tmp_path / "two", **changes)))


# Who has which numbers
def test_an_actions_names_say_whose_its_numbers_are(both):
    action = both.spec.action
    assert action.arms == ("left", "right") and (action.rows("left"), action.rows("right")) == (
        slice(0, 3),
        slice(3, 6),
    )
    assert action.of_arm("right") == ActionSpec(
        "tcp_delta", ("dx", "dy", "dz"), (0.02,) * 3, ("m",) * 3
    )
    one = load_task("configs/tasks/reach.yaml").spec.action
    assert one.arms == () and one.rows("") == slice(0, 3) and one.of_arm("") == one


def test_topics_of_arms():
    arms = ["left", "right"]
    assert of_arms("applied", arms) == ["left/applied", "right/applied"] and of_arms(
        "applied", []
    ) == ["applied"]
    assert of_arms("timestep", arms) == ["timestep"] and of_arms("estop/a", arms) == ["estop/a"]
    assert [
        arm_of(name)
        for name in ("left/gripper/state", "gripper/state", "left/timestep", "camera/left/image")
    ] == ["left", "", "", ""]


def _dimensions(*names):
    return lambda document: document["action"].update(
        dimensions={name: {"scale": 0.02, "unit": "m"} for name in names}
    )


@pytest.mark.parametrize(
    "change, error",
    [
        (
            _dimensions("dx", "dy", "dz"),
            "expected the arms left, right, as robot 'two_franka_sim' has, got one arm, without",
        ),
        (
            _dimensions(*(f"right/{x}" for x in "xyz"), *(f"left/{x}" for x in "xyz")),
            "expected the arms left, right, .* got the arms right, left: right/x, .*in the order "
            "of 'arms'",
        ),
        (
            _dimensions(*(f"left/{x}" for x in "xyz"), *(f"rigt/{x}" for x in "xyz")),
            "got the arms left, rigt",
        ),
        (
            _dimensions("left/x", "right/x", "left/y"),
            "expected the dimensions of each arm in one block.*got left/x, right/x",
        ),
        (_dimensions("left/x", "y"), "expected the dimensions of each arm in one block"),
        (
            _dimensions("left/x", "left/y", "left/z", "right/x", "right/y"),
            r"action.dimensions: expected 3 or 6 of arm 'right', as in its limits, got "
            r"right/x, right/y",
        ),
        (
            lambda document: document["action"].update(control_mode="joint_delta"),
            "action.control_mode: expected tcp_delta .limits of arm 'left' of robot .*, "
            "got joint_delta",
        ),
        (
            lambda document: document["observation"]["left_position"].update(
                source="lift/current_pose"
            ),
            "channel 'lift/current_pose': robot 'two_franka_sim' has the arms left, right .did you "
            "mean 'left'",
        ),
        (
            lambda document: document["observation"]["left_position"].update(source="current_pose"),
            "channel 'current_pose': expected the channel of one arm, e.g. 'left/current_pose'",
        ),
    ],
)
def test_a_task_that_does_not_fit_the_arms_is_refused_with_both(tmp_path, change, error):
    with pytest.raises(RecipeError, match=error):
        check_recipe(load_recipe("demo", [BOTH[0], f"station.task={task(tmp_path, change)}"]))


def test_arms_in_different_modes_and_tasks_of_other_arms_are_refused(tmp_path):
    joints = (
        "control_mode: joint_delta\njoint_names: [a, b, c]\njoint_low: [-1, -1, "
        "-1]\njoint_high: [1, 1, 1]\n"
    )
    ours = Path("sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml").resolve()
    (tmp_path / "joints.yaml").write_text(f"extends: {ours}\n{joints}")
    mixed = robot(
        tmp_path / "mixed",
        arms={
            "left": {"limits": str((ROBOT / "left.yaml").resolve())},
            "right": {"limits": str(tmp_path / "joints.yaml")},
        },
    )
    with pytest.raises(
        RecipeError,
        match="expected joint_delta .limits of arm 'right'.*All arms of a station act",
    ):
        check_recipe(load_recipe("demo", [f"station.robot={mixed}", BOTH[1]]))
    with pytest.raises(
        RecipeError,
        match="expected one arm, without a name, as robot 'franka_sim' has, got the arms",
    ):
        check_recipe(load_recipe("demo", [BOTH[1]]))
    with pytest.raises(
        RecipeError,
        match="expected the arms left, right, as robot 'two_franka_sim' has, got one arm",
    ):
        check_recipe(load_recipe("demo", [BOTH[0]]))


# Terms and scripts
def test_a_term_for_one_arm_is_one_of_each(both):
    near, far = np.array([0.5, 0.0, 0.08, 0, 1, 0, 0.0]), np.array([0.5, 0.1, 0.08, 0, 1, 0, 0.0])
    mark = np.array([0.5, 0.0, 0.05, 0, 0, 0, 1.0])
    channels = {
        "left/object_pose": mark,
        "right/object_pose": mark,
        "left/current_pose": near,
        "right/current_pose": near,
    }
    assert set(both.success.channels) == channels.keys() and both.success(channels)
    separated = channels | {"right/current_pose": far}
    assert not both.success(separated) and both.success.progress(channels) == 1.0
    assert both.success.progress(separated) == pytest.approx((1.0 + 1.0 - np.tanh(0.5)) / 2)


def test_a_failure_is_that_of_any_arm_and_a_term_that_names_its_arm_is_left_alone(tmp_path):
    def strict(what):
        return load_task(
            task(
                tmp_path,
                lambda document: document.update(
                    failure={
                        "kind": "outside",
                        "what": what,
                        "low": [0.0, -1.0, 0.1],
                        "high": [1.0, 1.0, 1.0],
                    }
                ),
            )
        ).failure

    high, low = np.array([0.5, 0.0, 0.2]), np.array([0.5, 0.0, 0.0])
    channels = {"left/current_pose": high, "right/current_pose": low}
    assert strict("current_pose")(channels) and not strict("current_pose")(
        channels | {"right/current_pose": high}
    )
    assert not strict("left/current_pose")(channels) and strict("right/current_pose")(channels)


def test_an_offset_is_from_the_tool_of_its_own_arm(both):
    channels = {
        f"{arm}/{name}": np.zeros(7)
        for arm in ("left", "right")
        for name in ("current_pose", "object_pose")
    }
    channels |= {f"{arm}/current_twist": np.zeros(6) for arm in ("left", "right")}
    channels["right/current_pose"] = np.array([0.1, 0.2, 0.3, 0, 0, 0, 1.0])
    observation = observe(both.spec, channels)
    assert not observation["left_offset"].any() and observation["right_offset"] == pytest.approx(
        [-0.1, -0.2, -0.3]
    )


def test_a_script_for_one_arm_has_a_hand_for_each(both):
    script = make_script(both, noise=0.1, seed=3)
    assert set(script.channels) == set(both.success.channels)
    channels = {name: np.array([0.5, 0.0, 0.2, 0, 1, 0, 0.0]) for name in script.channels}
    script.reset(5)
    first = script.act(channels)
    assert first.shape == (6,) and not np.allclose(first[:3], first[3:]), "each trembles by itself"
    script.reset(5)
    assert np.array_equal(script.act(channels), first)


# Processes
def test_each_arm_has_an_interlock_with_its_own_limits_rows_and_memory(tmp_path):
    real = robot(
        tmp_path / "real", driver="external", simulator=None, options=None, estops=["pendant"]
    )
    graph = {
        process.name: process
        for process in station_processes(
            load_recipe(
                "demo", [f"station.robot={real}", BOTH[1], "station.operator.kind=keyboard"]
            ),
            tmp_path,
        )
    }
    left, right = (graph[f"interlock_{name}"] for name in ("left", "right"))
    assert (
        "interlock" not in graph
        and left.namespace == "/station_a/left"
        and left.executable == "interlock"
    )
    assert (left.parameters["rows"], left.parameters["others"]) == ([0, 3, 6], ["right"])
    assert (right.parameters["rows"], right.parameters["others"]) == ([3, 6, 6], ["left"])
    assert left.parameters["limits_file"].endswith("left.yaml") and right.parameters[
        "limits_file"
    ].endswith("right.yaml")
    assert (left.parameters["latch_file"], right.parameters["latch_file"]) == (
        "robot:station_a/left",
        "robot:station_a/right",
    )
    assert dict(right.remappings) == {
        name: f"/station_a/{name}"
        for name in (
            "estop/pendant",
            "enable",
            "policy/action",
            "teleop/action",
            "timestep",
            "episode",
            "endpoints",
            "left/safety/to_others",
        )
    } | {"/clock": "/station_a/clock"}
    assert all(process.parameters["arms"] == ["left", "right"] for process in graph.values())
    one = {
        process.name: process for process in station_processes(load_recipe("demo", []), tmp_path)
    }
    assert "arms" not in one["policy"].parameters and one["interlock"].remappings == (
        ("/clock", "/station_a/clock"),
    )


# Recordings
@pytest.fixture
def recorded(tmp_path, both):
    """An episode of both arms; what is applied by the left one and the right one may be changed."""

    def write(change=lambda topic, message: None, rename=lambda topic: topic):
        def wide(topic, _, message):
            if topic == "applied":
                message.requested, message.executed = np.arange(6) / 100, np.zeros(6)

        messages, store = [], typestore()
        for topic, kind, ns, raw in raw_messages(both.spec, change=wide):
            if not topic.endswith("applied"):
                messages.append((topic, kind, ns, raw))
                continue
            for arm, rows in (("left", slice(0, 3)), ("right", slice(3, 6))):
                message = store.deserialize_cdr(raw, kind)
                message.executed, message.limits_hash = np.zeros(6), f"hash_{arm}"
                message.executed[rows] = np.arange(6)[rows] / 200
                change(arm, message)
                messages.append(
                    (
                        rename(f"/station/{arm}/applied"),
                        kind,
                        ns,
                        bytes(store.serialize_cdr(message, kind)),
                    )
                )
        return write_raw(Spool(tmp_path / "spool"), "a-1", messages).close()

    return write


def test_an_episodes_action_is_that_of_all_arms(recorded):
    episode = read_episode(recorded())
    assert episode.requested[0] == pytest.approx(np.arange(6) / 100)
    assert (
        episode.executed[0] == pytest.approx(np.arange(6) / 200)
        and episode.limits_hash == "hash_left+hash_right"
    )
    assert episode.arms == ("left", "right")
    with pytest.raises(
        EpisodeError, match="expected one arm, got left, right. Several arms are not supported here"
    ):
        identify([episode])


@pytest.mark.parametrize(
    "rename",
    [
        ("/station/right", "/other/right"),
        ("/station/right", "/station"),
        ("right", "right/again"),
        ("/station/right", "/stationright"),
    ],
)
def test_actions_of_another_station_are_refused(recorded, rename):
    with pytest.raises(EpisodeError, match="expected topics of one station and its arms"):
        read_episode(recorded(rename=lambda topic: topic.replace(*rename)))


def test_a_chunk_was_played_as_far_as_all_arms_played_it():
    def of(arm, *records):
        for record in records:
            record.arm = arm
        return records

    stamps = np.array([10**12 + k * 10**8 for k in range(6)])
    chunks = [sent(1, 0, execute=4)]
    left = of("left", *(applied(1, k, 0) for k in range(4)))
    right = of("right", *(applied(1, k, 0) for k in range(2)))
    transitions = played_chunks("", chunks, [*left, *right], stamps, ["policy"] * 5)
    assert transitions.lengths.tolist() == [2]
    assert played_chunks("", chunks, list(left), stamps, ["policy"] * 5).lengths.tolist() == [4]


# Simulated
def test_what_several_arms_are_not_supported_for_is_said():
    with pytest.raises(
        RecipeError,
        match="simulation.randomise: expected nothing for robot 'two_franka_sim', since s",
    ):
        simulated_station(load_recipe("sim_rlpd", [*BOTH, "simulation.randomise.lag_s=0.1"]))


def test_without_the_interlock_a_free_motion_of_both_is_the_same():
    vectors = []
    for interlock in ("true", "false"):
        alone = simulated_station(
            load_recipe("sim_rlpd", [*BOTH, f"simulation.interlock={interlock}"])
        )
        alone.reset(5)
        for _ in range(4):
            observation, _ = alone.step(np.array([0.4, -0.3, 0.2, -0.2, 0.3, 0.1]))
        assert alone.executed == pytest.approx([0.4, -0.3, 0.2, -0.2, 0.3, 0.1], abs=1e-6)
        vectors.append(alone.task.spec.flatten(observation))
    assert vectors[0] == pytest.approx(vectors[1], abs=2e-2)


def test_the_arms_of_simulator_limits_and_task_are_the_same(both, limits):
    from sim_bridges.core.isolated import make
    from sim_bridges.core.station import SimulatedStation

    two = make("two_frankas")
    with pytest.raises(
        RecipeError,
        match="the simulator has the arms left, right: .* got limits for one arm without",
    ):
        SimulatedStation(two, both, limits)
    with pytest.raises(
        RecipeError, match="got limits for the arms right, left and a task for the arms left, right"
    ):
        SimulatedStation(two, both, {"right": limits, "left": limits})
    with pytest.raises(
        RecipeError,
        match="the simulator has one arm without a name: .* a task for the arms left, right",
    ):
        SimulatedStation(make("franka_mujoco"), both, limits)


def test_the_spec_of_a_station_with_one_arm_is_what_it_was():
    """Policies and recordings of before still fit."""
    hashes = {"reach": "a4fa13ee1bc4", "peg_insertion": "d590071ccc62", "pick_cube": "1ac7a121e5d7"}
    for name in hashes:
        assert station_task(load_recipe("demo", [f"station.task={name}"])).spec.hash == hashes[name]
