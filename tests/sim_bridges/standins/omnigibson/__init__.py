"""Stands in for OmniGibson, without physics, GPU and the encrypted data set.

The robot stands turned in its home, so that frames can be told apart; quaternions are xyzw, as
OmniGibson has them.

Quoted from StanfordVL/BEHAVIOR-1K, OmniGibson/omnigibson: tasks/behavior_task.py@01f0ed2
"object_scopes[env_idx] maps BDDL instance name (str) to sim object",
"use_presampled_robot_pose=True", "activity_instance_id=0" and get_presampled_robot_poses' KeyError;
envs/env_base.py@006d10e robots by environment.
"""

import os

import gymnasium
import numpy as np
import torch
from world import World

TURN, PLACE = 0.7, np.array([1.0, 2.0, 0.0])  # of the robot in its home [rad], [m]
BASE = np.array([0.0, 0.0, np.sin(TURN / 2), np.cos(TURN / 2)])
__version__ = os.environ.get("STANDIN_OMNIGIBSON", "3.7.2")
ROTATION = np.array([[np.cos(TURN), -np.sin(TURN), 0], [np.sin(TURN), np.cos(TURN), 0], [0, 0, 1]])


class Thing:
    def __init__(self, where):
        self.where = where

    def get_position_orientation(self):
        return tensor(ROTATION @ self.where() + PLACE), tensor(BASE)

    def set_position_orientation(self, position, orientation):
        self.where()[:] = ROTATION.T @ (position.double().numpy() - PLACE)


class Robot:
    name, default_arm, action_dim = "robot", "0", 7
    joints = {f"panda_joint{i}": None for i in range(1, 8)} | {
        "panda_finger_joint1": None,
        "panda_finger_joint2": None,
    }
    arm_control_idx, gripper_control_idx = {"0": torch.arange(7)}, {"0": torch.arange(7, 9)}
    controller_action_idx = {"arm_0": torch.arange(6), "gripper_0": torch.arange(6, 7)}

    def __init__(self, world):
        self.world = world

    def get_position_orientation(self):
        return tensor(PLACE), tensor(BASE)

    def get_relative_eef_pose(self, arm):
        return tensor(self.world.position), tensor(self.world.quaternion)

    def get_relative_eef_lin_vel(self, arm):
        return tensor(self.world.velocity)

    def get_relative_eef_ang_vel(self, arm):
        return torch.zeros(3)

    def get_joint_positions(self):
        return tensor([0.1] * 7 + [self.world.opening / 2] * 2)


class Task:
    def __init__(self, world):
        self.object_scopes = [
            {
                "candle.n.01_1": Thing(lambda: world.cube),
                "cabinet.n.01_1": Thing(lambda: world.goal),
            }
        ]


class Environment(gymnasium.Env):
    def __init__(self, configs):
        arm = configs["robots"][0]["controller_config"]["arm_0"]
        assert (
            arm["mode"] == "absolute_pose"
            and arm["command_input_limits"] is arm["command_output_limits"] is None
        )
        assert configs["robots"][0]["action_normalize"] is False
        assert os.environ["OMNIGIBSON_HEADLESS"] == "1", "wants a display"
        if configs["task"].get("use_presampled_robot_pose", True):
            raise KeyError("No generic or 'franka' presampled robot pose found for franka!")
        self.seconds = 1 / configs["env"]["action_frequency"]
        self.world = World(goal_height=(0.02, 0.02))
        self.task, self.robots = Task(self.world), [[Robot(self.world)]]

    def reset(self):
        self.world.reset(0)  # a cached activity restores one recorded instance
        return [{}], [{}]

    def step(self, action):
        values = action["robot"].double().numpy()
        angle = np.linalg.norm(values[3:6])
        quaternion = np.append(
            values[3:6] / max(angle, 1e-9) * np.sin(angle / 2), np.cos(angle / 2)
        )
        self.world.step(values[:3], quaternion, 0.04 * (values[6] + 1.0), self.seconds)
        near = np.linalg.norm(self.world.cube[:2] - self.world.goal[:2]) < 0.05
        done = near and self.world.held is None and self.world.cube[2] < 0.05
        return [{}], torch.zeros(1), torch.tensor([done]), torch.tensor([False]), [{}]

    def render(self):
        return torch.from_numpy(self.world.picture(480, 640))


def tensor(values):
    return torch.tensor(np.asarray(values), dtype=torch.float32)
