"""The simulator interface, and its front ends for ROS, Gymnasium and checks."""
