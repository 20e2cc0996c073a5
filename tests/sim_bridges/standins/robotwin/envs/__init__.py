"""Stands in for RoboTwin 2, whose robots and objects cannot be had here: one of its tasks by name, on SAPIEN's own physics.

What the adapter uses is as RoboTwin has it: ``setup_demo``, a robot with a left arm and its drives, the tool's pose with x
forward, gripper values from 0 to 1, cameras, ``check_success``; the arm is ManiSkill's Panda, turned to look along y.
"""
