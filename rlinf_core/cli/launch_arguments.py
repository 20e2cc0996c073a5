"""The station's processes for ROS's launch, from the arguments of a launch file.

Errors name the argument.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlinf_core.cli.arguments import output_file
from rlinf_core.config.overrides import quote_value, split_overrides
from rlinf_core.config.yaml_source import load_plain
from rlinf_core.core.errors import RecipeError
from rlinf_core.core.paths import expand_user
from rlinf_core.core.ros import process_environment
from rlinf_core.data.demonstrations import DemonstrationStats
from rlinf_core.launch.graph import (
    REAL_TIME,
    Process,
    collect_processes,
    compose,
    director_process,
    is_too_fast_for_person,
    load_collect_recipe,
    station_processes,
    with_lifecycle_manager,
    write_plan,
)
from rlinf_core.launch.preflight import check_page, check_policy_device
from rlinf_core.launch.supervisor import free_segments
from rlinf_core.recipes import Recipe, load_recipe, station_robot
from rlinf_core.robots.operators import KEYBOARD, SCRIPTED
from rlinf_core.trainer.folder import write_recipe

PERSON = "person"  # operator: the recipe's device of a person
ROBOTS = {"sim": "franka_sim", "franka": "franka_fr3"}
TRAINER = re.compile(r"(\[[^\s\[\]/]+\]|[^\s:\[\]/]+):(\d{1,5})", re.ASCII)


@dataclass(frozen=True)
class LaunchPlan:
    """A station that is ready to start.

    Attributes:
        recipe: recipe of the station.
        overrides: its overrides.
        run_dir: folder of the run.
        episode_count: number of demonstrations to collect; 0 for the station alone.
        before: existing demonstrations.
        processes: processes to start; empty if enough demonstrations exist.
    """

    recipe: Recipe
    overrides: list[str]
    run_dir: Path
    episode_count: int
    before: DemonstrationStats
    processes: list[Process]


def prepare_launch(arguments: Mapping[str, str]) -> LaunchPlan:
    """Check the launch arguments and write the recipe into the run folder.

    Raises:
        RlinfError: an argument is invalid; nothing is written then.
    """
    name, overrides = arguments["recipe"], overrides_of(arguments)
    run_dir = parse_folder("run_dir", arguments["run_dir"])
    episode_count = parse_number("episodes", arguments["episodes"])
    before = DemonstrationStats()
    recipe = load_recipe(name, overrides)
    by_person = arguments["operator"] == PERSON or not (
        arguments["operator"] or station_robot(recipe).without_hardware
    )
    if by_person and recipe.station.operator.kind == SCRIPTED:
        overrides.append(f"station.operator={{kind: {KEYBOARD}}}")  # a script must not arm it
        recipe = load_recipe(name, overrides)
    if (
        by_person
        and not (arguments["lockstep"] or arguments["use_sim_time"])
        and is_too_fast_for_person(recipe)
    ):
        overrides += REAL_TIME
        recipe = load_recipe(name, overrides)
    if episode_count:
        recipe, before = load_collect_recipe(name, overrides, run_dir, episode_count)
        if before.succeeded >= episode_count:
            return LaunchPlan(recipe, overrides, run_dir, episode_count, before, [])
    free_segments()
    processes = compose(recipe, station_processes(recipe, run_dir))
    check_page(recipe.station.web)
    check_policy_device(recipe)
    write_recipe(recipe, run_dir)
    if episode_count:
        processes = collect_processes(recipe, run_dir, before, terminal=False)
    elif arguments["director"] == "true":
        write_plan(recipe, run_dir)
        processes.append(director_process(recipe, run_dir))
    if arguments["managed"] == "true":
        processes = with_lifecycle_manager(recipe, processes)
    return LaunchPlan(recipe, overrides, run_dir, episode_count, before, processes)


def overrides_of(arguments: Mapping[str, str]) -> list[str]:
    """Return the recipe overrides for launch arguments."""
    robot = ROBOTS.get(arguments["robot"], arguments["robot"])
    values = {
        "station.robot": str(parse_folder("robot", robot)) if "/" in robot else robot,
        "station.name": arguments["namespace"],
    }
    address = TRAINER.fullmatch(arguments["trainer"])
    if arguments["trainer"] and not address:
        raise RecipeError(
            f"trainer: expected host:port, such as gpu-pc:50551 or [::1]:50551, or nothing, got "
            f"'{arguments['trainer']}'"
        )
    if address:
        values["bridge.host"] = address[1]
    if arguments["token"]:
        values["bridge.token_file"] = str(parse_folder("token", arguments["token"]))
    if arguments["credentials"]:
        folder = parse_folder("credentials", arguments["credentials"])
        values["bridge.credentials"] = str(folder)
    overrides = [f"{key}={quote_value(value)}" for key, value in values.items() if value]
    if address:
        overrides.append(f"bridge.port={int(address[2])}")
    lockstep, use_sim_time = arguments["lockstep"], arguments["use_sim_time"]
    if lockstep and use_sim_time and lockstep != use_sim_time:
        raise RecipeError(
            f"use_sim_time: expected the value of lockstep, which is '{lockstep}', or nothing, got "
            f"'{use_sim_time}'"
        )
    if lockstep or use_sim_time:
        overrides.append(f"station.lockstep={lockstep or use_sim_time}")
    if arguments["web"]:
        overrides.append(f"station.web.port={parse_number('web', arguments['web'])}")
    if arguments["operator"] not in ("", PERSON):
        overrides.append(f"station.operator={{kind: {quote_value(arguments['operator'])}}}")
    overrides += split_overrides(arguments["set"])
    return overrides + _policy_overrides(arguments["policy"])


def _policy_overrides(policy: str) -> list[str]:
    """Return the overrides for a policy server at ``remote://host:port``; none without one."""
    if not policy:
        return []
    scheme, _, server = policy.partition("://")
    if scheme != "remote" or not server:
        raise RecipeError(f"policy: expected remote://host:port, or nothing, got '{policy}'")
    address = quote_value(f"ws://{server}")
    return ["station.policy.backend=remote", f"station.policy.address={address}"]


def ros_options(arguments: Mapping[str, str]) -> dict[str, list[str]]:
    """Return options of all launch_ros nodes: parameter files and ROS arguments."""
    options: dict[str, list[str]] = {}
    if arguments["params_file"]:
        path = parse_folder("params_file", arguments["params_file"])
        if not path.is_file():
            raise RecipeError(
                f"params_file: expected a YAML file of ROS parameters, got '{path}', which is not "
                "a file"
            )
        _check_parameters(path)
        options["parameters"] = [str(path)]
    if arguments["log_level"]:
        options["ros_arguments"] = ["--log-level", arguments["log_level"]]
    return options


def _check_parameters(path: Path) -> None:
    """Refuse limits of the interlock in a file of ROS parameters: no node would read them.

    Raises:
        RecipeError: there are such limits, or the file is not YAML.
    """
    try:
        document = load_plain(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(
            f"params_file: expected a YAML file of ROS parameters, got '{path}': {error}"
        ) from error
    names = sorted(name for name in _parameters(document) if f"{name}.".startswith("limits."))
    if names:
        raise RecipeError(
            f"params_file: '{path}' sets {', '.join(names)}, which no node reads from there. Edit "
            "limits.yaml of the robot, or set it while the station runs: rlinf param set interlock "
            f"{names[0]} VALUE"
        )


def _parameters(document: Any, prefix: str | None = None) -> Iterator[str]:
    """Yield the full names of the parameters below each ``ros__parameters`` of a file.

    Args:
        document: the content of the file, or a part of it.
        prefix: the name of a part below ``ros__parameters``; None above it.
    """
    for key, value in document.items() if isinstance(document, dict) else ():
        if prefix is None:
            yield from _parameters(value, "" if key == "ros__parameters" else None)
        elif isinstance(value, dict):
            yield from _parameters(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def parse_folder(argument: str, text: str) -> Path:
    """Return the path in an argument."""
    if not text:
        raise RecipeError(f"{argument}: expected a folder, got nothing")
    return expand_user(text, argument).resolve()


def parse_file(argument: str, text: str) -> Path:
    """Return the output file in an argument."""
    try:
        return output_file()(text)
    except ArgumentTypeError as error:
        raise RecipeError(f"{argument}: {error}") from error


def parse_number(argument: str, text: str) -> int:
    """Return the integer in an argument."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise RecipeError(f"{argument}: expected a whole number of at least 0, got '{text}'")
    return int(text)


def launch_environment(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables for ROS's launch.

    A station without hardware is visible on this machine only, since another machine could confuse
    it with a real station. ROS_AUTOMATIC_DISCOVERY_RANGE of the shell takes precedence.
    """
    is_isolated = (
        station_robot(recipe).without_hardware and "ROS_AUTOMATIC_DISCOVERY_RANGE" not in os.environ
    )
    return process_environment(recipe.station.domain) | (
        {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"} if is_isolated else {}
    )
