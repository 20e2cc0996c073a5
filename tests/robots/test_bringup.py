"""The launch files of vendors that start a robot, and the parameters of their controllers, by the
vendors' own names.

The names are facts of these sources: franka_ros2 v3.4.0 (franka_bringup/launch/franka.launch.py,
franka_example_controllers/src/fr3/cartesian_impedance_example_controller.cpp), crisp_controllers 2
(src/cartesian_controller.yaml, src/twist_broadcaster.yaml), ur_robot_driver 3.8.0 and 4.8.0
(launch/ur_control.launch.py) and moveit_servo 2.12.4 (config/servo_parameters.yaml).
"""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlinf_core.core.errors import RecipeError
from rlinf_core.robots.bringup import bringup
from rlinf_core.robots.config import load_robot
from sim_bridges.twins.universal_robots_state import HOME, joints_at, tool_pose

ROBOTS = Path(__file__).resolve().parents[2] / "robots"
ARGUMENTS = {
    ("franka_bringup", "franka.launch.py"): {
        "robot_type",
        "arm_prefix",
        "namespace",
        "robot_ip",
        "load_gripper",
        "use_fake_hardware",
        "fake_sensor_commands",
        "joint_state_rate",
        "load_franka_robot_state_broadcaster",
        "controllers_yaml",
    },
    ("ur_robot_driver", "ur_control.launch.py"): {
        "ur_type",
        "robot_ip",
        "safety_limits",
        "safety_pos_margin",
        "safety_k_position",
        "controllers_file",
        "description_launchfile",
        "tf_prefix",
        "use_mock_hardware",
        "mock_sensor_commands",
        "headless_mode",
        "controller_spawner_timeout",
        "initial_joint_controller",
        "activate_joint_controller",
        "launch_rviz",
    },
}
NUMBERS = {
    f"task.{kind}_{part}_{axis}": float
    for kind in "kd"
    for part in ("pos", "rot")
    for axis in "xyz"
}
CLIPS = {f"task.error_clip.{axis}": float for axis in ("x", "y", "z", "rx", "ry", "rz")}
FRAMES = {"joints": list, "end_effector_frame": str, "base_frame": str}
SCHEMAS = {
    "crisp_controllers/CartesianController": FRAMES
    | NUMBERS
    | CLIPS
    | {
        **{
            f"nullspace.{name}": float
            for name in ("stiffness", "damping", "regularization", "max_tau")
        },
        **{
            f"filter.{name}": float for name in ("target_pose", "q", "dq", "q_ref", "output_torque")
        },
        **{
            name: bool
            for name in (
                "use_operational_space",
                "use_friction",
                "use_coriolis_compensation",
                "use_gravity_compensation",
                "use_local_jacobian",
                "limit_error",
                "limit_torques",
            )
        },
        "max_delta_tau": float,
    },
    "crisp_controllers/TwistBroadcaster": FRAMES
    | {"topics.current_twist": str, "publish_frequency": float},
    "franka_example_controllers/CartesianImpedanceExampleController": {
        "arm_id": str,
        "arm_prefix": str,
        "nullspace_stiffness": float,
        "translational_stiffness": float,
        "rotational_stiffness": float,
    },
    "joint_state_broadcaster/JointStateBroadcaster": {},
    "franka_robot_state_broadcaster/FrankaRobotStateBroadcaster": {"convenience_publish_rate": int},
}
SERVO = {
    "thread_priority": int,
    "publish_period": float,
    "max_expected_latency": float,
    "move_group_name": str,
    "active_subgroup": str,
    "pose_command_in_topic": str,
    "cartesian_command_in_topic": str,
    "joint_command_in_topic": str,
    "command_in_type": str,
    "scale.linear": float,
    "scale.rotational": float,
    "scale.joint": float,
    "incoming_command_timeout": float,
    "apply_twist_commands_about_ee_frame": bool,
    "pose_tracking.linear_tolerance": float,
    "pose_tracking.angular_tolerance": float,
    "status_topic": str,
    "command_out_topic": str,
    "command_out_type": str,
    "publish_joint_positions": bool,
    "publish_joint_velocities": bool,
    "publish_joint_accelerations": bool,
    "joint_topic": str,
}
BROUGHT_UP = sorted(path.parent.name for path in ROBOTS.glob("*/bringup.yaml"))


def flat(data, prefix=""):
    for key, value in data.items():
        yield from (
            flat(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else [(f"{prefix}{key}", value)]
        )


def assert_fits(parameters, schema):
    for name, value in flat(parameters):
        assert name in schema, f"{name} is no parameter of it"
        assert type(value) is schema[name], (
            f"{name}: expected {schema[name].__name__}, got {value!r}"
        )


def test_the_robots_that_a_lab_has_are_brought_up():
    assert {"franka_fr3", "franka_fr3_example", "ur5e", "ur5e_forward", "ur5e_servo"} <= set(
        BROUGHT_UP
    )


@pytest.mark.parametrize("name", BROUGHT_UP)
def test_the_vendors_launch_file_has_each_argument_and_the_robot_its_controllers(name):
    vendor, folder = bringup(name, "lab_2", "10.0.0.7")
    assert vendor.arguments.keys() <= ARGUMENTS[vendor.package, vendor.launch]
    values = [*vendor.arguments.values(), vendor.controller_manager]
    assert "10.0.0.7" in values and not any(re.search("[{}]", value) for value in values), (
        "all is filled in"
    )
    assert load_robot(name).without_hardware is False
    if not vendor.controllers:
        return
    document = yaml.safe_load((folder / "controllers.yaml").read_text())["/**"]
    types = {
        key: value["type"]
        for key, value in document["controller_manager"]["ros__parameters"].items()
        if isinstance(value, dict)
    }
    assert (
        set(vendor.controllers) <= types.keys()
        and vendor.arguments["controllers_yaml"] == f"{folder}/controllers.yaml"
    )
    assert set(document) - {"controller_manager"} <= types.keys()
    for controller, kind in types.items():
        assert_fits(
            document.get(controller, {"ros__parameters": {}})["ros__parameters"], SCHEMAS[kind]
        )
    moves = set(load_robot(name).driver_node.controllers)
    assert moves <= types.keys(), "which a reset activates again"


def test_more_arguments_go_to_the_vendors_launch_file():
    vendor, _ = bringup("ur5e", "station_a", "10.0.0.7")
    added = vendor.with_arguments(["launch_rviz:=true", "kinematics_params_file:=/a:=b"])
    assert (added.arguments["launch_rviz"], added.arguments["kinematics_params_file"]) == (
        "true",
        "/a:=b",
    )
    for wrong in ("launch_rviz", "launch_rviz=true", ":=true"):
        with pytest.raises(RecipeError, match="arguments: expected name:=value"):
            vendor.with_arguments([wrong])


def test_the_parameters_of_servo_are_its_own():
    document = yaml.safe_load((ROBOTS / "ur5e_servo/servo.yaml").read_text())["servo_node"][
        "ros__parameters"
    ]
    document = document["moveit_servo"]
    assert_fits(document, SERVO)
    target = load_robot("ur5e_servo").topics["target_pose"]
    assert document["pose_command_in_topic"].replace("~", "/servo_node") == target


def test_a_robot_without_a_bringup_is_refused_with_the_remedy():
    with pytest.raises(
        RecipeError,
        match="expected bringup.yaml, which names the launch file of the vendor's driver",
    ):
        bringup("franka_twin", "station_a", "10.0.0.7")


def test_the_twin_of_servo_finds_joints_for_a_pose_nearby():
    random = np.random.default_rng(0)
    for _ in range(50):
        joints = np.array(HOME) + random.uniform(-0.5, 0.5, 6)
        pose = tool_pose(joints + random.uniform(-0.02, 0.02, 6))
        np.testing.assert_allclose(tool_pose(joints_at(pose, joints))[:3], pose[:3], atol=1e-4)
