"""Where ROS 2's own tools are: sourced, named by RLINF_ROS_SETUP, or beside the wheels (scripts/ros2_tools.sh)."""

import os
import shutil
import sys
from pathlib import Path

import pytest

BESIDE = Path(sys.prefix) / "ros2/setup.sh"
SETUP = os.environ.get("RLINF_ROS_SETUP", "") or (str(BESIDE) if BESIDE.exists() else "")
needs_ros2 = pytest.mark.skipif(not (SETUP or shutil.which("ros2")), reason="no ros2: source ROS 2, let RLINF_ROS_SETUP "
                                "name its setup.sh, or run scripts/ros2_tools.sh")
