"""Any gripper behind the action control_msgs/GripperCommand.

ros2_control's gripper controllers and MoveIt offer it.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlinf_core.robots.grippers import GripperSettings

NAME = r"^/?[A-Za-z][A-Za-z0-9_/]*$"


class Gripper(GripperSettings):
    """A gripper commanded by the action, with a width measured at its joint."""

    node: ClassVar[str] = "rlinf_drivers.gripper_command"

    action: str = Field(
        "gripper_controller/gripper_cmd",
        pattern=NAME,
        description="name of the action. It is below the station's or the arm's name unless it "
        "begins with /",
    )
    joint: str = Field(
        min_length=1,
        description="joint of the gripper in joint_states. "
        "`open_at` and `closed_at` are its positions [m "
        "or rad]",
    )
    states: str = Field(
        "joint_states",
        pattern=NAME,
        description="topic of that joint's state. It is below the station's or the arm's name "
        "unless it "
        "begins with /",
    )
    max_effort: float = Field(
        0.0, ge=0, description="largest effort of each command [N]. 0 leaves it to the controller"
    )
    twin: bool = Field(
        False, description="start a twin with the station (sim_bridges/twins/gripper_command.py)"
    )

    @property
    def where(self) -> str:
        return self.action if self.action.startswith("/") else ""

    @property
    def twin_node(self) -> str:
        return "sim_bridges.twins.gripper_command" if self.twin else ""
