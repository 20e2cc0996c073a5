"""Every simulator conforms to the robot interface; bad names, options and missing packages are said
in words.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from rlinf_core.cli.check import simulator_recipe
from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError, SpecError
from rlinf_core.core.rotation import product, to_quaternion
from rlinf_core.recipes import load_recipe
from sim_bridges.core.conformance import _front_ends, checks, load_recipe_like
from sim_bridges.core.environments import make_environments
from sim_bridges.core.interface import simulators
from sim_bridges.core.isolated import make, python_of
from sim_bridges.core.station import SimulatedStation, simulated_station

SLOW = pytest.mark.slow
STANDINS = Path(__file__).parent / "standins"
INSTALL = {
    name: importlib.import_module(f"sim_bridges.simulators.{name}").INSTALL for name in simulators()
}
HERE = [name for name, install in INSTALL.items() if install in ("make setup", "make simulators")]
ISOLATED = [pytest.param(name, marks=SLOW) for name in ("genesis", "libero", "calvin")]
# each tick of their stand-ins crosses to another process, half a minute of them
LONG = (
    "robocasa",
    "robotwin",
)
# roboverse_primitive.py runs RoboVerse itself; of GSEnv only the names are looked up
WITHOUT_STAND_IN = ("roboverse", "gsenv")
ELSEWHERE = [
    pytest.param(name, marks=SLOW if name in LONG else ())
    for name, install in INSTALL.items()
    if not install.startswith("make ") and name not in WITHOUT_STAND_IN
]


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=SLOW if name in ("gym_hil", "robosuite", "metaworld") else ())
            for name in HERE
        ),
        *ISOLATED,
    ],
)
def test_it_keeps_every_promise(name):
    """Scenes and motion by seed, shapes, workspace, gripper, cameras; the script solves the task,
    chance does not.
    """
    broken = [
        row
        for row in checks(simulator_recipe(name), 2, station=False, figures={})
        if not row.passed
    ]
    assert broken == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_adapter_keeps_every_promise_against_a_stand_in_of_its_simulator(name, monkeypatch):
    """Stand-ins of Isaac Sim and other simulators run in a process of their own."""
    monkeypatch.setenv(f"RLINF_PYTHON_{name.upper()}", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))
    monkeypatch.setenv("ROBOTWIN_ROOT", str(STANDINS / "robotwin"))
    broken = [
        row
        for row in checks(simulator_recipe(name), 1, station=False, figures={})
        if not row.passed
    ]
    assert broken == []


def test_a_simulator_that_lacks_attributes_is_refused_with_class_and_attribute():
    from sim_bridges.core.interface import Simulator, as_arms

    class CustomSimulator(Simulator):
        cameras, joint_names = ("video",), ()

    with pytest.raises(
        RlinfError, match=r"CustomSimulator: expected .*, got none of: tick_s\. Add"
    ):
        as_arms(CustomSimulator())
    with pytest.raises(RlinfError, match="advance, .*tick_s"):
        as_arms(SimpleNamespace())
    with pytest.raises(RlinfError, match="got none of: advance_arms, .*tick_s"):
        as_arms(SimpleNamespace(arms=("left",)))
    CustomSimulator.tick_s = 0.01
    assert as_arms(CustomSimulator()).tick_s == 0.01


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.lockstep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*HERE, *ISOLATED])
def test_a_whole_station_does_the_same_scene_by_scene(name):
    """The scripted operator over ROS, through interlock and bridge, succeeds where the vectorised
    environment's does.
    """
    rows = {row.name: row for row in checks(simulator_recipe(name), 4, station=True, figures={})}
    assert rows["the station over ROS gives the same result, scene by scene"].passed, rows


def test_what_isaac_lab_reports_as_a_twist_is_the_tools_and_not_the_hands():
    """The hand turns about itself: what is a tenth of a metre in front of it moves."""
    from sim_bridges.simulators.isaaclab import Simulator
    from sim_bridges.simulators.isaaclab.package import RELEASES

    simulator, hand = Simulator.__new__(Simulator), torch.tensor([[[0.5, 0.0, 0.3]]])
    tool, upright = hand + torch.tensor([0.0, 0.0, -0.1]), torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    simulator._hand, simulator._goal, simulator._release = 0, np.zeros(7), RELEASES["2.3"]
    simulator._robot = SimpleNamespace(
        data=SimpleNamespace(
            root_pos_w=torch.zeros(1, 3),
            joint_pos=torch.zeros(1, 9),
            body_link_pos_w=hand,
            body_link_lin_vel_w=torch.tensor([[[0.02, 0.0, 0.0]]]),
            body_link_ang_vel_w=torch.tensor([[[0.0, 0.5, 0.0]]]),
        )
    )
    simulator._frame = SimpleNamespace(
        data=SimpleNamespace(target_pos_w=tool, target_pos_source=tool, target_quat_source=upright)
    )
    simulator._object = SimpleNamespace(
        data=SimpleNamespace(root_pos_w=torch.zeros(1, 3), root_quat_w=upright[0])
    )
    assert simulator.channels()["current_twist"] == pytest.approx(
        [0.02 - 0.05, 0.0, 0.0, 0.0, 0.5, 0.0]
    )


@pytest.fixture
def isaac_lab(monkeypatch, request):
    """Provide the stand-in of an Isaac Lab version, and remove every trace of it afterwards."""
    forget_isaac_lab()
    monkeypatch.setenv("STANDIN_ISAACLAB", request.param)
    monkeypatch.syspath_prepend(str(STANDINS))
    yield request.param
    forget_isaac_lab()


def forget_isaac_lab():
    """Import its stand-in anew the next time, and register its tasks anew."""
    forget("isaaclab", "isaaclab_tasks", "world")
    for name in [name for name in gymnasium.registry if name.startswith("Isaac")]:
        del gymnasium.registry[name]


def forget(*packages):
    """Import them anew the next time."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.mark.parametrize("isaac_lab", ["2.3.2", "3.0.0"], indirect=True)
def test_rotations_are_the_same_through_isaac_lab_in_every_version(isaac_lab):
    """3.0 has quaternions x y z w, 2.3 w x y z: what is told is read again, and an unturned box is
    unturned.
    """
    from sim_bridges.simulators.isaaclab import VIEW, Simulator

    simulator = Simulator(device="cpu")
    assert simulator.channels()["object_pose"][3:] == pytest.approx([0.0, 0.0, 0.0, 1.0])
    assert simulator.channels()["goal_pose"][3:] == pytest.approx([0.0, 0.0, 0.0, 1.0])
    turned = np.array([0.1, 0.2, 0.3, np.sqrt(1 - 0.14)])
    simulator.advance(np.array([*simulator.tcp_pose()[:3], *turned]))
    assert simulator.tcp_pose()[3:] == pytest.approx(turned, abs=1e-6)
    order = [3, 0, 1, 2] if isaac_lab.startswith("2") else [0, 1, 2, 3]
    assert simulator.env.cfg.scene.front.offset.rot == pytest.approx(VIEW[order])
    app = sys.modules["isaaclab.app"]
    simulator.close()
    # 2.3's application ends with its process
    assert bool(app.LAUNCHED) == isaac_lab.startswith("2")


@pytest.mark.parametrize("isaac_lab", ["2.2.1", "3.1.0", "4.0.0"], indirect=True)
def test_another_version_of_isaac_lab_is_refused_by_name(isaac_lab):
    from sim_bridges.simulators.isaaclab import Simulator

    with pytest.raises(RlinfError, match=f"expected version 2.3 or 3.0, .* got {isaac_lab}"):
        Simulator(device="cpu")


@pytest.mark.parametrize("isaac_lab", ["3.0.0"], indirect=True)
def test_a_name_of_another_version_of_isaac_lab_is_answered_with_the_nearest(isaac_lab):
    from sim_bridges.simulators.isaaclab import Simulator

    with pytest.raises(
        RecipeError, match="did you mean|nearest|IsaacContrib-Lift-Cube-Franka-IK-Abs"
    ):
        Simulator("Isaac-Lift-Cube-Franka-IK-Abs-v0", device="cpu")


@pytest.mark.parametrize("isaac_lab", ["3.0.0"], indirect=True)
def test_without_isaac_sim_its_task_is_refused_in_words(isaac_lab):
    from sim_bridges.simulators.isaaclab import Simulator

    with pytest.raises(RlinfError, match="expected Isaac Sim"):
        Simulator(device="cuda:9")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_isaac_lab_itself_without_isaac_sim():
    """A primitive body on Newton and the CPU: rotations, pace, and an algorithm that learns a reach
    in the batched path.
    """
    python = python_of("isaaclab")
    if python is None:
        pytest.skip("Isaac Lab is not installed: make isaaclab")
    script = Path(__file__).parent / "isaaclab_kitless.py"
    done = subprocess.run(
        [python, str(script), "4"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["unturned"] == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=1e-5)
    assert figures["turned"] == pytest.approx([0.1, 0.2, 0.3, np.sqrt(0.86)], abs=1e-4)
    assert figures["steps_per_s"] >= 100
    assert figures["success_after"] >= 0.8 > figures["success_before"]


@pytest.mark.parametrize("version", ["2.3.2"])
def test_the_adapter_of_isaac_lab_keeps_every_promise_in_the_earlier_version_too(
    version, monkeypatch
):
    monkeypatch.setenv("STANDIN_ISAACLAB", version)
    test_an_adapter_keeps_every_promise_against_a_stand_in_of_its_simulator("isaaclab", monkeypatch)


def test_what_robotwin_reports_as_a_twist_turns_too():
    from sim_bridges.simulators.robotwin import Simulator

    simulator = Simulator.__new__(Simulator)
    simulator._last_pose = np.array([0.1, 0.2, 0.3, 0.0, 1.0, 0.0, 0.0])
    now = np.array(
        [0.1, 0.202, 0.3, *product(to_quaternion((0.0, 0.0, 0.01)), simulator._last_pose[3:])]
    )
    simulator.tcp_pose = lambda: now
    simulator.succeeded = lambda: False
    simulator._in_base = np.array
    simulator._entity = SimpleNamespace(get_qpos=lambda: np.zeros(9))
    simulator._joint_indices = range(7)
    simulator._finger = 8
    simulator._closed, simulator._open = 0.0, 0.04
    simulator._object = simulator._goal = SimpleNamespace(get_pose=lambda: now)
    assert simulator.channels()["current_twist"] == pytest.approx([0.0, 0.1, 0.0, 0.0, 0.0, 0.5])


def test_a_gripper_of_robotwin_that_opens_further_than_ours_can_be_open_to_its_task():
    """Its tasks need more than 0.8 of the gripper's range."""
    from sim_bridges.simulators.robotwin import WIDEST_M, Simulator

    simulator, values = Simulator.__new__(Simulator), []
    simulator._closed, simulator._open, simulator._finger = 0.01, 0.05, 0
    simulator._entity = SimpleNamespace(get_qpos=lambda: np.array([0.05]))
    assert simulator.gripper_width() == pytest.approx(WIDEST_M)
    simulator._entity = SimpleNamespace(get_qpos=lambda: np.array([0.01]))
    assert simulator.gripper_width() == 0.0
    simulator._arm = "left"
    simulator._robot = SimpleNamespace(set_gripper=lambda value, *_, **__: values.append(value))
    simulator.drive(WIDEST_M)
    simulator.drive(0.0)
    assert values == [1.0, 0.0]


@pytest.mark.parametrize(("version", "words"), [("1.1.1", "got PyPI's 1.1.1"), ("3.7.2", "")])
def test_behaviors_recorded_scene_is_another_with_another_seed_and_one_of_pypi_is_refused(
    version, words, monkeypatch
):
    from sim_bridges.simulators.behavior import Simulator

    monkeypatch.setenv("STANDIN_OMNIGIBSON", version)
    monkeypatch.delenv("OMNIGIBSON_HEADLESS", raising=False)
    monkeypatch.syspath_prepend(str(STANDINS))
    try:
        if words:
            with pytest.raises(RlinfError, match=words):
                Simulator()
            return
        simulator, places = Simulator(), []
        for seed in (1, 2, 1):
            simulator.reset(seed)
            places.append(simulator.channels()["object_pose"][:3])
        assert np.allclose(places[0], places[2]) and np.abs(places[0] - places[1]).max() > 1e-3
        assert np.abs(places[0] - places[1])[:2].max() < 2 * simulator.spread_m * 1.5
    finally:
        forget("omnigibson", "world")


def test_robocasa_with_other_versions_beside_it_is_answered_in_words(tmp_path, monkeypatch):
    """RoboCasa asserts the versions when it is imported."""
    (tmp_path / "robocasa.py").write_text('assert False, "MuJoCo version must be 3.3.1"')
    monkeypatch.syspath_prepend(str(tmp_path))
    from sim_bridges.core.interface import build

    with pytest.raises(
        RlinfError,
        match=r"expected the package robocasa.* must be 3\.3\.1.*from its repository's master",
    ):
        build("robocasa", {})
    forget("robocasa")


def test_robotwins_folders_are_those_of_each_of_its_branches(tmp_path):
    from sim_bridges.simulators.robotwin import FOLDERS, _options

    with pytest.raises(
        RecipeError, match="expected demo_clean.yml in env_cfg/task_config or task_config"
    ):
        _options(tmp_path, "place_empty_cup", "demo_clean")
    for folder in FOLDERS:
        root = tmp_path / folder.replace("/", "_")
        (root / "assets").mkdir(parents=True)
        shutil.copytree(STANDINS / "robotwin/assets", root / "assets", dirs_exist_ok=True)
        shutil.copytree(STANDINS / "robotwin/env_cfg/task_config", root / folder)
        assert _options(root, "place_empty_cup", "demo_clean")["dual_arm_embodied"]


def test_the_same_task_has_the_same_spec_in_every_simulator():
    hashes = {
        simulated_station(load_recipe("sim_pick_rlpd", [f"station.robot={robot}"])).task.spec.hash
        for robot in ("panda_gym_hil", "fetch", "sawyer_metaworld")
    }
    assert len(hashes) == 1


def test_a_cube_that_falls_from_the_table_ends_the_episode_as_a_failure():
    """Terminated, not succeeded, discount 0; the next episode begins with a cube on the table."""
    vector = make_environments(load_recipe("sim_pick_rlpd", ["station.robot=panda_robosuite"]), 1)
    station, rest = vector.envs[0].station, np.zeros((1, 4))
    vector.reset([3])
    on_the_table = vector.step(rest)
    assert not on_the_table.done.any() and not on_the_table.failure.any()
    # beside the table
    station.simulator.env.sim.data.set_joint_qpos(
        station.simulator.env.cube.joints[0], np.array([0.0, 0.9, 1.0, 1.0, 0.0, 0.0, 0.0])
    )
    fell = [steps := vector.step(rest)]
    while not steps.done[0] and len(fell) < 20:
        fell.append(steps := vector.step(rest))
    assert 1 < len(fell) < 20, "it takes a while to fall"
    ends = (steps.terminated[0], steps.truncated[0], steps.success[0], steps.failure[0])
    assert ends == (1.0, 0.0, 0.0, 1.0) and steps.reward[0] == 0.0
    assert station.channels["object_pose"][2] > -0.3 and not vector.step(rest).done.any()
    vector.close()


def test_without_the_interlock_a_free_motion_is_the_same():
    """The two ways to step a simulator differ only where a limit is active."""
    vectors = []
    for interlock in ("true", "false"):
        alone = simulated_station(
            load_recipe_like(
                simulator_recipe("gymnasium_robotics"), f"simulation.interlock={interlock}"
            )
        )
        alone.reset(5)
        for _ in range(6):
            observation, _ = alone.step(np.array([0.4, -0.3, 0.2, 0.5]))
        vectors.append(alone.task.spec.flatten(observation))
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-3)


@pytest.mark.parametrize(
    "recipe, reason",
    [
        (
            "demo_tight",
            "actions are dx, dy, dz, drx, dry, drz. Without the interlock, actions move only x, "
            "y, z",
        )
    ],
)
def test_without_the_interlock_what_would_not_be_moved_is_refused(recipe, reason):
    with pytest.raises(
        RecipeError, match=f"simulation.interlock: expected true for a task whose {reason}"
    ):
        simulated_station(load_recipe(recipe, ["simulation.interlock=false"]))


def test_a_task_that_is_played_behind_the_interlock_alone_is_checked_there():
    """The tool turns only behind the interlock; the check of the script reports this."""
    recipe, figures = simulator_recipe("franka_mujoco", task="peg_insertion_tight"), {}
    rows = {
        row.name: row for row in _front_ends(recipe, simulated_station(recipe), 1, False, figures)
    }
    measured = rows["the script solves the task"].measured
    assert (
        measured.startswith("vectorised_interlock ")
        and "; not played without the interlock: simulation.interlock: " in measured
    )
    assert (
        "random actions rarely solve the task" in rows
        and {"success_vectorised_interlock", "episodes"} <= figures.keys()
    )
    assert "success_vectorised" not in figures


def test_the_vectorised_station_holds_the_enable_of_limits_that_want_it_held():
    ours = simulated_station(load_recipe("sim_sac", ["station.task=reach"]))
    held = SimulatedStation(ours.simulator, ours.task, replace(ours.limits, enable_lease=60.0))
    for station in (ours, held):
        station.reset(0)
        station.step(np.full(station.task.spec.action.dim, 0.5))
    assert (
        not held.held
        and np.array_equal(held.executed, ours.executed)
        and np.abs(held.executed).min() > 0.01
    )


def test_what_is_not_installed_is_said_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(
        RlinfError,
        match="expected the package metaworld, which is not installed.*Run: make simulators",
    ):
        make("metaworld")


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("manyskill", {}, "did you mean 'maniskill'"),
        ("metaworld", {"task": "pick-place-v4"}, "did you mean 'pick-place-v3'"),
        ("gymnasium_robotics", {"task": "FetchReech-v4"}, "did you mean 'FetchReach-v4'"),
        ("maniskill", {"task": "PushCub-v1"}, "did you mean 'PushCube-v1'"),
        (
            "maniskill",
            {"task": "PushT-v1"},
            "expected one for a single Panda, got 'PushT-v1', which is for ['panda_stick']",
        ),
        (
            "gymnasium_robotics",
            {"task": "FetchReach-v1"},
            "got 'FetchReach-v1' (did you mean 'FetchReach-v4'?)",
        ),
        (
            "maniskill",
            {"task": "PushCube-v1", "goal": "goal_site"},
            "goal: expected one of obj, goal_region, as",
        ),
        ("gym_hil", {"tusk": 1}, "unknown key 'tusk'"),
        (
            "franka_mujoco",
            {"pose_noise": 0.1},
            "unknown key 'pose_noise' (did you mean 'pose_noise_m'?)",
        ),
        ("maniskill", {"task": 3}, "'task': expected a text, got int 3"),
        ("robosuite", {"robot": "UR5"}, "robot: expected one of"),
        ("robosuite", {"task": "Stak"}, "task: expected one of Lift, Stack, "),
        ("robosuite", {"task": "Stack"}, "object: expected one of table, cubeA, cubeB, "),
        ("robosuite", {"goal": "cuba"}, "goal: expected one of table, cube, "),
        ("robosuite", {"task": "Wipe"}, "task: expected one of Lift, Stack, "),
        (
            "robosuite",
            {"robot": "UR5e"},
            "expected one with two sliding fingers, e.g. PandaGripper; got Robotiq85Gripper",
        ),
    ],
)
def test_a_wrong_name_is_answered_with_what_is_there(name, options, message):
    with pytest.raises(RecipeError) as error:
        make(name, **options)
    assert message in str(error.value)


@pytest.mark.parametrize("name", HERE)
def test_whoever_has_a_measure_of_its_own_tells_it(name):
    simulator = simulated_station(simulator_recipe(name)).simulator
    assert simulator.succeeded() is not None and simulator.channels()["task/success"] == [
        float(simulator.succeeded())
    ]


def test_assets_that_are_not_here_are_named_instead_of_asked_for(monkeypatch):
    def nobody(prompt=""):
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody)
    needs = r"'PickSingleYCB-v1' needs assets that are not here: ycb. Run: python -m mani_skill"
    with pytest.raises(RlinfError, match=needs):
        make("maniskill", task="PickSingleYCB-v1")


@pytest.mark.parametrize("task", ["drawer-open-v3", "window-open-v3", "pick-place-v3"])
def test_what_metaworld_lays_out_is_where_it_says_at_once(task):
    """Meta-World moves bodies at a reset but updates their poses only at the next step."""
    simulator = make("metaworld", task=task)
    for seed in (3, 4):
        simulator.reset(seed)
        channels = simulator.channels()
        simulator.scene._mujoco.mj_forward(simulator.env.model, simulator.env.data)
        for name, value in simulator.channels().items():
            assert np.array_equal(value, channels[name]), name
        assert np.linalg.norm(channels["object_pose"][3:]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "task, order", [("drawer-open-v3", "wxyz"), ("faucet-open-v3", "wxyz"), ("push-v3", "xyzw")]
)
def test_metaworlds_objects_are_turned_as_a_body_of_theirs_is(task, order):
    """Its tasks have quaternions in either order."""
    simulator = make("metaworld", task=task)
    simulator.reset(3)
    x, y, z, w = simulator.channels()["object_pose"][3:]
    turned = [
        simulator.scene.pose(np.zeros(3), quaternion)[3:] for quaternion in simulator.env.data.xquat
    ]
    assert max(abs(np.dot(quaternion, (x, y, z, w))) for quaternion in turned) == pytest.approx(
        1.0, abs=1e-6
    ), order


def test_maniskills_poses_are_in_the_frame_of_a_base_that_is_turned():
    simulator = make("maniskill", task="RollBall-v1")
    simulator.reset(0)
    before = simulator.tcp_pose()
    assert before[0] > 0.3 and abs(before[1]) < 0.1, "x is forward"
    target = before.copy()
    target[1] += 0.03
    for _ in range(20):
        simulator.advance(target)
    assert simulator.tcp_pose()[:3] - before[:3] == pytest.approx([0.0, 0.03, 0.0], abs=0.006)


def test_another_environment_of_robosuite_has_its_own_things():
    """Bodies and sites by their names, as robosuite's own observations have them; without a goal,
    above the object.
    """
    stack = make("robosuite", task="Stack", object="cubeA", goal="cubeB")
    stack.reset(3)
    raw, channels = stack.env._get_observations(force_update=True), stack.channels()
    for name, cube in (("object_pose", "cubeA"), ("goal_pose", "cubeB")):
        assert stack.scene.to_world(channels[name][:3]) == pytest.approx(raw[f"{cube}_pos"]), name
    assert channels["task/success"] == [0.0]
    a, b = (
        stack.env.sim.data.get_joint_qpos(cube.joints[0])
        for cube in (stack.env.cubeA, stack.env.cubeB)
    )
    stack.env.sim.data.set_joint_qpos(
        stack.env.cubeA.joints[0], np.concatenate([b[:2], [b[2] + 0.0455], b[3:]])
    )
    for _ in range(10):
        stack.advance(None)
    assert not np.allclose(a, b) and stack.channels()["task/success"] == [1.0] and stack.succeeded()
    door = make("robosuite", task="Door", object="Door_handle")
    channels = door.channels()
    assert door.scene.to_world(channels["object_pose"][:3]) == pytest.approx(
        door.env.sim.data.site_xpos[door.env.door_handle_site_id]
    )
    assert channels["goal_pose"][:2] == pytest.approx(channels["object_pose"][:2])


def test_an_action_of_another_shape_names_both():
    env = make_environments(simulator_recipe("franka_mujoco"), 1).envs[0]
    env.reset(seed=0)
    with pytest.raises(SpecError, match=r"expected shape \(3,\) \(dx, dy, dz\), got \(4,\)"):
        env.step(np.zeros(4))


def test_another_tick_than_the_simulators_is_refused(tmp_path):
    with pytest.raises(
        RecipeError,
        match="the simulator ticks every 0.05 s: expected the same value for limits.tick, got 0.01",
    ):
        from rlinf_core.interlock import load_limits
        from rlinf_core.tasks.task import load_task
        from sim_bridges.core.station import SimulatedStation

        SimulatedStation(
            make("gymnasium_robotics"),
            load_task("configs/tasks/pick_cube.yaml"),
            load_limits("sim_bridges/simulators/franka_mujoco/franka_sim/limits.yaml"),
        )


def test_a_second_task_on_one_simulator(capsys):
    """The simulator measures success of the first task only, so our measure decides."""
    assert (
        main(
            ["check", "sim", "franka_mujoco", "--task", "reach", "--episodes", "3", "--no-station"]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert (
        "task reach" in output
        and "13 of 13 kept" in output
        and "agrees with the simulator" not in output
    )


def test_what_is_not_kept_says_what_was_expected(tmp_path, capsys):
    folder = tmp_path / "small"
    shutil.copytree("sim_bridges/simulators/franka_mujoco/franka_sim", folder)
    limits = (folder / "limits.yaml").read_text()
    (folder / "limits.yaml").write_text(
        re.sub(r"box_high: .*", "box_high: [0.31, -0.24, 0.01]", limits)
    )
    command = [
        "check",
        "sim",
        "franka_mujoco",
        "--robot",
        str(folder),
        "--episodes",
        "1",
        "--no-station",
        "--task",
    ]
    assert main([*command, "pick_cube"]) == 1
    output = capsys.readouterr()
    assert re.search(
        r"FAIL it starts inside the interlock's box .*; expected between box_low \[.* and "
        r"box_high \[0.31",
        output.out,
    )
    assert re.search(
        r"FAIL the channels of the task exist .*missing goal_pose; expected current_pose",
        output.out,
    )


def test_the_command_says_what_it_does_not_know(capsys):
    assert main(["check", "sim", "isaacsimm"]) == 2
    assert "expected one of" in capsys.readouterr().err
    assert main(["check", "sim", "franka_mujoco", "--robot", "fetch"]) == 2
    assert (
        "--robot fetch: expected a robot with 'simulator: franka_mujoco', got gymnasium_robotics"
        in (capsys.readouterr().err)
    )
