"""A simulated station at full speed (lockstep)."""

import sys
from pathlib import Path

from launch import LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))


def generate_launch_description() -> LaunchDescription:
    from station import description

    return description(lockstep="true")
