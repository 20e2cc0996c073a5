"""What the recipe and the robot say reaches the process that needs it."""

import json
import shutil

import pytest

from rlinf_core.interlock import load_limits
from rlinf_core.recipes import load_recipe, station_task
from rlinf_core.robots.config import load_robot
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
        assert json.loads(processes[name].parameters["specs"]) == json.loads(json.dumps(spec)), name
        assert processes[name].parameters["spool"] == str(tmp_path / "spool"), name
    assert processes["recorder"].parameters["tool_frame"] == robot.tool_frame != ""
    assert processes["uplink"].parameters["address"] == recipe.bridge.address
    assert processes["uplink"].parameters["limits_hash"] == load_limits(robot.limits).hash
    assert processes["uplink"].parameters["policies"] == str(tmp_path / "policies_at_station")


WEB = "station.web.port=8080"


@pytest.mark.parametrize("more, needs_viewer", [
    ("", True), ("estops: [page]\n", True), ("estops: [pendant]\n", False), ("estops: [page, pendant]\n", False),
    ("no_estop_reason: the pendant beside the arm cuts its power\n", False)])
def test_a_page_that_is_a_real_arms_only_stop_is_one_only_while_somebody_has_it_open(tmp_path, more, needs_viewer):
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
