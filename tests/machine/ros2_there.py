"""Find ROS 2's own tools: sourced, from RLINF_ROS_SETUP, or from scripts/ros2_tools.sh."""

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

VENV_SETUP = Path(sys.prefix) / "ros2/setup.sh"
SETUP = os.environ.get("RLINF_ROS_SETUP", "") or (str(VENV_SETUP) if VENV_SETUP.exists() else "")
needs_ros2 = pytest.mark.skipif(
    not (SETUP or shutil.which("ros2")),
    reason="no ros2: source ROS 2, let RLINF_ROS_SETUP "
    "name its setup.sh, or run scripts/ros2_tools.sh",
)


def as_installed(folder):
    """Return shell lines after SETUP that give ros2 a Python with ROS's packages but without ours.

    This is the situation with a ROS in /opt/ros.
    """
    if str(VENV_SETUP) != SETUP:
        return ""
    packages, ros2 = folder / "packages", folder / "bin/ros2"
    packages.mkdir(parents=True)
    ros2.parent.mkdir()
    for distribution in metadata.distributions():
        # ROS's own packages, and those that it installs by apt.
        if distribution.name.startswith("ros-") or distribution.name.lower() in (
            "numpy",
            "psutil",
            "pyyaml",
        ):
            for name in {file.parts[0] for file in distribution.files or ()} - {
                path.name for path in packages.iterdir()
            }:
                if name != ".." and not name.endswith(".pth"):
                    (packages / name).symlink_to(distribution.locate_file(name))
    ros2.write_text(f'#!/bin/sh\nexec {sys._base_executable} {VENV_SETUP.parent}/bin/ros2 "$@"\n')
    ros2.chmod(0o755)
    return (
        f'export PATH="{ros2.parent}:$PATH" PYTHONPATH="$PYTHONPATH:{packages}" '
        f"_ROS_WHEELS_BOOTSTRAP_COMPLETE=1; "
    )
