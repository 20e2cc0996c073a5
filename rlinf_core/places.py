"""Where configs/ and robots/ are: in the source tree, or in the share folder of the installed ROS package."""

from __future__ import annotations

from pathlib import Path

from rlinf_core.errors import RlinfError

SOURCE = Path(__file__).resolve().parents[1]


def shared() -> Path:
    """The folder that holds ``configs`` and ``robots``."""
    if (SOURCE / "configs").is_dir():
        return SOURCE
    try:
        from ament_index_python.packages import get_package_share_directory

        return Path(get_package_share_directory("rlinf"))
    except LookupError as error:
        raise RlinfError("configs/ and robots/: expected them beside rlinf_core or in the installed ROS package 'rlinf'. "
                         "Source the workspace: . ros_ws/install/setup.sh") from error
