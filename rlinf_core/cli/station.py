"""Commands that run a ROS program: ``rlinf status``, ``arm``, ``drill`` and others."""

from __future__ import annotations

import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from rlinf_core.cli.terminal import foreground
from rlinf_core.core.errors import DeviceError, RecipeError
from rlinf_core.core.ros import ros_environment
from rlinf_core.launch.graph import station_processes
from rlinf_core.recipes import check_recipe, load_recipe, station_robot
from rlinf_core.robots.calibration.hand_eye import TOOL
from rlinf_core.robots.drivers import SIMULATOR

CLIENT = "the ROS client of this command"  # it calls terminal.notify_started


def run_tool(module: str, arguments: list[str], domain_id: int, starts: str = "") -> int:
    """Run a program of ``rlinf_tools`` in the foreground, and return its exit code."""
    command = [sys.executable, "-m", f"rlinf_tools.{module}", *arguments]
    return foreground(command, ros_environment(domain_id), starts)


def send_request(
    request: str,
    name: str,
    overrides: list[str],
    timeout_s: float,
    cause: str = "",
    words: str = "",
) -> int:
    """Send a request to the recipe's station (``rlinf_tools.station_client``).

    Returns an exit code.
    """
    recipe = load_recipe(name, overrides)
    arguments = [
        request,
        "--station",
        recipe.station.name,
        "--timeout",
        str(timeout_s),
    ]
    if request == "status":
        root = f"/{recipe.station.name}/"
        arguments += [
            f"--recipe={name}",
            "--expect",
            *(
                f"{process.namespace}/{process.executable}".removeprefix(root)
                for process in station_processes(recipe, Path())
            ),
        ]
    if arms := station_robot(recipe).arms:
        arguments += ["--arms", *arms]
    if cause:
        arguments += [f"--cause={cause}"]
    if words:
        arguments += [f"--words={words}"]
    return run_tool("station_client", arguments, recipe.station.domain, CLIENT)


def send_node_request(
    request: str,
    node: str,
    name: str,
    overrides: list[str],
    timeout_s: float,
    parameter: str = "",
    value: str = "",
) -> int:
    """Send a request to one node of the station (``rlinf_tools.node_client``).

    Returns an exit code.
    """
    recipe = load_recipe(name, overrides)
    arguments = [
        request,
        f"--station={recipe.station.name}",
        f"--node={node}",
        f"--parameter={parameter}",
        f"--value={value}",
        f"--timeout={timeout_s}",
        "--arms",
        *station_robot(recipe).arms,
    ]
    return run_tool("node_client", arguments, recipe.station.domain, CLIENT)


def calibrate(
    name: str, overrides: list[str], arm: str, margin: float, out: Path, write: bool
) -> int:
    """Calibrate limits while a person guides the arm (``rlinf_tools.calibrate``).

    Returns an exit code.
    """
    recipe = load_recipe(name, overrides)
    check_recipe(recipe)
    if station_robot(recipe).driver == SIMULATOR:
        raise RecipeError(
            "station.robot: expected a real arm, which a hand can guide, got "
            f"'{recipe.station.robot}', which is simulated"
        )
    if not 0.0 <= margin <= 0.5:
        raise RecipeError(f"--margin: expected 0 to 0.5 m, got {margin}")
    arguments = [
        name,
        *overrides,
        f"--arm={arm}",
        f"--margin={margin}",
        f"--out={out}",
    ]
    if write:
        arguments.append("--write")
    return run_tool("calibrate", arguments, recipe.station.domain)


def first_motion(name: str, overrides: list[str], arm: str, json_file: Path | None) -> int:
    """Run the first motion of a real arm (``rlinf_tools.first_motion``). Returns an exit code."""
    recipe = load_recipe(name, overrides)
    check_recipe(recipe)
    arguments = [
        name,
        *overrides,
        f"--arm={arm}",
        *([f"--json={json_file}"] if json_file else []),
    ]
    return run_tool("first_motion", arguments, recipe.station.domain)


def camera(
    request: str,
    name: str,
    camera: str,
    overrides: list[str],
    arm: str,
    on: str,
    board: str,
    square: float,
    reference: Path | None,
    out: Path,
    write: bool,
) -> int:
    """Use a camera of the recipe's station (``rlinf_tools.camera_client``).

    Returns an exit code.
    """
    recipe = load_recipe(name, overrides)
    check_recipe(recipe)
    if not re.fullmatch(r"[1-9]\d?x[1-9]\d?", board) or min(map(int, board.split("x"))) < 3:
        raise RecipeError(
            "--board: expected the inner corners of a chessboard, at least 3x3, e.g. 8x5, got "
            f"'{board}'"
        )
    if sum(map(int, board.split("x"))) % 2 == 0:
        raise RecipeError(
            f"--board: expected one even number and one odd, e.g. 8x5, got '{board}'. Such a board "
            "looks the same after half a turn, so its orientation is ambiguous. Cover a row of "
            "squares and give one less, or use another board"
        )
    if (request, on) == ("locate", TOOL) and not station_robot(recipe).tool_frame:
        raise RecipeError(
            "--on: expected base, since robot.yaml has no tool frame (tool_frame: ''), got tool. "
            "Name that frame, e.g. tool_frame: tcp"
        )
    if not 0.001 <= square <= 1.0:
        raise RecipeError(f"--square: expected 0.001 to 1 m, got {square}")
    arguments = [
        request,
        name,
        camera,
        *overrides,
        f"--arm={arm}",
        f"--on={on}",
        f"--board={board}",
        f"--square={square}",
        f"--out={out}",
        *([f"--reference={reference}"] if reference else []),
        *(["--write"] if write else []),
    ]
    return run_tool("camera_client", arguments, recipe.station.domain)


def drill(
    only: str,
    json_file: Path | None,
    two_arms: bool,
    scenarios: Path | None,
    out: Path | None,
    domain: int,
) -> int:
    """Run the safety drill (``rlinf_tools.drill``) in this ROS_DOMAIN_ID. Returns an exit code."""
    values = {"only": only, "json": json_file, "scenarios": scenarios, "out": out}
    arguments = [f"--{name}={value}" for name, value in values.items() if value]
    if two_arms:
        arguments.append("--two-arms")
    return run_tool("drill", arguments, domain)


def fake_device(kind: str, path: Path | None = None) -> int:
    """Imitate a device until the end of input or Ctrl-C; invalid input is reported and ignored."""
    from rlinf_core.robots.operators.twins import Events, Leader, Pedal, SpaceMouse
    from sim_bridges.twins.robotiq import Robotiq
    from sim_bridges.twins.servos import Servos

    twins: dict[str, Any] = {
        "spacemouse": SpaceMouse,
        "gamepad": Events,
        "pedal": Pedal,
        "leader": Leader,
        "robotiq": Robotiq,
        "feetech": partial(Servos, kind="feetech", ids=range(1, 7)),
    }
    path = path or Path(tempfile.mkdtemp(prefix="rlinf-twin-")) / kind
    device: Any = twins[kind](path)
    where = "in robot.yaml: gripper: " if kind == "robotiq" else "--set station.operator="
    keys = "leader, bus: feetech, baud: 1000000" if kind == "feetech" else kind
    print(
        f"a {kind} without hardware is at {path}: {where}{{kind: {keys}, device: {path}}}\n"
        "move it: NAME VALUE ..., press NAME, release NAME, rest, silent, garbage, unplug; Ctrl-D "
        "ends it",
        flush=True,
    )
    try:
        for line in filter(str.strip, sys.stdin):
            try:
                device.execute(line)
            except DeviceError as error:
                print(error, file=sys.stderr, flush=True)
    finally:
        device.unplug()
    return 0
