"""ROS 2 nodes of a station, one file each."""
