"""The processes of a station that ROS's launch starts, from the arguments of a launch file. A
refusal names the argument.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.cli.parsing import written
from rlinf_core.config.overrides import quoted, split
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expanded
from rlinf_core.core.ros import of_every_process
from rlinf_core.data.takes import DemonstrationStats
from rlinf_core.launch.graph import (
    REAL_TIME,
    Process,
    collecting,
    collecting_processes,
    composed,
    director_process,
    faster_than_a_hand,
    station_processes,
    write_plan,
)
from rlinf_core.launch.preflight import check_page, check_policy_device
from rlinf_core.launch.supervisor import free_segments
from rlinf_core.recipes import Recipe, load_recipe, station_robot
from rlinf_core.robots.operators import KEYBOARD, SCRIPTED
from rlinf_core.trainer.folder import keep_recipe

PERSON = "person"  # an operator: whatever device the recipe has
ROBOTS = {"sim": "franka_sim", "franka": "franka_fr3"}
TRAINER = re.compile(r"(\[[^\s\[\]/]+\]|[^\s:\[\]/]+):(\d{1,5})", re.ASCII)


@dataclass(frozen=True)
class Launched:
    """A station that may be started.

    Attributes:
        recipe, overrides: what it plays, and how the recipe was loaded.
        run_dir: where to.
        wanted: demonstrations that are collected; 0 for the station alone.
        before: of those, what is there.
        processes: none where as many as are wanted are there.
    """

    recipe: Recipe
    overrides: list[str]
    run_dir: Path
    wanted: int
    before: DemonstrationStats
    processes: list[Process]


def launched(arguments: Mapping[str, str]) -> Launched:
    """Write the launch arguments' recipe into the run folder. Raises RlinfError, and writes
    nothing, if it is refused.
    """
    name, overrides = arguments["recipe"], overrides_of(arguments)
    run_dir, wanted, before = (
        folder("run_dir", arguments["run_dir"]),
        number("episodes", arguments["episodes"]),
        DemonstrationStats(),
    )
    recipe = load_recipe(name, overrides)
    by_person = arguments["operator"] == PERSON or not (arguments["operator"] or station_robot(recipe).without_hardware)
    if by_person and recipe.station.operator.kind == SCRIPTED:
        overrides.append(f"station.operator={{kind: {KEYBOARD}}}")  # whom a script may not arm
        recipe = load_recipe(name, overrides)
    if by_person and not (arguments["lockstep"] or arguments["use_sim_time"]) and faster_than_a_hand(recipe):
        overrides += REAL_TIME
        recipe = load_recipe(name, overrides)
    if wanted:
        recipe, before = collecting(name, overrides, run_dir, wanted)
        if before.succeeded >= wanted:
            return Launched(recipe, overrides, run_dir, wanted, before, [])
    free_segments()
    processes = composed(recipe, station_processes(recipe, run_dir))
    check_page(recipe.station.web)
    check_policy_device(recipe)
    keep_recipe(recipe, run_dir)
    if wanted:
        processes = collecting_processes(recipe, run_dir, before, terminal=False)
    elif arguments["director"] == "true":
        write_plan(recipe, run_dir)
        processes.append(director_process(recipe, run_dir))
    return Launched(recipe, overrides, run_dir, wanted, before, processes)


def overrides_of(arguments: Mapping[str, str]) -> list[str]:
    """Return the overrides of the recipe that the arguments mean."""
    robot, trainer, policy = ROBOTS.get(arguments["robot"], arguments["robot"]), arguments["trainer"], arguments["policy"]
    values = {
        "station.robot": str(folder("robot", robot)) if "/" in robot else robot,
        "station.name": arguments["namespace"],
    }
    address = TRAINER.fullmatch(trainer)
    if trainer and not address:
        raise RecipeError(f"trainer: expected host:port, such as gpu-pc:50551 or [::1]:50551, or nothing, got '{trainer}'")
    if address:
        values |= {"bridge.host": address[1]}
    if arguments["token"]:
        values |= {"bridge.token_file": str(folder("token", arguments["token"]))}
    if arguments["credentials"]:
        values |= {"bridge.credentials": str(folder("credentials", arguments["credentials"]))}
    result = [f"{key}={quoted(value)}" for key, value in values.items() if value]
    result += [f"bridge.port={int(address[2])}"] if address else []
    lockstep, use_sim_time = arguments["lockstep"], arguments["use_sim_time"]
    if lockstep and use_sim_time and lockstep != use_sim_time:
        raise RecipeError(f"use_sim_time: expected the value of lockstep, which is '{lockstep}', or nothing, got "
                          f"'{use_sim_time}'")
    result += [f"station.lockstep={lockstep or use_sim_time}"] if lockstep or use_sim_time else []
    result += [f"station.web.port={number('web', arguments['web'])}"] if arguments["web"] else []
    result += (
        [f"station.operator={{kind: {quoted(arguments['operator'])}}}"]
        if arguments["operator"] not in ("", PERSON)
        else []
    )
    result += split(arguments["set"])
    if not policy:
        return result
    scheme, _, server = policy.partition("://")
    if scheme != "remote" or not server:
        raise RecipeError(f"policy: expected remote://host:port, or nothing, got '{policy}'")
    return [*result, "station.policy.backend=remote", f"station.policy.address={quoted(f'ws://{server}')}"]


def ros_options(arguments: Mapping[str, str]) -> dict[str, list[str]]:
    """Return settings of every launch_ros node: files of parameters, and arguments of ROS."""
    options: dict[str, list[str]] = {}
    if arguments["params_file"]:
        path = folder("params_file", arguments["params_file"])
        if not path.is_file():
            raise RecipeError(f"params_file: expected a YAML file of ROS parameters, got '{path}', which is no file")
        options["parameters"] = [str(path)]
    if arguments["log_level"]:
        options["ros_arguments"] = ["--log-level", arguments["log_level"]]
    return options


def folder(argument: str, text: str) -> Path:
    """The path that an argument says."""
    if not text:
        raise RecipeError(f"{argument}: expected a folder, got nothing")
    return expanded(text, argument).resolve()


def file(argument: str, text: str) -> Path:
    """The file that an argument says, into which something is written once the work is done."""
    try:
        return written()(text)
    except ArgumentTypeError as error:
        raise RecipeError(f"{argument}: {error}") from error


def number(argument: str, text: str) -> int:
    """The whole number that an argument says."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise RecipeError(f"{argument}: expected a whole number from 0 on, got '{text}'")
    return int(text)


def launched_environment(recipe: Recipe) -> dict[str, str]:
    """The environment of processes that ROS's launch starts.

    A station without hardware is discovered on this machine only. Another machine could take it for a real station of the
    same name and domain. ROS_AUTOMATIC_DISCOVERY_RANGE of the shell takes precedence.
    """
    alone = station_robot(recipe).without_hardware and "ROS_AUTOMATIC_DISCOVERY_RANGE" not in os.environ
    return of_every_process(recipe.station.domain) | ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"} if alone else {})
