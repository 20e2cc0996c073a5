"""Episodes: the unit of data.

Rosbag2 folders (MCAP) on disk, arrays in memory, no ROS needed to read them.
"""

from rlinf_core.episodes.read import read_episode
from rlinf_core.episodes.types import Episode

__all__ = ["Episode", "read_episode"]
