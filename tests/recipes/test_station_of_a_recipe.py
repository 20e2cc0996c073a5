"""Robot, task and bridge of a recipe's station."""

import shutil
from pathlib import Path

import pytest
import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.deploy.bridge.credentials import TOKEN_FILE
from rlinf_core.interlock.limits_file import load_limits
from rlinf_core.recipes import check_recipe, load_recipe, station_task
from rlinf_core.recipes.bridge_security import credentials_of, fleet_of, token_of, tokens_of
from rlinf_core.recipes.station import (
    check_arms,
    check_real_arm,
    check_ticks,
    embodiment_recipes,
    is_simulated,
    learned_spec,
    longest_episode,
    station_robot,
    task_file,
    tool_orientations,
)
from rlinf_core.robots.config import load_robot
from rlinf_core.tasks.task import load_task

TWO = "simulators/two_frankas_reach"


def robot_in(folder, of="sim_bridges/simulators/franka_mujoco/franka_sim", **changes):
    """Return a copy of a robot with some keys changed; None removes."""
    shutil.copytree(of, folder)
    document = yaml.safe_load((folder / "robot.yaml").read_text()) | changes
    document = {key: value for key, value in document.items() if value is not None}
    if "limits" in document:
        document["limits"] = str(Path(of, document["limits"]).resolve())
    (folder / "robot.yaml").write_text(yaml.safe_dump(document))
    return f"station.robot={folder}"


def test_a_robots_topics_are_below_the_stations_name_unless_they_are_absolute(tmp_path):
    topics = {"wrench": "sensor/wrench", "joint_states": "/joint_states"}
    override = robot_in(tmp_path / "r", "robots/ur5e", topics=topics)
    robot = station_robot(load_recipe("ur5e_twin", [override, "station.name=left_cell"]))
    assert robot.topics == {"wrench": "/left_cell/sensor/wrench", "joint_states": "/joint_states"}


def test_a_recipes_options_are_those_of_the_robots_simulator():
    plain = station_robot(load_recipe("demo"))
    noisy = station_robot(load_recipe("demo", ["station.options={pose_noise_m: 0.25}"]))
    assert noisy.options["pose_noise_m"] == 0.25 and noisy.options.items() - plain.options.items()
    assert noisy.topics == plain.topics
    with pytest.raises(RecipeError, match="^station.options: unknown key 'pose_nois'"):
        station_robot(load_recipe("demo", ["station.options={pose_nois: 0.1}"]))


def test_an_option_that_has_a_new_name_is_refused_with_it():
    marks = "station.robot=sim_bridges/simulators/franka_marks/franka_marks_sim"
    recipe = load_recipe("demo", [marks, "station.options={apart_m: [0.1, 0.2]}"])
    with pytest.raises(
        RecipeError, match="^station.options: 'apart_m' has a new name. Write separation_m instead$"
    ):
        station_robot(recipe)
    recipe = load_recipe("demo", [marks, "station.options={separation_m: [0.1, 0.2]}"])
    assert station_robot(recipe).options["separation_m"] == (0.1, 0.2)


def test_a_real_arm_has_time_steps_of_any_length(tmp_path):
    task = yaml.safe_load(Path("configs/tasks/ur5e_reach.yaml").read_text()) | {"control_hz": 33.0}
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(task))
    check_recipe(load_recipe("ur5e_twin", [f"station.task={path}", "station.lockstep=true"]))


def test_an_environment_has_no_robot():
    recipe = load_recipe("sim_sac", ["env=gym:Pendulum-v1"])
    with pytest.raises(RecipeError, match="^env: 'gym:Pendulum-v1' is not a station and has no r"):
        station_robot(recipe)
    check_recipe(recipe)
    assert longest_episode(recipe) == 1000


def test_a_task_is_found_by_its_name_or_path(tmp_path):
    assert task_file(load_recipe("demo")).samefile("configs/tasks/peg_insertion.yaml")
    shutil.copy("configs/tasks/reach.yaml", tmp_path / "mine.yaml")
    path = tmp_path / "mine.yaml"
    assert task_file(load_recipe("demo", [f"station.task={path}"])) == path
    with pytest.raises(
        RecipeError,
        match=r"^station.task: .*peg_insertion, .*'reech' \(did you mean 'reach'\?\)",
    ):
        task_file(load_recipe("demo", ["station.task=reech"]))


def test_a_stations_observation_has_its_cameras_in_the_recipes_size():
    recipe = load_recipe(
        "demo", ["station.observe_cameras=[wrist,front]", "station.image_size=[24,32]"]
    )
    shapes = {array.name: array.shape for array in station_task(recipe).spec.observation}
    assert list(shapes)[-2:] == ["wrist", "front"]
    assert shapes["wrist"] == shapes["front"] == (24, 32, 3)
    assert learned_spec(recipe) == station_task(recipe).spec
    assert station_task(recipe).spec.action == load_task(task_file(recipe)).spec.action


@pytest.mark.parametrize(
    "robot, camera, message",
    [
        (
            "franka_sim",
            "frnt",
            r"robot 'franka_sim' has no camera 'frnt'; it has front, wrist "
            r"\(did you mean 'front'\?\)",
        ),
        ("ur5e_twin", "front", "robot 'ur5e_twin' has no camera 'front'; it has none$"),
    ],
)
def test_a_camera_that_the_robot_lacks_is_refused(robot, camera, message):
    recipe = load_recipe("demo", [f"station.robot={robot}", f"station.observe_cameras=[{camera}]"])
    with pytest.raises(RecipeError, match=f"^station.observe_cameras: {message}"):
        station_task(recipe)


@pytest.mark.parametrize("key", ["reward", "failure"])
@pytest.mark.parametrize("cameras, got", [("[]", "none"), ("[wrist]", "wrist")])
def test_a_reward_that_sees_needs_its_camera(tmp_path, key, cameras, got):
    judge = {"kind": "vlm", "question": "Done?", "name": "m", "cameras": ["front"]}
    path = tmp_path / "task.yaml"
    task = yaml.safe_load(Path("configs/tasks/reach.yaml").read_text()) | {key: judge}
    path.write_text(yaml.safe_dump(task))
    overrides = [f"station.task={path}", f"station.observe_cameras={cameras}"]
    with pytest.raises(
        RecipeError,
        match=f"^station.observe_cameras: expected 'front' among them, .* task '{path}' uses it, "
        f"got {got}$",
    ):
        station_task(load_recipe("demo", overrides))
    station_task(load_recipe("demo", [overrides[0], "station.observe_cameras=[front]"]))


def test_each_arm_has_the_orientation_of_its_limits(tmp_path):
    assert tool_orientations(load_robot("franka_sim")) == {"": (1.0, 0.0, 0.0, 0.0)}
    folder = station_robot(load_recipe(TWO)).limits_by_arm["left"].parent
    override = robot_in(tmp_path / "r", folder)
    for arm, changes in (("left", {}), ("right", {"orientation": [0.0, 1.0, 0.0, 0.0]})):
        path = tmp_path / f"r/{arm}.yaml"
        limits = yaml.safe_load(path.read_text())
        changes["extends"] = str((folder / limits["extends"]).resolve())
        path.write_text(yaml.safe_dump(limits | changes))
    other = station_robot(load_recipe(TWO, [override]))
    assert tool_orientations(other) == {"left": (1.0, 0.0, 0.0, 0.0), "right": (0.0, 1.0, 0.0, 0.0)}


def test_each_embodiment_is_a_recipe_of_its_own_robot():
    recipe = load_recipe(
        "sim_embodiments",
        ["embodiments.one.options={pose_noise_m: 0.1}", "station.options={pose_noise_m: 0.5}"],
    )
    one, two = embodiment_recipes(recipe).values()
    assert list(embodiment_recipes(recipe)) == ["one", "two"]
    for single, name in ((one, "one"), (two, "two")):
        part = recipe.embodiments[name]
        assert single.embodiments == {} and single.algorithm == recipe.algorithm
        station = single.station
        assert (station.robot, station.task, station.options) == (
            part.robot,
            part.task,
            part.options,
        )
        assert station.name == recipe.station.name
    assert one.station.options == {"pose_noise_m": 0.1} and two.station.options == {}
    assert embodiment_recipes(load_recipe("demo")) == {}


def test_a_policy_of_several_robots_learns_for_all_of_them():
    recipe = load_recipe("sim_embodiments", ["embodiments.two.task=reach_both"])
    names = [array.name for array in learned_spec(recipe).observation]
    assert names[0] == "embodiment" and {"one.tcp_position", "two.left_position"} <= set(names)
    steps = {
        name: station_task(single).max_steps for name, single in embodiment_recipes(recipe).items()
    }
    assert steps == {"one": 30, "two": 40} and longest_episode(recipe) == 40
    assert longest_episode(load_recipe("demo")) == 50


@pytest.mark.parametrize(
    "name, overrides, answer",
    [
        ("demo", [], True),
        ("franka_twin", [], False),
        ("sim_embodiments", [], True),
        ("sim_embodiments", ["embodiments.two.robot=franka_twin"], False),
        ("sim_embodiments", ["station.robot=franka_twin"], True),
    ],
)
def test_whether_all_robots_are_simulators(name, overrides, answer):
    assert is_simulated(load_recipe(name, overrides)) is answer


def test_embodiments_in_simulators_are_simulators():
    overrides = ["embodiments.one.robot=franka_twin", "simulation.environments=3"]
    with pytest.raises(
        RecipeError,
        match="^embodiments.one: expected a simulator with simulation.environments of 3, got "
        "'franka_twin', whose driver is franka. Set",
    ):
        check_recipe(load_recipe("sim_embodiments", overrides))
    with pytest.raises(RecipeError, match="station.task: .*'reech'"):
        check_recipe(load_recipe("sim_embodiments", ["embodiments.two.task=reech"]))


@pytest.mark.parametrize(
    "hz, tick_s, lockstep, fits",
    [
        (10.0, 0.01, True, True),
        (30.0, 0.01, True, False),
        (30.0, 0.01, False, True),
        (100.0, 0.01, True, True),
        (150.0, 0.01, False, True),
        (250.0, 0.01, False, False),
        (250.0, 0.01, True, False),
    ],
)
def test_a_time_step_is_whole_ticks_or_at_least_one_in_real_time(hz, tick_s, lockstep, fits):
    recipe = load_recipe("demo", [f"station.lockstep={str(lockstep).lower()}"])
    if fits:
        check_ticks(recipe, hz, tick_s)
        return
    with pytest.raises(
        RecipeError,
        match=f"^task 'peg_insertion': control_hz: robot 'franka_sim' .* every {tick_s:g} s: .* "
        f"got {1 / hz:.4f} s$",
    ):
        check_ticks(recipe, hz, tick_s)


@pytest.mark.parametrize(
    "changes, overrides, error",
    [
        ({}, [], "estops: expected the name of at least one e-stop source, got none"),
        ({"estops": ["pendant"]}, [], ""),
        ({"no_estop_reason": "the pendant cuts its power"}, [], ""),
        ({}, ["station.web.port=8080"], ""),
    ],
)
def test_a_real_arm_has_a_way_to_stop_it(tmp_path, changes, overrides, error):
    override = robot_in(tmp_path / "arm", "robots/ur5e", **changes)
    recipe = load_recipe("ur5e_twin", [override, *overrides])
    if error:
        with pytest.raises(RecipeError, match=f"^robot '{tmp_path}/arm': {error}"):
            check_real_arm(recipe, in_lockstep=False)
    else:
        check_real_arm(recipe, in_lockstep=False)
    with pytest.raises(
        RecipeError,
        match=f"^station.lockstep: expected false with robot '{tmp_path}/arm', whose driver is "
        "universal_robots, got true",
    ):
        check_real_arm(recipe, in_lockstep=True)


def test_a_simulator_and_a_twin_need_none():
    check_real_arm(load_recipe("demo"), in_lockstep=True)
    check_real_arm(load_recipe("ur5e_twin"), in_lockstep=False)
    with pytest.raises(RecipeError, match="with robot 'ur5e_twin', whose driver is universal"):
        check_real_arm(load_recipe("ur5e_twin"), in_lockstep=True)


@pytest.mark.parametrize(
    "operator, role",
    [
        ("{kind: gamepad, clutch: a}", "close"),
        ("{kind: gamepad, clutch: rb, buttons: {rb: intervene}}", ""),
        ("{kind: gamepad, clutch: rb, buttons: {rb: enable}}", ""),
        ("{kind: gamepad, clutch: '', buttons: {rb: disarm}}", ""),
        ("{kind: gamepad, clutch: rb, buttons: {lb: disarm}}", ""),
        ("{kind: gamepad, clutch: rb, buttons: {rb: disarm}}", "disarm"),
        ("{kind: keyboard}", ""),
    ],
)
@pytest.mark.parametrize("key", ["operator", "second_operator"])
def test_the_button_that_moves_the_arm_has_no_other_role(operator, role, key):
    recipe = load_recipe("demo", [f"station.{key}={operator}"])
    if not role:
        check_recipe(recipe)
        return
    with pytest.raises(
        RecipeError,
        match=rf"^station.{key}.clutch: expected .*, got '\w+', which is also {role} in "
        f"station.{key}.buttons. Each use of the clutch would {role}. Choose",
    ):
        check_recipe(recipe)


def test_a_task_and_its_robot_are_of_the_same_arms():
    one, two = load_robot("franka_sim"), station_robot(load_recipe(TWO))
    reach, both = (load_task(f"configs/tasks/{name}.yaml") for name in ("reach", "reach_both"))
    check_arms("robot 'one'", one, "task 'reach'", reach)
    check_arms("robot 'two'", two, "task 'both'", both)
    with pytest.raises(
        RecipeError,
        match="^task 'both': action.dimensions: expected one arm, without a name, as robot 'one' "
        "has, got the arms left, right: left/dx, .*right/dz. Begin",
    ):
        check_arms("robot 'one'", one, "task 'both'", both)
    with pytest.raises(
        RecipeError,
        match="^task 'reach': action.dimensions: expected the arms left, right, as robot 'two' "
        "has, got one arm, without a name: dx, dy, dz. Begin",
    ):
        check_arms("robot 'two'", two, "task 'reach'", reach)


def test_the_mode_of_the_actions_is_that_of_the_limits():
    joints = load_task("configs/tasks/ur5e_reach.yaml")
    mode = load_limits(load_robot("franka_sim").limits_by_arm[""]).control_mode
    assert (mode, joints.spec.action.control_mode) == ("tcp_delta", "joint_delta")
    with pytest.raises(
        RecipeError,
        match=r"^task 't': action.control_mode: expected tcp_delta \(limits of robot 'r'\), got "
        "joint_delta. Take a task in that mode",
    ):
        check_arms("robot 'r'", load_robot("franka_sim"), "task 't'", joints)


CHECKS = {"fleet": fleet_of, "credentials": credentials_of}


@pytest.mark.parametrize("key", CHECKS)
def test_a_bridge_beyond_this_machine_needs_tls_or_a_word(key, tmp_path, monkeypatch):
    def folder(*overrides):
        return CHECKS[key](load_recipe("demo", list(overrides)).bridge)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder() is None and folder("bridge.host=localhost") is None
    assert folder(f"bridge.{key}=a/b") == tmp_path / "a/b"
    assert folder(f"bridge.{key}='~/b'", "bridge.host=0.0.0.0") == tmp_path / "home/b"
    assert folder("bridge.host=0.0.0.0", "bridge.insecure=true") is None
    other = {"fleet": "credentials", "credentials": "fleet"}[key]
    place = {"fleet": "At the trainer, ", "credentials": "At the station, "}[key]
    with pytest.raises(
        RecipeError,
        match=f"^bridge.{key}: expected a folder, since bridge.host is '10.0.0.7', .* {place}set",
    ):
        folder("bridge.host=10.0.0.7", f"bridge.{other}=a")


def test_the_files_of_the_token(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def of(*overrides):
        bridge = load_recipe("demo", list(overrides)).bridge
        return token_of(bridge, Path("run")), tokens_of(bridge, Path("run"))

    token = tmp_path / "run" / TOKEN_FILE
    assert of() == (token, [tmp_path / ".ros/rlinf/bridge_50551.token", token])
    assert of("bridge.port=7")[1] == [tmp_path / ".ros/rlinf/bridge_7.token", token]
    assert of("bridge.token_file=t") == (tmp_path / "t", [tmp_path / "t"])
    assert of("bridge.token_file='~/u'") == (tmp_path / "u", [tmp_path / "u"])
    assert of("bridge.host=10.0.0.7") == (None, [])
    assert of("bridge.fleet=f") == (None, of()[1])
    assert of("bridge.credentials=c") == (token, [])
    with pytest.raises(RecipeError, match="^bridge.token_file: expected a path in which"):
        of("bridge.token_file='~nobody_x/t'")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert of() == (token, [token]), "of a user without a home"
