"""Robot and task of a recipe's station."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.core import plugins
from rlinf_core.core.errors import RecipeError, SpecError, nearest
from rlinf_core.core.paths import data_folder
from rlinf_core.interlock.limits_file import load_limits
from rlinf_core.recipes.schema import Embodiment, Recipe
from rlinf_core.recipes.sources import check_source
from rlinf_core.robots.config import Robot, load_robot
from rlinf_core.robots.drivers import SIMULATOR
from rlinf_core.specs.arrays import StationSpec
from rlinf_core.specs.embodiment import joined
from rlinf_core.specs.topics import arm_of, topic
from rlinf_core.tasks.task import Task, load_task

UNKNOWN_LENGTH = 1000  # time steps of an episode without a known limit


def station_robot(recipe: Recipe) -> Robot:
    """Return the recipe's robot; raise RecipeError if it has none."""
    if recipe.env:
        raise RecipeError(
            f"env: '{recipe.env}' is not a station and has no robot. rlinf train trains on it. To "
            "use station.robot, leave env out"
        )
    robot, options = load_robot(recipe.station.robot), recipe.station.options
    robot = robot.but(
        topics={
            topic: name if name.startswith("/") else f"/{recipe.station.name}/{name}"
            for topic, name in robot.topics.items()
        }
    )
    return robot.with_options(options, "station.options") if options else robot


def check_recipe(recipe: Recipe) -> None:
    """Check everything that can be known before the start: source, robot, limits, cameras, task."""
    check_source(recipe)
    if recipe.env:
        return
    for name, single in embodiment_recipes(recipe).items():
        check_recipe(single)
        driver = station_robot(single).driver
        if recipe.simulation.environments and driver != SIMULATOR:
            raise RecipeError(
                f"embodiments.{name}: expected a simulator with simulation.environments of "
                f"{recipe.simulation.environments}, got '{single.station.robot}', whose driver is "
                f"{driver}. Set simulation.environments=0 to train on episodes of stations"
            )
    robot, task = station_robot(recipe), station_task(recipe)
    _check_clutch(recipe)
    for limits in map(load_limits, robot.limits_by_arm.values()):
        if robot.driver == SIMULATOR:
            check_ticks(recipe, task.spec.control_hz, limits.tick)


def check_real_arm(recipe: Recipe, in_lockstep: bool) -> None:
    """Check the conditions that a real arm must meet before it can be armed.

    Args:
        recipe: the recipe.
        in_lockstep: True if a person asks for ``station.lockstep``.
    """
    robot, name = station_robot(recipe), recipe.station.robot
    if robot.driver == SIMULATOR:
        return
    if in_lockstep:
        raise RecipeError(
            f"station.lockstep: expected false with robot '{name}', whose driver is "
            f"{robot.driver}, got true. A real arm runs in real time"
        )
    has_stop = robot.estops or robot.no_estop_reason or recipe.station.web.port
    # the interlock arms a twin without an e-stop source
    if not (has_stop or robot.without_hardware):
        raise RecipeError(
            f"robot '{name}': estops: expected the name of at least one e-stop source, got none. "
            "The interlock refuses to arm without one. Name a source in robot.yaml, use the "
            "operator's page (station.web.port), or confirm in robot.yaml why none is needed: "
            "no_estop_reason (docs/safety.md)"
        )


def _check_clutch(recipe: Recipe) -> None:
    """Check that the button held to move the arm (``clutch``) has no other role."""
    for key in ("operator", "second_operator"):
        settings = getattr(recipe.station, key)
        clutch, buttons = getattr(settings, "clutch", ""), getattr(settings, "buttons", None)
        role = buttons.get(clutch, "") if clutch and isinstance(buttons, dict) else ""
        if role not in ("", "enable", "intervene"):
            raise RecipeError(
                f"station.{key}.clutch: expected a button without another role, got '{clutch}', "
                f"which is also {role} in station.{key}.buttons. Each use of the clutch would "
                f"{role}. Choose another button for one of them"
            )


def check_ticks(recipe: Recipe, control_hz: float, tick_s: float) -> None:
    """Check that a simulator's time step is a whole number of ticks.

    In real time, at least one tick is enough.

    Raises:
        RecipeError: it is not.
    """
    ticks = 1.0 / control_hz / tick_s
    is_multiple = abs(ticks - round(ticks)) < 1e-6 or not recipe.station.lockstep
    if not is_multiple or round(ticks) < 1:
        raise RecipeError(
            f"task '{recipe.station.task}': control_hz: robot '{recipe.station.robot}' is a "
            f"simulator that ticks every {tick_s:g} s: expected time steps of whole ticks, got "
            f"{1 / control_hz:.4f} s"
        )


def task_file(recipe: Recipe) -> Path:
    """Return the path of the recipe's task.

    Raises:
        RecipeError: there is no such task; the message suggests the nearest name.
    """
    builtin = {path.stem: path for path in (data_folder() / "configs/tasks").glob("*.yaml")}
    return plugins.find_path("tasks", recipe.station.task, builtin, "station.task")


def station_task(recipe: Recipe) -> Task:
    """Return the task with the observation of the recipe's station, cameras included.

    Raises:
        RecipeError: the robot lacks a camera, or does not fit the task.

    Example:
        >>> task = station_task(load_recipe("sim_sac"))
        >>> [array.name for array in task.spec.observation]
        ['tcp_position', 'tcp_velocity', 'socket_offset']
    """
    robot, station = station_robot(recipe), recipe.station
    for camera in station.observe_cameras:
        if camera not in robot.cameras:
            raise RecipeError(
                f"station.observe_cameras: robot '{station.robot}' has no camera '{camera}'; it "
                f"has {', '.join(robot.cameras) or 'none'}{nearest(camera, robot.cameras)}"
            )
    task = load_task(task_file(recipe))
    check_arms(f"robot '{station.robot}'", robot, f"task '{station.task}'", task)
    for channel in (*task.success.channels, *(task.failure.channels if task.failure else ())):
        if (
            channel.startswith("camera/")
            and (camera := channel.split("/")[1]) not in station.observe_cameras
        ):
            raise RecipeError(
                f"station.observe_cameras: expected '{camera}' among them, since the reward of "
                f"task '{station.task}' uses it, got {', '.join(station.observe_cameras) or 'none'}"
            )
    return task.with_images(dict.fromkeys(station.observe_cameras, station.image_size)).around(
        tool_orientations(robot)
    )


def tool_orientations(robot: Robot) -> dict[str, tuple[float, ...]]:
    """Return the nominal orientation of each arm's tool, from its limits, by the arm's name."""
    return {arm: load_limits(path).orientation for arm, path in robot.limits_by_arm.items()}


def embodiment_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipe of each embodiment alone, by name."""

    def single_robot_recipe(embodiment: Embodiment) -> Recipe:
        station = recipe.station.model_copy(
            update={
                "robot": embodiment.robot,
                "task": embodiment.task,
                "options": embodiment.options,
            }
        )
        return recipe.model_copy(update={"embodiments": {}, "station": station})

    return {name: single_robot_recipe(item) for name, item in recipe.embodiments.items()}


def is_simulated(recipe: Recipe) -> bool:
    """Return True if all robots of the recipe are simulators, in which policies can be judged."""
    recipes = embodiment_recipes(recipe).values() or [recipe]
    return all(station_robot(single).driver == SIMULATOR for single in recipes)


def learned_spec(recipe: Recipe) -> StationSpec:
    """Return the specs that a trainer learns for: the station's, or its embodiments' together."""
    if not recipe.embodiments:
        return station_task(recipe).spec
    try:
        return joined(
            {name: station_task(one).spec for name, one in embodiment_recipes(recipe).items()}
        )
    except SpecError as error:
        raise RecipeError(str(error)) from error


def longest_episode(recipe: Recipe) -> int:
    """Return the time steps of the longest possible episode."""
    if recipe.embodiments:
        return max(map(longest_episode, embodiment_recipes(recipe).values()))
    return UNKNOWN_LENGTH if recipe.env else station_task(recipe).max_steps


def check_arms(robot_name: str, robot: Robot, task_name: str, task: Task) -> None:
    """Check that the task acts with the robot's arms, and observes no other.

    Raises:
        RecipeError: the arms differ; the message lists the robot's.
    """
    arms, action = tuple(robot.arms), task.spec.action
    if action.arms != arms:
        raise RecipeError(
            f"{task_name}: action.dimensions: expected {_arms_text(arms)}, as {robot_name} has, "
            f"got {_arms_text(action.arms)}: {', '.join(action.names)}. Begin each name with its "
            "arm's (left/dx), in the order of 'arms' in robot.yaml, or take a task for this robot"
        )
    for arm, limits in ((arm, load_limits(path)) for arm, path in robot.limits_by_arm.items()):
        if limits.control_mode != action.control_mode:
            of_arm = f"arm '{arm}' of {robot_name}" if arm else robot_name
            raise RecipeError(
                f"{task_name}: action.control_mode: expected {limits.control_mode} (limits of "
                f"{of_arm}), got {action.control_mode}. "
                + (
                    "All arms of a station act in one mode: set control_mode in their limits"
                    if arm
                    else "Take a task in that mode, or set control_mode in the robot's limits"
                )
            )
        if arm and action.of_arm(arm).dim not in limits.action_sizes:
            raise RecipeError(
                f"{task_name}: action.dimensions: expected "
                f"{' or '.join(map(str, limits.action_sizes))} of arm '{arm}', as in its limits, "
                f"got {', '.join(action.names[action.rows(arm)])}"
            )
    for name in sorted(task.channels):
        if arm_of(name) not in ("", *arms):
            raise RecipeError(
                f"{task_name}: channel '{name}': {robot_name} has "
                f"{_arms_text(arms)}{nearest(arm_of(name), arms)}"
            )
        if arms and topic(name).per_arm and not arm_of(name):
            raise RecipeError(
                f"{task_name}: channel '{name}': expected the channel of one arm, e.g. "
                f"'{arms[0]}/{name}', as {robot_name} has {_arms_text(arms)}"
            )


def _arms_text(arms: tuple[str, ...]) -> str:
    return f"the arms {', '.join(arms)}" if arms else "one arm, without a name"
