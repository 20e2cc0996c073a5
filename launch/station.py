"""Hands a station's process graph (rlinf_core.launch.graph) to launch_ros; the launch files only choose arguments."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription

if TYPE_CHECKING:
    from rlinf_core.launch.graph import Process

ARGUMENTS = {
    "recipe": ("demo", None, "recipe: a name in configs/ or a YAML file"),
    "robot": ("", None, "a robot of robots/ or of a simulator, or the path of one; sim: franka_sim, franka: franka_fr3; "
              "empty as in the recipe"),
    "namespace": ("", None, "name of the station, with which its topics and episodes begin; empty as in the recipe"),
    "lockstep": ("false", ["true", "false"], "simulated time as fast as it goes instead of real time (robot:=sim only)"),
    "operator": ("", None, "who demonstrates and arms: scripted (in simulation), keyboard, or a device; person: the "
                 "recipe's device, a keyboard where it has none; empty as in the recipe"),
    "policy": ("", None, "remote://host:port: what a server there answers (rlinf serve); empty for the trainer's, here"),
    "trainer": ("", None, "host:port of the trainer's bridge (rlinf train RECIPE); empty as in the recipe"),
    "credentials": ("", None, "for a trainer on another machine: the folder of rlinf fleet enroll; empty as in the recipe"),
    "token": ("", None, "for another user's trainer on this machine: a copy of bridge.token of its run "
              "folder; empty as in the recipe"),
    "web": ("", None, "the operator's page on this port, e.g. 8080 (docs/howto/operator_page.md); empty for none"),
    "director": ("false", ["true", "false"], "also go through the recipe's phases: collect, evaluate, improve, evaluate"),
    "episodes": ("0", None, "collect so many successful demonstrations in run_dir, those there among them, and end (rlinf "
                 "collect); 0: the station alone"),
    "run_dir": ("runs/station", None, "where the spool, policies and logs go"),
}
UNTIL_IT_CAN_ANSWER = "env --block-signal=INT --block-signal=TERM"  # Python's own answer, while it starts, is a traceback


def description(**defaults: str) -> LaunchDescription:
    """A launch description with every argument declared; ``defaults`` differ by launch file."""
    declared = [DeclareLaunchArgument(name, default_value=defaults.get(name, default), description=text,
                                      **({"choices": choices} if choices else {}))
                for name, (default, choices, text) in ARGUMENTS.items()]
    return LaunchDescription([*declared, OpaqueFunction(function=_start)])


def find_rlinf() -> str:
    """The Python that rlinf is installed for: launch runs in ROS's own. Makes rlinf importable here, too."""
    from rlinf_ros.interpreter import importable

    return importable()


def _start(context: LaunchContext) -> list:
    find_rlinf()
    from rlinf_core.cli.demo import next_steps
    from rlinf_core.cli.launched import launched, launched_environment
    from rlinf_core.launch.graph import SHUTDOWN, operator_process
    from rlinf_core.robots.operators import SCRIPTED

    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    invocation = launched(value)
    recipe, run_dir, wanted = invocation.recipe, invocation.run_dir, invocation.wanted
    if not invocation.processes:
        return [LogInfo(msg=f"{invocation.before.succeeded} of {wanted} demonstrations are in {run_dir} already")]
    actions: list = [SetEnvironmentVariable(*pair) for pair in launched_environment(recipe).items()]
    for process in invocation.processes:
        node = node_of(process, process.name, run_dir)
        actions.append(node)
        if process.restart == SHUTDOWN:
            actions.append(_end_with(node, process.name))
        elif wanted and process.name == "director":
            actions.append(RegisterEventHandler(OnProcessExit(target_action=node, on_exit=[
                EmitEvent(event=Shutdown(reason=f"collecting ended; rlinf data list {run_dir}"))])))
    if recipe.station.operator.kind != SCRIPTED and not recipe.station.web.port:
        operator = operator_process(recipe)
        parameters = {
            key: repr(val) if str(val).startswith("{") else val
            for key, val in operator.parameters.items()
            if val
        }
        settings = " ".join(f"-p {shlex.quote(f'{key}:={val}')}" for key, val in parameters.items())
        renamed = "".join(f"-r {old}:={new} " for old, new in operator.remappings)
        actions.append(LogInfo(msg="be the operator in a terminal of your own: ros2 run rlinf operator --ros-args "
                                   f"-r __ns:={operator.namespace} {renamed}{settings}"))
    directed = value["director"] == "true" or wanted > 0
    actions.append(LogInfo(msg=next_steps(recipe, value["recipe"], invocation.overrides, run_dir, directed)))
    return actions


def node_of(process: Process, name: str, run_dir: Path, **more: Any) -> Node:
    """A process of a station; launch shows it by that name.

    Its parameters go to a folder of this launch: another one in the same run, though it is refused, shall not change them.
    """
    from rlinf_core.launch.graph import RESPAWN
    from rlinf_core.launch.supervisor import parameters_file

    folder = run_dir / f"params/launch-{os.getpid()}"
    return Node(package=process.package, executable=process.executable, name=process.executable,
                namespace=process.namespace, parameters=[str(parameters_file(process, folder))],
                remappings=list(process.remappings),
                respawn=process.restart == RESPAWN, respawn_delay=1.0, prefix=UNTIL_IT_CAN_ANSWER, exec_name=name,
                output="screen", emulate_tty=sys.stdout.isatty(), **more)


def _end_with(node: Node, name: str) -> RegisterEventHandler:
    return RegisterEventHandler(OnProcessExit(target_action=node, on_exit=[
        LogInfo(msg=f"{name} ended, and the station cannot go on without it"),
        EmitEvent(event=Shutdown(reason=f"{name} ended"))]))
