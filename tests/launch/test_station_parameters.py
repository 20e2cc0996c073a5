"""Settings of recipe and robot reach the process that needs them."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.interlock import load_limits
from rlinf_core.launch.graph import _settings, operator_process
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.recipes.schema import StationPolicy
from rlinf_core.robots.calibration.hand_eye import load as load_hand_eye
from rlinf_core.robots.config import load_robot, robots
from rlinf_core.robots.drivers import SIMULATOR
from rlinf_core.robots.operators import settings_of
from rlinf_core.robots.operators.homing import Goal, Homes
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.ros_parameters import flattened, from_parameters, to_parameters
from tests.launch.test_station_graph import graph

CAMERA = "station.observe_cameras=[wrist]"


@pytest.mark.parametrize("overrides, lockstep", [((), True), (("station.lockstep=false",), False)])
def test_every_node_of_a_station_keeps_the_same_time(tmp_path, overrides, lockstep):
    processes = graph(tmp_path, *overrides)
    for name in ("sim_bridge", "environment", "policy", "operator", "recorder", "interlock"):
        assert processes[name].parameters["lockstep"] is lockstep, name


def test_the_simulator_knows_its_speed_cameras_and_frames(tmp_path):
    parameters = graph(tmp_path, "station.real_time_factor=0.3", CAMERA)["sim_bridge"].parameters
    robot = load_robot("franka_sim")
    assert parameters["real_time_factor"] == 0.3 and parameters["cameras"] == ["wrist"]
    assert parameters["simulator"] == robot.simulator == "franka_mujoco"
    assert parameters["frames"] == [load_limits(robot.limits).frame]


def test_an_interlock_has_the_limits_of_its_arm(tmp_path):
    robot = load_robot("franka_sim")
    assert graph(tmp_path)["interlock"].parameters["limits_file"] == str(robot.limits)


def test_recorder_and_uplink_know_what_an_episode_holds(tmp_path):
    recipe, processes = load_recipe("demo"), graph(tmp_path)
    spec, robot = station_task(recipe).spec.to_dict(), load_robot("franka_sim")
    for name in ("recorder", "uplink"):
        assert processes[name].parameters["specs"] == to_parameters(spec, "specs"), name
        assert processes[name].parameters["spool"] == str(tmp_path / "spool"), name
    assert processes["recorder"].parameters["tool_frame"] == robot.tool_frame != ""
    assert processes["uplink"].parameters["address"] == recipe.bridge.address
    assert processes["uplink"].parameters["limits_hash"] == load_limits(robot.limits).hash
    assert processes["uplink"].parameters["policies"] == str(tmp_path / "policies_at_station")


WEB = "station.web.port=8080"


@pytest.mark.parametrize(
    "more, needs_viewer",
    [
        ("", True),
        ("estops: [page]\n", True),
        ("estops: [pendant]\n", False),
        ("estops: [page, pendant]\n", False),
        ("no_estop_reason: the pendant beside the arm cuts its power\n", False),
    ],
)
def test_a_page_that_is_a_real_arms_only_stop_is_one_only_while_somebody_has_it_open(
    tmp_path, more, needs_viewer
):
    robot = tmp_path / "robots/mine"
    shutil.copytree(load_robot("franka_fr3").limits.parent, robot)
    lines = (robot / "robot.yaml").read_text().splitlines(keepends=True)
    (robot / "robot.yaml").write_text("".join(line for line in lines if "estop" not in line) + more)
    processes = graph(tmp_path, f"station.robot={robot}", "station.operator.kind=keyboard", WEB)
    assert processes["page"].parameters["needs_viewer"] is needs_viewer
    assert "page" in processes["interlock"].parameters["estops"]


@pytest.mark.parametrize("robot", ["franka_sim", "franka_twin"])
def test_nobody_need_watch_an_arm_without_hardware(tmp_path, robot):
    processes = graph(tmp_path, f"station.robot={robot}", "station.operator.kind=keyboard", WEB)
    assert processes["page"].parameters["needs_viewer"] is False


def make_settings(kind, **changes):
    return settings_of(kind).from_document({"kind": kind} | changes)


PARTS = [
    make_settings(
        "leader",
        device="/dev/a",
        joints={"shoulder": {"id": 3}, "base": {"id": 1, "sign": -1}},
        trigger={"id": 5, "open": 0.1, "closed": 1.0},
    ),
    make_settings("joy"),
    make_settings("keyboard"),
    StationPolicy(backend="remote", address="ws://a:1", keys={"wrist": "observation/wrist_image"}),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_settings_of_a_part_come_back_from_their_parameters(part):
    document = from_parameters(flattened(_settings(part)))
    returned = type(part).from_document(document)
    assert returned == part
    assert list(document.get("joints", {})) == list(getattr(part, "joints", {})), (
        "from base to tool"
    )


def test_settings_and_options_of_every_shipped_robot_come_back_from_their_parameters():
    counts = Counter()
    for name in robots():
        robot = load_robot(name)
        parts = [robot.driver_node, *robot.device_cameras.values(), *robot.grippers.values()]
        for part in filter(None, parts):
            assert type(part).from_document(from_parameters(flattened(_settings(part)))) == part, (
                name
            )
            counts[type(part).__module__] += 1
        options = json.loads(json.dumps(robot.options)) if robot.driver == SIMULATOR else {}
        assert from_parameters(flattened(to_parameters(options, "options"))) == options, name
    assert len(counts) >= 3, counts


@pytest.mark.parametrize(
    "recipe", sorted(path.stem for path in Path("configs").glob("*twin*.yaml")) + ["demo_vision"]
)
def test_specs_keep_their_hash_on_their_way_through_parameters(recipe):
    spec = station_task(load_recipe(recipe)).spec
    assert (
        StationSpec.from_dict(
            from_parameters(flattened(to_parameters(spec.to_dict(), "specs")))
        ).hash
        == spec.hash
    )


def sections(processes):
    """Parameters by process; the specs and the settings of drivers have tests of their own."""
    return {
        name: {
            key: value
            for key, value in process.parameters.items()
            if key != "specs" and not (key == "settings" and process.executable == "driver")
        }
        for name, process in processes.items()
    }


def identity(process):
    return process.package, process.executable, process.module, process.namespace, process.restart


PEG = str(Path("configs/tasks/peg_insertion.yaml").resolve())
TOOL_DOWN = {"_": [1.0, 0.0, 0.0, 0.0]}
FR3_JOINTS = {"joint_states": [f"fr3_joint{number}" for number in range(1, 8)]}
IMAGES = {"cameras": ["front", "wrist"], "image_size": [32, 48]}
PICTURES = ["station.observe_cameras=[front,wrist]", "station.image_size=[32,48]"]


def test_all_that_the_nodes_of_a_simulated_station_are_told(tmp_path):
    """The station has a page, two cameras and a script that takes over."""
    robot = load_robot("franka_sim")
    limits, views = str(robot.limits), robot.limits.parent / "views"
    processes = graph(
        tmp_path,
        *PICTURES,
        "seed=7",
        "station.name=lab",
        WEB,
        "station.spool_gb=3",
        "station.session_gb=2",
        "station.policies_gb=4",
        "station.device=cpu",
        "station.real_time_factor=0.5",
        "station.operator={kind: scripted, noise: 0.3, takes_over: 5}",
        f"station.policy.monitor={tmp_path / 'monitor.npz'}",
        "collect.first_seed=10",
        "online.first_seed=20",
        "evaluate.first_seed=30",
        "bridge.port=50999",
    )
    shown = ["video", "front", "wrist"]
    policy = {
        "task_file": PEG,
        "seed": 7,
        "device": "cpu",
        "lockstep": True,
        "custom_kinds": [""],
        "monitor": str(tmp_path / "monitor.npz"),
        "orientations": TOOL_DOWN,
        **IMAGES,
    }
    tokens = processes["uplink"].parameters["tokens"]
    assert [Path(token).name for token in tokens] == ["bridge_50999.token", "bridge.token"]
    seeds = processes["page"].parameters["first_seeds"]
    assert seeds[1] - seeds[0] == 10 and seeds[2] == 30, "held-out scenes are those of every seed"
    assert sections(processes) == {
        "sim_bridge": {
            "simulator": "franka_mujoco",
            "frames": ["base_link"],
            "options": to_parameters(robot.options, "options"),
            "lockstep": True,
            "real_time_factor": 0.5,
            "control_hz": 10.0,
            "views": shown,
            **IMAGES,
        },
        "interlock": {
            "limits_file": limits,
            "estops": ["page"],
            "no_estop_reason": "",
            "latch_file": "",
            "lockstep": True,
            "teleports": True,
            "distance": False,
            "driver": False,
            "follows": "",
        },
        "environment": {
            "task_file": PEG,
            "station": "lab",
            "lockstep": True,
            "person": False,
            "external": False,
            "teleports": True,
            "homes": False,
            "orientations": TOOL_DOWN,
            **IMAGES,
        },
        "policy": policy,
        "operator": {
            "task_file": PEG,
            "kind": "scripted",
            "noise": 0.3,
            "lockstep": True,
            "takes_over": 5,
            "seed": 7,
            "armed_file": str(tmp_path / "operator.armed"),
            "page": {"kind": "page"},
        },
        "recorder": {
            "station": "lab",
            "spool": str(tmp_path / "spool"),
            "spool_gb": 3.0,
            "session_gb": 2.0,
            "estops": ["page"],
            "lockstep": True,
            "cameras": ["front", "wrist"],
            "observed": [
                "camera/front/image",
                "camera/wrist/image",
                "current_pose",
                "current_twist",
                "object_pose",
                "wrench",
            ],
            "urdf": str(robot.urdf),
            "tool_frame": "tool0",
            "limits": [limits],
            "attached": [f"recipe.yaml={tmp_path}/recipe.yaml", f"limits.yaml={limits}"],
        },
        "uplink": {
            "station": "lab",
            "spool": str(tmp_path / "spool"),
            "spool_gb": 3.0,
            "policies": str(tmp_path / "policies_at_station"),
            "policies_gb": 4.0,
            "address": "127.0.0.1:50999",
            "credentials": "",
            "tokens": tokens,
            "limits_hash": load_limits(robot.limits).hash,
        },
        "page": {
            "task_file": PEG,
            "run_dir": str(tmp_path),
            "port": 8080,
            "host": "127.0.0.1",
            "token_file": "",
            "lockstep": True,
            "cameras": ["front", "wrist"],
            "views": shown,
            "script": True,
            "needs_viewer": False,
            "references": [str(views / "front.png"), str(views / "wrist.png")],
            "limits": [limits],
            "first_seeds": seeds,
        },
    }
    assert all(
        process.remappings == (("/clock", "/lab/clock"),) and process.namespace == "/lab"
        for process in processes.values()
    )
    assert identity(processes["sim_bridge"])[:3] == (
        "rlinf_drivers",
        "sim_bridge",
        "sim_bridges.core.ros_bridge",
    )
    assert [process.restart for process in processes.values()] == ["shutdown"] * 2 + ["respawn"] * 6


def test_all_that_the_nodes_of_a_real_arm_with_cameras_are_told(tmp_path):
    """The twin's station has every process of the arm's, and one in place of the arm."""
    robot = load_robot("franka_twin_devices")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    processes = graph(
        tmp_path,
        "station.robot=franka_twin_devices",
        *PICTURES,
        "station.operator={kind: keyboard}",
        "station.second_operator={kind: pedal, device: /dev/x}",
        f"station.web={{port: 8080, token_file: {token}}}",
        "station.policy={backend: remote, address: 'ws://a:1'}",
    )
    limits = str(robot.limits)
    tables = sections(processes)
    mounts = tables["recorder"].pop("mounts")
    assert tables.keys() == {
        *("twin", "driver", "camera_wrist", "interlock", "environment", "policy", "operator"),
        *("recorder", "uplink", "page"),
    }
    assert tables["twin"] == {
        "module": "sim_bridges.twins.franka",
        "lockstep": False,
        "priority": 25,
        "simulator": "franka_mujoco",
        "options": to_parameters(robot.twin.options, "options"),
        "settings": _settings(robot.driver_node),
        "control_hz": 10.0,
        "cameras": ["front"],  # the other one is a device
        "image_size": [32, 48],
    }
    assert tables["driver"] == {"module": "rlinf_drivers.franka"}
    assert processes["driver"].parameters["settings"] == _settings(robot.driver_node)
    assert tables["camera_wrist"] == {
        "camera": "wrist",
        "settings": _settings(robot.device_cameras["wrist"]),
    }
    assert identity(processes["camera_wrist"]) == (
        "rlinf_drivers",
        "camera",
        "rlinf_drivers.camera",
        "/station_a/camera/wrist",
        "respawn",
    )
    assert tables["environment"] == {
        "task_file": PEG,
        "station": "station_a",
        "lockstep": False,
        "person": True,
        "external": True,
        "teleports": True,
        "homes": False,
        "joints": FR3_JOINTS,
        "axes": {
            "current_twist": {"frame": "base_link", "tool": True},
            "wrench": {"frame": "base_link", "tool": False},
        },
        "orientations": TOOL_DOWN,
        **IMAGES,
    }
    assert tables["operator"] == {
        "task_file": PEG,
        "kind": "keyboard",
        "lockstep": False,
        "settings": _settings(make_settings("pedal", device="/dev/x")),
        "page": {"kind": "page"},
    }, "the page has the keyboard's part"
    assert tables["policy"]["remote"]["address"] == "ws://a:1"
    assert tables["page"]["token_file"] == str(token) and tables["page"]["views"] == [""]
    assert tables["page"]["script"] is False and tables["page"]["lockstep"] is False
    assert (tables["interlock"]["driver"], tables["interlock"]["lockstep"]) == (True, False)
    assert mounts["base"] == {
        "frame": "base_link",
        "position": [0.0, 0.0, 0.0],
        "orientation": [0.0, 0.0, 0.0, 1.0],
    }
    wrist, file = mounts["wrist_optical_frame"], load_hand_eye(robot.hand_eye).cameras["wrist"]
    assert wrist == {
        "frame": "tool0",
        "position": list(file.position),
        "orientation": list(file.orientation),
    }
    assert mounts["front_optical_frame"]["frame"] == "base_link"
    assert tables["recorder"]["limits"] == [limits]


def test_all_that_the_nodes_of_an_arm_with_a_controller_of_its_own_are_told(tmp_path):
    processes = graph(
        tmp_path,
        "station.robot=ur5e",
        "station.task=ur5e_reach",
        "station.operator.kind=keyboard",
        WEB,
    )
    limits = str(load_robot("ur5e").limits)
    topic = "/scaled_joint_trajectory_controller/joint_trajectory"
    tables = sections(processes)
    assert tables["controller"] == {
        "limits_file": limits,
        "kind": "joint_trajectory",
        "topic": topic,
        "horizon_s": 0.05,
        "slowed_by": "/speed_scaling_state_broadcaster/speed_scaling",
        "gain": 5.0,
    }
    assert identity(processes["controller"]) == (
        "rlinf_drivers",
        "controller",
        "rlinf_drivers.controller",
        "/station_a",
        "shutdown",
    )
    assert tables["interlock"] == {
        "limits_file": limits,
        "estops": ["page"],
        "no_estop_reason": "",
        "latch_file": f"robot:{topic[1:]}",
        "lockstep": False,
        "teleports": False,
        "distance": False,
        "driver": True,
        "follows": topic,
    }
    assert tables["driver"] == {"module": "rlinf_drivers.universal_robots"}
    assert (tables["recorder"]["urdf"], tables["recorder"]["tool_frame"]) == ("", "tcp")
    assert "mounts" not in tables["recorder"], "its frames have the limits' root"
    assert tables["page"]["cameras"] == ["wrist"], "which the station need not observe"
    assert tables["page"]["needs_viewer"] is True and tables["page"]["script"] is False
    assert tables["environment"]["axes"]["wrench"] == {"frame": "base", "tool": True}
    assert processes["recorder"].remappings == (
        ("/clock", "/station_a/clock"),
        ("/station_a/joint_states", "/joint_states"),
        ("/station_a/robot_description", "/robot_description"),
        ("/station_a/current_pose", "/tcp_pose_broadcaster/pose"),
        ("/station_a/wrench", "/force_torque_sensor_broadcaster/wrench"),
    )


@pytest.fixture
def two_real_arms(tmp_path):
    """A robot whose arms have different grippers, one of them a twin, and topics of their own."""
    left, right = load_robot("two_franka_sim").limits_by_arm.values()
    gripper = "kind: gripper_command, joint: knuckle, open_at: 0.8, twin: true"
    (tmp_path / "robot.yaml").write_text(
        "driver: external\narms:\n"
        f"  left: {{limits: {left}, gripper: {{{gripper}}}}}\n"
        f"  right: {{limits: {right}, gripper: {{kind: robotiq, device: /dev/right}}}}\n"
        "estops: [pendant]\ndistance: true\n"
        "topics: {left/target_pose: /arm/left/pose, estop/pendant: /io/pendant}\n"
    )
    return [f"station.robot={tmp_path}", "station.task=reach_both"]


def test_each_arm_has_its_gripper_its_joints_and_its_name(tmp_path, two_real_arms):
    processes = graph(tmp_path, *two_real_arms, "station.operator.kind=keyboard")
    robot = load_robot(str(tmp_path))
    assert {
        name: (process.namespace, process.parameters["module"])
        for name, process in processes.items()
        if "gripper" in name
    } == {
        "gripper_twin_left": ("/station_a/left", "sim_bridges.twins.gripper_command"),
        "gripper_left": ("/station_a/left", "rlinf_drivers.gripper_command"),
        "gripper_right": ("/station_a/right", "rlinf_drivers.robotiq"),
    }
    for name, arm in (("gripper_twin_left", "left"), ("gripper_left", "left")):
        assert processes[name].parameters == {
            "module": processes[name].parameters["module"],
            "settings": _settings(robot.grippers[arm]),
            "arms": ["left", "right"],
        }
        assert identity(processes[name])[0] == "rlinf_drivers"
        assert identity(processes[name])[1:3] == (name[:-5], "rlinf_drivers.driver")
    settings = processes["gripper_right"].parameters["settings"]
    assert settings == _settings(robot.grippers["right"]) and settings["device"] == "/dev/right"
    left, right = (processes[f"interlock_{arm}"] for arm in ("left", "right"))
    assert left.parameters == {
        "limits_file": str(robot.limits_by_arm["left"]),
        "estops": ["pendant"],
        "no_estop_reason": "",
        "latch_file": "robot:arm/left/pose",
        "lockstep": False,
        "teleports": False,
        "distance": True,
        "driver": False,
        "follows": "",
        "arms": ["left", "right"],
        "others": ["right"],
        "rows": [0, 3, 6],
    }
    assert right.parameters["latch_file"] == "robot:station_a/right"
    assert dict(right.remappings)["estop/pendant"] == "/io/pendant", "the robot's own name"
    assert dict(right.remappings)["enable"] == "/station_a/enable"
    recorder = processes["recorder"].parameters
    assert recorder["attached"][1:] == [
        f"{arm}_limits.yaml={path}" for arm, path in robot.limits_by_arm.items()
    ]
    hashes = [load_limits(path).hash for path in robot.limits_by_arm.values()]
    assert processes["uplink"].parameters["limits_hash"] == "+".join(hashes)
    assert processes["environment"].parameters["axes"] == {
        f"{arm}/{name}": {"frame": f"{arm}_base_link", "tool": False}
        for arm in ("left", "right")
        for name in ("current_twist", "wrench")
    }


GAMEPAD = "station.operator.kind=gamepad"


@pytest.mark.parametrize(
    "overrides, kinds",
    [
        (["station.operator.kind=keyboard"], {"settings": "keyboard"}),
        (["station.operator.kind=keyboard", WEB], {"page": "page"}),
        ([GAMEPAD], {"settings": "gamepad"}),
        (
            [GAMEPAD, "station.second_operator={kind: keyboard}"],
            {"settings": "gamepad", "second_operator": "keyboard"},
        ),
        (
            [GAMEPAD, "station.second_operator={kind: keyboard}", WEB],
            {"settings": "gamepad", "page": "page"},
        ),
        (
            [GAMEPAD, "station.second_operator={kind: page, scale: 0.3}", WEB],
            {"settings": "gamepad", "page": "page"},
        ),
        (["station.second_operator={kind: spacemouse}"], {"settings": "spacemouse"}),
    ],
)
def test_the_devices_of_a_person_with_and_without_a_page(overrides, kinds):
    parameters = operator_process(load_recipe("demo", overrides)).parameters
    names = ("settings", "second_operator", "page")
    assert {name: parameters[name]["kind"] for name in names if name in parameters} == kinds
    if "page, scale" in str(overrides):
        assert parameters["page"]["scale"] == 0.3, "the recipe's own"


def test_two_keyboards_are_one_and_two_of_another_kind_are_refused():
    both = ["station.operator.kind=keyboard", "station.second_operator={kind: keyboard}"]
    parameters = operator_process(load_recipe("demo", both)).parameters
    assert parameters["settings"] == {"kind": "keyboard"} and "second_operator" not in parameters
    recipe = load_recipe("demo", [GAMEPAD, "station.second_operator={kind: gamepad}"])
    with pytest.raises(RecipeError, match="got gamepad for both"):
        operator_process(recipe)


def test_a_script_that_nobody_starts_a_run_for_stores_nothing():
    assert operator_process(load_recipe("demo")).parameters["armed_file"] == ""


@pytest.mark.parametrize("robot, simulated", [("franka_sim", True), ("franka_fr3", False)])
def test_a_replay_moves_a_simulated_arm_without_a_person(tmp_path, robot, simulated):
    replay = f"station.operator={{kind: replay, recording: {tmp_path}}}"
    processes = graph(tmp_path, f"station.robot={robot}", replay, WEB)
    operator = processes["operator"].parameters
    assert (operator["kind"], operator["simulated"]) == ("replay", simulated)
    assert operator["settings"]["recording"] == str(tmp_path)
    assert processes["environment"].parameters["person"] is not simulated


def test_an_arm_with_a_home_goes_there_before_each_scene(tmp_path):
    robot = tmp_path / "mine"
    shutil.copytree(load_robot("franka_fr3").limits.parent, robot)
    text = (robot / "robot.yaml").read_text() + "home: {position: [0.5, 0.1, 0.3]}\n"
    (robot / "robot.yaml").write_text(text)
    processes = graph(tmp_path, f"station.robot={robot}", "station.operator.kind=keyboard", WEB)
    assert processes["environment"].parameters["homes"] is True
    homes = Homes.from_document(
        from_parameters(flattened(processes["operator"].parameters["home"]))
    )
    assert homes.goals == {"": Goal((0.5, 0.1, 0.3))}
    assert homes.lease_s == load_limits(robot / "limits.yaml").enable_lease


def test_a_name_that_ros_would_divide_is_refused_with_its_place():
    leader = make_settings(
        "leader", device="/dev/a", joints={"j.1": {"id": 1}}, trigger=PARTS[0].trigger.model_dump()
    )
    with pytest.raises(RlinfError, match="^settings.joints: expected a name without a dot"):
        _settings(leader)
