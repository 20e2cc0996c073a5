"""Collects demonstrations by hand, until ``episodes`` have succeeded.

episodes:=0 only runs the station.
"""

import sys
from pathlib import Path

from launch import LaunchDescription

sys.path.insert(0, str(Path(__file__).resolve().parent))


def generate_launch_description() -> LaunchDescription:
    from station import description

    return description(operator="person", episodes="20", run_dir="runs/collected")
