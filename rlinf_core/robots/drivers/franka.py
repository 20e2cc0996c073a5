"""A Franka arm and hand by franka_ros2 (docs/robots/franka.md)."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field, model_validator

from rlinf_core.config.base import Positive
from rlinf_core.robots.drivers import DriverSettings

OPEN_M = 0.08  # largest distance of a Franka hand's fingers


class Driver(DriverSettings):
    """The parts of franka_ros2 in use, and their names."""

    node: ClassVar[str] = "rlinf_drivers.franka"
    repeats: ClassVar[bool] = True

    namespace: str = Field(
        "",
        pattern=r"^(/?[A-Za-z][A-Za-z0-9_/]*)?$",
        description="namespace of franka_ros2. It is below the station's unless it begins with /. "
        "Empty is "
        "the station's own (franka.launch.py namespace:=station_a)",
    )
    frame: str = Field(
        "base_link", min_length=1, description="name of the arm's base frame in the limits"
    )
    current_pose: bool = Field(
        True, description="publish current_pose from o_t_ee. false leaves it to another node"
    )
    hand: bool = Field(True, description="the arm has the Franka hand")
    hand_speed: float = Field(0.1, gt=0, le=0.2, description="speed of the hand's fingers [m/s]")
    hand_force: float = Field(20.0, gt=0, le=70, description="grasping force of the hand [N]")
    hand_timeout_s: Positive = Field(
        3.0, description="longest time for an answer of the hand [s]. A later one is a fault"
    )
    hardware: str = Field(
        "FrankaHardwareInterface",
        description="hardware component of ros2_control that a reset activates again. Empty "
        "activates none",
    )
    broadcasters: tuple[str, ...] = Field(
        ("joint_state_broadcaster", "franka_robot_state_broadcaster", "twist_broadcaster"),
        description="state broadcasters of ros2_control that a reset activates after the "
        "hardware. All but the first are optional",
    )
    controllers: tuple[str, ...] = Field(
        ("cartesian_impedance_controller",),
        description="motion controllers that a reset activates once the interlock's target is at "
        "the arm",
    )

    @model_validator(mode="after")
    def _opens_in_time(self) -> Driver:
        least_s = math.ceil(10.0 * OPEN_M / self.hand_speed + 1.0 - 1e-9) / 10.0
        if self.hand and self.hand_timeout_s < least_s:
            raise ValueError(
                f"hand_timeout_s: expected at least {least_s:.1f}, the time to open fully at "
                f"hand_speed = {self.hand_speed:g}, got {self.hand_timeout_s:g}. A shorter time "
                "would cause a fault"
            )
        return self

    @property
    def has_gripper(self) -> bool:
        return self.hand
