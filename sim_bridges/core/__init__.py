"""The simulator interface and its front ends: ROS, Gymnasium, conformance checks, isolated
environments.
"""
