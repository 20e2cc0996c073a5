"""``rlinf status``, ``arm``, ``disarm``, ``fault reset``, ``gripper activate``, ``drill``, by programs of ROS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rlinf_core.launching.graph import station_processes
from rlinf_core.recipes import load_recipe, station_robot
from rlinf_core.ros import ros_environment


def visit(what: str, name: str, overrides: list[str], timeout_s: float, cause: str = "") -> int:
    """Ask the recipe's station (``rlinf.station_client``); returns its exit code."""
    recipe = load_recipe(name, overrides)
    command = [sys.executable, "-m", "rlinf.station_client", what, "--station", recipe.station.name, "--timeout",
               str(timeout_s)]
    if what == "status":
        root = f"/{recipe.station.name}/"
        command += ["--expect", *(f"{process.namespace}/{process.executable}".removeprefix(root)
                                  for process in station_processes(recipe, Path()))]
    if arms := station_robot(recipe).arms:
        command += ["--arms", *arms]
    if cause:
        command += [f"--cause={cause}"]
    return subprocess.call(command, env=ros_environment(recipe.station.domain))


def drill(only: str, json_file: Path | None, out: Path | None, domain: int) -> int:
    """Run the safety drill (``rlinf.drill``) in this ROS_DOMAIN_ID; returns its exit code."""
    options = [f"--{name}={value}" for name, value in (("only", only), ("json", json_file), ("out", out)) if value]
    return subprocess.call([sys.executable, "-m", "rlinf.drill", *options], env=ros_environment(domain))
