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

    namespace: str = Field("", pattern=r"^(/?[A-Za-z][A-Za-z0-9_/]*)?$", description="of franka_ros2, below the station's "
                           "unless it begins with /; empty for the station's own (franka.launch.py namespace:=station_a)")
    frame: str = Field("base_link", min_length=1, description="what the limits call the arm's base frame")
    current_pose: bool = Field(True, description="publish current_pose from o_t_ee; false where another node does")
    hand: bool = Field(True, description="whether the Franka hand is there")
    hand_speed: float = Field(0.1, gt=0, le=0.2, description="with which its fingers move [m/s]")
    hand_force: float = Field(20.0, gt=0, le=70, description="with which it grasps [N]")
    hand_timeout_s: Positive = Field(3.0, description="an order that the hand has not answered by then is a fault [s]")
    hardware: str = Field("FrankaHardwareInterface", description="ros2_control's hardware component, which a reset "
                          "activates again; empty for none")
    broadcasters: tuple[str, ...] = Field(
        ("joint_state_broadcaster", "franka_robot_state_broadcaster", "twist_broadcaster"),
        description="ros2_control's that say where the arm is, which a reset activates again after the hardware; all "
        "but the first may be missing")
    controllers: tuple[str, ...] = Field(
        ("cartesian_impedance_controller",), description="those that move it, which a reset activates again once the "
        "interlock says a target at the arm")

    @model_validator(mode="after")
    def _opens_in_time(self) -> Driver:
        least_s = math.ceil(10.0 * OPEN_M / self.hand_speed + 1.0 - 1e-9) / 10.0
        if self.hand and self.hand_timeout_s < least_s:
            raise ValueError(f"hand_timeout_s: expected at least {least_s:.1f}, in which fingers of hand_speed = "
                             f"{self.hand_speed:g} open all the way, got {self.hand_timeout_s:g}: that would be a fault")
        return self

    @property
    def has_gripper(self) -> bool:
        return self.hand
