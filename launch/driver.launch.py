"""The vendor's driver and controllers of a robot.

ros2 launch rlinf driver.launch.py robot:=ur5e robot_ip:=192.168.1.2
"""

import shlex
import sys
from pathlib import Path

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

from launch import LaunchContext, LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "robot", description="a robot of robots/, or the path of one, with a bringup.yaml"
            ),
            DeclareLaunchArgument("robot_ip", description="address of the robot"),
            DeclareLaunchArgument(
                "arguments",
                default_value="",
                description="more arguments of the vendor's launch file, "
                "separated by spaces: 'use_mock_hardware:=true launch_rviz:=true'",
            ),
            DeclareLaunchArgument(
                "namespace", default_value="station_a", description="name of the station"
            ),
            OpaqueFunction(function=_start),
        ]
    )


def _start(context: LaunchContext) -> list:
    from station import find_rlinf

    find_rlinf()
    from rlinf_core.robots.bringup import PARAMETERS, bringup

    robot, robot_ip, station, more = (
        LaunchConfiguration(name).perform(context)
        for name in ("robot", "robot_ip", "namespace", "arguments")
    )
    vendor, folder = bringup(robot, station, robot_ip)
    added = vendor.with_arguments(shlex.split(more))
    source = PathJoinSubstitution([FindPackageShare(vendor.package), "launch", vendor.launch])
    parameters = (
        ["--param-file", str(folder / PARAMETERS)] if (folder / PARAMETERS).is_file() else []
    )
    spawner = Node(
        package="controller_manager",
        executable="spawner",
        output="screen",
        arguments=[
            *vendor.controllers,
            "--controller-manager",
            vendor.controller_manager,
            *parameters,
        ],
    )
    return [
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(source), launch_arguments=added.arguments.items()
        ),
        *([spawner] if vendor.controllers else []),
    ]
