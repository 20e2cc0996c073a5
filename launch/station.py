"""Hands a station's process graph (rlinf_core.launch.graph) to launch_ros.

The launch files only choose arguments.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessExit, OnProcessIO
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription

if TYPE_CHECKING:
    from rlinf_core.launch.graph import Process
    from rlinf_core.recipes import Recipe

ARGUMENTS = {
    "recipe": ("demo", None, "the recipe: a name in configs/ or the path of a YAML file"),
    "robot": (
        "",
        None,
        "a name of `rlinf robots` or the path of a robot folder. sim is short for franka_sim, "
        "franka for franka_fr3. Empty: the robot of the recipe",
    ),
    "namespace": (
        "",
        None,
        "the station's name. Its topics and episodes begin with it. Empty: as in the recipe",
    ),
    "lockstep": (
        "",
        ["", "true", "false"],
        "true: simulated time, as fast as the machine allows (simulators only). false: real time. "
        "Empty: as in the recipe",
    ),
    "use_sim_time": ("", ["", "true", "false"], "the same as lockstep, under ROS's name"),
    "operator": (
        "",
        None,
        "the operator, who demonstrates and arms: scripted (in simulation), keyboard or another "
        "device. person: the device of the recipe, or a keyboard if it names none. Empty: as in "
        "the recipe",
    ),
    "policy": (
        "",
        None,
        "remote://host:port: a policy server (rlinf serve). Empty: this station computes the "
        "trainer's policy",
    ),
    "trainer": (
        "",
        None,
        "host:port of the trainer's bridge (rlinf train RECIPE). Empty: as in the recipe",
    ),
    "credentials": (
        "",
        None,
        "for a trainer on another machine: the folder that rlinf fleet enroll wrote. Empty: as in "
        "the recipe",
    ),
    "token": (
        "",
        None,
        "for another user's trainer on this machine: a copy of the file bridge.token in its run "
        "folder. Empty: as in the recipe",
    ),
    "web": (
        "",
        None,
        "serve the operator's page on this port, e.g. 8080 (docs/howto/operator_page.md). Empty: "
        "no page",
    ),
    "director": (
        "false",
        ["true", "false"],
        "true: also run the phases of the recipe: collect, evaluate, improve, evaluate",
    ),
    "episodes": (
        "0",
        None,
        "collect until run_dir has this number of successful demonstrations, then end (rlinf "
        "collect). Earlier ones count. 0: start only the station",
    ),
    "run_dir": ("runs/station", None, "folder for spool, policies and logs"),
    "set": ("", None, "overrides of the recipe, as in rlinf --set: 'seed=3 station.policies_gb=4'"),
    "params_file": (
        "",
        None,
        "a YAML file of ROS parameters for the nodes. Its values replace those of the recipe",
    ),
    "log_level": (
        "",
        None,
        "log level of every node: debug, info, warn, error, or logger:=level. Empty: info",
    ),
    "managed": (
        "false",
        ["true", "false"],
        "true: a lifecycle manager brings the nodes up and down, in order. false: each node "
        "activates itself",
    ),
    "rviz": ("false", ["true", "false"], "also start RViz with the layout of a station"),
}
# blocks signals during its start, when Python's own handler would print a traceback
UNTIL_IT_CAN_ANSWER = "env --block-signal=INT --block-signal=TERM"
# a session: Ctrl-C interrupts only launch, which ends the nodes in order
SESSION = "setpriv --pdeathsig TERM setsid"
SEARCH_PATHS = ("PYTHONPATH", "AMENT_PREFIX_PATH", "LD_LIBRARY_PATH")
OUTPUT_LIMIT = 1 << 14  # characters of a node's output that may contain its last error
exit_codes: list[int] = []  # the exit code of this launch, if the station has ended by itself


def _exit_with_code() -> None:
    """End with the station's exit code: launch itself ends with 0 or 1."""
    if exit_codes:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_codes[0])


atexit.register(_exit_with_code)


def description(**defaults: str) -> LaunchDescription:
    """Return a launch description with all arguments; ``defaults`` differ by launch file."""
    declared = [
        DeclareLaunchArgument(
            name,
            default_value=defaults.get(name, default),
            description=text,
            **({"choices": choices} if choices else {}),
        )
        for name, (default, choices, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=_start)])


def find_rlinf() -> str:
    """Return the Python with rlinf, and make rlinf importable here.

    Launch runs in ROS's own Python.
    """
    # no workspace is sourced: these launch files belong to a clone or a wheel
    if not find_spec("rlinf_ros"):
        here = Path(__file__).resolve().parent
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        sys.path += [
            str(here.parent / "ros_ws/src/rlinf_ros"),
            str(here.parents[2] / f"lib/{version}/site-packages"),
        ]
    from rlinf_ros.interpreter import importable

    return importable()


def _start(context: LaunchContext) -> list:
    find_rlinf()
    from rlinf_core.core.errors import RlinfError

    try:
        return _station(context)
    except RlinfError as error:
        exit_codes[:] = [error.exit_status()]  # e.g. 2 for wrong settings
        raise


def cannot_go_on(text: str, exit_code: int) -> None:
    """End this launch: it ends its processes, and then exits with ``exit_code``."""
    from rlinf_core.core.errors import RlinfError

    exit_codes[:] = [exit_code]
    raise RlinfError(text)


def _station(context: LaunchContext) -> list:
    from rlinf_core.cli.demo import next_steps
    from rlinf_core.cli.launch_arguments import launch_environment, prepare_launch, ros_options
    from rlinf_core.launch.graph import operator_process
    from rlinf_core.robots.operators import SCRIPTED
    from rlinf_core.specs.ros_parameters import flattened

    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    options = ros_options(value)
    invocation = prepare_launch(value)
    recipe = invocation.recipe
    run_dir = invocation.run_dir
    wanted = invocation.episode_count
    if not invocation.processes:
        return [
            LogInfo(
                msg=f"{invocation.before.succeeded} of {wanted} demonstrations are in {run_dir} "
                f"already"
            )
        ]
    actions: list = [
        SetEnvironmentVariable(*pair) for pair in environment_in(launch_environment(recipe)).items()
    ]
    nodes = nodes_of(invocation.processes, run_dir, **options)

    for process, node in zip(invocation.processes, nodes, strict=True):
        actions += [*watched(process, node, cannot_go_on), node]
        if wanted and process.name == "director":
            actions.append(
                RegisterEventHandler(
                    OnProcessExit(
                        target_action=node,
                        on_exit=[
                            EmitEvent(
                                event=Shutdown(
                                    reason=f"collecting ended; rlinf data list {run_dir}"
                                )
                            )
                        ],
                    )
                )
            )
    if value["rviz"] == "true":
        actions.append(rviz(recipe, run_dir))
    node_command = ""
    if recipe.station.operator.kind != SCRIPTED and not recipe.station.web.port:
        operator = operator_process(recipe)
        parameters = {
            key: value
            for key, value in flattened(operator.parameters).items()
            if value not in ("", [""])
        }
        settings = " ".join(
            f"-p {shlex.quote(f'{key}:={json.dumps(val)}')}" for key, val in parameters.items()
        )
        renamed = "".join(f"-r {old}:={new} " for old, new in operator.remappings)
        node_command = (
            "\nthe operator as a ROS node, instead of rlinf teleop: ros2 run rlinf operator "
            f"--ros-args -r __ns:={operator.namespace} {renamed}{settings}"
        )
    directed = value["director"] == "true" or wanted > 0
    steps = next_steps(recipe, value["recipe"], invocation.overrides, run_dir, directed)
    return [*actions, LogInfo(msg=steps + node_command)]


class StationNode(Node):
    """A node of a station that ends after certain others.

    Args:
        process: the station's process.
        before: the nodes that end before it.
        settings: of Node.
    """

    def __init__(self, process: Process, *, before: list[StationNode], **settings: Any) -> None:
        super().__init__(**settings)
        self.process = process
        self.before = before
        self.waits = False

    @property
    def runs(self) -> bool:
        """Whether its process is running."""
        transport = self._subprocess_transport
        return transport is not None and transport.get_returncode() is None

    def _shutdown_process(self, context: LaunchContext, *, send_sigint: bool) -> Any:
        """End the process once the nodes in ``before`` have ended.

        Launch calls it for its own end and for an event. It always sends the signal, because a
        terminal's Ctrl-C reached only launch.
        """
        if not any(node.runs for node in self.before):
            return super()._shutdown_process(context, send_sigint=True)
        if not self.waits:
            self.waits = True
            context.register_event_handler(OnProcessExit(on_exit=self._one_less))
        return None

    def _one_less(self, _: Any, context: LaunchContext) -> Any:
        if not self.waits or any(node.runs for node in self.before):
            return None
        self.waits = False
        return super()._shutdown_process(context, send_sigint=True)


def nodes_of(
    processes: list[Process], run_dir: Path, prefix: str = "", **more: Any
) -> list[StationNode]:
    """Return the station's processes as nodes, in order; launch shows each name behind ``prefix``.

    Their parameters go to a folder of this launch. Another launch of the same run, even a refused
    one, must not change them.
    """
    from rlinf_core.launch.graph import MANAGER, RESPAWN
    from rlinf_core.launch.restart import RESPAWN_DELAY_S, ends_last
    from rlinf_core.launch.supervisor import parameters_file

    python = find_rlinf()
    folder = run_dir / f"params/launch-{os.getpid()}"
    nodes = []
    managers = []
    commanders = []
    extra = more.pop("parameters", [])
    for process in processes:
        before = commanders if ends_last(process) else [] if process.name == MANAGER else managers
        node = StationNode(
            process,
            before=before,
            **program_of(process, python),
            name=process.executable,
            namespace=process.namespace,
            parameters=[str(parameters_file(process, folder)), *extra],
            remappings=list(process.remappings),
            respawn=process.restart == RESPAWN,
            respawn_delay=RESPAWN_DELAY_S,
            sigterm_timeout=str(process.stop_s),
            sigkill_timeout=str(process.stop_s),
            prefix=f"{SESSION} {UNTIL_IT_CAN_ANSWER}",
            exec_name=f"{prefix}{process.name}",
            output="screen",
            emulate_tty=sys.stdout.isatty(),
            **more,
        )
        nodes.append(node)
        if process.name == MANAGER:
            managers.append(node)
        if not ends_last(process):
            commanders.append(node)
    return nodes


def program_of(process: Process, python: str) -> dict[str, Any]:
    """Return Node's settings: a workspace's executable, else the module as in ``rlinf up``."""
    try:
        get_package_prefix(process.package)
    except PackageNotFoundError:
        return {"executable": python, "arguments": ["-m", process.module]}
    return {"package": process.package, "executable": process.executable}


def environment_in(variables: dict[str, str]) -> dict[str, str]:
    """Return the nodes' environment variables.

    Without a sourced workspace, they include those that find messages and modules.
    """
    try:
        get_package_prefix("rlinf_station")
        return variables
    except PackageNotFoundError:
        code = (
            "import json; from rlinf_core.core import paths, ros; "
            "print(json.dumps(ros.ros_environment(int({})) | {{'OURS': [str(path) for path in "
            "(paths.SOURCE, *paths.NODES, paths.message_packages()) if path]}}))"
        )
        answer = subprocess.run(
            [find_rlinf(), "-c", code.format(variables["ROS_DOMAIN_ID"])],
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        )
        theirs = json.loads(answer.stdout)
        theirs["PYTHONPATH"] = ":".join(
            [*theirs["OURS"], *filter(None, [theirs.get("PYTHONPATH")])]
        )
        return {name: theirs[name] for name in SEARCH_PATHS if name in theirs} | variables


def watched(
    process: Process, node: Node, cannot_go_on: Callable[[str, int], list | None]
) -> list[RegisterEventHandler]:
    """Return event handlers that react to the ends of a process as ``rlinf up`` does.

    Args:
        process, node: the process, and its action.
        cannot_go_on: called with the reason and the exit code of a launch of this station alone
            if the station must end; returns actions.
    """
    from rlinf_core.launch.restart import History, last_error_in

    history, output = History(process, time.monotonic()), [""]

    def keep(event: Any) -> None:
        output[0] = (output[0] + event.text.decode(errors="replace"))[-OUTPUT_LIMIT:]

    def ended(event: Any, context: LaunchContext) -> list | None:
        if context.is_shutdown:
            return None
        outcome = history.record_end(
            event.returncode, time.monotonic(), last_error_in(output[0].replace("\r", ""))
        )
        output[0] = ""
        text = f"{outcome.text}{f': {outcome.refusal}' if outcome.refusal else ''}"
        if outcome.restarts:
            return [LogInfo(msg=text)]
        return cannot_go_on(text, outcome.exit_code)

    return [
        RegisterEventHandler(OnProcessIO(target_action=node, on_stdout=keep, on_stderr=keep)),
        RegisterEventHandler(OnProcessExit(target_action=node, on_exit=ended)),
    ]


def rviz(recipe: Recipe, run_dir: Path) -> Node:
    """Return RViz with the layout of a recipe's station; closing it does not end the station."""
    from rlinf_core.launch import layouts

    shown, file = layouts.content_of_recipe(recipe), run_dir / "station.rviz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(layouts.rviz(shown))
    command = layouts.rviz_command(str(file), shown)
    return Node(
        package="rviz2",
        executable="rviz2",
        namespace=shown.station,
        output="log",
        arguments=command[1:],
    )
