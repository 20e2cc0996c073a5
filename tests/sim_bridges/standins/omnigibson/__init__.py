"""Stands in for OmniGibson, which needs Isaac Sim, a GPU and an encrypted dataset: what the adapter uses, without physics.

The robot stands turned in its home, so that frames can be told apart; quaternions are xyzw, as OmniGibson has them.
"""

import gymnasium
import numpy as np
import torch
from world import World

TURN, PLACE = 0.7, np.array([1.0, 2.0, 0.0])  # of the robot in its home [rad], [m]
BASE = np.array([0.0, 0.0, np.sin(TURN / 2), np.cos(TURN / 2)])
ROTATION = np.array([[np.cos(TURN), -np.sin(TURN), 0], [np.sin(TURN), np.cos(TURN), 0], [0, 0, 1]])


class Thing:
    def __init__(self, where):
        self.where = where

    def get_position_orientation(self):
        return tensor(ROTATION @ self.where() + PLACE), tensor(BASE)


class Robot:
    name, default_arm, action_dim = "robot", "0", 7
    joints = {f"panda_joint{i}": None for i in range(1, 8)} | {"panda_finger_joint1": None, "panda_finger_joint2": None}
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
        self.object_scope = {"candle.n.01_1": Thing(lambda: world.cube), "cabinet.n.01_1": Thing(lambda: world.goal)}


class Environment(gymnasium.Env):
    def __init__(self, configs):
        arm = configs["robots"][0]["controller_config"]["arm_0"]
        assert arm["mode"] == "absolute_pose" and arm["command_input_limits"] is arm["command_output_limits"] is None
        assert configs["robots"][0]["action_normalize"] is False
        self.seconds, self.world = 1 / configs["env"]["action_frequency"], World(goal_height=(0.02, 0.02))
        self.task, self.robots = Task(self.world), [Robot(self.world)]

    def reset(self):
        self.world.reset(int(np.random.randint(2**31)))  # OmniGibson draws from the global generators
        return [{}], [{}]

    def step(self, action):
        values = action["robot"].double().numpy()
        angle = np.linalg.norm(values[3:6])
        quaternion = np.append(values[3:6] / max(angle, 1e-9) * np.sin(angle / 2), np.cos(angle / 2))
        self.world.step(values[:3], quaternion, 0.04 * (values[6] + 1.0), self.seconds)
        near = np.linalg.norm(self.world.cube[:2] - self.world.goal[:2]) < 0.05
        done = near and self.world.held is None and self.world.cube[2] < 0.05
        return [{}], torch.zeros(1), torch.tensor([done]), torch.tensor([False]), [{}]

    def render(self):
        return torch.from_numpy(self.world.picture(480, 640))


def tensor(values):
    return torch.tensor(np.asarray(values), dtype=torch.float32)
