"""What a robot.yaml has parts of: homes, arms, a controller that follows, and what stands in for the hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlinf_core.grippers import GRIPPER, GripperSettings
from rlinf_core.settings.base import Positive, Settings


class Home(Settings):
    """Where an arm waits for the next scene: in the words of the task's actions."""

    position: tuple[float, float, float] | None = Field(
        None, description="of the tool, x y z in the base frame [m], within the limits' box; for a task in tcp_delta")
    orientation: tuple[float, float, float, float] | tuple[()] = Field(
        (), description="of the tool, quaternion x y z w, where the task turns it; without, it stays turned as it is")
    joints: dict[str, float] = Field({}, description="each joint's angle by name [rad]; for a task in joint_delta")

    @model_validator(mode="after")
    def _somewhere(self) -> Home:
        if self.position is None and not self.joints:
            raise ValueError("expected 'position', of the tool, or 'joints', got neither")
        if self.orientation and abs(sum(value * value for value in self.orientation) - 1.0) > 0.02:
            raise ValueError(f"orientation: expected a quaternion of length 1, got {list(self.orientation)}")
        return self


class Arm(Settings):
    """One of several arms of a robot."""

    limits: Path = Field(strict=False, description="those of its interlock, beside it")
    home: Home | None = Field(None, description="where it waits for the next scene")
    gripper: Annotated[GripperSettings | None, GRIPPER] = Field(None, description="its gripper, likewise")


class Controller(Settings):
    """A controller of the robot side that does not follow the interlock's own topics: what it is told is made of them."""

    kind: Literal["joint_trajectory", "forward_position", "twist"] = Field(
        description="joint_trajectory (trajectory_msgs/JointTrajectory) and forward_position (std_msgs/Float64MultiArray) "
        "follow target_joints, of a task in joint_delta; twist (geometry_msgs/TwistStamped, as MoveIt Servo takes it) "
        "follows target_pose")
    topic: str = Field(pattern="^/?[A-Za-z][A-Za-z0-9_/]*$", description="where it listens, e.g. "
                       "/scaled_joint_trajectory_controller/joint_trajectory")
    horizon_s: Positive = Field(0.05, description="joint_trajectory: the first target, and one that comes later than that, "
                                "and than three ticks, after the one before, is reached in that time; else in the time "
                                "between the two [s]")
    slowed_by: str = Field("", pattern="^(/?[A-Za-z][A-Za-z0-9_/]*)?$", description="joint_trajectory: a topic "
                           "(std_msgs/Float64) that says at how many per cent of its speed the robot plays what it is "
                           "told, as ur_robot_driver's speed_scaling: below 100 what is told goes on where it has come to")
    gain: Positive = Field(5.0, description="twist: speed for each metre, and radian, to the target [1/s]")


class Twin(Settings):
    """A process that stands in for the hardware: it speaks what the vendor's driver speaks, around a simulator."""

    node: str = Field(pattern=r"^[A-Za-z_]\w*(\.\w+)+$",
                      description="the module whose main runs it: sim_bridges.twins.franka")
    simulator: str = Field("", description="which one is inside, where there is one")
    options: dict[str, Any] = Field({}, description="of that simulator, by its signature")

    @model_validator(mode="after")
    def _options_of_something(self) -> Twin:
        if self.options and not self.simulator:
            raise ValueError("options: expected 'simulator', whose they are, or none")
        return self
