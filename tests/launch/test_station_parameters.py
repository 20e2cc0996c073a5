"""What the recipe and the robot say reaches the process that needs it."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rlinf_core.interlock import load_limits
from rlinf_core.launch.graph import _settings
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.recipes.schema import StationPolicy
from rlinf_core.robots.config import load_robot, robots
from rlinf_core.robots.drivers import SIMULATOR
from rlinf_core.robots.operators import settings_of
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
        parts = [robot.driver_node, *robot.devices.values(), *robot.grippers.values()]
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
