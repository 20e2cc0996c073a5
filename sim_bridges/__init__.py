"""Simulators behind the robot interface: one file each, plus the ROS bridge and the vectorised environment they share."""
