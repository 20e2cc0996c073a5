"""A station with its nodes.

ros2 launch rlinf realworld.launch.py robot:=franka    (robot:=sim to try it)
"""

import sys
from pathlib import Path

from launch import LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))


def generate_launch_description() -> LaunchDescription:
    from station import description

    return description()
