"""Simulators behind the robot interface: one folder each, and the ROS bridge and environments that
they share.
"""
