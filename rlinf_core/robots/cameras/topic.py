"""A camera that somebody else publishes: its vendor's ROS driver, a simulator."""

from __future__ import annotations

from rlinf_core.robots.cameras import CameraSettings


class Camera(CameraSettings):
    """The settings of a camera that no node of ours reads.

    If its driver uses other topic names, ``topics`` in robot.yaml maps them.
    """
