"""A station with its nodes.

ros2 launch rlinf_bringup station.launch.py robot:=franka recipe:=my.yaml log_level:=debug
"""

import sys
from pathlib import Path

from launch import LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))


def generate_launch_description() -> LaunchDescription:
    from station import description

    return description()
