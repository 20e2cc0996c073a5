"""A trainer and simulated stations, each in its own ROS_DOMAIN_ID.

    ros2 launch rlinf fleet.launch.py stations:=4

It ends once every station has completed its recipe, or the trainer has reported why it cannot
continue. A failing station is stopped alone, and named.
"""

import sys
from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.events.process import ShutdownProcess
from launch.substitutions import LaunchConfiguration

from launch import LaunchContext, LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))
ARGUMENTS = {
    "recipe": ("demo", "recipe: a name in configs/ or a YAML file"),
    "stations": (
        "2",
        "number of stations (station_1, station_2, ...) or their names: 'kitchen lab'",
    ),
    "set": (
        "",
        "overrides of the recipe, as of rlinf --set: 'station.lockstep=false bridge.port=50552'",
    ),
    "run_dir": (
        "runs/fleet",
        "run folder of the trainer; those of the stations are below it. An existing run continues",
    ),
}


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=_start)])


def _start(context: LaunchContext) -> list:
    from station import find_rlinf

    python = find_rlinf()
    from rlinf_core.cli.launch_arguments import parse_folder
    from rlinf_core.config.overrides import split_overrides
    from rlinf_core.core.errors import REFUSED
    from rlinf_core.launch.fleet import members
    from rlinf_core.launch.graph import trainer_process
    from rlinf_core.trainer.folder import write_recipe

    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    run_dir = parse_folder("run_dir", value["run_dir"])
    recipe, station_members = members(
        value["recipe"], split_overrides(value["set"]), value["stations"].split(), run_dir
    )
    write_recipe(recipe, run_dir)
    prepared_stations = [(member, member.prepare()) for member in station_members]
    process = trainer_process(run_dir)
    trainer = ExecuteProcess(
        cmd=[python, *process.parameters["command"][1:]],
        name=process.name,
        respawn=True,
        respawn_delay=1.0,
        output="screen",
        sigterm_timeout=str(process.stop_s),
    )
    reason = "the trainer cannot continue; its output above has the reason"
    refusal_actions = [LogInfo(msg=reason), EmitEvent(event=Shutdown(reason=reason))]
    on_trainer_exit = RegisterEventHandler(
        OnProcessExit(  # within the delay, so that it is not started again
            target_action=trainer,
            on_exit=lambda event, context: refusal_actions if event.returncode == REFUSED else None,
        )
    )
    playing_stations = {member.name for member in station_members}
    return [
        on_trainer_exit,
        trainer,
        *(
            action
            for member, processes in prepared_stations
            for action in _station(member, processes, playing_stations)
        ),
        LogInfo(msg=f"their state: rlinf fleet status {run_dir}"),
    ]


def _station(member, processes: list, playing_stations: set) -> list:
    """Return a station's nodes; the end of the director or of a vital node ends the station."""
    from station import environment_in, nodes_of, watched

    from rlinf_core.cli.launch_arguments import launch_environment
    from rlinf_core.launch.graph import ONCE

    variables = environment_in(launch_environment(member.recipe))
    nodes = nodes_of(processes, member.folder, f"{member.name}.", additional_env=variables)

    def end(outcome: str) -> list:
        if member.name not in playing_stations:  # it is already ending
            return []
        playing_stations.discard(member.name)
        others = [EmitEvent(event=ShutdownProcess(process_matcher=lambda action: action in nodes))]
        return [
            LogInfo(msg=f"station '{member.name}' {outcome}"),
            *others,
            *(
                []
                if playing_stations
                else [EmitEvent(event=Shutdown(reason="no station is playing"))]
            ),
        ]

    def on_death(text: str, _exit_code: int) -> list:
        return end(f"died: {text}")

    def on_director_exit(event, context: LaunchContext) -> list:
        if context.is_shutdown:
            return []
        return end(
            "is through"
            if event.returncode == 0
            else f"died: director ended, exit code {event.returncode}"
        )

    handlers = [
        handler
        for process, node in zip(processes, nodes, strict=True)
        for handler in (
            [RegisterEventHandler(OnProcessExit(target_action=node, on_exit=on_director_exit))]
            if process.restart == ONCE
            else watched(process, node, on_death)
        )
    ]
    return [*handlers, *nodes]
