"""Stands in for RoboTwin 2: one of its tasks by name, on SAPIEN's own physics.

What the adapter uses is as RoboTwin has it: ``setup_demo``, a robot with a left arm and its drives,
the tool's pose with x forward, gripper values from 0 to 1, cameras, ``check_success``; the arm is
ManiSkill's Panda, turned to look along y. As of its default robot, the arm stands on a footprint
whose root is on the floor.

Quoted from RoboTwin-Platform/RoboTwin: envs/place_empty_cup.py@59518f8 "cup_xlim = [[0.15, 0.3],
[-0.3, -0.15]]", "coaster_lim = [[-0.05, 0.1], [-0.1, 0.05]]", "tag = np.random.randint(0, 2)";
envs/robot/robot.py@1babc74 "robot_pose", [[0, -0.65, 0, 1, 0, 0, 1]]; is_left_gripper_open: more
than 0.8.
"""
