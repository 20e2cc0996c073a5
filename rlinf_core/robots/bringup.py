"""The vendor's launch file of a robot's driver, and its controllers: ``bringup.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from rlinf_core.config.base import Settings
from rlinf_core.config.checking import validate
from rlinf_core.config.yaml_source import read_document
from rlinf_core.core.errors import RecipeError
from rlinf_core.robots.config import robot_folder

FILE, PARAMETERS = "bringup.yaml", "controllers.yaml"


class Bringup(Settings):
    """A launch file of a vendor's package.

    ``{station}``, ``{robot_ip}`` and ``{folder}`` are filled in.
    """

    package: str = Field(min_length=1, description="ROS package of the vendor's driver")
    launch: str = Field(
        min_length=1,
        description="launch file of the driver, in launch/ of the package's share folder",
    )
    arguments: dict[str, str] = Field({}, description="arguments of that launch file")
    controller_manager: str = Field(min_length=1, description="full name of the controller manager")
    controllers: tuple[str, ...] = Field(
        (),
        description="controllers to spawn after the driver has started. Their parameters are in "
        "controllers.yaml of the same folder",
    )

    def with_station(self, station: str, robot_ip: str, folder: Path) -> Bringup:
        """Return the bringup with the names of this station."""

        def fill(text: str) -> str:
            return (
                text.replace("{station}", station)
                .replace("{robot_ip}", robot_ip)
                .replace("{folder}", str(folder))
            )

        return self.but(
            arguments={name: fill(value) for name, value in self.arguments.items()},
            controller_manager=fill(self.controller_manager),
        )

    def with_arguments(self, arguments: Sequence[str]) -> Bringup:
        """Return a copy with more arguments of the vendor's launch file.

        Raises:
            RecipeError: an argument is not of the form ``name:=value``.
        """
        if wrong := [item for item in arguments if ":=" not in item.strip(":=")]:
            raise RecipeError(
                f"arguments: expected name:=value, as for ros2 launch, got '{wrong[0]}'"
            )
        return self.but(arguments=self.arguments | dict(item.split(":=", 1) for item in arguments))


def bringup(robot: str, station: str, robot_ip: str) -> tuple[Bringup, Path]:
    """Return a robot's bringup and its folder.

    Raises:
        RecipeError: the robot has none.
    """
    folder = robot_folder(robot).resolve()
    file = folder / FILE
    if not file.is_file():
        raise RecipeError(
            f"{folder}: expected {FILE}, which names the launch file of the vendor's driver, found "
            "none. Start the driver as in docs/robots/interface.md, or write the file as in "
            "robots/ur5e"
        )
    settings = validate(Bringup, read_document(file, "bringup")).with_station(
        station, robot_ip, folder
    )
    return settings, folder
