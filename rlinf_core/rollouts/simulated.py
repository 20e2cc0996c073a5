"""A recipe's simulated stations: one, or a vector of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlinf_core.errors import RecipeError
from rlinf_core.recipes import Recipe, station_task
from rlinf_core.recipes.schema import Randomise
from rlinf_core.recipes.station import station_robot
from rlinf_core.task import shaped

if TYPE_CHECKING:
    from sim_bridges.vectorised import SimulatedStation, VectorStations


def simulated_station(recipe: Recipe) -> SimulatedStation:
    """The recipe's station without ROS: simulator, interlock core and task in this process."""
    from rlinf_core.interlock import load_limits
    from sim_bridges.randomised import Randomised
    from sim_bridges.simulator import make
    from sim_bridges.vectorised import SimulatedStation

    robot = station_robot(recipe)
    if robot.driver != "simulator":
        raise RecipeError(f"station.robot: expected a simulated one, got '{recipe.station.robot}', whose driver is "
                          f"{robot.driver}")
    task = station_task(recipe)
    if recipe.simulation.shaping:
        task = shaped(task, recipe.simulation.shaping)
    simulator = make(robot.simulator, **robot.options)
    if recipe.simulation.randomise != Randomise():
        simulator = Randomised(simulator, recipe.simulation.randomise)
    return SimulatedStation(simulator, task, load_limits(robot.limits), recipe.simulation.interlock)


def stations(recipe: Recipe, size: int) -> VectorStations:
    """So many of them, in this process."""
    from sim_bridges.vectorised import VectorStations

    return VectorStations(partial(simulated_station, recipe), size)
