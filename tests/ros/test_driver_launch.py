"""``ros2 launch driver.launch.py`` of each robot that a lab has, with a twin where the vendor's
driver would be.

The vendor's packages are stand-ins: a launch file of their name, with their arguments, that starts
the twin under the names of the real driver, and a spawner that writes down what it is asked for.
Robot folder, interlock, driver and controller are those of the real robot.
"""

import importlib
import json
import os
import sys

import pytest
import yaml
from rlinf_msgs.msg import SafetyState

from rlinf_core.core.ros import ros_environment
from rlinf_core.interlock.latch import FOLDERS
from rlinf_core.launch.graph import station_processes
from rlinf_core.launch.supervisor import parameters_file
from rlinf_core.recipes import load_recipe
from tests.machine.ros2_there import needs_ros2
from tests.machine.test_launch import ROOT, Workspace
from tests.robots.test_bringup import ARGUMENTS
from tests.ros.conftest import peer_in
from tests.ros.test_robot_controllers import JOINTS, Follower

pytestmark = [pytest.mark.ros, pytest.mark.timeout(300), needs_ros2]
STAND_IN = """
import json, os, sys
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from yaml import safe_load

ARGUMENTS, ENVIRONMENT, COMMAND, NAMES = {arguments!r}, {environment!r}, {command!r}, {names!r}
EXAMPLE = "cartesian_impedance_example_controller"

def start(context):
    given = {{name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}}
    with open({log!r}, "w") as file:
        json.dump(given, file)
    station = f"/{{given.get('namespace') or 'station_a'}}"
    renamed = [word for name in NAMES for word in ("-r", f"/ur_twin/{{name}}:=/{{name}}")]
    if given.get("controllers_yaml") and EXAMPLE in safe_load(open(given["controllers_yaml"]))["/**"]:
        renamed = ["-r", f"{{station}}/target_pose:={{station}}/{{EXAMPLE}}/equilibrium_pose"]
    return [ExecuteProcess(cmd=[*COMMAND, "-r", f"__ns:={{station}}", *renamed], additional_env=ENVIRONMENT,
                           output="screen", sigterm_timeout="20")]

def generate_launch_description():
    return LaunchDescription([*(DeclareLaunchArgument(name, default_value="") for name in ARGUMENTS),
                              OpaqueFunction(function=start)])
"""
SPAWNER = '#!{python}\nimport json, sys\nopen({log!r}, "w").write(json.dumps(sys.argv[1:]))\n'
CASES = [
    ("franka_fr3", "reach", "tcp_delta", [0.0, 0.0, 0.01], 165),
    ("franka_fr3_example", "reach", "tcp_delta", [0.0, 0.0, 0.01], 166),
    ("ur5e", "ur5e_reach", "joint_delta", JOINTS, 167),
    ("ur5e_forward", "ur5e_reach", "joint_delta", JOINTS, 169),
    ("ur5e_servo", "ur5e_servo_reach", "tcp_delta", [0.0, 0.0, 0.01], 177),
]
TWINS = {"franka_bringup": "franka_twin", "ur_robot_driver": "ur5e_twin"}
UR_NAMES = [
    "joint_states",
    "tcp_pose_broadcaster/pose",
    "force_torque_sensor_broadcaster/wrench",
    "speed_scaling_state_broadcaster/speed_scaling",
    "scaled_joint_trajectory_controller/joint_trajectory",
    "forward_position_controller/commands",
    "servo_node/pose_target_cmds",
    *(
        f"io_and_status_controller/{name}"
        for name in ("safety_mode", "robot_mode", "robot_program_running", "resend_robot_program")
    ),
    *(
        f"dashboard_client/{name}"
        for name in (
            "close_safety_popup",
            "unlock_protective_stop",
            "power_on",
            "brake_release",
            "play",
        )
    ),
]


def add_package(prefix, name):
    for folder in (
        "share/ament_index/resource_index/packages",
        f"share/{name}/launch",
        f"lib/{name}",
    ):
        (prefix / folder).mkdir(parents=True, exist_ok=True)
    (prefix / "share/ament_index/resource_index/packages" / name).touch()


@pytest.fixture
def vendors(tmp_path):
    """Return a prefix with stand-ins of the vendors' packages, for a domain."""

    def make(domain):
        prefix = tmp_path / "prefix"
        for (package, file), arguments in ARGUMENTS.items():
            add_package(prefix, package)
            recipe = load_recipe(
                "demo",
                [
                    f"station.robot={TWINS[package]}",
                    "station.lockstep=false",
                    "station.task=" + ("reach" if "franka" in package else "ur5e_reach"),
                ],
            )
            twin = next(
                process for process in station_processes(recipe, tmp_path) if process.name == "twin"
            )
            command = [
                sys.executable,
                "-m",
                twin.parameters["module"],
                "--ros-args",
                "--params-file",
                str(parameters_file(twin, tmp_path / package)),
            ]
            (prefix / "share" / package / "launch" / file).write_text(
                STAND_IN.format(
                    arguments=sorted(arguments),
                    environment=ros_environment(domain),
                    command=command,
                    names=UR_NAMES if package == "ur_robot_driver" else [],
                    log=str(tmp_path / "arguments.json"),
                )
            )
        add_package(prefix, "controller_manager")
        spawner = prefix / "lib/controller_manager/spawner"
        spawner.write_text(
            SPAWNER.format(python=sys._base_executable, log=str(tmp_path / "spawner.json"))
        )
        spawner.chmod(0o755)
        return prefix

    return make


@pytest.fixture
def forget_latches(domain):
    """The machine keeps the latch of a real robot; each run starts and ends as if the robot had
    never been armed.
    """

    def forget():
        for folder in FOLDERS:
            for record in folder.glob(f"rlinf-latch.*.{domain}.{os.getuid()}"):
                record.unlink()

    forget()
    yield
    forget()


@pytest.mark.usefixtures("forget_latches")
@pytest.mark.parametrize("robot, task, mode, step, domain", CASES, ids=[case[0] for case in CASES])
def test_one_line_brings_up_a_robot_that_follows_the_interlock_and_ends_with_ctrl_c(
    vendors, tmp_path, robot, task, mode, step, domain
):
    for package in ("franka_msgs.msg", "ur_dashboard_msgs.msg"):
        pytest.importorskip(package, reason=f"rlinf messages builds {package}")
    workspace = Workspace(tmp_path)
    prefixes = (str(vendors(domain)), workspace.environment.get("AMENT_PREFIX_PATH", ""))
    workspace.environment["AMENT_PREFIX_PATH"] = os.pathsep.join(prefixes)
    # the launch file of this clone has its modules
    paths = (
        str(ROOT),
        workspace.environment.get("PYTHONPATH", ""),
    )
    workspace.environment["PYTHONPATH"] = os.pathsep.join(paths)
    line = (
        f"{ROOT}/launch/driver.launch.py robot:={robot} robot_ip:=10.0.0.7 "
        f"arguments:=launch_rviz:=true"
    )
    changes = (
        f"station.robot={robot}",
        f"station.task={task}",
        "station.lockstep=false",
        "station.operator.kind=keyboard",
    )
    with peer_in(tmp_path, domain) as peer, workspace.launched(line, tmp_path / "log", domain):
        follower = Follower(peer, changes, mode, step)
        follower.expect_rest()
        follower.expect_motion()
        assert {state.state for state in follower.states} >= {
            SafetyState.DISARMED,
            SafetyState.ACTIVE,
        }
    arguments = json.loads((tmp_path / "arguments.json").read_text())
    assert (arguments["robot_ip"], arguments.get("launch_rviz", "true")) == ("10.0.0.7", "true")
    bringup = yaml.safe_load((ROOT / f"robots/{robot}/bringup.yaml").read_text())
    if bringup["controllers"]:
        spawned = json.loads((tmp_path / "spawner.json").read_text())
        assert spawned[: len(bringup["controllers"])] == bringup["controllers"]
        assert spawned[spawned.index("--controller-manager") + 1] == "/station_a/controller_manager"
        assert (
            spawned[spawned.index("--param-file") + 1] == f"{ROOT}/robots/{robot}/controllers.yaml"
        )
        assert arguments["namespace"] == "station_a"


def test_the_stand_ins_names_are_those_of_the_twin():
    """A name that the stand-in forgot would leave a topic of the twin unheard."""
    source = (ROOT / "sim_bridges/twins/universal_robots.py").read_text()
    # and `status` itself
    assert source.count("{DRIVER}/") + source.count("{status}/") == len(UR_NAMES) + 1
    assert importlib.import_module("sim_bridges.twins.universal_robots").DRIVER == "/ur_twin"
