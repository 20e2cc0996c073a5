"""Simulators behind the robot interface: one folder each, plus the ROS bridge and the vectorised environment they share."""
