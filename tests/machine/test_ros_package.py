"""`ros2 run rlinf` and `ros2 launch rlinf` after `colcon build`, where ROS 2 is
(``ros2_there``).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.core.paths import built_messages, message_packages
from tests.machine.ros2_there import SETUP, as_installed, needs_ros2
from tests.machine.workspace import CLEAN, built
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
NODES = (
    "camera",
    "controller",
    "director",
    "drill",
    "driver",
    "environment",
    "fault_injector",
    "gripper",
    "gripper_twin",
    "interlock",
    "operator",
    "page",
    "policy",
    "recorder",
    "sim_bridge",
    "twin",
    "uplink",
)
pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(600), needs_ros2]


DOMAINS = 14, 15  # of the two stations of a fleet
SHELL = {"cwd": ROOT, "text": True, "env": CLEAN | {"ROS_DOMAIN_ID": "153", "SETUP": SETUP}}


def shell(script, **environment):
    return subprocess.run(
        ["bash", "-ec", script],
        **SHELL | {"env": SHELL["env"] | environment},
        capture_output=True,
        timeout=500,
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Return the shell that a user has after `cd ros_ws && colcon build`, here in a copy."""
    messages, site = built_messages(), message_packages()
    return (
        '[ -z "$SETUP" ] || . "$SETUP"; '
        f"export AMENT_PREFIX_PATH={messages}:$AMENT_PREFIX_PATH "
        f"LD_LIBRARY_PATH={messages}/lib:$LD_LIBRARY_PATH "
        f"PYTHONPATH={site}:$PYTHONPATH RLINF_PYTHON={sys.executable}; "
        f". {built(tmp_path_factory)}/ros_ws/install/local_setup.sh; "
        f"{as_installed(tmp_path_factory.mktemp('ros') / 'ros')}"
    )


def test_every_node_has_its_package_and_its_name_of_before(workspace):
    result = shell(
        workspace + "for package in $(ros2 pkg list | grep rlinf); do "
        "ls $(ros2 pkg prefix $package)/lib/$package 2>/dev/null; done"
    )
    listed = result.stdout.split()
    assert {node for node in listed if listed.count(node) == 2} == set(NODES), result.stderr


@pytest.mark.parametrize("file", ["realworld", "sim", "collect", "safety_drill", "fleet"])
def test_launch_files_show_their_arguments_without_torch_and_ray(workspace, file, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests/machine')!r}); from without import "
        f"Without\n"
        "sys.meta_path[:] = [Without(f, ['torch', 'ray']) for f in sys.meta_path if hasattr(f, "
        "'find_spec')]\n"
    )
    shown = shell(
        workspace
        + f"PYTHONPATH={tmp_path}:$PYTHONPATH ros2 launch rlinf {file}.launch.py --show-args"
    )
    assert shown.returncode == 0 and "Arguments (pass arguments as" in shown.stdout, shown.stderr
    assert ("'trainer'" in shown.stdout) == (file not in ("safety_drill", "fleet"))


def test_ros2_run_starts_a_node_of_this_environment(workspace):
    ran = shell(workspace + "timeout -s INT 20 ros2 run rlinf fault_injector --help || true")
    refused = shell(
        workspace
        + "timeout -s INT 20 ros2 run rlinf interlock --ros-args -p limits_file:=/none.yaml || true"
    )
    assert "No module named" not in ran.stderr + refused.stderr
    assert "/none.yaml" in refused.stdout + refused.stderr


def test_ros2_launch_starts_the_station_that_rlinf_up_starts(workspace, tmp_path):
    output = shell(
        workspace + "timeout -k 60 -s INT 40 ros2 launch rlinf sim.launch.py "
        f"namespace:=station_of_test_ros_package run_dir:={tmp_path} || true"
    ).stdout
    for node in (
        "sim_bridge",
        "interlock",
        "environment",
        "policy",
        "operator",
        "recorder",
        "uplink",
    ):
        assert f"[{node}-" in output and "process started" in output
    assert "process has died" not in output, output[-3000:]
    assert (
        "station 'station_of_test_ros_package' (ROS_DOMAIN_ID 153) now waits for you; next"
        in output
    )
    assert (
        "rlinf run demo --set station.name=station_of_test_ros_package station.lockstep=true "
        "station.domain_id=153"
    ) in output


def test_of_a_fleet_in_domains_of_their_own_one_dies_and_the_other_is_through_in_the_end(
    workspace, tmp_path
):
    command = (
        "exec ros2 launch rlinf fleet.launch.py recipe:=demo_tiny 'stations:=kitchen lab' "
        f"'set:=bridge.port={free_port()} station.domain_id={DOMAINS[0]}' run_dir:={tmp_path}"
    )
    launch = subprocess.Popen(
        ["bash", "-ec", workspace + command],
        **SHELL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines, bridge, killed = [], 0, False
    try:
        for line in launch.stdout:
            lines.append(line)
            if started := re.search(
                r"\[kitchen.sim_bridge-\d+\]: process started with pid \[(\d+)", line
            ):
                bridge = int(started[1])
            # with the demonstrations of both
            if re.search(r"\[trainer-\d+\] (sft|online)\b", line) and not killed:
                killed = os.kill(bridge, signal.SIGKILL) is None
    finally:
        launch.send_signal(signal.SIGINT)
    text = "".join(lines)
    assert (
        launch.wait() == 0 and "station 'kitchen' died: sim_bridge ended, exit code -9" in text
    ), text[-3000:]
    assert "station 'lab' is through" in text
    assert '"result"' in (tmp_path / "stations/lab/progress.jsonl").read_text()
    assert {"kitchen", "lab"} <= json.loads((tmp_path / "fleet.json").read_text())[
        "stations"
    ].keys()


def test_any_robot_by_its_path_and_the_recipes_own_by_default(workspace, tmp_path):
    shutil.copytree(ROOT / "robots/franka_fr3", tmp_path / "mine (old), so")
    with (tmp_path / "mine (old), so/robot.yaml").open("a") as file:
        file.write("topics: {joint_states: /franka/joint_states}\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "defaults: demo\nname: mine\nstation: {name: bench_3, robot: './mine (old), so'}\n"
    )
    launch = workspace + (
        f"HOME={tmp_path} timeout -k 60 -s INT 25 ros2 launch rlinf realworld.launch.py "
        f"run_dir:={tmp_path}/run "
    )
    by_path = shell(f"{launch} robot:='{tmp_path}/mine (old), so' || true").stdout
    by_recipe = shell(f"{launch} recipe:={recipe} || true").stdout
    for output, name in ((by_path, "station_a"), (by_recipe, "bench_3")):
        assert (
            "[interlock-" in output and "[sim_bridge-" not in output and "[operator-" not in output
        ), output[-3000:]
        assert f"ros2 run rlinf operator --ros-args -r __ns:=/{name}" in output, (
            "a person arms a real arm"
        )
        assert (
            "rlinf teleop" in output and f"-r /{name}/joint_states:=/franka/joint_states " in output
        ), "as its driver says"
    mistyped = shell(workspace + "ros2 launch rlinf realworld.launch.py robot:=franka_fr4 || true")
    assert "station.robot: expected one of" in mistyped.stdout + mistyped.stderr
    assert "did you mean 'franka_fr3'" in mistyped.stdout + mistyped.stderr
