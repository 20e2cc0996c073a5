"""Simulators behind the robot interface, and the parts that they share."""
