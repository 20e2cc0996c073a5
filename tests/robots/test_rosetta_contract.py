"""A contract in Rosetta's format becomes a robot and a task; what has no counterpart is named."""

import pytest
import yaml

from rlinf_core.cli.main import main
from rlinf_core.core.errors import RecipeError, RlinfError
from rlinf_core.interlock import load_limits
from rlinf_core.robots.config import load_robot
from rlinf_core.robots.rosetta_contract import read_contract
from rlinf_core.tasks.task import load_task

QOS = {"reliability": "best_effort", "history": "keep_last", "depth": 10}
JOINTS = ["shoulder", "elbow", "wrist"]
SELECT = [f"position.{name}" for name in JOINTS]


def channel(topic, kind, **more):
    return {
        "channel": {"topic": topic, "type": kind, "qos": QOS},
        "align": {"strategy": "hold", "timeline": "header"},
        **more,
    }


def contract(action="sensor_msgs/msg/JointState", **changes):
    """Return a contract like those of iblnkn/rosetta, with all kinds of keys."""
    image = "sensor_msgs/msg/CompressedImage"
    return {
        "robot_type": "bench_arm",
        "robot_interface": "ros2",
        "fps": 20,
        "observations": {
            "observation.images.front": channel(
                "/front/image_raw/compressed", image, apply=[{"resize": [96, 128]}]
            ),
            "observation.images.wrist.left": channel("/wrist/image_raw", "sensor_msgs/msg/Image"),
            "observation.state": [
                channel(
                    "/gripper/joint_states",
                    "sensor_msgs/msg/JointState",
                    select=["position.finger"],
                ),
                channel(
                    "/arm/joint_states",
                    "sensor_msgs/msg/JointState",
                    select=[*SELECT, "velocity.wrist"],
                    apply=["rad2deg"],
                ),
            ],
        },
        "actions": {
            "action": [
                channel("/arm/commands", action, select=SELECT, apply=["rad2deg"]),
                channel("/gripper/command", "std_msgs/msg/Float64", select=["data"]),
            ],
            "action.base": channel(
                "/cmd_vel", "geometry_msgs/msg/TwistStamped", select=["twist.linear.x"]
            ),
        },
        "teleop": {"events": {}},
        **changes,
    }


def test_the_command_writes_a_robot_and_a_task_that_load_and_limits_that_do_not(tmp_path, capsys):
    (tmp_path / "contract.yaml").write_text(yaml.safe_dump(contract()))
    assert (
        main(["import-contract", str(tmp_path / "contract.yaml"), "--out", str(tmp_path / "arm")])
        == 0
    )
    printed = capsys.readouterr().out
    robot = load_robot(str(tmp_path / "arm"))
    assert robot.topics == {
        "target_joints": "/arm/commands",
        "joint_states": "/arm/joint_states",
        "camera/front/image": "/front/image_raw",
        "camera/wrist_left/image": "/wrist/image_raw",
    }
    assert {name: camera.size for name, camera in robot.cameras.items()} == {
        "front": (96, 128),
        "wrist_left": (480, 640),
    }
    task = load_task(tmp_path / "arm/task.yaml")
    assert task.spec.control_hz == 20.0 and task.spec.action.control_mode == "joint_delta"
    for words in (
        "'teleop' is not read",
        "/cmd_vel (geometry_msgs/msg/TwistStamped) is not commanded",
        "/gripper/command",
        "rad2deg: recordings and actions here are in rad",
        "/gripper/joint_states",
        "resize is not supported",
    ):
        assert words in printed, words
    with pytest.raises(RlinfError, match="limits.yaml"):
        load_limits(tmp_path / "arm/limits.yaml")
    assert (
        main(["import-contract", str(tmp_path / "contract.yaml"), "--out", str(tmp_path / "arm")])
        != 0
    )
    assert "expected a new or an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind, name",
    [
        ("trajectory_msgs/msg/JointTrajectory", "joint_trajectory"),
        ("std_msgs/msg/Float64MultiArray", "forward_position"),
    ],
)
def test_a_controller_that_takes_another_message_is_named(kind, name):
    robot = read_contract(yaml.safe_dump(contract(kind))).robot
    assert (
        robot["controller"] == {"kind": name, "topic": "/arm/commands"}
        and "target_joints" not in robot["topics"]
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"robot_interface": "lcm"}, "robot_interface: expected ros2, got 'lcm'"),
        (
            {
                "actions": {
                    "action": channel("/cmd_vel", "geometry_msgs/msg/Twist", select=["linear.x"])
                }
            },
            "rlinf moves arms",
        ),
        (
            {"observations": {"observation.state": channel("/odom", "nav_msgs/msg/Odometry")}},
            "must measure the joints that it moves",
        ),
        (
            {"observations": {"observation.state": {"align": {}}}},
            "expected a channel with topic and type",
        ),
    ],
)
def test_what_is_no_contract_of_an_arm_is_refused_with_the_reason(changes, message):
    with pytest.raises(RecipeError) as error:
        read_contract(yaml.safe_dump(contract(**changes)))
    assert message in str(error.value)


def test_a_file_that_is_no_contract_is_refused():
    with pytest.raises(
        RecipeError,
        match="with the keys robot_type, robot_interface, fps, observations, actions, got a",
    ):
        read_contract("- 1\n")
