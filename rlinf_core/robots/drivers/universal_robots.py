"""A Universal Robots arm by ur_robot_driver (docs/robots/ur.md)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlinf_core.robots.drivers import DriverSettings


class Driver(DriverSettings):
    """The parts of ur_robot_driver in use, and their names.

    ``topics`` names its topics of the arm.
    """

    node: ClassVar[str] = "rlinf_drivers.universal_robots"
    repeats: ClassVar[bool] = True

    namespace: str = Field("/", pattern=r"^(/|/?[A-Za-z][A-Za-z0-9_/]*)$", description="of ur_robot_driver: / where it "
                           "runs in none; below the station's unless it begins with /")
    restart: Literal["resend", "play"] = Field("resend", description="how a reset starts the robot's program again: "
                                               "resend, with headless_mode:=true, or play, a program with External Control")
    unlock_after_s: float = Field(5.0, ge=0, le=60, description="a protective stop is not unlocked sooner than that after "
                                  "it began, as the robot has it [s]")
    frozen_s: float = Field(0.5, ge=0, le=60, description="joint_states that are the same for so long, to the last bit of "
                            "their currents, are of a robot that the driver cannot hear; 0 where they are no measurements, "
                            "as of mock hardware [s]")
