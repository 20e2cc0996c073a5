"""The safety drill against a simulated station: every scenario of configs/drill.yaml, and the table
at the end.

ros2 launch rlinf safety_drill.launch.py only:="e-stop" json:=drill.json
"""

import os
import sys
from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "only", default_value="", description="scenarios whose name contains this"
            ),
            DeclareLaunchArgument(
                "json", default_value="drill.json", description="file for the rows"
            ),
            OpaqueFunction(function=_start),
        ]
    )


def _start(context: LaunchContext) -> list:
    from station import environment_in, find_rlinf, program_of

    python = find_rlinf()
    from rlinf_core.cli.launch_arguments import parse_file
    from rlinf_core.core.ros import process_environment
    from rlinf_core.launch.graph import Process

    domain = environment_in(
        process_environment(int(os.environ.get("ROS_DOMAIN_ID") or 42))
        | {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    )
    only, rows = (LaunchConfiguration(name).perform(context) for name in ("only", "json"))
    program = program_of(Process("drill", "rlinf_tools", "drill", "rlinf_tools.drill", ""), python)
    arguments = [
        *program.pop("arguments", []),
        "--only",
        only,
        "--json",
        str(parse_file("json", rows)),
    ]
    drill = Node(**program, name="drill", output="screen", emulate_tty=True, arguments=arguments)
    ended = OnProcessExit(target_action=drill, on_exit=[EmitEvent(event=Shutdown())])
    return [
        *(SetEnvironmentVariable(*pair) for pair in domain.items()),
        drill,
        RegisterEventHandler(ended),
    ]
