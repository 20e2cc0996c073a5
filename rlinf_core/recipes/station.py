"""Robot and task of a recipe's station."""

from __future__ import annotations

from pathlib import Path

from rlinf_core import plugins
from rlinf_core.errors import RecipeError, nearest
from rlinf_core.interlock.limits_file import load_limits
from rlinf_core.paths import shared
from rlinf_core.recipes.schema import Recipe
from rlinf_core.recipes.sources import check_source
from rlinf_core.robot import Robot, load_robot
from rlinf_core.task import Task, load_task


def station_robot(recipe: Recipe) -> Robot:
    """The recipe's robot."""
    return load_robot(recipe.station.robot)


def check_recipe(recipe: Recipe) -> None:
    """Everything that can be known before anything is made or started: source, robot, limits, cameras, task."""
    check_source(recipe)
    load_limits(station_robot(recipe).limits)
    station_task(recipe)


def task_file(recipe: Recipe) -> Path:
    """Path of the recipe's task; RecipeError names the nearest known one."""
    ours = {path.stem: path for path in (shared() / "configs/tasks").glob("*.yaml")}
    return plugins.place("tasks", recipe.station.task, ours, "station.task")


def station_task(recipe: Recipe) -> Task:
    """The task as the recipe's station observes it, cameras included; a camera the robot lacks is refused by name."""
    robot, station = station_robot(recipe), recipe.station
    for camera in station.observe_cameras:
        if camera not in robot.cameras:
            raise RecipeError(f"station.observe_cameras: robot '{station.robot}' has no camera '{camera}'; it has "
                              f"{', '.join(robot.cameras) or 'none'}{nearest(camera, robot.cameras)}")
    return load_task(task_file(recipe)).with_images(dict.fromkeys(station.observe_cameras, station.image_size))
