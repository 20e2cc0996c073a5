"""Stands in for LeRobot: the calls of our worker, and a policy that a test can compute."""
