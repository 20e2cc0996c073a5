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

    namespace: str = Field(
        "/",
        pattern=r"^(/|/?[A-Za-z][A-Za-z0-9_/]*)$",
        description="namespace of ur_robot_driver. / is none. Others are below the station's "
        "unless they "
        "begin with /",
    )
    restart: Literal["resend", "play"] = Field(
        "resend",
        description="program start at a reset. `resend` is for headless_mode:=true, `play` for a "
        "program "
        "with External Control",
    )
    unlock_after_s: float = Field(
        5.0,
        ge=0,
        le=60,
        description="shortest time from a protective stop to its unlocking, as the robot requires "
        "[s]",
    )
    frozen_s: float = Field(
        0.5,
        ge=0,
        le=60,
        description="joint_states without any change for this time mean that the driver has lost "
        "the robot "
        "[s]. 0 disables the check, for mock hardware",
    )
