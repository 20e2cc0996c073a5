"""An arm of Feetech or Dynamixel servos on a serial port, such as SO-101 (docs/robots/so101.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from rlinf_core.config.base import FROM_FOLDER, FileFromFolder, Positive
from rlinf_core.core.errors import RecipeError
from rlinf_core.robots.description import Description, read
from rlinf_core.robots.drivers import DriverSettings
from rlinf_core.robots.servos import Kind, Servo, Tick, lerobot_calibration

GRIPPER = "gripper"  # LeRobot's name of the servo between the jaws


class Jaw(Servo):
    """The servo of the gripper."""

    open_at: Tick = Field(description="servo ticks with the gripper open")
    closed_at: Tick = Field(description="servo ticks with the gripper closed")
    width: Positive = Field(0.07, le=0.5, description="distance between the open jaws [m]")

    @model_validator(mode="after")
    def _moves(self) -> Jaw:
        if self.open_at == self.closed_at:
            raise ValueError(
                f"open_at: expected ticks that differ from closed_at, got {self.open_at:g} for both"
            )
        return self

    def goal(self, width: float) -> int:
        """Convert a width [m] to ticks."""
        share = min(max(width / self.width, 0.0), 1.0)
        return round(self.closed_at + share * (self.open_at - self.closed_at))

    def opening(self, ticks: float) -> float:
        """Ticks as a width [m]."""
        share = (ticks - self.closed_at) / (self.open_at - self.closed_at)
        return min(max(share, 0.0), 1.0) * self.width


class Joint(Servo):
    """The servo of a joint."""

    middle: float = Field(
        0.0,
        ge=-3.2,
        le=3.2,
        description="angle of the URDF's joint in the middle of the servo's calibrated range, "
        "where LeRobot's angle is 0 [rad]",
    )

    def angle(self, ticks: float) -> float:
        return super().angle(ticks) + self.middle

    def ticks(self, angle: float) -> int:
        return super().ticks(angle - self.middle)


class Driver(DriverSettings):
    """The bus, the servos and the geometry of an arm."""

    node: ClassVar[str] = "rlinf_drivers.servo_arm"
    repeats: ClassVar[bool] = True

    bus: Kind = Field(description="kind of the servos")
    device: str = Field(min_length=1, description="serial port, /dev/serial/by-id/...")
    baud: int = Field(0, ge=0, le=4_000_000, description="baud rate of all servos. 0 is 1,000,000")
    urdf: FileFromFolder = Field(description="URDF with the joints below, for the pose of the tool")
    tool: str = Field("tool0", min_length=1, description="tool link of the URDF")
    joints: dict[str, Joint] = Field(min_length=1, description="servos by joint name in the URDF")
    jaw: Jaw | None = Field(None, description="servo of the gripper, if any")
    calibration: Annotated[str, FROM_FOLDER] = Field(
        "",
        description="LeRobot's calibration of this arm (JSON). It replaces id, sign, zero, low "
        "and high of its servos. Its homing offsets must equal those in the servos",
    )
    silence_s: Positive = Field(
        0.2, description="longest time without answers on the bus before a fault [s]"
    )

    @property
    def has_gripper(self) -> bool:
        return self.jaw is not None

    @property
    def ids(self) -> list[int]:
        """Ids of all servos, the jaw's last."""
        servos: list[Servo] = [*self.joints.values(), *([self.jaw] if self.jaw else [])]
        return [servo.id for servo in servos]

    def findings(self) -> list[tuple[str, str, str]]:
        """Return the rows of the port and of the calibration."""
        port = Path(self.device)
        rows = [
            (
                "servo bus",
                f"{self.bus} at {port}" + " (absent)" * (not port.exists()),
                ""
                if port.exists()
                else (
                    "plug the arm in and switch it on, or set its port as options.device: ls "
                    "/dev/serial/by-id"
                ),
            )
        ]
        if not self.calibration:
            return [
                *rows,
                (
                    "calibration",
                    "none: 2048 ticks are the middle of each joint",
                    ("calibrate with lerobot-calibrate and name its file as options.calibration"),
                ),
            ]
        try:
            self.calibrated()
        except RecipeError as error:
            return [*rows, ("calibration", "cannot be used", str(error))]
        return [*rows, ("calibration", self.calibration, "")]

    @model_validator(mode="after")
    def _unique_ids(self) -> Driver:
        if len(set(self.ids)) < len(self.ids):
            raise ValueError(f"joints: expected different servo ids, got {self.ids}")
        return self

    def description(self) -> Description:
        """Return the URDF. Raises RecipeError if it lacks a joint or the tool."""
        try:
            description = read(Path(self.urdf).read_text())
        except OSError as error:
            raise RecipeError(f"options.urdf: expected a URDF, got {self.urdf}: {error}") from error
        names = {joint.name for joint in description.joints}
        if missing := [name for name in self.joints if name not in names]:
            raise RecipeError(
                f"options.joints: expected joints of {self.urdf}, got '{missing[0]}'. Its joints: "
                f"{', '.join(sorted(names))}"
            )
        description.pose(self.tool, dict.fromkeys(self.joints, 0.0))
        return description

    def calibrated(self) -> tuple[Driver, dict[int, int]]:
        """Return these settings with LeRobot's calibration.

        The second value holds the homing offset of each servo by id [ticks].

        Raises:
            RecipeError: the file is no calibration, or lacks a joint.
        """
        if not self.calibration:
            return self, {}
        servos = lerobot_calibration(Path(self.calibration))
        names = [*self.joints, *([GRIPPER] if self.jaw else [])]
        if missing := [name for name in names if name not in servos]:
            raise RecipeError(
                f"options.calibration: expected a calibration of {', '.join(names)}, got "
                f"{self.calibration} without '{missing[0]}'. Name the file of this arm"
            )
        joints = {name: joint.but(**_units(servos[name][0])) for name, joint in self.joints.items()}
        jaw = self.jaw
        if jaw:
            servo = servos[GRIPPER][0]
            jaw = jaw.but(**_units(servo), open_at=servo.high, closed_at=servo.low)
        offsets = {servos[name][0].id: servos[name][1] for name in names}
        return self.but(joints=joints, jaw=jaw), offsets


def _units(servo: Servo) -> dict[str, float]:
    return servo.model_dump(include={"id", "sign", "zero", "low", "high"})
