"""The safety drill against a simulated station: every scenario of configs/drill.yaml, and the table at the end.

    ros2 launch rlinf safety_drill.launch.py only:="e-stop" json:=drill.json
"""

from launch.actions import DeclareLaunchArgument, EmitEvent, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    drill = Node(package="rlinf", executable="drill", output="screen", emulate_tty=True,
                 arguments=["--only", LaunchConfiguration("only"), "--json", LaunchConfiguration("json")])
    return LaunchDescription([
        DeclareLaunchArgument("only", default_value="", description="scenarios whose name contains this"),
        DeclareLaunchArgument("json", default_value="drill.json", description="where the rows go"),
        drill,
        RegisterEventHandler(OnProcessExit(target_action=drill, on_exit=[EmitEvent(event=Shutdown())])),
    ])
